r"""Sparse graphs: weighted graphs given by their adjacency matrices.

>>> import scipy.sparse
>>> path = scipy.sparse.diags_array([1.0, 1.0], offsets=[-1, 1], shape=(4, 4))
>>> graph = SparseGraph(path)
>>> graph.num_nodes, graph.num_edges, graph.weight_rows(torch.tensor([1]))
(4, 3, tensor([[1., 0., 1., 0.]], dtype=torch.float64))
"""

from __future__ import annotations

import copy
from typing import TypeAlias

import numpy as np
import scipy.sparse
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from swing_gp.graphs.graph import Graph
from swing_gp.linalg.sparse import SparsePattern
from swing_gp.utils.validation import check_count

# Largest difference of w_ij and w_ji, relative to the largest weight, in a symmetric matrix: ten roundings of float32.
ASYMMETRY = 1e-6

SparseMatrix: TypeAlias = scipy.sparse.sparray | scipy.sparse.spmatrix | Tensor


class SparseGraph(Graph):
    r"""A symmetric weighted graph, given by its matrix.

    :param adjacency: W, (N, N): a ``scipy.sparse`` matrix or array, or a torch sparse tensor (COO or CSR), whose values may
        require gradients. It must be symmetric, finite and non-negative, with at least one edge. float32 stays float32, other
        numbers become float64. Repeated entries are added, as in SciPy.
    :param points: coordinates of the nodes, (N, d), in the dtype of the weights, or None; with points, inputs of kernels may
        be coordinates of nodes.
    :param normalization: the same as for :class:`~swing_gp.ImplicitGraph`; a normalised matrix has its spectrum in [-1, 1].

    Self-loops are the diagonal of the matrix; none is added. A node without edges has a row of zeros under every
    normalisation, so that every kernel :math:`\sum_k \alpha_k A^k` is :math:`\alpha_0` there. There are no weights off the
    graph: inputs must be nodes.
    """

    def __init__(
        self, adjacency: SparseMatrix, *, points: Tensor | None = None, normalization: str | None = "symmetric"
    ) -> None:
        self._set_normalization(normalization, 0.0)
        self.pattern, self.weights = _symmetric(*_entries(adjacency))
        self.points = _checked_points(points, self.weights, self.pattern.shape[0])

    @classmethod
    def from_edges(
        cls,
        edge_index: Tensor | ArrayLike,
        weights: Tensor | ArrayLike | None = None,
        num_nodes: int | None = None,
        *,
        points: Tensor | None = None,
        normalization: str | None = "symmetric",
    ) -> SparseGraph:
        """Make a graph from a list of edges, in the convention of PyTorch Geometric.

        :param edge_index: node ids, (2, E), integers; every edge in both directions, a self-loop once.
        :param weights: weights of the edges, (E,), ones by default; they may require gradients.
        :param num_nodes: N; by default the largest node id plus one.
        :param points: coordinates of the nodes, (N, d), or None.
        :param normalization: the same as for :class:`~swing_gp.ImplicitGraph`.

        >>> graph = SparseGraph.from_edges(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]))
        >>> graph.num_nodes, graph.num_edges
        (3, 2)
        """
        index = torch.as_tensor(edge_index)
        if index.dim() != 2 or index.shape[0] != 2 or index.is_floating_point() or index.dtype == torch.bool:
            raise ValueError(f"edge_index must be whole numbers of shape (2, E), got {index.dtype} of {tuple(index.shape)}.")
        values = torch.ones(index.shape[1], dtype=torch.float64) if weights is None else torch.as_tensor(weights)
        if values.shape != index.shape[1:]:
            raise ValueError(f"weights must have one entry per edge ({index.shape[1]}), got shape {tuple(values.shape)}.")
        if index.numel() == 0:
            raise ValueError("edge_index must hold at least one edge: a graph without edges has no kernel but the identity.")
        size = int(index.max()) + 1 if num_nodes is None else check_count("num_nodes", num_nodes)
        if int(index.min()) < 0 or int(index.max()) >= size:
            raise ValueError(f"edge_index must lie in 0..{size - 1}, got {int(index.min())}..{int(index.max())}.")
        matrix = torch.sparse_coo_tensor(index, values, (size, size), check_invariants=False)
        return cls(matrix, points=points, normalization=normalization)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(num_nodes={self.num_nodes}, num_edges={self.num_edges}, {self._settings_repr()})"

    def _settings_repr(self) -> str:
        return f"normalization={self.normalization!r}"

    @property
    def num_edges(self) -> int:
        """Number of linked pairs of nodes, self-loops included."""
        loops = int((self.pattern.rows() == self.pattern.col).sum())
        return (self.pattern.num_entries + loops) // 2

    positive_definite = False
    extends = False

    def fixed_tensors(self) -> tuple[Tensor, ...]:
        return self.points, self.weights

    def with_tensors(self, *tensors: Tensor) -> SparseGraph:
        other = copy.copy(self)
        other.points, other.weights = tensors
        return other

    def settings(self) -> tuple:
        return self.normalization, self.density, self.pattern.crow, self.pattern.col

    def to_scipy(self) -> scipy.sparse.csr_array:
        """Convert W to a SciPy array."""
        parts = (part.detach().cpu().numpy() for part in (self.weights, self.pattern.col, self.pattern.crow))
        return scipy.sparse.csr_array(tuple(parts), shape=self.pattern.shape)

    def weight_rows(self, nodes: Tensor) -> Tensor:
        return torch.from_numpy(self.to_scipy()[nodes.cpu().numpy()].toarray()).to(self.weights)

    def weight_matrix(self) -> Tensor:
        weights = self.weights.double()
        index = self.pattern.rows().to(weights.device), self.pattern.col.long().to(weights.device)
        return weights.new_zeros(self.pattern.shape).index_put(index, weights)

    def subgraph(self, nodes: Tensor) -> SparseGraph:
        ids = nodes.cpu().numpy()
        matrix = scipy.sparse.csr_array(self.to_scipy()[ids][:, ids])
        # A subgraph of a KNNGraph is a SparseGraph too: its links are not those to nearest nodes of the subgraph.
        other = SparseGraph.__new__(SparseGraph)
        other.normalization, other.density, other.points = self.normalization, self.density, self.points[nodes].detach()
        other.pattern, other.weights = _from_csr(matrix)
        return other


