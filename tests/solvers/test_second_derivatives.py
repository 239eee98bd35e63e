"""The market of second derivatives: every route x verb x what is differentiated is equal to dense algebra, or refused by name.

A gradient may be right and its derivative wrong without a word: a ``torch.autograd.Function`` whose backward pass uses numbers
without derivatives loses terms. A new route is one more line of ``ROUTES``.
"""

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from oracles import cloud
from second_order import check, differences, hessian
from torch import Tensor

from swing_gp import (
    Ball,
    Diffusion,
    Gaussian,
    ImplicitGraph,
    LandmarkFeatures,
    LogMatern,
    Matern,
    Matern12,
    Matern32,
    Matern52,
    NeighborFeatures,
    OneStep,
    PositiveFeatures,
    SparseGraph,
    SpectralEdge,
    Walks,
    graph_kernel,
    grf_kernel,
    knn_graph,
)
from swing_gp.features import FourierFeatures, grid
from swing_gp.linalg.expansions import series_root
from swing_gp.operators import base
from swing_gp.solvers import precision, sizes

SIZE = 40
POINTS = cloud(SIZE, 2)
NEAREST = knn_graph(POINTS, 6)
LANDMARKS = torch.arange(0, SIZE, 2)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


V, W = normal(SIZE, 2, seed=1), normal(SIZE, 2, seed=2)
Build = Callable[[Tensor], object]


@dataclass(frozen=True)
class Route:
    """A kernel of its parameters: of the series first, then, if there are two, the lengthscale.

    :ivar unknown: entries of the Hessian that are refused.
    :ivar step: of differences, relative; small where the kernel is steep.
    """

    build: Build
    start: tuple[float, ...]
    unknown: frozenset[tuple[int, int]] = frozenset()
    step: float = 2e-3
    symmetric: bool = True


# At a time of two the two bounds on what a loop scales a landmark by meet, in a kink.
def implicit(features, edge=Gaussian, normalization="symmetric", series=Diffusion, start=(1.5, 0.3), route=None, **options):
    def build(p):
        graph = ImplicitGraph(POINTS, edge(p[1]), normalization)
        made = features(graph) if callable(features) else features
        return graph_kernel(graph, series(p[0]), features=made, **options)

    return Route(build, start, **(route or {}))


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def landmarks(graph):
    return LandmarkFeatures(graph, landmarks=LANDMARKS)


def sparse(series, start):
    return Route(lambda p: graph_kernel(NEAREST, series(p[0])), (start,))


