"""Kernel products of :mod:`benchmarks.peers`: one diffusion kernel of one graph, by us and by the peers."""

from __future__ import annotations

import functools
import math
import multiprocessing
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import scipy.sparse
import torch
from scipy.sparse.linalg import expm_multiply
from torch import Tensor

from benchmarks.explicit import by_lanczos, by_taylor, dense_weights, keops_weights, normalized, within
from benchmarks.measuring import Row, least, relative
from benchmarks.peers_packages import chebyshev_filter_of, grf_kernel_of, heat_kernel_of
from benchmarks.scaling_runs import EXACT, TIME, TOL, Case, bumpy_sphere, tightest_kernel
from swing_gp import Ball, Diffusion, ImplicitGraph, NeighborFeatures, SparseGraph, graph_kernel
from swing_gp.utils.memory import peak_gigabytes

__all__ = ["CLOUDS", "METHODS", "GraphCase", "measure_product", "truth"]

# A closed surface at a lengthscale near the spacing; a dense cloud at a long one; an unweighted graph of some seven edges a
# node, which is where libraries for explicit graphs are at home.
SURFACE, CUBE, EPSILON, GIVEN = "surface", "cube 0.3", "epsilon-graph", "sparse matrix"
CLOUDS = {
    SURFACE: "a bumpy sphere, Gaussian weights, lengthscale twice the spacing",
    CUBE: "uniform points in the unit cube, Gaussian weights, lengthscale 0.3",
    EPSILON: "the bumpy sphere, weight one within 1.5 spacings and none beyond",
    GIVEN: "the same epsilon-graph, given as a SciPy matrix, which everybody starts from",
}
UNWEIGHTED = (EPSILON, GIVEN)
WALKS, WALK_LENGTH, HALTING = 25, 15, 0.1
FILTER_ORDER = 30  # of PyGSP, its default
LIST_TOL = 1e-5
# A walk that goes to every neighbour alike, as in fast-graph-gp, is served best by a short list.
WALKED_TOL = 0.1


class GraphCase(Case):
    """A cloud of :mod:`benchmarks.scaling` or an unweighted graph, in double precision, the only one of peers on graphs."""

    def points(self) -> tuple[Tensor, float]:
        if self.cloud not in UNWEIGHTED:
            return super().points()
        points, lengthscale = bumpy_sphere(self.number)
        return points, 0.75 * lengthscale

    def graph(self, dtype: torch.dtype = torch.float64) -> ImplicitGraph:
        if self.cloud not in UNWEIGHTED:
            return super().graph(dtype)
        points, radius = self.points()
        return ImplicitGraph(points.to(dtype), Ball(radius))

    def weights(self) -> Tensor:  # (N, N)
        """The dense matrix, for the peers that need it and for the truth."""
        graph = self.graph()
        if self.cloud in UNWEIGHTED:
            return torch.from_numpy(given(self).toarray())
        return graph.edge.weights(graph.points, graph.points)

    def matrix(self, tol: float) -> scipy.sparse.csr_array:
        """The sparse matrix: made for the tolerance, or given."""
        return given(self) if self.cloud == GIVEN else listed(self.graph(), tol)


@functools.lru_cache
def given(case: GraphCase) -> scipy.sparse.csr_array:
    points, radius = case.points()
    return within(points.double().numpy(), radius)


def listed(graph: ImplicitGraph, tol: float) -> scipy.sparse.csr_array:
    """Our neighbour list as an explicit graph."""
    features = NeighborFeatures(graph, tol)
    pattern = features.pattern
    entries = (features.node_weights.numpy(), pattern.col.numpy(), pattern.crow.numpy())
    return scipy.sparse.csr_array(entries, shape=pattern.shape)


# The methods: a graph to a product


Product = Callable[[Tensor], Any]


def ours(case: GraphCase) -> Product:
    if case.cloud == GIVEN:
        return graph_kernel(SparseGraph(given(case)), Diffusion(TIME)).matmul  # to rounding, as SciPy is
    return graph_kernel(case.graph(), Diffusion(TIME), tol=TOL).matmul


def geometric_kernels(case: GraphCase) -> Product:
    """Multiply with all eigenvalues, by features, which are cheaper than the matrix."""
    kernel = heat_kernel_of(case.weights(), case.number, normalize=False)
    from geometric_kernels.kernels import default_feature_map

    infinite, lengthscale = (torch.tensor([value], dtype=torch.float64) for value in (math.inf, math.sqrt(2 * TIME)))
    nodes = torch.arange(case.number).unsqueeze(-1)
    _, features = default_feature_map(kernel=kernel)(nodes, {"nu": infinite, "lengthscale": lengthscale}, normalize=False)
    return lambda v: features @ (features.mT @ v) / case.number  # its eigenvectors have norm sqrt(N)