def _entries(adjacency: SparseMatrix) -> tuple[SparsePattern, Tensor]:
    """Pattern and entries of a matrix, in the order of a canonical CSR array."""
    if scipy.sparse.issparse(adjacency):
        if adjacency.ndim != 2:
            raise ValueError(f"adjacency must be a matrix, got {adjacency.ndim} dimensions.")
        return _from_csr(scipy.sparse.csr_array(adjacency))
    if not torch.is_tensor(adjacency) or adjacency.layout not in (torch.sparse_coo, torch.sparse_csr):
        raise TypeError(
            "adjacency must be a scipy.sparse matrix or array or a torch sparse tensor (COO or CSR), got "
            f"{type(adjacency).__name__}; wrap a dense matrix in scipy.sparse.csr_array, for NetworkX call "
            "nx.to_scipy_sparse_array."
        )
    if adjacency.dim() != 2:
        raise ValueError(f"adjacency must be a matrix, got {adjacency.dim()} dimensions.")
    if adjacency.layout == torch.sparse_csr:
        counts, col = adjacency.crow_indices().long().diff(), adjacency.col_indices().long()
        index = torch.stack([torch.repeat_interleave(torch.arange(len(counts), device=col.device), counts), col])
        adjacency = torch.sparse_coo_tensor(index, adjacency.values(), adjacency.shape, check_invariants=False)
    ordered = adjacency.coalesce()
    rows, cols = ordered.indices().cpu().numpy()
    crow = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=adjacency.shape[0]))])
    array = scipy.sparse.csr_array((np.empty(len(cols), dtype=np.int8), cols, crow), shape=tuple(adjacency.shape))
    return SparsePattern.from_scipy(array), _as_weights(ordered.values())


def _from_csr(array: scipy.sparse.csr_array) -> tuple[SparsePattern, Tensor]:
    """Pattern and entries of a real matrix, whose repeated entries are added."""
    if np.iscomplexobj(array.data) or array.data.dtype == object:
        raise ValueError(f"adjacency must be real, got {array.data.dtype} numbers.")
    array = array.astype(array.data.dtype if array.data.dtype in (np.float32, np.float64) else np.float64)  # a copy
    array.sum_duplicates()
    return SparsePattern.from_scipy(array), torch.from_numpy(array.data)


def _as_weights(values: Tensor) -> Tensor:
    """Convert real entries to float64, unless they are floats already."""
    if values.is_complex():
        raise ValueError(f"adjacency must be real, got {values.dtype} numbers.")
    return values if values.dtype in (torch.float32, torch.float64) else values.double()


def _symmetric(pattern: SparsePattern, weights: Tensor) -> tuple[SparsePattern, Tensor]:
    """Check the entries of a matrix, and make them exactly symmetric."""
    rows, columns = pattern.shape
    if rows != columns:
        raise ValueError(f"adjacency must be square, got shape {pattern.shape}.")
    values = weights.detach()
    if not bool(torch.isfinite(values).all()):
        raise ValueError("adjacency must be finite: it contains NaN or infinity; leave those edges out.")
    if bool((values < 0).any()):
        raise ValueError(
            f"adjacency must be non-negative, got {float(values.min()):.3g}: weights say how strongly nodes are linked; leave "
            "out or shift negative ones."
        )
    if not bool((values > 0).any()):
        raise ValueError("adjacency must have at least one edge: a graph without edges has no kernel but the identity.")
    order, flipped = pattern.transposed
    if not (torch.equal(flipped.crow, pattern.crow) and torch.equal(flipped.col, pattern.col)):
        if weights.requires_grad or not bool((values == 0).any()):
            _refuse_directed()
        array = scipy.sparse.csr_array((values.numpy(), pattern.col.numpy(), pattern.crow.numpy()), shape=pattern.shape)
        array.eliminate_zeros()  # drop zeros that are stored on one side of the diagonal only
        return _symmetric(SparsePattern.from_scipy(array), torch.from_numpy(array.data))
    mirrored = weights[order.to(weights.device)]
    if float((values - mirrored.detach()).abs().max()) > ASYMMETRY * float(values.max()):
        _refuse_directed()
    return pattern, 0.5 * (weights + mirrored)


def _refuse_directed() -> None:
    raise ValueError(
        "adjacency must be symmetric, and this is a directed graph: give every edge in both directions, for instance "
        "(A + A.T) / 2, or A.maximum(A.T)."
    )


def _checked_points(points: Tensor | None, weights: Tensor, num_nodes: int) -> Tensor:
    """Check the coordinates of the nodes; without any they have no columns."""
    if points is None:
        return weights.new_empty(num_nodes, 0)
    if not torch.is_tensor(points) or points.dim() != 2 or len(points) != num_nodes or points.shape[1] == 0:
        raise ValueError(f"points must be a tensor of shape ({num_nodes}, d), one row per node, or None.")
    if points.dtype != weights.dtype:
        raise ValueError(f"points must be {weights.dtype} like the weights, got {points.dtype}.")
    if not bool(torch.isfinite(points.detach()).all()):
        raise ValueError("points must be finite: they contain NaN or infinity.")
    return points
