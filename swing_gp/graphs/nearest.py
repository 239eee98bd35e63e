r"""Graphs of nearest neighbours: every node is linked to its k nearest nodes, with weights scaled by the local spacing.

Let :math:`r_m(x)` be the distance of x to its m-th nearest node. The very nearest is not counted: a node is nearest to itself.

.. math:: w(x, y) = \exp\Bigl(-\frac{|x - y|^2}{2\, s(x) s(y)}\Bigr)
          \bigl(1 - (1 - \tau_x)(1 - \tau_y)\bigr), \qquad s = r_k, \qquad
          \tau_x = \mathrm{smoothstep}\,\frac{r_{k+1}(x)^2 - |x - y|^2}{r_{k+1}(x)^2 - r_{\lceil k/2 \rceil}(x)^2} .

The exponential is self-tuning (Zelnik-Manor & Perona, 2004). :math:`\tau_x` is one up to the median neighbour of x and falls to
zero at its (k+1)-th, so that weights are continuous as x moves. Two points are linked if either is among the neighbours of
the other. The formula holds for every x in space: a point that moves to a node gets the weights of that node, the self-loop
:math:`w(x, x) = 1` included.

>>> points = torch.rand(100, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
>>> graph = knn_graph(points, k=5)
>>> graph.num_nodes, graph.k
(100, 5)
>>> pattern, weights = graph.extension(points[:1] + 1e-9)   # next to a node
>>> bool((weights.sum() - graph.weight_rows(torch.tensor([0])).sum()).abs() < 1e-6)
True
"""

from __future__ import annotations

import copy
from functools import cached_property

import numpy as np
import scipy.sparse
import scipy.spatial
import torch
from torch import Tensor

from swing_gp.graphs.sparse import SparseGraph
from swing_gp.linalg.chunks import chunk_entries
from swing_gp.linalg.sparse import SparsePattern
from swing_gp.utils.validation import as_number, check_count

# Largest dimension that a k-d tree is used in: in higher ones it visits most of the points.
TREE_DIM = 15
# Relative difference of squared distances below which they count as equal: rounding moves them by as much.
SQUARE_ROUNDING = {torch.float64: 1e-8, torch.float32: 3e-4}
# Least sum of the weights of the neighbours of a node, in self-loops, if its distances differ by rounding alone.
LEAST_LINK = 0.1


