"""The Fourier grid: error on request, the collapsed kernel, gradients, diagonal, samples, preconditioned solves."""

import math
import pickle
import unittest
import warnings

import linear_operator
import pytest
import torch
from linear_operator.test.linear_operator_test_case import LinearOperatorTestCase
from oracles import cloud, dense_adjacency, dense_kernel, relative

from swing_gp import (
    AccuracyWarning,
    Ball,
    ConvergenceWarning,
    Diffusion,
    FourierGrid,
    Gaussian,
    ImplicitGraph,
    InverseCosine,
    Matern,
    RandomWalk,
    RegularizedLaplacian,
    Walks,
    graph_kernel,
)
from swing_gp.features.base import Unsuitable
from swing_gp.features.grid import MAX_MODES, count_modes, default_modes
from swing_gp.graphs.edges import Laplace
from swing_gp.linalg import toeplitz
from swing_gp.linalg.conjugate_gradients import conjugate_gradients
from swing_gp.linalg.nufft import PointTransform
from swing_gp.operators.grid_kernel import GridKernelLinearOperator, grid_kernel
from swing_gp.operators.low_rank_kernel import FeatureKernelLinearOperator
from swing_gp.solvers.iterative import ConjugateGradients

SERIES = [Diffusion(5.0), RandomWalk(2), RegularizedLaplacian(2.0, 2.0), InverseCosine(), Matern(1.5, 2.0)]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def right_hand_sides(points):
    """A random one and a smooth one."""
    random = torch.randn(len(points), 1, generator=generator(1), dtype=torch.float64).to(points)
    return torch.cat([random, torch.sin(3 * points[:, :1]) + 1], dim=-1)


def worst(ours, truth):
    return float(((ours - truth).norm(dim=0) / truth.norm(dim=0)).max())


# Transforms


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("columns", [1, 2, 19])  # half a pair, a pair, more than one batch of pairs
def test_transforms_are_sums_of_exponentials_and_adjoint(dim, columns):
    angles = (2 * cloud(20, dim) - 1) * 3
    transform = PointTransform(angles, (3, 2, 4)[:dim], 1e-12)
    values = torch.randn(20, columns, generator=generator(), dtype=torch.float64)
    modes = transform.to_modes(values)
    axes = [torch.tensor([*range(m + 1), *range(-m, 0)]) for m in (3, 2, 4)[:dim]]
    axes[-1] = axes[-1][: (3, 2, 4)[dim - 1] + 1]
    grid = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).double()
    truth = torch.einsum("...j,jk->k...", torch.exp(-1j * (grid @ angles.mT)), values.to(torch.complex128))
    torch.testing.assert_close(modes, truth, rtol=1e-9, atol=1e-9)
    other = torch.randn(modes.shape, generator=generator(1), dtype=torch.complex128)
    left = float((modes.conj() * other).sum().real)
    assert left == pytest.approx(float((values * transform.to_points(other)).sum()), rel=1e-9)


def test_products_in_parts_are_the_product(monkeypatch):
    symbol = torch.rand(12, 9, generator=generator(), dtype=torch.float64)
    modes = torch.randn(5, 7, 4, generator=generator(1), dtype=torch.complex128)
    whole = toeplitz.toeplitz_product(symbol, modes)
    monkeypatch.setattr(toeplitz, "CACHED", 2 * symbol.numel())
    torch.testing.assert_close(toeplitz.toeplitz_product(symbol, modes), whole)


def test_transforms_have_gradients():
    transform = PointTransform((2 * cloud(6, 2) - 1) * 3, (2, 2), 1e-13)
    values = torch.randn(6, 2, generator=generator(), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: torch.view_as_real(transform.to_modes(v)), (values,))
    modes = torch.randn(2, 5, 3, generator=generator(), dtype=torch.complex128, requires_grad=True)
    assert torch.autograd.gradcheck(transform.to_points, (modes,))


