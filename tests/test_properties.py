"""Properties that hold on every graph, tried on thousands of small ones: dense algebra is the oracle.

``make test`` runs the same examples every time. ``HYPOTHESIS_PROFILE=deep`` draws new ones, ten times as many.
"""

from __future__ import annotations

import math
import os
import random
import warnings
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from linear_operator import to_dense
from oracles import CLOSED_FORMS
from strategies import Problem, generator, graphs, indices, normal, problems, right_hand_sides, rotation, seeds
from torch import Tensor

from swing_gp import (
    AccuracyWarning,
    Ball,
    ConvergenceWarning,
    Diffusion,
    DiffusionKernel,
    Gaussian,
    ImplicitGraph,
    InverseCosine,
    InverseCosineKernel,
    LogMatern,
    LogMaternKernel,
    Matern,
    MaternGraphKernel,
    NeighborFeatures,
    PairwiseFeatures,
    PowerSeries,
    RandomWalk,
    RandomWalkKernel,
    RegularizedLaplacian,
    RegularizedLaplacianKernel,
    Series,
    Walks,
    adjacency,
    graph_kernel,
    solve,
)
from swing_gp.features.auto import choose_features, default_tol
from swing_gp.features.grid import count_modes, position_rounding
from swing_gp.features.neighbors import list_cutoff
from swing_gp.graphs.edges import Laplace
from swing_gp.operators.grid_kernel import GridKernelLinearOperator
from swing_gp.operators.low_rank_kernel import FeatureKernelLinearOperator
from swing_gp.operators.low_rank_plus_diagonal import LowRankPlusDiagonal
from swing_gp.operators.polynomial_kernel import SeriesLinearOperator

UNHURRIED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}
settings.register_profile("default", derandomize=True, database=None, **UNHURRIED)
settings.register_profile("deep", database=None, **UNHURRIED)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "default")
settings.load_profile(PROFILE)


def examples(number: int) -> settings:
    return settings(settings.get_profile(PROFILE), max_examples=number * (10 if PROFILE == "deep" else 1))


# Dense truth, in float64 whatever the graph is, and how far from it rounding and approximation may lead


def double(graph: ImplicitGraph) -> ImplicitGraph:
    return ImplicitGraph(graph.points.double(), graph.edge, graph.normalization)


def spectrum(graph: ImplicitGraph) -> tuple[Tensor, Tensor, Tensor]:
    """Eigenvalues and -vectors of the symmetric matrix (of W for raw weights), and the degrees."""
    points = graph.points.double()
    weights = graph.edge(points.unsqueeze(1) - points.unsqueeze(0))
    degree = weights.sum(-1)
    if graph.normalization is not None:
        weights = weights / torch.outer(degree.sqrt(), degree.sqrt())
    return *torch.linalg.eigh(weights), degree


def dense(problem: Problem) -> Tensor:
    values, vectors, degree = spectrum(problem.graph)
    kernel = (vectors * CLOSED_FORMS[type(problem.series)](problem.series, values)) @ vectors.mT
    if problem.graph.normalization == "random_walk":
        return kernel * degree.sqrt() / degree.sqrt().unsqueeze(-1)
    return kernel


def steepness(of: Series, radius: float) -> float:
    r"""A bound on :math:`|g(A) - g(B)| / |A - B|` in the spectral norm, for symmetric matrices of norm up to ``radius``.

    It is :math:`\sum_k k |\alpha_k| r^{k-1}`, the slope of g at the radius where no coefficient is negative. The Taylor series
    of LogMatern ends at its floor; there the largest slope stands in, times two for matrices instead of numbers.
    """
    at = torch.tensor(radius, dtype=torch.float64)
    if isinstance(of, LogMatern):
        start = 2 * of.nu / of.kappa**2 + math.log1p(1 / of.floor)
        ends = [of.nu / of.floor * start ** (-of.nu - 1), of.nu / (1 + of.floor) * (2 * of.nu / of.kappa**2) ** (-of.nu - 1)]
        return 2 * float(max(ends))
    if isinstance(of, InverseCosine):
        return math.pi / 4 * math.exp(math.pi / 4 * radius)
    if isinstance(of, PowerSeries):
        of = PowerSeries(of.alpha.abs())
    at.requires_grad_(True)
    (slope,) = torch.autograd.grad(CLOSED_FORMS[type(of)](of, at) + 0 * at, at)
    return float(slope)


