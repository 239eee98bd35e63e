"""Bad input is refused before any work, with a ValueError or TypeError that names the argument: never by torch from within."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from swing_gp import (
    Ball,
    Diffusion,
    DiffusionKernel,
    FourierGrid,
    Gaussian,
    ImplicitGraph,
    LandmarkFeatures,
    LogMatern,
    LogMaternKernel,
    Matern,
    MaternGraphKernel,
    NeighborFeatures,
    PositiveFeatures,
    PowerSeries,
    RandomWalk,
    RandomWalkKernel,
    RegularizedLaplacian,
    RegularizedLaplacianKernel,
    SpectralEdge,
    Walks,
    graph_kernel,
    grf_kernel,
    solve,
)
from swing_gp.graphs.edges import Laplace

NOT_POSITIVE = [
    float("nan"),
    float("inf"),
    -float("inf"),
    0,
    -1.5,
    "one",
    None,
    [],
    {},
    1 + 2j,
    torch.ones(2, 2),
    torch.tensor([]),
]
NOT_A_COUNT = [0, -1, 1.5, float("nan"), float("inf"), "3", True, [3], {}, torch.ones(2), 1j]
NOT_INSIDE = [0, 1, -1, 2, float("nan"), float("inf"), "x", 1j, [0.5], torch.ones(2)]
NOT_POINTS = [
    None,
    "abc",
    [[1.0]],
    np.ones((3, 2)),
    torch.ones(3),
    torch.ones(0, 2),
    torch.ones(2, 0),
    torch.ones(2, 2, 2),
    torch.ones(2, 2).int(),
    torch.ones(2, 2).half(),
    torch.ones(2, 2) * 1j,
    torch.full((2, 2), float("nan")),
    torch.full((2, 2), -float("inf")),
]
POINTS = torch.rand(6, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
GRAPH = ImplicitGraph(POINTS, Gaussian(0.5))
OPERATOR = graph_kernel(GRAPH, Diffusion(1.0), features="landmarks")


def described(w):
    return torch.exp(-(w**2))


# What is called, the name of the argument, and what it must not be.
REFUSED = [
    (Gaussian, "lengthscale", NOT_POSITIVE),
    (Laplace, "lengthscale", NOT_POSITIVE),
    (Ball, "radius", [*NOT_POSITIVE, torch.ones(2)]),
    (lambda softness: Ball(1.0, softness), "softness", NOT_POSITIVE[:3] + NOT_POSITIVE[4:]),
    (lambda norm: Ball(1.0, norm=norm), "norm", ["l3", 2, None, []]),
    (lambda density: SpectralEdge(density, dim=1), "density", [None, 3, torch.neg, torch.sum, lambda w: 1.0, lambda w: w[:3]]),
    (lambda dim: SpectralEdge(described, dim=dim), "dim", [0, 4, None, "1", 2.5]),
    (Diffusion, "time", NOT_POSITIVE),
    (RandomWalk, "steps", [*NOT_A_COUNT, None]),
    (lambda laziness: RandomWalk(2, laziness), "laziness", [*NOT_POSITIVE, 0.5]),
    (RegularizedLaplacian, "scale", NOT_POSITIVE),
    (lambda power: RegularizedLaplacian(1.0, power), "power", NOT_POSITIVE),
    (Matern, "nu", NOT_POSITIVE),
    (lambda kappa: Matern(1.0, kappa), "kappa", NOT_POSITIVE),
    (LogMatern, "nu", NOT_POSITIVE),
    (lambda kappa: LogMatern(1.0, kappa), "kappa", NOT_POSITIVE),
    (lambda floor: LogMatern(1.0, 1.0, floor), "floor", [*NOT_INSIDE, None]),
    (PowerSeries, "alpha", [[], None, "abc", [float("nan")], [[1.0]], [1j], {}, ["a"], 3.0]),
    (lambda points: ImplicitGraph(points, Gaussian(1.0)), "points", NOT_POINTS),
    (lambda edge: ImplicitGraph(POINTS, edge), "edge", [None, 1.0, "gaussian", Gaussian]),
    (lambda edge: ImplicitGraph(POINTS, edge), "lengthscale", [Gaussian(torch.ones(3)), Laplace(torch.ones(5))]),
    (lambda kind: ImplicitGraph(POINTS, Gaussian(1.0), kind), "normalization", ["left", 1, True, [], torch.ones(3)]),
    (lambda graph: graph_kernel(graph, Diffusion(1.0)), "graph", [None, POINTS, 3]),
    (lambda of: graph_kernel(GRAPH, of), "series", [None, "diffusion", Diffusion, 1.0]),
    (lambda name: graph_kernel(GRAPH, Diffusion(1.0), features=name), "features", [None, "keops", 3, [], LandmarkFeatures]),
    (lambda walks: graph_kernel(GRAPH, Diffusion(1.0), walks=walks), "walks", [3, "many", Walks]),
    (lambda tol: graph_kernel(GRAPH, Diffusion(1.0), tol=tol), "tol", NOT_INSIDE),
    (lambda r: graph_kernel(GRAPH, Diffusion(1.0), features="positive", num_features=r), "num_features", NOT_A_COUNT),
    (lambda seed: graph_kernel(GRAPH, Diffusion(1.0), seed=seed), "seed", [None, 1.5, "a", True, 2**70, -(2**70)]),
    (lambda tol: FourierGrid(GRAPH, tol), "tol", [*NOT_INSIDE, None]),
    (lambda most: FourierGrid(GRAPH, max_modes=most), "max_modes", NOT_A_COUNT),
    (lambda x: FourierGrid(GRAPH, room=x), "room", [-1.0, 0.1, float("nan"), float("inf"), "x", None]),
    (lambda x: FourierGrid(GRAPH, margin=x), "margin", [-1.0, float("nan"), float("inf"), "a", None]),
    (lambda tol: NeighborFeatures(GRAPH, tol), "tol", [*NOT_INSIDE, None]),
    (lambda cutoff: NeighborFeatures(GRAPH, cutoff=cutoff), "cutoff", [0, -1, float("nan"), "x", []]),
    (
        lambda ids: LandmarkFeatures(GRAPH, landmarks=ids),
        "landmarks",
        [torch.tensor(ids) for ids in ([0, 0], [9], [-1], [], [[0]], [0.5])] + [[0, 1], 3],
    ),
    (lambda x: PositiveFeatures(GRAPH, 4, generator=torch.Generator(), jitter=x), "jitter", [0, -1, float("nan"), "x", None]),
    (Walks, "number", [*NOT_A_COUNT, None]),
    (lambda x: Walks(2, temperature=x), "temperature", [float("nan"), float("inf"), 0, -1, "x", None]),
    (lambda x: Walks(2, halting=x), "halting", [0, 1, -1, 2, float("nan"), "x"]),
    (lambda x: Walks(2, groups=x), "groups", [*NOT_A_COUNT, None]),
    (lambda x: Walks(2, sides=x), "sides", [0, 3, "x", None]),
    (lambda x: Walks(2, deposit="spread", spread_edge=x), "spread_edge", ["gaussian", 0.3, Gaussian]),
    (lambda x: solve(x, POINTS[:, 0], 0.1), "operator", [None, POINTS, "x"]),
    (
        lambda x: solve(OPERATOR, x, 0.1),
        "rhs",
        [None, "x", [1.0] * 6, POINTS[:3, 0], POINTS.float(), torch.ones(6, 1, 1), POINTS * float("nan")],
    ),
    (
        lambda x: solve(OPERATOR, POINTS[:, 0], x),
        "noise",
        [0, -1.0, float("nan"), float("inf"), "x", None, torch.ones(3), torch.ones(6, 6), []],
    ),
    (lambda x: solve(OPERATOR, POINTS[:, 0], 0.1, x), "tol", [0, -1, float("nan"), "x", None]),
    (
        lambda x: grf_kernel(x, Diffusion(1.0)),
        "adjacency",
        [None, [[1.0]], np.eye(3), torch.ones(2, 3), -torch.eye(3), torch.full((2, 2), float("nan")), torch.ones(3)],
    ),
    (lambda x: grf_kernel(torch.eye(3), Diffusion(1.0), walks=x), "walks", [*NOT_A_COUNT, None]),
    (lambda x: grf_kernel(torch.eye(3), Diffusion(1.0), halting=x), "halting", [*NOT_INSIDE, None]),
    (DiffusionKernel, "points", NOT_POINTS),
    (
        lambda x: DiffusionKernel(POINTS, lengthscale=x),
        "lengthscale",
        [*NOT_POSITIVE[:6], *NOT_POSITIVE[7:], torch.ones(7)],
    ),
    (lambda x: DiffusionKernel(POINTS, time=x), "time", NOT_POSITIVE),
    (lambda x: RandomWalkKernel(POINTS, laziness=x), "laziness", [*NOT_POSITIVE, 0.5]),
    (lambda x: RandomWalkKernel(POINTS, steps=x), "steps", [*NOT_A_COUNT, None]),
    (lambda x: RegularizedLaplacianKernel(POINTS, scale=x), "scale", NOT_POSITIVE),
    (lambda x: MaternGraphKernel(POINTS, kappa=x), "kappa", NOT_POSITIVE),
    (lambda x: LogMaternKernel(POINTS, floor=x), "floor", [*NOT_INSIDE, None]),
    (lambda x: DiffusionKernel(POINTS, features=x), "features", [None, "keops", 3]),
    (lambda x: DiffusionKernel(POINTS, walks=x), "walks", [3, "many"]),
    (lambda x: DiffusionKernel(POINTS, tol=x), "tol", NOT_INSIDE),
    (lambda x: DiffusionKernel(POINTS, num_features=x), "num_features", NOT_A_COUNT),
    (lambda x: DiffusionKernel(POINTS, seed=x), "seed", [None, 1.5, "a", torch.Generator()]),
    (lambda x: DiffusionKernel(POINTS, ard_num_dims=x), "ard_num_dims", [0, 1, 3, "x"]),
    (
        lambda x: DiffusionKernel(POINTS)(x).to_dense(),
        "inputs",
        [torch.ones(3, 3).double(), torch.full((2, 2), float("nan")).double(), POINTS.float(), POINTS.half()],
    ),
    (
        lambda x: DiffusionKernel(POINTS)(x).to_dense(),
        "Node ids",
        [torch.tensor(ids) for ids in ([[6]], [[-1]], [[0, 1]], [[True]])],
    ),
    (lambda x: DiffusionKernel(POINTS)(x, POINTS).to_dense(), "node ids", [torch.tensor([[0]]), torch.arange(3)]),
]


@pytest.mark.parametrize(("call", "name", "values"), REFUSED, ids=[f"{number}-{row[1]}" for number, row in enumerate(REFUSED)])
def test_bad_input_is_refused_by_name(call, name, values):
    for value in values:
        with pytest.raises((ValueError, TypeError), match=name):
            call(value)
