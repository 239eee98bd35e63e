"""The operator market: every route x edge (or graph) x series x dtype x normalisation. A new route is one more line of
``ROUTES``."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import scipy.sparse
import torch
from oracles import Covariance, cloud, dense_covariance
from torch import Tensor

from swing_gp import (
    Ball,
    DiffusionKernel,
    Gaussian,
    ImplicitGraph,
    InverseCosineKernel,
    LogMaternKernel,
    MaternGraphKernel,
    RandomWalkKernel,
    RegularizedLaplacianKernel,
    SparseGraph,
    SpectralEdge,
    Walks,
    knn_graph,
)
from swing_gp.gp.graph_kernel import GraphKernel
from swing_gp.graphs.edges import Laplace
from swing_gp.graphs.graph import Graph

POINTS = cloud(40, 2)
# Two Gaussians, whose spectrum ends as early as a grid wants it.


def two_gaussians(frequency: Tensor) -> Tensor:
    return torch.exp(-frequency.square() / 2) + 0.3 * torch.exp(-2 * frequency.square())


SPECTRAL = SpectralEdge(two_gaussians, dim=2)


def matrix_graph(points: Tensor, normalization: str | None) -> SparseGraph:
    """Ties up to a distance of 0.4, fewer the longer, and no self-loops."""
    distances = torch.cdist(POINTS, POINTS)
    weights = torch.where(distances > 0, torch.exp(-4 * distances) - 0.2, 0.0).clamp_min(0)
    return SparseGraph(scipy.sparse.csr_array(weights.to(points.dtype).numpy()), points=points, normalization=normalization)


def nearest_graph(points: Tensor, normalization: str | None) -> Graph:
    # With six, an input of the tests is as far from its seventh as from its eighth, where gradients jump.
    return knn_graph(points, 5, normalization=normalization)


@dataclass(frozen=True)
class Route:
    """A way to compute a kernel.

    :ivar options: what a GPyTorch kernel is made with.
    :ivar lengthscale: where the route is what its name says.
    :ivar exact: whether it computes the kernel of the graph itself; otherwise the matrix of the same draws in float64 is the
        truth.
    :ivar anywhere: whether it is defined off the graph.
    :ivar moves: whether it has gradients in its inputs.
    :ivar joint: whether it is the kernel of the graph also between two points off the graph.
    :ivar graph: makes the graph of points and a normalisation, where it is not an implicit one with an edge function.
    """

    options: dict[str, Any] = field(default_factory=dict)
    lengthscale: float = 0.3
    exact: bool = True
    anywhere: bool = True
    moves: bool = True
    joint: bool = True
    graph: Callable[[Tensor, str | None], Graph] | None = None


ROUTES = {
    "auto": Route(),
    "landmarks": Route({"features": "landmarks"}, joint=False),
    "pairwise": Route({"features": "pairwise"}),
    "neighbors": Route({"features": "neighbors", "tol": 1e-9}),
    "small grid": Route({"features": "grid", "tol": 1e-8}, lengthscale=0.6),
    "large grid": Route({"features": "grid", "tol": 1e-8}, lengthscale=0.1, moves=False),
    "fourier": Route({"features": "fourier", "num_features": 64}, lengthscale=1.0, exact=False),
    "positive": Route({"features": "positive", "num_features": 512}, lengthscale=1.0, exact=False),
    "walks": Route({"features": "pairwise", "walks": Walks(20)}, exact=False, anywhere=False, moves=False),
    "sparse": Route({"tol": 1e-9}, anywhere=False, moves=False, graph=matrix_graph),
    "nearest": Route({"tol": 1e-9}, graph=nearest_graph),
    "precision": Route({"tol": 1e-9}, graph=nearest_graph),  # as of large graphs, which test_conformance.py sees to
}
EDGES = {
    "gaussian": Gaussian,
    "laplace": Laplace,
    "ball": lambda lengthscale: Ball(1.5 * lengthscale, 0.4 * lengthscale),
    "spectral": lambda lengthscale: SPECTRAL.with_parameters(torch.tensor(lengthscale)),
}
GIVEN = "given"  # in place of an edge function, where the graph has its weights
SERIES = {
    "diffusion": (DiffusionKernel, {"time": 2.0}, {"time": 0.1}),
    "random walk": (RandomWalkKernel, {"steps": 3, "laziness": 2.5}, {"steps": 3, "laziness": 2.5}),
    "regularized": (RegularizedLaplacianKernel, {"scale": 3.0}, None),
    "cosine": (InverseCosineKernel, {}, None),
    "matern": (MaternGraphKernel, {"nu": 1.5, "kappa": 2.0}, None),
    "log matern": (LogMaternKernel, {}, None),
}
DTYPES = {"double": torch.float64, "float": torch.float32}
NORMALIZATIONS = {"normalized": "symmetric", "raw": None}

# What a route has no edges for, and what it says.
WITHOUT = {
    ("landmarks", "ball"): "positive-definite edge",
    ("fourier", "ball"): "density of both signs",
    ("positive", "laplace"): "Gaussian edge",
    ("positive", "ball"): "Gaussian edge",
    ("positive", "spectral"): "Gaussian edge",
    ("small grid", "laplace"): "modes",
    ("large grid", "laplace"): "modes",
    ("walks", "ball"): "walks cannot move",
    ("walks", "spectral"): "walks cannot move",
}


@torch.no_grad()
def covariance_of_the_same_draws(kernel: Any, x: Tensor, y: Tensor) -> Tensor:  # (n, d), (m, d) -> (n, m), float64
    """Features and walks are drawn in float64 from the seed, whatever the dtype: a copy in float64 has the same ones."""
    return copy.deepcopy(kernel).double()(x.double(), y.double()).to_dense()


@dataclass(frozen=True)
class Stall:
    """One cell of the market."""

    route: str
    edge: str
    series: str
    dtype: str = "double"
    normalization: str = "normalized"

    def __str__(self) -> str:
        return "-".join(getattr(self, name) for name in self.__dataclass_fields__)

    @property
    def of(self) -> Route:
        return ROUTES[self.route]

    @property
    def points(self) -> Tensor:
        return POINTS.to(DTYPES[self.dtype])

    def kernel(self, tol: float | None = None) -> GraphKernel:
        kind, options, raw = SERIES[self.series]
        normalization = NORMALIZATIONS[self.normalization]
        if self.of.graph is not None:
            graph = self.of.graph(self.points, normalization)
        else:
            graph = ImplicitGraph(self.points, EDGES[self.edge](self.of.lengthscale), normalization)
        wanted = dict(self.of.options)
        if "tol" in wanted:
            wanted["tol"] = tol or (wanted["tol"] if self.dtype == "double" else 1e-5)
        return kind(graph, **(options if normalization or raw is None else raw), **wanted)

    @property
    def tol(self) -> float:
        """How far from dense truth it may be."""
        return 1e-6 if self.dtype == "double" else 5e-3

    @property
    def joint(self) -> bool:
        return self.of.joint

    @property
    def moves(self) -> bool:
        """Grids of rougher edges than a Gaussian are small in float32 at most."""
        small = self.edge == "gaussian" or (self.edge, self.dtype) == ("spectral", "float")
        return self.of.moves and (self.route != "small grid" or small)

    @property
    def extends(self) -> bool:
        """Whether it is the kernel of the documentation off the graph: a steep series has limits of its own there."""
        return self.of.anywhere and self.series != "log matern"

    def truth(self, kernel: Any) -> Covariance:
        """The dense kernel in float64, at the hyper-parameters of the moment: of the graph, or of what a route has drawn."""
        return partial(dense_covariance if self.of.exact else covariance_of_the_same_draws, kernel)

    def refusal(self) -> str | None:
        """Why there is no such kernel, as the error says it."""
        refusals = list(self._refusals())
        return "|".join(refusals) or None  # whichever is found first

    def _refusals(self) -> Iterator[str]:
        if (self.route, self.edge) in WITHOUT:
            yield WITHOUT[self.route, self.edge]
        raw, indefinite = self.normalization == "raw", self.edge in ("ball", GIVEN)
        if self.series == "log matern":
            if raw or indefinite:
                yield "is defined for|positive-definite"
            if self.dtype == "float":
                yield "float32 rounds away"
            if self.route in ("pairwise", "neighbors", "small grid", "large grid"):
                yield "too steep near zero"
            if self.route == "walks":
                yield "diverges"
        elif raw and SERIES[self.series][2] is None:
            yield "diverges|is negative"
        elif self.series == "random walk" and raw and (indefinite or self.route == "walks"):
            yield "is negative|diverges"
        if self.series == "cosine" and self.route == "walks":
            yield "decays so slowly"


STALLS = [
    Stall(name, *rest)
    for name, route in ROUTES.items()
    for rest in itertools.product([GIVEN] if route.graph else EDGES, SERIES, DTYPES, NORMALIZATIONS)
]
MARKET = [stall for stall in STALLS if stall.refusal() is None]
REFUSED = [stall for stall in STALLS if stall.refusal() is not None]