# Error on request


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("lengthscale", [0.05, 0.2, 1.0])
@pytest.mark.parametrize("tol", [1e-3, 1e-9])
def test_kernel_products_meet_the_tolerance(dim, lengthscale, tol):
    points = cloud(400, dim)
    graph = ImplicitGraph(points, Gaussian(lengthscale))
    v = right_hand_sides(points)
    grid = FourierGrid(graph, tol)
    for series in SERIES:
        operator = grid_kernel(grid, series)
        assert worst(operator @ v, dense_kernel(graph, series) @ v) < 10 * tol


@pytest.mark.parametrize(("dim", "tol"), [(1, 1e-6), (2, 1e-4), (3, 1e-3)])
def test_short_lengthscales_at_looser_tolerances(dim, tol):
    points = cloud(500, dim)
    graph = ImplicitGraph(points, Gaussian(0.02))
    operator = grid_kernel(FourierGrid(graph, tol, max_modes=MAX_MODES), Diffusion(3.0))
    v = right_hand_sides(points)
    assert worst(operator @ v, dense_kernel(graph, Diffusion(3.0)) @ v) < 10 * tol


@pytest.mark.parametrize("normalization", ["random_walk", None])
def test_other_normalisations(normalization):
    points = cloud(300, 2)
    graph = ImplicitGraph(points, Gaussian(torch.tensor([0.1, 0.3])), normalization)
    v = right_hand_sides(points)
    operator = grid_kernel(FourierGrid(graph, 1e-8), RandomWalk(3))
    truth = dense_kernel(graph, RandomWalk(3))
    assert worst(operator @ v, truth @ v) < 1e-7
    assert worst(operator.mT @ v, truth.mT @ v) < 1e-7


@pytest.mark.parametrize("tol", [1e-3, 1e-6])
def test_estimates_agree_with_the_truth(tol):
    graph = ImplicitGraph(cloud(600, 2), Gaussian(0.15))
    operator = grid_kernel(FourierGrid(graph, tol), Diffusion(5.0))
    estimate = operator.estimate_error(num_rows=32)
    walk = ImplicitGraph(graph.points, graph.edge, "random_walk")
    rows = operator.features.evaluate(None, operator.features.project(torch.eye(600, dtype=torch.float64)))
    true_rows = relative(rows / rows.sum(-1, keepdim=True), dense_adjacency(walk))
    assert true_rows / 3 < estimate.adjacency < 3 * true_rows
    truth = dense_kernel(graph, Diffusion(5.0))
    beyond = truth - math.exp(-5.0) * torch.eye(600, dtype=torch.float64)
    error = float((operator.to_dense() - truth).norm() / beyond.norm())
    assert error / 3 < estimate.kernel < 3 * error


def test_single_precision():
    graph = ImplicitGraph(cloud(500, 3, dtype=torch.float32), Gaussian(0.2))
    operator = graph_kernel(graph, Diffusion(5.0), features="grid")
    v = right_hand_sides(graph.points)
    result = operator @ v
    assert result.dtype == torch.float32
    truth = dense_kernel(ImplicitGraph(graph.points.double(), graph.edge), Diffusion(5.0)) @ v.double()
    assert worst(result.double(), truth) < 1e-4


def test_rounded_positions_are_named_as_the_cause():
    points = torch.tensor([[0.0], [0.5], [3000.0]])
    with pytest.warns(AccuracyWarning, match=r"positions are rounded.*points\.double"):
        FourierGrid(ImplicitGraph(points, Gaussian(1.0)), tol=1e-6)
    assert FourierGrid(ImplicitGraph(points.double(), Gaussian(1.0)), tol=1e-6).row_error < 1e-6