def fast_graph_gp(case: GraphCase) -> Product:
    matrix = normalized(case.matrix(WALKED_TOL))
    kernel = grf_kernel_of(matrix, TIME, walks=WALKS, length=WALK_LENGTH, halting=HALTING)
    with torch.no_grad():
        return kernel(torch.arange(case.number, dtype=torch.float64).unsqueeze(-1)).evaluate_kernel().matmul


def lanczos(weights: Callable[[Tensor], Callable[[Tensor], Tensor]]) -> Callable[[GraphCase], Product]:
    """Multiply by Lanczos iterations in single precision, the fastest for KeOps and dense matrices."""

    def build(case: GraphCase) -> Product:
        points, lengthscale = case.points()
        multiply = weights(points / lengthscale)
        scale = multiply(torch.ones(len(points), 1)).rsqrt()
        return lambda v: by_lanczos(lambda u: scale * multiply(scale * u), v.float().reshape(len(v), -1), TIME)

    return build


def scipy_list(case: GraphCase) -> Product:
    matrix = normalized(case.matrix(LIST_TOL))
    generator = (TIME * (matrix - scipy.sparse.eye_array(case.number))).tocsr()
    return lambda v: expm_multiply(generator, v.numpy())


def pygsp(case: GraphCase) -> Product:
    return chebyshev_filter_of(given(case), TIME, FILTER_ORDER)


@dataclass(frozen=True)
class Method:
    build: Callable[[GraphCase], Product]
    most: dict[str, int]  # by cloud: the nodes it holds, or finishes in a minute or two
    package: str | None = None


EVERY = dict.fromkeys(CLOUDS, 100_000)
METHODS = {
    "swing_gp, auto": Method(ours, EVERY),
    "GeometricKernels": Method(geometric_kernels, dict.fromkeys(CLOUDS, 4_000), "GeometricKernels"),
    "fast-graph-gp": Method(fast_graph_gp, {SURFACE: 10_000, CUBE: 1_000, EPSILON: 10_000, GIVEN: 10_000}, "fast-graph-gp"),
    "PyGSP": Method(pygsp, {GIVEN: 100_000}, "PyGSP"),
    "KeOps + Lanczos": Method(lanczos(keops_weights), {SURFACE: 10_000, CUBE: 10_000}, "KeOps"),
    "dense + Lanczos": Method(lanczos(dense_weights), {SURFACE: 10_000, CUBE: 10_000}),
    "list + SciPy": Method(scipy_list, {SURFACE: 100_000, EPSILON: 100_000, GIVEN: 100_000}),
}


def measure_product(case: GraphCase, name: str, reference: str) -> Row:
    """Measure seconds of set-up and of K v, peak memory, and the relative error."""
    torch.set_num_threads(multiprocessing.cpu_count())
    warnings.simplefilter("ignore")
    build = METHODS[name].build
    build(GraphCase(case.cloud, 300))(GraphCase(case.cloud, 300).vector().double())  # libraries load, code is compiled
    v = case.vector().double()
    if case.cloud == GIVEN:
        given(case)  # not counted
    setup, product = least(lambda: build(case))
    seconds, found = least(lambda: product(v))
    return {"setup": setup, "kv": seconds, "peak_gb": peak_gigabytes(), "error": relative(found, torch.load(reference))}


def truth(case: GraphCase, path: str) -> Row:
    """Write K v to a file; return its description, and the error of the trivial guess alpha_0 v."""
    warnings.simplefilter("ignore")
    v = case.vector().double()
    if case.cloud in UNWEIGHTED:
        matrix, name = normalized(given(case)), "Taylor series of the sparse matrix"
        exact = by_taylor(lambda u: torch.from_numpy(matrix @ u.numpy()), v, TIME)
    elif case.number <= EXACT:
        weights, name = case.weights(), "Taylor series of the dense matrix"
        scale = weights.sum(-1, keepdim=True).rsqrt()
        exact = by_taylor(lambda u: scale * (weights @ (scale * u)), v, TIME)
    else:
        tightest, route = tightest_kernel(case.graph(), v)
        if tightest is None or route is None:
            raise RuntimeError(f"No route of ours reaches a truth at {case.number:,} nodes of {case.cloud}.")
        exact, name = tightest, f"our own route, {route}"
    torch.save(exact, path)
    return {"reference": name, "trivial": relative(math.exp(-TIME) * v, exact)}
