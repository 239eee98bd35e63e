"""The methods of :mod:`benchmarks.synthetic`: each takes a problem and gives its estimate of K times the probes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from benchmarks.explicit import gaussian_list, normalized
from swing_gp import (
    Diffusion,
    Gaussian,
    ImplicitGraph,
    LandmarkFeatures,
    PairwiseFeatures,
    PositiveFeatures,
    RandomWalk,
    Series,
    Walks,
    graph_kernel,
    grf_kernel,
)
from swing_gp.features.base import FeatureMap
from swing_gp.operators.exact import exact_kernel_product

__all__ = ["METHODS", "SERIES", "Choice", "Method", "Problem", "make_problems"]

SERIES: dict[str, Series] = {"random_walk": RandomWalk(2), "diffusion": Diffusion(0.5)}
HALTING = 0.3
WALK_TOL = 1e-4  # share of the series beyond a fixed horizon
CUTOFF = 1e-12  # least weight of an edge of the explicit graph
LIST_TOL = 1e-6  # tolerance of the neighbour list
# Entries of the feature matrices that one batch of walks may hold: some 0.8 GB in all with what is cached beside them. Exact
# transitions keep little, but fragment the heap (32 MB blocks between small tensors that stay), so fewer.
BATCH_ENTRIES, PAIRWISE_ENTRIES = 2**25, 2**22


@dataclass(frozen=True)
class Problem:
    """One cloud and one kernel, with probes and their products with K."""

    kernel: str
    graph: ImplicitGraph
    probes: Tensor  # (N, k)
    product: Tensor  # (N, k)

    @property
    def series(self) -> Series:
        return SERIES[self.kernel]


def make_problems(size: int, probes: int, seed: int = 0) -> list[Problem]:
    """Make one problem a kernel, on the paper's cloud: about one other point within unit distance, whatever N is."""
    half = (math.pi * size / 6) ** (1 / 3)
    points = (2 * torch.rand(size, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) - 1) * half
    graph = ImplicitGraph(points, Gaussian(1.0))
    v = torch.randn(size, probes, dtype=torch.float64, generator=torch.Generator().manual_seed(10_000 + seed))
    return [Problem(name, graph, v, exact_kernel_product(graph, series, v)) for name, series in SERIES.items()]


@dataclass(frozen=True)
class Choice:
    """Hyper-parameters of the methods; each uses some."""

    temperature: float = 0.55
    importance: float = 1.0  # times N^(1/3)
    spread: float = 1.0


def features_of(graph: ImplicitGraph, kind: str, number: int | None, choice: Choice, random: torch.Generator) -> FeatureMap:
    if number is None:
        return PairwiseFeatures(graph)
    if kind == "landmarks":
        return LandmarkFeatures(graph, number, generator=random)
    if kind == "data":
        return PositiveFeatures(graph, number, generator=random, proposal="data")
    importance = choice.importance * graph.num_nodes ** (1 / 3)
    return PositiveFeatures(graph, number, generator=random, proposal="isotropic", importance=importance)


def identity(problem: Problem, *_: Any) -> Tensor:
    return problem.series.coefficients(1).item() * problem.probes


def grf(problem: Problem, r: int | None, walks: int, choice: Choice) -> Tensor:
    """Graph random features on the explicit graph, which is built first."""
    matrix = normalized(gaussian_list(problem.graph.points.numpy(), math.sqrt(-2 * math.log(CUTOFF))))
    return grf_kernel(matrix, problem.series, walks=walks, halting=HALTING) @ problem.probes


def neighbors(problem: Problem, *_: Any) -> Tensor:
    """The collapsed kernel on a neighbour list, which is what features="auto" takes on these clouds."""
    return graph_kernel(problem.graph, problem.series, features="neighbors", tol=LIST_TOL) @ problem.probes


def collapsed(kind: str) -> Callable[..., Tensor]:
    def run(problem: Problem, r: int | None, walks: int, choice: Choice) -> Tensor:
        features = features_of(problem.graph, kind, r, choice, torch.Generator().manual_seed(0))
        return graph_kernel(problem.graph, problem.series, features=features) @ problem.probes

    return run