@pytest.mark.parametrize(("number", "dim", "tol"), [(400, 2, 3e-2), (400, 2, 1e-2), (40, 1, 1e-5)])
def test_laplace_is_bounded_honestly(number, dim, tol):
    graph = ImplicitGraph(cloud(number, dim), Laplace(0.3))
    with pytest.warns(AccuracyWarning) if tol < 1e-4 else nothing():
        grid = FourierGrid(graph, tol)
    v = right_hand_sides(graph.points)
    truth = dense_adjacency(ImplicitGraph(graph.points, graph.edge, None)) @ v
    assert worst(grid.evaluate(None, grid.project(v)), truth) < 2 * grid.row_error


class nothing:
    def __enter__(self):
        return self

    def __exit__(self, *args):
        return False


# Forms


def test_small_grids_have_closed_forms():
    graph = ImplicitGraph(cloud(300, 1), Gaussian(0.1))
    operator = graph_kernel(graph, Diffusion(5.0), features="grid", tol=1e-9)
    assert isinstance(operator, FeatureKernelLinearOperator)
    assert relative(operator.to_dense(), dense_kernel(graph, Diffusion(5.0))) < 1e-8
    large = graph_kernel(ImplicitGraph(cloud(300, 3), Gaussian(0.1)), Diffusion(5.0), features="grid", tol=1e-6)
    assert isinstance(large, GridKernelLinearOperator)
    again = pickle.loads(pickle.dumps(large))
    v = torch.ones(300, 1, dtype=torch.float64)
    assert torch.equal(again @ v, large @ v)


def test_gradients_in_lengthscale_and_series():
    points = cloud(12, 2)

    def function(lengthscale, time):
        graph = ImplicitGraph(points, Gaussian(lengthscale))
        operator = grid_kernel(FourierGrid(graph, 1e-10), Diffusion(time))
        return operator @ right_hand_sides(points)

    lengthscale = torch.tensor([0.4, 0.5], dtype=torch.float64, requires_grad=True)
    time = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(function, (lengthscale, time), eps=1e-5, atol=1e-5)

    def dense(lengthscale, time):
        return dense_kernel(ImplicitGraph(points, Gaussian(lengthscale)), Diffusion(time)) @ right_hand_sides(points)

    ours = torch.autograd.grad(function(lengthscale, time).square().sum(), (lengthscale, time))
    truth = torch.autograd.grad(dense(lengthscale, time).square().sum(), (lengthscale, time))
    for a, b in zip(ours, truth, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)


class TestGridKernel(LinearOperatorTestCase, unittest.TestCase):
    """The shipped suite; its tensors are float32, so the tolerance of the grid is 1e-6."""

    seed = 0
    should_test_sample = True
    should_call_cg = False  # ours, not linear_operator's
    should_call_lanczos = False

    def create_linear_op(self):
        graph = ImplicitGraph(cloud(7, 2, dtype=torch.float32), Gaussian(0.3))
        return grid_kernel(FourierGrid(graph, 1e-6), Diffusion(1.0))

    def evaluate_linear_op(self, linear_op):
        """The same algebra with explicit matrices of exponentials."""
        grid = linear_op.features
        frequencies = grid.frequencies.flatten(0, -2)
        full = torch.cat([frequencies, -frequencies[frequencies[:, -1] > 0]])
        weights = linear_op.weights.flatten()
        weights = torch.cat([weights, weights[frequencies[:, -1] > 0]])
        phase = (grid.graph.points.double() - grid._center) @ full.mT
        waves = torch.exp(1j * phase)
        size = math.prod(linear_op.symbol.shape)
        positions = torch.cartesian_prod(*(torch.arange(n) * (2 * math.pi / n) for n in linear_op.symbol.shape)).double()
        between = torch.exp(1j * (positions @ (full / grid._spacing).mT))
        toeplitz = between.conj().mT @ (linear_op.symbol.flatten().double().unsqueeze(-1) * between) / size
        step = toeplitz * weights.double()
        low, high = linear_op.interval
        eye = torch.eye(len(full), dtype=torch.complex128)
        mapped = (2 * step - (high + low) * eye) / (high - low)
        before, last = eye, mapped
        total = linear_op.coefficients[0] * before + linear_op.coefficients[1] * last
        for coefficient in linear_op.coefficients[2:]:
            before, last = last, 2 * mapped @ last - before
            total = total + coefficient * last
        inner = (waves * weights.double()) @ total @ waves.conj().mT
        left, right = linear_op.scales
        dense = torch.diag(linear_op.identity.expand(7)).double() + left.unsqueeze(1) * inner.real * right
        return dense.float()