def moved_weight(graph: ImplicitGraph, away: Tensor) -> float:
    """By how much a weight may change if points are rounded where they are: ``away`` from where they are counted from."""
    edge = graph.edge
    slope = 1.0  # of f, in lengthscales: 0.61 for a Gaussian, 1 for Laplace
    if isinstance(edge, Ball):
        slope = 0.5 / edge.softness if edge.softness else 0.0  # no pair lies at the radius
    far = float((away.double() / edge.lengthscale.double()).abs().max())
    return 2 * slope * math.sqrt(graph.dim) * torch.finfo(graph.points.dtype).eps * far


def allowance(problem: Problem, error: float = 0.0, tol: float | None = None) -> float:
    """How far an entry of K may be off if every weight is off by ``error`` and by rounding, and the series by ``tol``.

    Coordinates are rounded once more when they are divided by the lengthscale, which moves a point by a rounding error of how
    far it is from the centre; the slope of f says what that does to a weight. An error e of all weights changes W and the
    degrees by N e, so the normalised matrix by 2 N e over the least degree, in the spectral norm. The series turns that into a
    change of K, and a polynomial rounds itself, in some hundred terms.
    """
    graph, number = problem.graph, problem.graph.num_nodes
    eps = torch.finfo(graph.points.dtype).eps
    weight = error + eps * (8 + graph.dim) + moved_weight(graph, graph.points.double() - graph.points.double().mean(0))
    values, _, degree = spectrum(graph)
    radius = max(1.0, float(values.abs().max()))
    size = float(CLOSED_FORMS[type(problem.series)](problem.series, values).abs().max())
    share = number / float(degree.min()) if graph.normalization else number
    change = 2 * share * weight * steepness(problem.series, radius) + (1000 * eps + (tol or 0.0)) * size
    if graph.normalization == "random_walk":
        change *= float((degree.max() / degree.min()).sqrt())
    return change


def weight_beyond(graph: ImplicitGraph, tol: float) -> float:
    """The largest weight that a list leaves out."""
    if isinstance(graph.edge, Ball) and not graph.edge.softness:
        return 0.0
    axis = torch.zeros(1, graph.dim, dtype=torch.float64)
    axis[0, 0] = list_cutoff(graph, tol) * graph.edge.lengthscale.double().reshape(-1)[0]
    return float(graph.edge(axis))


def routes(graph: ImplicitGraph) -> dict[str, tuple[float | None, float]]:
    """For every route that a graph has, the tolerance to ask for and the error of a weight that comes of it."""
    single = graph.points.dtype == torch.float32
    edge = graph.edge
    tight = 1e-5 if single else 1e-9
    found: dict[str, tuple[float | None, float]] = {"pairwise": (None, 0.0), "neighbors": (tight, weight_beyond(graph, tight))}
    if edge.positive_definite:
        # Every node may be a landmark. What is left is the floor of the pivots (1e-12, in float32 1e-6) or, in float64,
        # rounding times the largest inverse pivot, 1e-16 times 1e6.
        found["landmarks"] = (None, 3e-6 if single else 1e-9)
    smooth = not isinstance(edge, Laplace) and not (isinstance(edge, Ball) and not edge.softness)
    rounded = position_rounding(graph)  # of a few points in a wide box, which grids warn of
    if smooth and (count_modes(graph, tight) or math.inf) < 3000 and rounded < tight / 4:
        # A weight takes errors from a few periodic images and from the frequencies left out.
        found["grid"] = (tight, 3 * tight)
    return found


def build(problem: Problem, route: str, tol: float | None = None, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("error", AccuracyWarning)
        return graph_kernel(problem.graph, problem.series, features=route, tol=tol, **options)


def close(ours: Tensor, truth: Tensor, allowed: float) -> None:
    error = float((ours.double() - truth).abs().max()) if truth.numel() else 0.0
    assert ours.shape == truth.shape
    assert error <= allowed, f"off by {error:.3g}, allowed {allowed:.3g}, of {float(truth.abs().max()):.3g}"


EVERYWHERE = {"normalizations": ("symmetric", "random_walk", None)}
COVARIANCES = {"normalizations": ("symmetric", None)}


@contextmanager
def untouched_randomness():
    """Nothing draws from a global random state."""
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    yield
    assert torch.equal(before[0], torch.random.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])  # noqa: NPY002
    assert before[2] == random.getstate()


# Products


@examples(400)
@given(problem=problems(**EVERYWHERE), data=st.data())
def test_every_route_is_the_dense_kernel(problem, data):
    found = routes(problem.graph)
    route = data.draw(st.sampled_from(sorted(found)))
    tol, error = found[route]
    truth, allowed = dense(problem), allowance(problem, error, tol)
    assume(allowed < 0.02 * float(truth.abs().max()))  # else nothing would be tested
    with untouched_randomness():
        close(build(problem, route, tol).to_dense(), truth, allowed)