# Features that move with the lengthscale, and weights whose slopes are a table.
FEATURES = {"unknown": frozenset({(0, 1), (1, 0), (1, 1)})}
TABLE = {"unknown": frozenset({(1, 1)})}
SPECTRAL = SpectralEdge(lambda w: torch.exp(-w.square() / 2), dim=2)
ROUTES = {
    "a sum": Route(lambda p: graph_kernel(NEAREST, Matern(2.0, p[0])) + graph_kernel(NEAREST, Diffusion(1.0)), (2.0,)),
    "landmarks": implicit(landmarks, route=FEATURES),
    "landmarks of a rough edge": implicit(landmarks, Matern12, route=FEATURES),
    "steep": implicit(landmarks, series=lambda k: LogMatern(3.0, k, 1e-3), route=FEATURES),
    "fourier": implicit(lambda graph: FourierFeatures(graph, 64, generator=generator()), route=FEATURES),
    "positive": implicit(lambda graph: PositiveFeatures(graph, 64, generator=generator()), route=FEATURES),
    "landmarks of a random walk": implicit(landmarks, normalization="random_walk", route={"symmetric": False}),
    "pairwise": implicit("pairwise"),
    "pairwise, rough": implicit("pairwise", Matern12),
    "pairwise, once smooth": implicit("pairwise", Matern32),
    "pairwise, raw": implicit("pairwise", normalization=None, start=(0.3, 0.3)),
    "pairwise, random walk": implicit("pairwise", normalization="random_walk", route={"symmetric": False}),
    "pairwise, a table": implicit("pairwise", lambda length: SPECTRAL.with_parameters(length), route=TABLE),
    "pairwise, a ball": implicit("pairwise", lambda length: Ball(length, 0.3 * float(length)), route=TABLE),
    "one step": Route(
        lambda p: graph_kernel(ImplicitGraph(POINTS, Gaussian(p[0]), None), OneStep(), features="pairwise"), (0.3,)
    ),
    "neighbors": implicit(lambda graph: NeighborFeatures(graph, 1e-12)),
    "neighbors, smooth": implicit(lambda graph: NeighborFeatures(graph, 1e-14), Matern52, start=(2.0, 0.05)),
    "grid": implicit("grid", tol=1e-9),
    "small grid": implicit("grid", start=(2.0, 0.6), tol=1e-7, route=FEATURES),
    "walks": implicit(landmarks, walks=Walks(2), seed=3, route={"step": 5e-5}),
    "walks in groups": implicit(landmarks, walks=Walks(2, groups=2), seed=3, route={"step": 5e-5}),
    "nearest, polynomial": sparse(Diffusion, 2.0),
    "nearest, Matern": sparse(lambda k: Matern(2.0, k), 2.0),
    "precision": sparse(lambda k: Matern(2.0, k), 30.0),
    "precision, a fraction": sparse(lambda k: Matern(1.5, k), 30.0),
    "eigenvalues": Route(lambda p: graph_kernel(NEAREST, Matern(1.5, p[0])) * p[0] ** -3, (1000.0,)),
    "matrix": Route(lambda p: graph_kernel(SparseGraph(NEAREST.to_scipy()), Matern(1.0, p[0])), (3.0,)),
    "walks on edges": Route(lambda p: grf_kernel(NEAREST.to_scipy() / 40, Diffusion(p[0]), walks=50), (2.0,)),
}
CLOSED = ("landmarks", "landmarks of a rough edge", "steep", "fourier", "positive", "small grid", "walks", "eigenvalues")
EYE = torch.eye(SIZE, dtype=torch.float64)
VERBS = {
    "product": (lambda K, noise: (W * (K @ V)).sum(), lambda K, noise: (W * (K @ V)).sum()),
    "quadratic form": (lambda K, noise: (V * (K @ V)).sum(), lambda K, noise: (V * (K @ V)).sum()),
    "entries": (lambda K, noise: (W[:, :1] * W.mT[:1] * K.to_dense()).sum(), lambda K, noise: W[:, 0] @ K @ W[:, 0]),
    "diagonal": (lambda K, noise: W[:, 0] @ K.diagonal(), lambda K, noise: W[:, 0] @ K.diagonal()),
    "solve": (
        lambda K, noise: (W * K.add_diagonal(noise).solve(V)).sum(),
        lambda K, noise: (W * torch.linalg.solve(K + noise * EYE, V)).sum(),
    ),
    "quadratic form of the inverse": (
        lambda K, noise: K.add_diagonal(noise).inv_quad(V),
        lambda K, noise: (V * torch.linalg.solve(K + noise * EYE, V)).sum(),
    ),
    "log-determinant": (
        lambda K, noise: K.add_diagonal(noise).logdet(),
        lambda K, noise: torch.logdet(K + noise * EYE),
    ),
    "likelihood": (
        lambda K, noise: sum(K.add_diagonal(noise).inv_quad_logdet(V, logdet=True)),
        lambda K, noise: (V * torch.linalg.solve(K + noise * EYE, V)).sum() + torch.logdet(K + noise * EYE),
    ),
}
PRODUCTS = ("product", "quadratic form", "entries", "diagonal")
LOGDETS = ("log-determinant", "likelihood")
NOISE = 0.5


@pytest.fixture(params=["dense", "iterative", "estimated", "modes", "many modes"])
def size(request, monkeypatch):
    """How a system is solved: sizes are moved, so that a few nodes go the way of many."""
    if request.param == "dense":
        return request.param
    monkeypatch.setattr(sizes, "DENSE_ROWS", 8)
    monkeypatch.setattr(sizes, "FEW_OBSERVATIONS", 8)
    if request.param == "estimated":
        monkeypatch.setattr(base, "MOST_DENSE", 8)
        monkeypatch.setattr(precision, "EXACT_TRACE", 8)
    if "modes" in request.param:
        monkeypatch.setattr(grid, "DENSE_GRID", 0)
        monkeypatch.setattr(sizes, "POINTS_PER_OBSERVATION", 10**9)
        monkeypatch.setattr(sizes, "DENSE_MODES", 10**6 if request.param == "modes" else 0)
    return request.param