# Diagonal, samples, solves


def test_diagonal_is_exact_when_small_and_estimated_with_its_error_when_large():
    small = grid_kernel(FourierGrid(ImplicitGraph(cloud(100, 2), Gaussian(0.2)), 1e-8), Diffusion(5.0))
    torch.testing.assert_close(small.diagonal(), small.to_dense().diagonal())
    assert float(small.diagonal_standard_error().max()) == 0
    graph = ImplicitGraph(cloud(2100, 3), Gaussian(0.15))
    large = grid_kernel(FourierGrid(graph, 1e-6), Diffusion(5.0))
    dense = dense_kernel(graph, Diffusion(5.0))
    truth = dense.diagonal()
    estimate, error = large.diagonal(), large.diagonal_standard_error()
    assert torch.equal(estimate, large.diagonal())  # frozen probes
    z = (estimate - truth) / error
    assert 0.7 < float(z.square().mean().sqrt()) < 1.4
    # the control variate is worth having: plain Hutchinson scatters by the off-diagonal rows of K
    plain = (dense.square().sum(-1) - truth.square()).sqrt() / 32**0.5
    assert float(error.mean()) < 0.3 * float(plain.mean())


def test_an_estimated_diagonal_says_when_it_is_rough():
    graph = ImplicitGraph(cloud(2100, 2), Gaussian(0.03))
    rough = grid_kernel(FourierGrid(graph, 1e-4), Diffusion(30.0))
    with pytest.warns(AccuracyWarning, match=r"standard errors of \d+\.\d% in the mean"):
        estimate = rough.diagonal()
    nodes = torch.arange(0, 2100, 100)
    exact = rough[nodes, nodes]
    assert float(((estimate[nodes] - exact) / exact).square().mean().sqrt()) > 0.01
    with pytest.warns(AccuracyWarning, match="landmarks"):
        (2.0 * rough).diagonal()
    with warnings.catch_warnings():
        warnings.simplefilter("error", AccuracyWarning)
        grid_kernel(FourierGrid(ImplicitGraph(graph.points, Gaussian(0.3)), 1e-4), Diffusion(5.0)).diagonal()  # a good one
        rough[:100, :100].diagonal()  # exact
        rough.diagonal_standard_error()


@pytest.mark.draws
def test_samples_come_from_the_square_root_of_the_series():
    graph = ImplicitGraph(cloud(150, 2), Gaussian(0.2))
    operator = grid_kernel(FourierGrid(graph, 1e-7), Diffusion(5.0))
    truth = dense_kernel(graph, Diffusion(5.0))
    root = operator.root_decomposition().root.to_dense()
    assert relative(root @ root.mT, truth) < 1e-6
    inverse = operator.root_inv_decomposition().root.to_dense()
    assert relative(inverse @ inverse.mT @ truth, torch.eye(150, dtype=torch.float64)) < 1e-4
    torch.manual_seed(0)
    samples = operator.zero_mean_mvn_samples(5000)
    assert relative(samples.mT @ samples / 5000, truth) < 0.1


