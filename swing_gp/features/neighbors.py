r"""Neighbour lists: the weights above a cut-off, found by a k-d tree and kept as a sparse matrix of O(N) entries.

If the lengthscale is near the spacing of the points, as on most meshes, almost all weights are numerically zero. The map keeps
the pairs within a cut-off; ``tol`` sets the share of the integral of f beyond it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property

import numpy as np
import scipy.sparse
import scipy.spatial
import torch
from torch import Tensor

from swing_gp.features.base import NodeFeatures, Unsuitable
from swing_gp.graphs.edges import EdgeFunction
from swing_gp.graphs.implicit import ImplicitGraph, recomputed
from swing_gp.linalg.chunks import chunk_entries
from swing_gp.linalg.sparse import SparsePattern
from swing_gp.utils.validation import as_number, check_interval

# Largest mean number of neighbours of a node: above it the other routes are cheaper in any case.
MAX_NEIGHBORS = 2000
# Largest memory of a list, in bytes.
MAX_BYTES = 6 * 2**30
# Memory of an entry in bytes: its index, its value, and the work space of the search and the sort.
BYTES_PER_ENTRY = 32
# Nodes in the sample that the number of neighbours is estimated from.
COUNT_SAMPLE = 256
# Bound on the norm of the omitted weights relative to the degrees, per omitted share of the integral of f. It was 2.1 on the
# worst of many point sets, lattices on a line whose next shell is just beyond the cut-off, and far less on most.
WORST_SHARE = 4.0


# Points, (n, d), and the pattern of their nodes within the cut-off, (n, N).
NeighborsOf = tuple[Tensor, SparsePattern]


class NeighborFeatures(NodeFeatures):
    r"""The pairs within a cut-off: :math:`\phi_1(x)` holds the weights to the neighbours of x.

    Gradients reach lengthscale and points on the fixed pattern. For the k nearest neighbours, which depend on all other points,
    see :func:`~swing_gp.knn_graph`.

    :param graph: the graph.
    :param tol: the relative error of kernel products to aim for. The cut-off omits the share ``tol / 3`` of the integral of f;
        that of a hard ball omits nothing.
    :param cutoff: the cut-off distance in lengthscales; by default ``tol`` sets it.
    :param room: the list is valid for lengthscales up to this factor shorter or longer.
    """

    graph: ImplicitGraph
    sparse = True

    def __init__(self, graph: ImplicitGraph, tol: float = 1e-6, *, cutoff: float | None = None, room: float = 1.0) -> None:
        super().__init__(graph)
        self.tol = check_interval("tol", tol, 0, 1)
        if cutoff is not None and not as_number("cutoff", cutoff) > 0:
            raise ValueError(f"cutoff must be positive, got {cutoff!r}.")
        self.cutoff, self.room = room * (list_cutoff(graph, tol) if cutoff is None else float(cutoff)), room
        # The tree has points in units of the lengthscale that the map was made for; tempered copies share it.
        self._tree = scipy.spatial.cKDTree(self._scaled(graph.points))
        sample = self._tree.data[np.random.default_rng(0).permutation(graph.num_nodes)[:COUNT_SAMPLE]]
        counts = self._tree.query_ball_point(sample, self.cutoff, p=graph.edge.norm, return_length=True, workers=-1)
        average = float(np.mean(counts))  # including the node itself
        bytes_needed = average * graph.num_nodes * BYTES_PER_ENTRY
        if (average > MAX_NEIGHBORS and graph.num_nodes > MAX_NEIGHBORS) or bytes_needed > MAX_BYTES:
            raise Unsuitable(
                f"A neighbour list would hold about {average:.0f} neighbours a node ({bytes_needed / 2**30:.2g} GiB), which is "
                "not O(N)",
                f": the limits are {MAX_NEIGHBORS} a node and {MAX_BYTES / 2**30:.0f} GiB. Use features='grid' (up to "
                "three dimensions) or 'landmarks', a larger tol, or a shorter lengthscale.",
            )

    def __repr__(self) -> str:
        return f"NeighborFeatures(pairs={self.num_pairs}, cutoff={self.cutoff:.3g})"

    def _scaled(self, x: Tensor) -> np.ndarray:
        return (x.detach().double() / self._reference_parameters[0].to(x.device)).cpu().numpy()

    @cached_property
    def pattern(self) -> SparsePattern:
        """Pattern of the pairs of nodes within the cut-off, self-loops included, (N, N)."""
        return SparsePattern.from_scipy(self._within(self._tree, self._tree))

    @property
    def deficit(self) -> float:
        # The lengthscale may have changed since the search.
        edge = self.graph.edge
        ratio = self._reference_parameters[0] / edge.lengthscale.detach().to(self._reference_parameters[0])
        return WORST_SHARE * _share_beyond(edge, self.cutoff * float(ratio.min()), self.graph.dim, 1 / WORST_SHARE)

    @property
    def num_pairs(self) -> int:
        """Number of entries of the pattern."""
        return self.pattern.num_entries

    @cached_property
    def node_weights(self) -> Tensor:  # (pairs,)
        """Entries of W on the pattern."""
        return self._log_weights(self.graph.points, self.graph.points, self.pattern).exp()

    def sparse_weights(self) -> tuple[SparsePattern, Tensor]:
        return self.pattern, self.node_weights

    def _log_weights(self, x: Tensor, y: Tensor, pattern: SparsePattern) -> Tensor:
        def weigh(x: Tensor, edge: EdgeFunction, _: Tensor, y: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
            return edge.log_weight(x[rows] - y[columns])

        block = recomputed(weigh, self.graph)
        size = chunk_entries(x.dtype) // self.graph.dim
        return torch.cat([block(x, y, rows.to(x.device), cols.to(x.device)) for rows, cols in pattern.blocks(size)])

    def _weights_of(self, x: Tensor | NeighborsOf | None) -> tuple[Tensor, SparsePattern]:
        """Weights of points, of prepared ones, or of the nodes (None), and their pattern."""
        if x is None:
            return self.node_weights, self.pattern
        points, pattern = self.prepare(x) if isinstance(x, Tensor) else x
        return self._log_weights(points, self.graph.points, pattern).exp(), pattern

    def _within(self, queries: scipy.spatial.cKDTree, tree: scipy.spatial.cKDTree) -> scipy.sparse.csr_array:
        """Pattern of all pairs within the cut-off, a CSR array with sorted columns."""
        index, norm = np.int32 if max(queries.n, tree.n) < 2**31 else np.int64, self.graph.edge.norm
        if queries is tree:
            pairs = tree.query_pairs(self.cutoff, p=norm, output_type="ndarray").T.astype(index)
        else:
            near = queries.sparse_distance_matrix(tree, self.cutoff, p=norm, output_type="ndarray")
            pairs = near["i"].astype(index), near["j"].astype(index)
        ones = np.ones(len(pairs[0]), dtype=np.int8)
        pattern = scipy.sparse.coo_array((ones, tuple(pairs)), shape=(queries.n, tree.n)).tocsr()
        if queries is tree:  # query_pairs gives each pair once, and no self-loops
            pattern = pattern + pattern.T.tocsr() + scipy.sparse.eye_array(tree.n, dtype=np.int8, format="csr")
        pattern.sort_indices()
        return pattern

    def prepare(self, x: Tensor) -> NeighborsOf:
        """Search the neighbours of points; a point without any within the cut-off gets its nearest node."""
        scaled = self._scaled(x)
        links = self._within(scipy.spatial.cKDTree(scaled), self._tree)
        isolated = np.flatnonzero(np.diff(links.indptr) == 0)
        if len(isolated):
            _, nearest = self._tree.query(scaled[isolated], p=self.graph.edge.norm)
            extra = scipy.sparse.coo_array((np.ones(len(isolated)), (isolated, nearest)), shape=links.shape)
            links = scipy.sparse.csr_array(links + extra)
        return x, SparsePattern.from_scipy(links)

    def bind(self, graph: ImplicitGraph) -> NeighborFeatures:
        other = super().bind(graph)
        if "pattern" in self.__dict__ and graph.edge.norm == self.graph.edge.norm:  # the search depends on the norm only
            other.pattern = self.pattern
        return other

    def evaluate(self, x: Tensor | NeighborsOf | None, coefficients: Tensor) -> Tensor:
        weights, pattern = self._weights_of(x)
        return pattern.matmul(weights, coefficients.contiguous())

    def evaluate_adjoint(self, x: Tensor | NeighborsOf | None, values: Tensor) -> Tensor:
        weights, pattern = self._weights_of(x)
        multiply = pattern.matmul if x is None else pattern.t_matmul  # among the nodes the weights are symmetric
        return multiply(weights, values.contiguous())

    def weights_between(self, x: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
        one, two = (scipy.spatial.cKDTree(self._scaled(z)) for z in (x, y))
        pattern = SparsePattern.from_scipy(self._within(one, two))
        weights = self._log_weights(x, y, pattern).exp()
        return lambda values: pattern.matmul(weights, values.contiguous())

    def _log_sums(self, x: Tensor | None, log_loads: Tensor | None = None) -> Tensor:
        if x is None:  # no sum is zero: every node has its self-loop
            return self._sums(None, None if log_loads is None else log_loads.exp()).log()
        log_weights, pattern = self._log_weights_to_nodes(x)
        return pattern.log_sum(log_weights if log_loads is None else log_weights + log_loads[pattern.col.to(x.device)])

    def _log_weights_to_nodes(self, x: Tensor) -> tuple[Tensor, SparsePattern]:
        pattern = self.pattern if x is self.graph.points else self.prepare(x)[1]
        return self._log_weights(x, self.graph.points, pattern), pattern

    def average(self, x: Tensor, log_noise: Tensor) -> Tensor:
        means = []
        for walkers, noise in zip(x, log_noise, strict=True):
            log_weights, pattern = self._log_weights_to_nodes(walkers)
            # A walker beyond the cut-off from all nodes moves to its nearest node, whose weight may be zero.
            log_weights = log_weights.clamp_min(torch.finfo(log_weights.dtype).min) + noise[pattern.col.to(noise.device)]
            total = pattern.log_sum(log_weights)
            shares = (log_weights - total[pattern.rows().to(total.device)]).exp()
            means.append(pattern.matmul(shares, self.graph.points))
        return torch.stack(means)


def list_cutoff(graph: ImplicitGraph, tol: float) -> float:
    """Cut-off, in lengthscales, that keeps the error of kernel products below the tolerance."""
    return graph.edge.cutoff(tol / 3, graph.dim)


def _share_beyond(edge: EdgeFunction, distance: float, dim: int, most: float) -> float:
    """Share of the integral of f beyond a distance in lengthscales, clamped to [1e-16, ``most``]."""
    low, high = math.log(1e-16), math.log(most)
    for _ in range(16):
        middle = 0.5 * (low + high)
        if edge.cutoff(math.exp(middle), dim) > distance:
            low = middle
        else:
            high = middle
    return math.exp(high)
