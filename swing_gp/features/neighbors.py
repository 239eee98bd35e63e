r"""Neighbour lists: the weights above a cut-off, found by a k-d tree and kept as a sparse matrix of O(N) entries.

Where the lengthscale is near the spacing of the points (most meshes), almost all weights are numerically zero. The pairs
within the cut-off are the graph then; what is dropped is a share of the integral of f that ``tol`` sets.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
import scipy.sparse
import scipy.spatial
import torch
from torch import Tensor

from swing_gp.features.base import NodeFeatures
from swing_gp.graphs.edges import EdgeFunction
from swing_gp.graphs.implicit import ImplicitGraph, chunk_entries, recomputed
from swing_gp.linalg.sparse import SparsePattern
from swing_gp.parallel.shards import SHARDABLE, refuse_shards
from swing_gp.utils.recent import Recent
from swing_gp.utils.validation import as_number, check_interval

__all__ = ["NeighborFeatures", "list_cutoff"]

# A list is for graphs with O(N) edges; this many a node is where the other routes are cheaper in any case.
MAX_NEIGHBORS = 2000
MAX_BYTES = 6 * 2**30
# Index and value of an entry, with what finding and sorting them takes.
BYTES_PER_ENTRY = 32
SAMPLE = 256
# What is cut off is a matrix of its own, and its norm a share of the degrees: 2.1 times the lost share of the integral of f on
# the worst of many point sets, lattices on a line whose next shell is just beyond the cut-off, and far less on most.
WORST_SHARE = 4.0


class NeighborFeatures(NodeFeatures):
    r"""The pairs within a cut-off. As an asymmetric map, :math:`\phi_1(x)` holds the weights to the neighbours of x and
    :math:`\phi_2(p_j) = e_j`.

    Gradients reach lengthscale and points on the fixed pattern. k-nearest-neighbour graphs are not of this form, because who
    is a neighbour depends on all other points: give those by their edges to :func:`~swing_gp.grf_kernel`.

    :param tol: the relative error of kernel products to aim for: the cut-off drops a third of this share of the integral
        of f; a hard ball drops nothing.
    :param cutoff: the cut-off distance in lengthscales, to set it by hand.
    """

    def __init__(self, graph: ImplicitGraph, tol: float = 1e-6, *, cutoff: float | None = None) -> None:
        refuse_shards("A list of neighbours", SHARDABLE)
        self.tol = check_interval("tol", tol, 0, 1)
        if cutoff is not None and not as_number("cutoff", cutoff) > 0:
            raise ValueError(f"cutoff must be positive, got {cutoff!r}.")
        self.cutoff = list_cutoff(graph, tol) if cutoff is None else float(cutoff)
        self.graph = graph
        # The tree lives in the units of the lengthscale it was made for; tempered copies reuse it as it is.
        self._unit = graph.edge.lengthscale.detach()
        self._tree = scipy.spatial.cKDTree(self._scaled(graph.points))
        self._check_size()

    def __repr__(self) -> str:
        return f"NeighborFeatures(pairs={self.num_pairs}, cutoff={self.cutoff:.3g})"

    def _scaled(self, x: Tensor) -> np.ndarray:
        return (x.detach().double() / self._unit.to(x.device)).cpu().numpy()

    def _check_size(self) -> None:
        number = self.graph.num_nodes
        average = _sampled_neighbors(self._tree, self.cutoff, self._norm)
        bytes_needed = average * number * BYTES_PER_ENTRY
        if (average > MAX_NEIGHBORS and number > MAX_NEIGHBORS) or bytes_needed > MAX_BYTES:
            raise ValueError(
                f"A neighbour list would hold about {average:.0f} neighbours a node ({bytes_needed / 2**30:.2g} GiB), which is "
                f"not O(N): the limits are {MAX_NEIGHBORS} a node and {MAX_BYTES / 2**30:.0f} GiB. Use features='grid' (up to "
                "three dimensions) or 'landmarks', a larger tol, or a shorter lengthscale."
            )

    @property
    def _norm(self) -> float:
        return self.graph.edge.norm

    @cached_property
    def pattern(self) -> SparsePattern:
        return SparsePattern.from_scipy(_within(self._tree, self._tree, self.cutoff, self._norm))

    @property
    def deficit(self) -> float:
        # Lengthscales may have changed since the pairs were found.
        edge = self.graph.edge
        ratio = self._unit / edge.lengthscale.detach().to(self._unit)
        share = _share_beyond(edge, self.cutoff * float(ratio.min()), self.graph.dim, 1 / WORST_SHARE)
        return WORST_SHARE * share

    @property
    def num_pairs(self) -> int:
        return self.pattern.num_entries

    @cached_property
    def node_weights(self) -> Tensor:  # (pairs,)
        return self._weights(self.graph.points, self.pattern)

    def _weights(self, x: Tensor, pattern: SparsePattern) -> Tensor:
        return self._log_weights(x, self.graph.points, pattern).exp()

    def _log_weights(self, x: Tensor, y: Tensor, pattern: SparsePattern) -> Tensor:
        def weigh(x: Tensor, edge: EdgeFunction, _: Tensor, y: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
            return edge.log_weight(x[rows] - y[columns])

        block = recomputed(weigh, self.graph)
        size = chunk_entries(x.dtype) // self.graph.dim
        return torch.cat([block(x, y, rows.to(x.device), cols.to(x.device)) for rows, cols in pattern.blocks(size)])

    def _at(self, x: Tensor | None) -> tuple[Tensor, SparsePattern]:
        if x is None:
            return self.node_weights, self.pattern
        pattern = self._pattern_at(x)
        return self._weights(x, pattern), pattern

    @cached_property
    def _recent(self) -> Recent[SparsePattern]:
        return Recent()

    def _pattern_at(self, x: Tensor) -> SparsePattern:
        """The neighbours of any points; one that has none within the cut-off gets its nearest node."""
        return self._recent.get(lambda: self._find(x), x)

    def _find(self, x: Tensor) -> SparsePattern:
        scaled = self._scaled(x)
        found = _within(scipy.spatial.cKDTree(scaled), self._tree, self.cutoff, self._norm)
        lonely = np.flatnonzero(np.diff(found.indptr) == 0)
        if len(lonely):
            _, nearest = self._tree.query(scaled[lonely], p=self._norm)
            extra = scipy.sparse.coo_array((np.ones(len(lonely)), (lonely, nearest)), shape=found.shape)
            found = scipy.sparse.csr_array(found + extra)
        return SparsePattern.from_scipy(found)

    def bind(self, graph: ImplicitGraph) -> NeighborFeatures:
        other = super().bind(graph)
        if other is not self and other._norm == self._norm:  # the search knows of the tree, the cut-off and the norm alone
            other.__dict__.update({name: self.__dict__[name] for name in self.__dict__.keys() & {"pattern", "_recent"}})
        return other

    def redraw(self, edge: EdgeFunction, generator: torch.Generator) -> NeighborFeatures:
        # The cut-off stays where it is: with noise, a node is as likely to win a move at any temperature.
        return self.bind(self.graph.with_edge(edge))

    def evaluate(self, x: Tensor | None, coefficients: Tensor) -> Tensor:
        weights, pattern = self._at(x)
        return pattern.matmul(weights, coefficients.contiguous())

    def evaluate_adjoint(self, x: Tensor | None, values: Tensor) -> Tensor:
        weights, pattern = self._at(x)
        multiply = pattern.matmul if x is None else pattern.t_matmul  # among the nodes the weights are symmetric
        return multiply(weights, values.contiguous())

    def between(self, x: Tensor, y: Tensor, values: Tensor) -> Tensor:
        def find() -> SparsePattern:
            one, two = (scipy.spatial.cKDTree(self._scaled(z)) for z in (x, y))
            return SparsePattern.from_scipy(_within(one, two, self.cutoff, self._norm))

        pattern = self._recent.get(find, x, y)
        return pattern.matmul(self._log_weights(x, y, pattern).exp(), values.contiguous())

    def log_degree(self, x: Tensor | None = None) -> Tensor:
        if x is None:  # no node is alone: it has its self-loop
            ones = torch.ones(self.graph.num_nodes, 1, dtype=self.graph.points.dtype, device=self.graph.points.device)
            return self.evaluate(None, ones).squeeze(-1).log()
        log_weights, pattern = self._log_at(x)
        return pattern.log_sum(log_weights)

    def _log_at(self, x: Tensor) -> tuple[Tensor, SparsePattern]:
        pattern = self.pattern if x is self.graph.points else self._pattern_at(x)
        return self._log_weights(x, self.graph.points, pattern), pattern

    def average(self, x: Tensor, log_noise: Tensor) -> Tensor:
        moved = []
        for walkers, noise in zip(x, log_noise, strict=True):
            log_weights, pattern = self._log_at(walkers)
            # A walker out of reach of all nodes moves to the one it has, whose weight may be zero.
            log_weights = log_weights.clamp_min(torch.finfo(log_weights.dtype).min) + noise[pattern.col.to(noise.device)]
            total = pattern.log_sum(log_weights)
            shares = (log_weights - total[pattern.rows().to(total.device)]).exp()
            moved.append(pattern.matmul(shares, self.graph.points))
        return torch.stack(moved)


def list_cutoff(graph: ImplicitGraph, tol: float) -> float:
    """The cut-off, in lengthscales, that keeps the error of kernel products below the tolerance."""
    return graph.edge.cutoff(tol / 3, graph.dim)


def _share_beyond(edge: EdgeFunction, distance: float, dim: int, most: float) -> float:
    """The share of the integral of f beyond a distance in lengthscales, at least 1e-16 and at most ``most``."""
    low, high = math.log(1e-16), math.log(most)
    for _ in range(16):
        middle = 0.5 * (low + high)
        if edge.cutoff(math.exp(middle), dim) > distance:
            low = middle
        else:
            high = middle
    return math.exp(high)


def _sampled_neighbors(tree: scipy.spatial.cKDTree, cutoff: float, norm: float) -> float:
    """The mean number of neighbours within the cut-off, itself included, from a sample of nodes."""
    order = np.random.default_rng(0).permutation(tree.n)[:SAMPLE]
    return float(np.mean(tree.query_ball_point(tree.data[order], cutoff, p=norm, return_length=True, workers=-1)))


def _within(queries: scipy.spatial.cKDTree, tree: scipy.spatial.cKDTree, cutoff: float, norm: float) -> scipy.sparse.csr_array:
    """The pattern of all pairs within the cut-off, as a CSR array with sorted columns."""
    index = np.int32 if max(queries.n, tree.n) < 2**31 else np.int64
    if queries is tree:
        pairs = tree.query_pairs(cutoff, p=norm, output_type="ndarray").T.astype(index)
        half = scipy.sparse.coo_array((np.ones(pairs.shape[1], dtype=np.int8), tuple(pairs)), shape=(tree.n, tree.n)).tocsr()
        pattern = half + half.T.tocsr() + scipy.sparse.eye_array(tree.n, dtype=np.int8, format="csr")
    else:
        found = queries.sparse_distance_matrix(tree, cutoff, p=norm, output_type="ndarray")
        pairs = found["i"].astype(index), found["j"].astype(index)
        pattern = scipy.sparse.coo_array((np.ones(len(found), dtype=np.int8), pairs), shape=(queries.n, tree.n)).tocsr()
    pattern.sort_indices()
    return pattern