@examples(150)
@given(problem=problems(**EVERYWHERE), data=st.data())
def test_auto_meets_its_tolerance(problem, data):
    tol = data.draw(st.sampled_from([None, 1e-3, 1e-5]))
    with untouched_randomness():
        operator = graph_kernel(problem.graph, problem.series, tol=tol)
    goal = operator.info.predicted_error
    # What landmarks leave of W is a positive matrix of trace at most N tol: row sums of at most N^1.5 tol.
    error = {"landmarks": 3 * problem.graph.num_nodes**0.5 * goal, "neighbors": weight_beyond(problem.graph, goal)}
    truth = dense(problem)
    allowed = allowance(problem, error.get(operator.info.method, 3 * goal), goal)
    close(operator.to_dense(), truth, allowed)


@examples(200)
@given(problem=problems(**EVERYWHERE), data=st.data())
def test_products_take_right_hand_sides_of_every_shape(problem, data):
    found = routes(problem.graph)
    route = data.draw(st.sampled_from(sorted(found)))
    tol, error = found[route]
    rhs = data.draw(right_hand_sides(problem.graph.num_nodes, problem.graph.points.dtype))
    operator, truth = build(problem, route, tol), dense(problem)
    # Every entry of K is off by no more than allowed, so a product by that times the sum of the right-hand side.
    total = rhs.abs().sum(-1 if rhs.dim() == 1 else -2)
    allowed = allowance(problem, error, tol) * (1 + (float(total.max()) if total.numel() else 0))
    before = rhs.clone()
    for ours, matrix in ((operator, truth), (operator.mT, truth.mT)):
        product = ours @ rhs
        assert product.dtype == rhs.dtype
        close(product, matrix @ rhs.double(), allowed)
    assert torch.equal(rhs, before)


@examples(100)
@given(
    spacing=st.floats(0.01, 100),
    steps=st.integers(1, 3),
    dim=st.integers(1, 3),
    dtype=st.sampled_from([torch.float64, torch.float32]),
    norm=st.sampled_from(["l1", "l2", "linf"]),
    away=st.integers(0, 20),
)
def test_lists_miss_no_edge_of_a_hard_ball(spacing, steps, dim, dtype, norm, away):
    """On a lattice whose neighbours lie at the radius itself, but for rounding."""
    lattice = torch.cartesian_prod(*[torch.arange(4, dtype=dtype) + away] * dim).reshape(-1, dim)
    graph = ImplicitGraph(spacing * lattice, Ball(steps * spacing, norm=norm), None)
    one, two = (adjacency(features).to_dense() for features in (NeighborFeatures(graph), PairwiseFeatures(graph)))
    assert torch.equal(one, two)
    ranks = {"l1": 1.0, "l2": 2.0, "linf": math.inf}
    counted = torch.cdist(lattice.double(), lattice.double(), p=ranks[norm]) <= steps + 1e-9
    # Far from the origin a spacing is rounded by more than the few units that a radius forgives.
    if away == 0 or spacing == 1:
        assert torch.equal(one.bool(), counted)


# Symmetry, positivity, linearity: of approximations too, however coarse


@st.composite
def operators(draw, **options):
    """Operators of all routes, with coarse ones: few landmarks, random features, walks. Returns them with their problem."""
    problem = draw(problems(**options))
    graph = problem.graph
    exact = ["auto"] if problem.series.steep else ["auto", "neighbors", "pairwise"]  # a steep series is no polynomial
    coarse = ["few landmarks"] if graph.edge.positive_definite else []
    if isinstance(graph.edge, Gaussian):
        coarse += ["positive", "fourier"] + (["walks", "positive walks"] if graph.normalization else [])
    if "grid" in routes(graph) and not problem.series.steep:
        exact.append("grid")
    route = draw(st.sampled_from(exact + coarse))
    options = {"seed": draw(seeds)}
    if route == "few landmarks":
        route, options["num_features"] = "landmarks", draw(st.integers(1, 6))
    elif route in ("positive", "fourier", "positive walks"):
        options["num_features"] = draw(st.integers(1, 40))
    if route.endswith("walks"):
        problem = Problem(graph, Diffusion(1.0))
        options["walks"] = Walks(draw(st.integers(1, 3)), sides=1 if graph.normalization == "random_walk" else 2)
        route = "positive" if route == "positive walks" else "pairwise"
    try:
        with untouched_randomness():
            return problem, graph_kernel(graph, problem.series, features=route, **options)
    except ValueError as error:
        # Random frequencies may give a negative degree, or a spectrum beyond [0, 1]; positive features may not see a node.
        signed = ("non-positive degree", "diverges on this graph", "is defined for eigenvalues", "too steep near zero")
        assume(not (route == "fourier" and any(words in str(error) for words in signed)))
        assume(not (route == "positive" and "do not see some node" in str(error)))
        raise