def cg_steps(operator, noise, *, preconditioned=True):
    """Steps to a residual of 1e-6."""
    noisy = operator.add_diagonal(torch.tensor(noise, dtype=operator.dtype))
    close = ConjugateGradients(noisy.structure(), noisy.noise).close if preconditioned else None
    precondition = None if close is None else lambda v: close.solve(v).solution
    b = torch.randn(operator.shape[-1], 1, generator=generator(3), dtype=torch.float64).to(operator.dtype)
    found = conjugate_gradients(noisy._matmul, b, tol=1e-6, max_iterations=400, precondition=precondition)
    assert float((noisy._matmul(found.solution) - b).norm() / b.norm()) < 2e-6
    return len(found.residuals)


@pytest.mark.parametrize("time", [5.0, 20.0])
def test_landmarks_precondition_where_they_resolve_the_spectrum(time):
    graph = ImplicitGraph(cloud(2500, 2), Gaussian(0.1))
    operator = grid_kernel(FourierGrid(graph, 1e-9), Diffusion(time))
    assert operator._control.helps(operator, 1e-3)
    assert 3 * cg_steps(operator, 1e-3) <= cg_steps(operator, 1e-3, preconditioned=False)


@pytest.mark.parametrize("lengthscale", [0.02, 0.03, 0.06])
@pytest.mark.parametrize("noise", [1e-3, 1.0])
def test_landmarks_never_do_harm(lengthscale, noise):
    graph = ImplicitGraph(cloud(2500, 2), Gaussian(lengthscale))
    operator = grid_kernel(FourierGrid(graph, 1e-9), Diffusion(5.0))
    assert cg_steps(operator, noise) <= 1.1 * cg_steps(operator, noise, preconditioned=False)


def test_solves_through_linear_operator_reach_their_residual():
    # where linear_cg stands still at a residual of 1e-5
    graph = ImplicitGraph(cloud(2500, 2), Gaussian(0.03))
    noisy = grid_kernel(FourierGrid(graph, 1e-9), Diffusion(5.0)).add_diagonal(torch.tensor(1e-3, dtype=torch.float64))
    b = torch.randn(2500, 2, generator=generator(3), dtype=torch.float64)
    with torch.no_grad():
        residual = noisy @ noisy.solve(b) - b
    assert float(residual.norm() / b.norm()) < 2e-6
    with torch.no_grad(), linear_operator.settings.max_cg_iterations(3), pytest.warns(ConvergenceWarning, match="in 3 steps"):
        noisy.solve(b)


def test_walks_on_the_grid_from_temperature_0_3():
    graph = ImplicitGraph(cloud(200, 2), Gaussian(0.3))
    series = Diffusion(1.0)
    truth = dense_kernel(graph, series)
    walks = Walks(100, temperature=0.5, sides=1)
    grid = graph_kernel(graph, series, features="grid", walks=walks, tol=1e-8)
    pairwise = graph_kernel(graph, series, features="pairwise", walks=walks, tol=1e-8)
    # the same noise and the same moves, so the same operator up to the error of the grid
    assert relative(grid.to_dense(), pairwise.to_dense()) < 1e-3
    assert relative(grid.to_dense(), truth) < 0.05
    with pytest.raises(ValueError, match=r"non-positive denominator|cannot be normalised"):
        graph_kernel(graph, series, features="grid", walks=Walks(20, temperature=0.02, sides=1), tol=1e-6)


# Corner cases


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_boxes_of_any_size(scale):
    points = cloud(100, 2) * scale
    graph = ImplicitGraph(points, Gaussian(0.3 * scale))
    operator = graph_kernel(graph, Diffusion(2.0), features="grid", tol=1e-7)
    assert relative(operator.to_dense(), dense_kernel(graph, Diffusion(2.0))) < 1e-6