class KNNGraph(SparseGraph):
    """The graph of the k nearest neighbours, as :func:`~swing_gp.knn_graph` makes it, where the arguments are checked.

    :ivar k: the number of neighbours.
    :ivar bandwidth: ``"local"`` or one number.
    :ivar scales: squares of :math:`s`, :math:`r_{\\lceil k/2 \\rceil}` and :math:`r_{k+1}` of the nodes, (3, N).
    """

    extends = True

    def __init__(self, points: Tensor, k: int, bandwidth: str | float, density: float, normalization: str | None) -> None:
        self._set_normalization(normalization, density)
        self.points, self.k, self.bandwidth = points, k, bandwidth
        nearest = self._index.nearest(points, k + 2)
        self.scales = self._scales(points, nearest)
        links = _csr(nearest[:, :-1], len(points))
        union = scipy.sparse.csr_array(links + links.T)  # linked if either is near the other
        union.sort_indices()
        self.pattern = SparsePattern.from_scipy(union)
        self.weights = self._weights(points, self.scales, self.pattern)
        others = self.pattern.matmul(self.weights.detach(), torch.ones_like(points[:, :1].detach())).squeeze(-1) - 1
        _, start, end = self.scales.detach()
        # Weak links to nodes at clearly different distances are those of an outlier, which is no error.
        isolated = (others < LEAST_LINK) & (end - start < SQUARE_ROUNDING[points.dtype] * end)
        if bool(isolated.any()):
            raise ValueError(
                f"k={k} leaves {int(isolated.sum())} nodes without a neighbour: those at their {k}-th distance are as far as "
                "the next, as on a lattice, and nothing tells them apart. Use another k, for instance the number of next and "
                "next-but-one neighbours on the lattice."
            )

    def _settings_repr(self) -> str:
        return f"k={self.k}, bandwidth={self.bandwidth!r}, density={self.density:g}, normalization={self.normalization!r}"

    @cached_property
    def _index(self) -> _NeighborIndex:
        return _NeighborIndex(self.points.detach().double().cpu().numpy())

    def __getstate__(self) -> dict:
        return {name: value for name, value in self.__dict__.items() if name != "_index"}

    def fixed_tensors(self) -> tuple[Tensor, ...]:
        return self.points, self.weights, self.scales

    def with_tensors(self, *tensors: Tensor) -> KNNGraph:
        other = copy.copy(self)
        other.__dict__.update({name: value for name, value in self.__dict__.items() if name == "_index"})  # copies leave it out
        other.points, other.weights, other.scales = tensors
        return other

    def settings(self) -> tuple:
        return (*super().settings(), self.k, self.bandwidth)

    def _scales(self, x: Tensor, nearest: np.ndarray) -> Tensor:  # (n, d), (n, k + 2) -> (3, n)
        """Scales of points from the ids of their nearest nodes; see :attr:`scales`."""
        columns = [self.k, -(-self.k // 2), self.k + 1]
        ids = torch.from_numpy(nearest[:, columns]).to(x.device)
        squares = (x.unsqueeze(1) - self.points[ids]).square().sum(-1)
        if not bool((squares[:, 0].detach() > 0).all()):
            raise ValueError(
                f"points must not repeat one point more than k={self.k} times: its neighbours would all be itself, at distance "
                "zero. Use unique points, or a larger k."
            )
        if isinstance(self.bandwidth, float):
            return torch.stack([torch.full_like(squares[:, 0], self.bandwidth**2), squares[:, 1], squares[:, 2]])
        return squares.mT

    def _weights(self, x: Tensor, scales: Tensor, pattern: SparsePattern) -> Tensor:  # (n, d), (3, n) -> (entries,)
        """Weights between points with the given scales and the nodes, in the order of the pattern."""

        def weigh(rows: Tensor, columns: Tensor) -> Tensor:
            square = (x[rows] - self.points[columns]).square().sum(-1)
            point_scales, node_scales = scales[:, rows], self.scales[:, columns]
            apart = (1 - _taper(square, *point_scales[1:])) * (1 - _taper(square, *node_scales[1:]))
            return (-0.5 * square / (point_scales[0] * node_scales[0]).sqrt()).exp() * (1 - apart)

        blocks = pattern.blocks(chunk_entries(x.dtype) // max(8, self.dim))
        return torch.cat([weigh(rows.to(x.device), columns.to(x.device)) for rows, columns in blocks])

    def extension(self, x: Tensor) -> tuple[SparsePattern, Tensor]:  # (n, d)
        """Pattern, (n, N), and entries of the weights between any points and the nodes; differentiable in the points."""
        nearest = self._index.nearest(x, self.k + 2)
        reach = self.scales[2].detach().double().sqrt().cpu().numpy()
        links = _csr(nearest[:, :-1], self.num_nodes) + self._index.reaching(x, reach)
        links.sort_indices()
        pattern = SparsePattern.from_scipy(links)
        return pattern, self._weights(x, self._scales(x, nearest), pattern)


def knn_graph(
    points: Tensor,
    k: int = 10,
    *,
    bandwidth: str | float = "local",
    density: float = 0.0,
    normalization: str | None = "symmetric",
) -> KNNGraph:
    r"""Make the graph of the k nearest neighbours, with self-loops of weight one; see :mod:`swing_gp.graphs.nearest`.

    :param points: the nodes, (N, d), float32 or float64; gradients reach them on the fixed pattern.
    :param k: the number of neighbours of a node, at most N - 2.
    :param bandwidth: s: ``"local"`` for the distance to the k-th neighbour, or one number for all nodes. The local bandwidth
        has no unit and adapts to a density that varies; with a number, take a k that covers about three bandwidths.
    :param density: the exponent a, as for :class:`~swing_gp.ImplicitGraph`. With one bandwidth for all nodes, 1 gives the
        Laplace-Beltrami operator whatever the density q of the points on a manifold of dimension m. The local bandwidth is
        :math:`\sim q^{-1/m}` and makes all degrees about equal, so that a density changes little: :math:`I - P` becomes a
        multiple of :math:`q^{-2/m}` times :math:`\Delta f + (1 - 2/m) \nabla f \cdot \nabla \log q` (Berry & Harlim, 2016).
        This is intended: distances are measured in neighbours.
    :param normalization: as for :class:`~swing_gp.ImplicitGraph`; the spectrum is in [-1, 1], and W is not positive definite.

    Neighbours are searched by a k-d tree, from 16 dimensions on by all distances. Off the graph x is linked to its k + 1
    nearest nodes, and to nodes that have x among theirs. Given the values at the nodes, values at points off the graph are
    independent, so that covariances are positive semi-definite.
    """
    if not torch.is_tensor(points) or points.dim() != 2 or points.shape[1] == 0:
        raise TypeError("points must be a torch.Tensor of shape (N, d).")
    if points.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"points must be float32 or float64, got {points.dtype}; convert with points.double().")
    if not bool(torch.isfinite(points.detach()).all()):
        raise ValueError("points must be finite: they contain NaN or infinity; drop or impute those rows.")
    k = check_count("k", k)
    if k > len(points) - 2:
        raise ValueError(f"k must be at most N - 2 = {len(points) - 2}, because weights end at neighbour k + 1, got {k}.")
    if bandwidth != "local":
        if isinstance(bandwidth, str) or not 0 < as_number("bandwidth", bandwidth) < np.inf:
            raise ValueError(f"bandwidth must be 'local' or a positive number, got {bandwidth!r}.")
        bandwidth = float(bandwidth)
    return KNNGraph(points, k, bandwidth, density, normalization)


def _taper(square: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """Smoothstep taper: one up to the start, zero from the end on. All distances are squared."""
    share = ((end - square) / (end - start).clamp_min(SQUARE_ROUNDING[end.dtype] * end.detach())).clamp(0, 1)
    return share.square() * (3 - 2 * share)


def _csr(columns: np.ndarray, num_columns: int) -> scipy.sparse.csr_array:  # (n, m)
    """Pattern with the given columns in every row, (n, num_columns)."""
    number, width = columns.shape
    index = np.int32 if number * width < 2**31 else np.int64
    crow = np.arange(0, number * width + 1, width, dtype=index)
    ones = np.ones(number * width, dtype=np.int8)
    return scipy.sparse.csr_array((ones, columns.ravel().astype(index), crow), shape=(number, num_columns))


class _NeighborIndex:
    """Search index for nearest nodes.

    :param points: the nodes, (N, d), float64.
    """

    def __init__(self, points: np.ndarray) -> None:
        self.points, self.tree = points, scipy.spatial.cKDTree(points) if points.shape[1] <= TREE_DIM else None

    def nearest(self, x: Tensor, number: int) -> np.ndarray:  # (n, d) -> (n, number)
        """Ids of the nearest nodes, nearest first."""
        queries = x.detach().double().cpu().numpy()
        if self.tree is not None:
            return self.tree.query(queries, number, workers=-1)[1].reshape(len(queries), number)
        if len(queries) == 0:
            return np.empty((0, number), dtype=np.int64)
        from sklearn.neighbors import NearestNeighbors  # takes a second to load, for many dimensions alone

        search = NearestNeighbors(n_neighbors=number, algorithm="brute").fit(self.points)
        return search.kneighbors(queries, return_distance=False)

    def reaching(self, x: Tensor, radii: np.ndarray) -> scipy.sparse.csr_array:  # (n, d), (N,) -> (n, N)
        """Pattern of the nodes within whose radius each point lies, by one search for each power of two among the radii."""
        queries = x.detach().double().cpu().numpy()
        octave = np.ceil(np.log2(np.maximum(radii, np.finfo(np.float64).tiny))).astype(int)
        rows, columns = [], []
        if self.tree is not None and len(queries):
            tree = scipy.spatial.cKDTree(queries)
            for power in np.unique(octave):
                nodes = np.flatnonzero(octave == power)
                near = scipy.spatial.cKDTree(self.points[nodes]).sparse_distance_matrix(tree, 2.0**power, output_type="ndarray")
                inside = near["v"] < radii[nodes[near["i"]]]
                rows.append(near["j"][inside])
                columns.append(nodes[near["i"][inside]])
        elif len(queries):
            step = max(1, chunk_entries() // len(self.points))
            for start in range(0, len(queries), step):
                distances = scipy.spatial.distance.cdist(queries[start : start + step], self.points)
                row, column = np.nonzero(distances < radii)
                rows.append(row + start)
                columns.append(column)
        pairs = tuple(np.concatenate([np.empty(0, dtype=np.int64), *parts]) for parts in (rows, columns))
        ones = np.ones(len(pairs[0]), dtype=np.int8)
        return scipy.sparse.coo_array((ones, pairs), shape=(len(queries), len(self.points))).tocsr()