def rounding(operator, matrix: Tensor) -> float:
    """What sums of so many terms may lose, in the units of the entries."""
    size = float(matrix.double().abs().max())
    if isinstance(operator, LowRankPlusDiagonal):  # the two factors may be larger than their product
        parts = operator.factor.double().abs()
        size += float((parts @ operator.core.double().abs() @ parts.mT).max())
    if isinstance(operator, GridKernelLinearOperator):  # the transforms have errors of their own
        size *= 1 + operator.tol / torch.finfo(matrix.dtype).eps
    terms = 8 + len(matrix)
    if isinstance(operator, SeriesLinearOperator):  # as many powers, one added after the other
        terms += operator.coefficients.shape[-1]
    return 4 * terms * torch.finfo(matrix.dtype).eps * size


@examples(300)
@given(pair=operators(**EVERYWHERE, steep=True), seed=seeds)
def test_operators_are_symmetric_positive_and_linear(pair, seed):
    problem, operator = pair
    number, dtype = problem.graph.num_nodes, problem.graph.points.dtype
    u, v = normal(seed, 2, number, dtype=dtype)
    matrix = operator.to_dense()
    assert bool(torch.isfinite(matrix).all())
    allowed = rounding(operator, matrix)
    close(operator @ (2 * u - 3 * v), (2 * (operator @ u) - 3 * (operator @ v)).double(), 20 * allowed * number**0.5)
    close(operator.mT.to_dense(), matrix.mT.double(), allowed)
    if problem.graph.normalization == "random_walk":
        return
    close(matrix, matrix.mT.double(), 2 * allowed)
    left, right = (u @ (operator @ v)).double(), (v @ (operator @ u)).double()
    close(left, right, allowed * float(u.double().abs().sum() * v.double().abs().max() + 1))
    if isinstance(problem.series, PowerSeries) and operator.info.method == "landmarks":
        return  # too few landmarks leave loops, which are positive where g grows
    slack = number * allowed
    if not isinstance(operator, FeatureKernelLinearOperator):  # a polynomial is as positive as it is accurate
        slack += allowance(problem, 0.0, default_tol(problem.graph))
    assert float(torch.linalg.eigvalsh(0.5 * (matrix + matrix.mT).double()).min()) >= -slack


@examples(250)
@given(pair=operators(**EVERYWHERE), data=st.data())
def test_entries_are_those_of_the_dense_matrix(pair, data):
    problem, operator = pair
    number = problem.graph.num_nodes
    matrix = operator.to_dense()
    allowed = 2 * rounding(operator, matrix)
    close(operator.diagonal(), matrix.diagonal().double(), allowed)
    rows, columns = data.draw(indices(number)), data.draw(indices(number))
    close(to_dense(operator[rows]), matrix[rows].double(), allowed)
    close(to_dense(operator[..., columns]), matrix[..., columns].double(), allowed)
    if not isinstance(rows, int):
        close(to_dense(operator[rows][:, columns]), matrix[rows][:, columns].double(), allowed)
        close(to_dense(operator[rows][:, rows]), matrix[rows][:, rows].double(), allowed)
    if not (torch.is_tensor(rows) and torch.is_tensor(columns)):
        close(to_dense(operator[rows, columns]), matrix[rows, columns].double(), allowed)
    one, two = torch.randint(-number, number, (2, 5), generator=generator(data.draw(seeds)))  # torch pairs two tensors up
    close(operator[one, two], matrix[one, two].double(), allowed)


# Noise