@pytest.mark.parametrize("points", ["one", "equal", "collinear", "duplicated"])
def test_degenerate_point_sets(points):
    points = {
        "one": torch.zeros(1, 3, dtype=torch.float64),
        "equal": torch.ones(9, 3, dtype=torch.float64),
        "collinear": torch.linspace(0, 1, 40, dtype=torch.float64).unsqueeze(-1) * torch.tensor([1.0, 2.0, 0.0]),
        "duplicated": cloud(20, 3).repeat(3, 1),
    }[points]
    graph = ImplicitGraph(points, Gaussian(0.4))
    operator = graph_kernel(graph, Diffusion(2.0), features="grid", tol=1e-3)
    v = torch.randn(len(points), 1, generator=generator(), dtype=torch.float64)
    assert relative(operator @ v, dense_kernel(graph, Diffusion(2.0)) @ v) < 1e-2


@pytest.mark.parametrize(
    ("graph", "series", "tol"),
    [
        (ImplicitGraph(cloud(60, 3), Ball(0.3, 0.02)), Diffusion(500.0), 1e-6),
        (ImplicitGraph(cloud(60, 2), Laplace(0.1)), Diffusion(1.0), 1e-3),
    ],
    ids=["ball", "laplace"],
)
def test_a_tiny_graph_has_no_huge_grid(graph, series, tol):
    """Which took a minute for what exact weights do at once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AccuracyWarning)
        with pytest.raises(Unsuitable, match=r"needs [\d.e+]+ modes for tol=.* \(the limit is 2.6e\+05\)"):
            graph_kernel(graph, series, features="grid", tol=tol)


def test_modes_that_do_not_help_are_not_kept(monkeypatch):
    graph = ImplicitGraph(cloud(500, 2), Gaussian(0.1))
    monkeypatch.setattr(FourierGrid, "_sampled_row_error", lambda self: 2e-6)  # as rounding leaves it, whatever the band
    with pytest.warns(AccuracyWarning, match="2e-06"):
        grid = FourierGrid(graph, 1e-6)
    assert grid.num_modes == count_modes(graph, 1e-6)


def test_the_default_limit_of_modes_grows_with_the_graph_and_auto_agrees():
    graphs = [ImplicitGraph(cloud(number, 1), Gaussian(1e-3)) for number in (10, 5000, 100_000)]
    assert [default_modes(graph) for graph in graphs] == [2**18, 320_000, 2**22]
    few, many = (ImplicitGraph(cloud(number, 3), Gaussian(0.03)) for number in (200, 10_000))
    assert count_modes(few, 1e-6) is None
    modes = count_modes(many, 1e-6)
    assert default_modes(few) < modes <= default_modes(many)
    with pytest.raises(Unsuitable):
        FourierGrid(few)
    assert FourierGrid(few, max_modes=MAX_MODES).num_modes > default_modes(few)


def test_refusals_name_the_cause_and_the_remedy():
    for make, message in (
        (lambda: FourierGrid(ImplicitGraph(cloud(9, 4), Gaussian(1.0))), "takes points in 1, 2 or 3 dimensions, got 4"),
        (lambda: FourierGrid(ImplicitGraph(cloud(9, 3).requires_grad_(), Gaussian(1.0))), "features='landmarks'"),
        (
            lambda: FourierGrid(ImplicitGraph(cloud(99, 3), Gaussian(1e-4))),
            r"needs [\d.e+]+ modes for tol=1e-06 \(the limit is 2.6e\+05\).*features='neighbors'",
        ),
        (lambda: FourierGrid(ImplicitGraph(cloud(9, 2), Gaussian(1.0)), 2.0), "tol must lie"),
        (
            lambda: graph_kernel(ImplicitGraph(cloud(9, 2), Gaussian(1.0)), Diffusion(1.0), features="grid", num_features=4),
            "num_features has no meaning",
        ),
        (
            lambda: FourierGrid(ImplicitGraph(cloud(9, 2), Gaussian(0.3))).transform(torch.full((1, 2), 50.0)),
            "beyond the box of the grid",
        ),
        (
            lambda: graph_kernel(ImplicitGraph(cloud(90, 3), Gaussian(0.5), None), Matern(1.5), features="grid"),
            "diverges on this graph",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            make()