@functools.cache
def truths(name: str) -> dict[str, Tensor]:
    """The Hessians of all verbs, by differences of values of dense matrices."""
    route = ROUTES[name]
    verbs = [verb for verb in VERBS if route.symmetric or verb in PRODUCTS]

    def values(theta: Tensor) -> Tensor:
        matrix = route.build(theta[:-1]).to_dense()
        return torch.stack([VERBS[verb][1](matrix, theta[-1]) for verb in verbs])

    at = torch.tensor([*route.start, NOISE], dtype=torch.float64)
    return dict(zip(verbs, differences(values, at, route.step), strict=True))


def expected_refusals(name: str, verb: str, size: str) -> set[tuple[int, int]]:
    route = ROUTES[name]
    # Sums are dense up to linear_operator's own size, which no size here changes.
    if verb in LOGDETS and name not in (*CLOSED, "a sum") and size in ("estimated", "many modes"):
        return set(itertools.product(range(len(route.start) + 1), repeat=2))
    if size == "modes" and verb not in PRODUCTS:  # systems among them are functions of a matrix that moves
        return {(0, 1), (1, 0), (1, 1)}
    return set(route.unknown)


COMBINATIONS = [
    pytest.param(name, size, id=f"{name}-{size}")
    for name, route in ROUTES.items()
    for size in ("dense", "iterative", "estimated", "modes", "many modes")
    if (name == "grid" or "modes" not in size) and ((route.symmetric and name not in CLOSED) or size == "dense")
]


@pytest.mark.parametrize(("name", "size"), COMBINATIONS, indirect=["size"])
def test_the_market_of_second_derivatives(name, size):
    route = ROUTES[name]
    failures = []
    for verb, truth in truths(name).items():
        leaves = [torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in (*route.start, NOISE)]
        value = VERBS[verb][0](route.build(leaves[:-1]), leaves[-1])
        try:
            check(value, leaves, truth, expected_refusals(name, verb, size))
        except AssertionError as error:
            failures.append(f"{verb}: {error}")
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("edge", [Gaussian, Matern12, Matern32, Matern52])
def test_weights_of_points_that_coincide(edge):
    """k(x, p) is smooth in x where x is p, unless the edge function has a kink; a lengthscale knows no kink."""
    x, p = POINTS[:3].clone().requires_grad_(True), POINTS[:3]
    length = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    for weights in (edge(length).weights(x, p), edge(length)(x.unsqueeze(1) - p.unsqueeze(0))):
        curvature = {Gaussian: -1.0, Matern32: -3.0, Matern52: -5 / 3}.get(edge)
        (slope,) = torch.autograd.grad(weights.diagonal().sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
        assert bool(second.isfinite().all())
        if curvature is not None:
            torch.testing.assert_close(second, torch.full_like(x, curvature / 0.4**2))
    truth = differences(lambda at: edge(at[0]).weights(p, p).sum().unsqueeze(0), length.detach().reshape(1), 1e-2)
    for weights in (edge(length).weights(p, p), edge(length)(p.unsqueeze(1) - p.unsqueeze(0))):
        assert float(hessian(weights.sum(), [length])[0]) == pytest.approx(float(truth), rel=1e-6)


def test_first_derivatives_that_are_made_for_second_ones_are_the_same():
    for route in ("pairwise", "landmarks of a random walk", "precision", "walks", "grid"):
        leaves = [torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in ROUTES[route].start]
        value = (W * (ROUTES[route].build(leaves) @ V)).sum()
        once = torch.autograd.grad(value, leaves, retain_graph=True)
        for one, two in zip(once, torch.autograd.grad(value, leaves, create_graph=True), strict=True):
            torch.testing.assert_close(one, two)


def test_roots_of_series_have_derivatives_of_the_second_order():
    alpha = torch.tensor([1.3, 0.7, 0.4, 0.2], dtype=torch.float64)

    def root(x):  # the square root of a power series, by its recurrence
        rho = [x[0].sqrt()]
        for k in range(1, len(x)):
            rho.append((x[k] - sum(rho[i] * rho[k - i] for i in range(1, k))) / (2 * rho[0]))
        return torch.stack(rho)

    weights = torch.tensor([0.3, -1.0, 2.0, 0.5], dtype=torch.float64)
    ours, truth = (torch.autograd.functional.hessian(lambda x, f=f: (weights * f(x)).sum(), alpha) for f in (series_root, root))
    torch.testing.assert_close(ours, truth)