@examples(200)
@given(problem=problems(**COVARIANCES), data=st.data())
def test_solves_and_determinants_are_dense_ones(problem, data):
    found = routes(problem.graph)
    route = data.draw(st.sampled_from(sorted(found)))
    tol, error = found[route]
    number, dtype = problem.graph.num_nodes, problem.graph.points.dtype
    truth = dense(problem)
    size = float(torch.linalg.matrix_norm(truth, 2))
    level = size * 10.0 ** -data.draw(st.integers(0, 1 if dtype == torch.float32 else 4))
    shape = data.draw(st.sampled_from([(), (1,), (number,)]))
    noise = (level * (1 + torch.rand(shape, generator=generator(data.draw(seeds)), dtype=torch.float64))).to(dtype)
    rhs = data.draw(right_hand_sides(number, dtype))
    assume(rhs.shape[-1] > 0)
    matrix = truth + torch.diag(noise.double().expand(number))
    # Perturbation theory: relative to the least eigenvalue, of the matrix and of rounding in a solve.
    least, eps = float(torch.linalg.eigvalsh(matrix).min()), torch.finfo(dtype).eps
    share = (number * allowance(problem, error, tol) + 20 * number * eps * (size + level)) / least
    assume(share < 0.05)
    operator = build(problem, route, tol)
    noisy = operator.add_diagonal(noise)
    close(noisy.to_dense(), matrix, share * least)
    columns = rhs.double().unsqueeze(-1) if rhs.dim() == 1 else rhs.double()
    exact = torch.linalg.solve(matrix, columns)
    exact = exact.squeeze(-1) if rhs.dim() == 1 else exact
    largest = float(columns.norm(dim=-2).max()) / least
    with untouched_randomness():
        close(noisy.solve(rhs), exact, 2 * share * largest)
        if rhs.dim() < 3:
            inv_quad, logdet = noisy.inv_quad_logdet(rhs, logdet=True)
            close(inv_quad, (columns * exact.reshape(columns.shape)).sum(), 2 * share * float(columns.square().sum()) / least)
            close(logdet, torch.logdet(matrix), 2 * share * number + 20 * eps * abs(float(torch.logdet(matrix))))
            goal = 1e-4 if dtype == torch.float32 else 1e-8
            with warnings.catch_warnings():
                warnings.simplefilter("error", ConvergenceWarning)
                result = solve(operator, rhs, noise, goal)
            close(result.solution, exact, 2 * (share + goal) * largest)


# Invariance


@examples(250)
@given(problem=problems(**EVERYWHERE), data=st.data())
def test_kernels_do_not_depend_on_place_direction_unit_or_order(problem, data):
    graph = problem.graph
    points, edge = graph.points, graph.edge
    kinds = ["shift", "unit", "order"]
    if edge.lengthscale.dim() == 0 and edge.norm == 2:
        kinds.append("direction")
    kind, seed = data.draw(st.sampled_from(kinds)), data.draw(seeds)
    order = torch.arange(graph.num_nodes)
    if kind == "shift":  # by as much as leaves a lengthscale thousands of numbers long
        away = 10.0 ** data.draw(st.integers(-1, 2 if points.dtype == torch.float32 else 6))
        points = points + (away * edge.lengthscale.min().double() * normal(seed, graph.dim).clamp(-1, 1)).to(points)
    elif kind == "unit":
        points, edge = 4 * points, edge.with_parameters(4 * edge.lengthscale)
    elif kind == "order":
        order = torch.randperm(graph.num_nodes, generator=generator(seed))
        points = points[order]
    else:
        points = (points.double() @ rotation(seed, graph.dim)).to(points.dtype)
    moved = Problem(ImplicitGraph(points, edge, graph.normalization), problem.series)
    shared = sorted(routes(graph).keys() & routes(moved.graph).keys())
    route = data.draw(st.sampled_from(shared))
    (tol, error), (other_tol, other_error) = routes(graph)[route], routes(moved.graph)[route]
    # Points that move are rounded where they come to lie.
    allowed = allowance(problem, error, tol) + allowance(moved, other_error + moved_weight(graph, points), other_tol)
    one, two = (build(of, route, goal).to_dense().double() for of, goal in ((problem, tol), (moved, other_tol)))
    close(two, one[order][:, order], allowed)


@examples(60)
@given(graph=graphs(kinds=("gaussian",), dtypes=(torch.float64,)), data=st.data())
def test_random_features_move_with_the_points(graph, data):
    route, seed = data.draw(st.sampled_from(["positive", "fourier"])), data.draw(seeds)
    away = 10.0 ** data.draw(st.integers(-1, 4)) * float(graph.edge.lengthscale.double().min())
    moved = ImplicitGraph(graph.points + away * normal(seed, graph.dim).clamp(-1, 1), graph.edge)
    maps = [choose_features(of, Diffusion(1.0), route, num_features=9, generator=generator(seed))[0] for of in (graph, moved)]
    one, two = (features.node_features @ features.node_features.mT for features in maps)
    # Positions are rounded, and log-features have slopes of about the distance to their centres.
    far = float((moved.points / graph.edge.lengthscale.double()).abs().max())
    close(two, one, 1e3 * torch.finfo(torch.float64).eps * (1 + far) * graph.dim * float(one.abs().max()))


# GPyTorch kernels