def lookahead(problem: Problem, r: int | None, walks: int, choice: Choice) -> Tensor:
    """Estimate by lookahead walks with features, or with exact transitions, whose error is that of the walks alone."""
    return walked(problem, problem.graph, "data", r, Walks(walks, choice.temperature, sides=1), choice)


def printed(problem: Problem, r: int | None, walks: int, choice: Choice, *, exact: bool) -> Tensor:
    spread = Gaussian(choice.spread)
    plan = Walks(walks, choice.temperature, sides=1, noise="frechet", deposit="spread", halting=HALTING, spread_edge=spread)
    graph, root = problem.graph, None
    if exact:  # Algorithm 2 walks on P; the exact degrees turn its series into that of the symmetric matrix.
        graph = ImplicitGraph(graph.points, graph.edge, normalization="random_walk")
        root = PairwiseFeatures(graph).log_degree().mul(0.5).exp().unsqueeze(-1)
    return walked(problem, graph, "isotropic", r, plan, choice, root)


def walked(
    problem: Problem,
    graph: ImplicitGraph,
    kind: str,
    r: int | None,
    walks: Walks,
    choice: Choice,
    root: Tensor | None = None,
) -> Tensor:
    """The mean over batches of walks, each walk with its own features: one operator's law at a fraction of its memory."""
    random, total = torch.Generator().manual_seed(0), torch.zeros_like(problem.probes)
    entries = PAIRWISE_ENTRIES if r is None else BATCH_ENTRIES // r
    size = min(walks.number, max(1, entries // graph.num_nodes))
    probes = problem.probes if root is None else problem.probes / root
    for start in tqdm(range(0, walks.number, size), desc="walks", leave=False, delay=5, disable=None, position=1):
        count = min(size, walks.number - start)
        features = features_of(graph, kind, r, choice, random)
        batch = replace(walks, number=count, groups=1 if r is None else count)
        operator = graph_kernel(graph, problem.series, features=features, walks=batch, tol=WALK_TOL, seed=random)
        total += count / walks.number * (operator @ probes)
    return total if root is None else root * total


@dataclass(frozen=True)
class Method:
    """A method: its function, its cost, its hyper-parameters, and its style in pictures."""

    label: str
    run: Callable[..., Tensor]
    color: str
    features: bool = False
    walks: str = "none"  # or "many", "few"
    tuned: tuple[str, ...] = ()

    def work(self, series: Series, size: int, r: int | None, walks: int) -> float:
        """N x r x steps of walks with features: a geometric number of steps as printed, a fixed horizon otherwise."""
        if self.walks == "none" or r is None:
            return 0.0
        last = 100 if series.degree is None else series.degree
        geometric = sum((1 - HALTING) ** step for step in range(1, 1 + last))
        return size * r * walks * (geometric if "spread" in self.tuned else series.horizon(WALK_TOL) - 1)


PRINTED = ("temperature", "importance", "spread")
METHODS = {
    "identity": Method("identity, alpha_0 I", identity, "0.25"),
    "grf": Method("GRF", grf, "#d62728", walks="many"),
    "printed": Method(
        "SWING as printed, exact degrees",
        lambda *job: printed(*job, exact=True),
        "#1f77b4",
        features=True,
        walks="many",
        tuned=PRINTED,
    ),
    "printed_feature_degrees": Method(
        "SWING as printed, degrees from features",
        lambda *job: printed(*job, exact=False),
        "#7fb7e0",
        features=True,
        walks="many",
        tuned=PRINTED,
    ),
    "lookahead": Method(
        "lookahead walks, data-drawn features", lookahead, "#ff7f0e", features=True, walks="few", tuned=("temperature",)
    ),
    "pairwise": Method("lookahead walks, exact transitions", lookahead, "#8c564b", walks="many", tuned=("temperature",)),
    "isotropic": Method(
        "collapsed, positive features (paper's)", collapsed("isotropic"), "#9467bd", features=True, tuned=("importance",)
    ),
    "data": Method("collapsed, positive features (data-drawn)", collapsed("data"), "#e377c2", features=True),
    "landmarks": Method("collapsed, landmarks", collapsed("landmarks"), "#2ca02c", features=True),
    "neighbors": Method("collapsed, neighbour list (auto)", neighbors, "black"),
}