# Nodes and weights of a Gauss rule on [0, 1].
GAUSS = [torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(120)]
GAUSS = [0.5 * (GAUSS[0] + 1), 0.5 * GAUSS[1]]


def beyond_nodes(problem: Problem, x: Tensor, y: Tensor) -> Tensor:
    r"""The kernel between any points by its definition:
    :math:`\alpha_0 [x = y] + s(x) s(y) (\alpha_1 w(x, y) + w(x, p) h_2 w(p, y))` with :math:`s = \max(d, 1)^{-1/2}` and
    :math:`h_2(\lambda) = (g - \alpha_0 - \alpha_1 \lambda) / \lambda^2 = \int_0^1 (1 - u) g''(u \lambda) du`."""
    graph = problem.graph
    points, x, y = graph.points.double(), x.double(), y.double()
    values, vectors, degree = spectrum(graph)
    form = CLOSED_FORMS[type(problem.series)]

    def derivatives(at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        at = at.clone().requires_grad_(True)
        value = form(problem.series, at) + 0 * at
        (slope,) = torch.autograd.grad(value.sum(), at, create_graph=True)
        (bend,) = torch.autograd.grad((slope + 0 * at**2).sum(), at)
        return value.detach(), slope.detach(), bend

    places, shares = GAUSS
    inner = (shares * (1 - places) * derivatives(places * values.unsqueeze(-1))[2]).sum(-1)
    origin, slope, _ = derivatives(torch.zeros(1, dtype=torch.float64))

    def rows(z: Tensor) -> tuple[Tensor, Tensor]:
        weights = graph.edge(z.unsqueeze(1) - points.unsqueeze(0))
        if graph.normalization is None:
            return weights, torch.ones(len(z), dtype=torch.float64)
        scale = weights.sum(-1).clamp_min(1).rsqrt()
        return scale.unsqueeze(-1) * weights * degree.rsqrt(), scale

    (one, left), (two, right) = rows(x), rows(y)
    same = (x.unsqueeze(1) == y.unsqueeze(0)).all(-1)
    first = torch.outer(left, right) * graph.edge(x.unsqueeze(1) - y.unsqueeze(0))
    return origin * same + slope * first + one @ (vectors * inner) @ vectors.mT @ two.mT


@st.composite
def kernels(draw, routes_of=routes, **options):
    """A GPyTorch kernel, the problem it stands for at its (rounded) parameters, and how far off its entries may be."""
    problem = draw(problems(normalizations=("symmetric",), **options))
    found = routes_of(problem.graph)
    route = draw(st.sampled_from(sorted(found)))
    tol, error = found[route]
    of = problem.series
    common = {"features": route, "tol": tol}
    make = {
        Diffusion: lambda: DiffusionKernel(problem.graph, time=of.time, **common),
        RandomWalk: lambda: RandomWalkKernel(problem.graph, steps=of.steps, laziness=of.laziness + 0.5, **common),
        RegularizedLaplacian: lambda: RegularizedLaplacianKernel(
            problem.graph, scale=of.scale, power=float(of.power), **common
        ),
        Matern: lambda: MaternGraphKernel(problem.graph, nu=float(of.nu), kappa=of.kappa, **common),
        LogMatern: lambda: LogMaternKernel(problem.graph, nu=float(of.nu), kappa=of.kappa, floor=of.floor, **common),
        InverseCosine: lambda: InverseCosineKernel(problem.graph, **common),
    }.get(type(of), lambda: DiffusionKernel(problem.graph, time=1.5, **common))
    kernel = make()
    with torch.no_grad():
        lengthscale = kernel.lengthscale.squeeze(-2)
        lengthscale = lengthscale if lengthscale.shape[-1] > 1 else lengthscale.squeeze(-1)
        graph = problem.graph.with_edge(problem.graph.edge.with_parameters(lengthscale.double()))
        of = kernel.series()
    return kernel, Problem(graph, of), allowance(Problem(graph, of), error, tol)


@examples(150)
@given(case=kernels(sizes=st.integers(1, 25)), data=st.data())
def test_kernels_between_nodes_are_blocks_of_the_dense_kernel(case, data):
    kernel, problem, allowed = case
    number, points = problem.graph.num_nodes, problem.graph.points
    some = st.lists(st.integers(0, number - 1), min_size=1, max_size=8)
    rows, columns = (torch.tensor(draw) for draw in (data.draw(some), data.draw(some)))
    truth = dense(problem)
    allowed = 2 * allowed
    with torch.no_grad(), untouched_randomness():
        close(kernel(rows.unsqueeze(-1), columns.unsqueeze(-1)).to_dense(), truth[rows][:, columns], allowed)
        close(kernel(rows.unsqueeze(-1)).to_dense(), truth[rows][:, rows], allowed)
        close(kernel(rows.unsqueeze(-1), diag=True), truth.diagonal()[rows], allowed)
        # Coordinates cannot tell repeated nodes apart: they stand for the first of them.
        first = (points.unsqueeze(1) == points.unsqueeze(0)).all(-1).long().argmax(-1)
        close(kernel(points[rows], points[columns]).to_dense(), truth[first[rows]][:, first[columns]], allowed)
        close(kernel(points).to_dense(), truth[first][:, first], allowed)
        batch = torch.stack([rows, rows.flip(0)]).unsqueeze(-1)
        both = torch.stack([truth[rows][:, columns], truth[rows.flip(0)][:, columns]])
        close(kernel(batch, columns.unsqueeze(-1)).to_dense(), both, allowed)
        product = kernel(batch, columns.unsqueeze(-1)) @ torch.ones(len(columns), 2, dtype=points.dtype)
        close(product, both @ torch.ones(len(columns), 2, dtype=torch.float64), len(columns) * allowed)


def off_graph(problem: Problem, number: int, seed: int, *, farthest: float = 40.0) -> Tensor:
    """Points among the nodes, a few lengthscales away, far away, nodes themselves, and one that is there twice."""
    points, length = problem.graph.points, problem.graph.edge.lengthscale.double()
    source = generator(seed)
    chosen = points[torch.randint(len(points), (number,), generator=source)]
    reach = torch.tensor([0.0, 0.3, 3.0, 40.0], dtype=torch.float64)[torch.randint(4, (number, 1), generator=source)]
    step = (reach * normal(seed, number, problem.graph.dim)).clamp(-farthest, farthest)
    x = (chosen.double() + length * step).to(points.dtype)
    return torch.cat([x, x[:1]])


def without_landmarks(graph: ImplicitGraph) -> dict[str, tuple[float | None, float]]:
    """Landmarks leave a residual off the graph, however many they are."""
    return {name: found for name, found in routes(graph).items() if name != "landmarks"}


@examples(100)
@given(case=kernels(routes_of=without_landmarks, sizes=st.integers(1, 25)), data=st.data())
def test_kernels_off_the_graph_follow_their_definition(case, data):
    kernel, problem, allowed = case
    # The features of a small grid are zero where no node reaches, and so is the covariance of two such points.
    farthest = 3.0 if isinstance(kernel.operator(outside=True), FeatureKernelLinearOperator) else 40.0
    x, y = (off_graph(problem, data.draw(st.integers(1, 8)), data.draw(seeds), farthest=farthest) for _ in range(2))
    # Inputs are rounded where they are, too.
    weight = moved_weight(problem.graph, torch.cat([x, y]).double() - problem.graph.points.double().mean(0))
    allowed = 4 * allowed + 10 * problem.graph.num_nodes * weight * steepness(problem.series, 1.0)
    truth, own = beyond_nodes(problem, x, y), beyond_nodes(problem, x, x)
    with torch.no_grad(), untouched_randomness():
        close(kernel(x, y).to_dense(), truth, allowed)
        close(kernel(x).to_dense(), own, allowed)
        close(kernel(x, diag=True), own.diagonal(), allowed)
        assert float(torch.linalg.eigvalsh(kernel(x).to_dense().double()).min()) >= -len(x) * allowed


# Gradients


@examples(60)
@given(problem=problems(dtypes=(torch.float64,), sizes=st.integers(1, 12), dims=st.integers(1, 3)), data=st.data())
def test_gradients_in_the_lengthscale_are_differences_of_the_dense_kernel(problem, data):
    found = routes(problem.graph)
    route = data.draw(st.sampled_from(sorted(found)))
    tol, error = found[route]
    edge = problem.graph.edge
    lengthscale = edge.lengthscale.double().clone().requires_grad_(True)
    graph = problem.graph.with_edge(edge.with_parameters(lengthscale))
    u, v = normal(data.draw(seeds), 2, graph.num_nodes)
    operator = build(Problem(graph, problem.series), route, tol)
    (ours,) = torch.autograd.grad(u @ (operator @ v), lengthscale)
    ours = float((ours * lengthscale.detach()).sum())  # all lengthscales grow alike

    def value(factor: float) -> float:
        stretched = problem.graph.with_edge(edge.with_parameters(factor * lengthscale.detach()))
        return float(u @ dense(Problem(stretched, problem.series)) @ v)

    step = 1e-4
    truth = (value(1 + step) - value(1 - step)) / (2 * step)
    # The weights at a distance r change by r f'(r), so the error of a weight changes by at most r^2 of itself; the differences
    # cost the square of the step times a third derivative, which is like the third power of what the first is.
    slope = steepness(problem.series, 1.0)
    size = float(u.norm() * v.norm()) * (1 + slope)
    allowed = size * (1e3 * error * graph.num_nodes + 1e-7 * (1 + slope) ** 2 + 1e-6)
    assert abs(ours - truth) <= allowed


# Series


@st.composite
def wide_series(draw) -> Series:
    """Series with parameters of every size."""

    def number(low: float, high: float) -> float:
        return 10 ** draw(st.floats(low, high))

    kind = draw(st.sampled_from(["diffusion", "walk", "regularized", "matern", "cosine", "power"]))
    return {
        "diffusion": lambda: Diffusion(number(-6, 8)),
        "walk": lambda: RandomWalk(draw(st.integers(1, 30)), 1 + draw(st.sampled_from([0.0, 1e-3, 1.0, 5.0]))),
        "regularized": lambda: RegularizedLaplacian(number(-3, 5), number(-1, 1)),
        "matern": lambda: Matern(number(-1, 1), number(-2, 3)),
        "cosine": InverseCosine,
        "power": lambda: PowerSeries(draw(st.lists(st.floats(-3, 3), min_size=1, max_size=8))),
    }[kind]()


@examples(120)
@given(of=wide_series(), seed=seeds)
def test_series_agree_with_their_expansions(of, seed):
    x = torch.cat(
        [torch.rand(40, generator=generator(seed), dtype=torch.float64), torch.tensor([0.0, 1e-12, 1.0 - 1e-12, 1.0])]
    )
    g = CLOSED_FORMS[type(of)](of, x)
    size, slope = float(g.abs().max()), float(steepness(of, 1.0)) if not isinstance(of, PowerSeries) else 100.0
    # An eigenvalue is rounded, and the slope says what that costs.
    eps = 1e-14 * (size + slope)
    close(of(x), g, eps)
    origin, first = of.coefficients(2)
    close(origin + x * of.remainder(x), g, 10 * eps)
    close(first + x * of.second_remainder(x), of.remainder(x), 100 * eps)
    small = x * min(0.3, 0.5 * of.radius)
    if isinstance(of, Diffusion):
        small = small.clamp_max(10 / float(of.time))
    powers = small.unsqueeze(-1) ** torch.arange(120, dtype=torch.float64)
    close(powers @ of.coefficients(120), CLOSED_FORMS[type(of)](of, small), 10 * eps)
    for function in (None, of.remainder):
        tol = 1e-9
        try:
            coefficients = of.chebyshev((0.0, 1.0), tol, function)
        except ValueError as error:
            if "needs a polynomial of degree above" in str(error):  # which is honest
                continue
            raise
        fitted = torch.from_numpy(np.polynomial.chebyshev.chebval((2 * x - 1).numpy(), coefficients.numpy()))
        values = g if function is None else function(x)
        close(fitted, values, 2 * tol * float(values.abs().max()) + 100 * eps)


# Wrong shapes and types of every kind; tests/test_refusals.py has a table of single arguments


@examples(100)
@given(
    shape=st.lists(st.integers(0, 4), max_size=4),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.int64, torch.bool]),
)
def test_points_of_a_wrong_shape_or_type_are_refused(shape, dtype):
    points = torch.ones(shape, dtype=dtype)
    if len(shape) == 2 and 0 not in shape and dtype.is_floating_point:
        assert ImplicitGraph(points, Gaussian(1.0)).num_nodes == shape[0]
        return
    with pytest.raises((ValueError, TypeError), match="points"):
        ImplicitGraph(points, Gaussian(1.0))


@examples(100)
@given(shape=st.lists(st.integers(0, 6), max_size=4), dtype=st.sampled_from([torch.float64, torch.float32, torch.int64]))
def test_right_hand_sides_of_a_wrong_shape_or_type_are_refused(shape, dtype):
    operator = graph_kernel(
        ImplicitGraph(torch.eye(4, dtype=torch.float64), Gaussian(1.0)), Diffusion(1.0), features="pairwise"
    )
    rhs = torch.ones(shape, dtype=dtype)
    if len(shape) in (1, 2) and shape[0] == 4 and dtype == torch.float64:
        assert solve(operator, rhs, 0.1).solution.shape == rhs.shape
        return
    with pytest.raises((ValueError, TypeError), match="rhs"):
        solve(operator, rhs, 0.1)
