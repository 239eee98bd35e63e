r"""The map of a sparse graph: the identity and one sparse product, exact.

Coefficients are values at the nodes, :math:`\phi_2(p_j) = e_j`, and :math:`\phi_1(x)` holds the weights between x and the
nodes: a row of W at a node, and the extension of the graph elsewhere (:meth:`~swing_gp.graphs.nearest.KNNGraph.extension`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from swing_gp.features.base import NodeFeatures
from swing_gp.graphs.edges import EdgeFunction
from swing_gp.graphs.nearest import KNNGraph
from swing_gp.graphs.sparse import SparseGraph
from swing_gp.linalg.sparse import SparsePattern

# Pattern, (n, N), and entries of the weights between points and nodes.
Extension = tuple[SparsePattern, Tensor]


class SparseFeatures(NodeFeatures):
    """The exact weights of a :class:`~swing_gp.SparseGraph`.

    >>> import scipy.sparse
    >>> ring = scipy.sparse.diags_array([1.0, 1.0, 1.0, 1.0], offsets=[-3, -1, 1, 3], shape=(4, 4))
    >>> features = SparseFeatures(SparseGraph(ring))
    >>> features.evaluate(None, torch.tensor([[1.0], [2.0], [3.0], [4.0]]).double()).squeeze()
    tensor([6., 4., 6., 4.], dtype=torch.float64)
    """

    graph: SparseGraph
    sparse = True

    def __repr__(self) -> str:
        return f"SparseFeatures(entries={self.graph.pattern.num_entries})"

    @property
    def known_error(self) -> float:
        return 0.0

    def node_matrix(self) -> Extension:
        return self.graph.pattern, self.graph.weights

    def prepare(self, x: Tensor) -> Extension:
        if not isinstance(self.graph, KNNGraph):
            raise ValueError(
                "A SparseGraph has no weights off the graph: inputs must be its nodes, by id or, if it has points, by their "
                "coordinates. Make the places you ask for nodes, or use knn_graph or ImplicitGraph, which go on everywhere."
            )
        return self.graph.extension(x)

    def _weights_of(self, x: Tensor | Extension | None) -> Extension:
        if x is None:
            return self.node_matrix()
        return self.prepare(x) if isinstance(x, Tensor) else x

    def evaluate(self, x: Tensor | Extension | None, coefficients: Tensor) -> Tensor:
        pattern, weights = self._weights_of(x)
        return pattern.matmul(weights, coefficients.contiguous())

    def evaluate_adjoint(self, x: Tensor | Extension | None, values: Tensor) -> Tensor:
        pattern, weights = self._weights_of(x)
        multiply = pattern.matmul if x is None else pattern.t_matmul  # among the nodes the weights are symmetric
        return multiply(weights, values.contiguous())

    def _log_sums(self, x: Tensor | None, log_loads: Tensor | None = None) -> Tensor:
        pattern, weights = self._weights_of(x)
        loads = weights.new_ones(self.graph.num_nodes) if log_loads is None else log_loads.exp()
        sums = pattern.matmul(weights, loads.unsqueeze(-1)).squeeze(-1)
        # A node without edges gets an infinite degree, which keeps its row zero under every normalisation.
        linked = sums.detach() > 0
        return torch.where(linked, sums, torch.ones_like(sums)).log().masked_fill(~linked, torch.inf)

    weighs_any_pair = False

    def weights_between(self, x: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
        raise ValueError("A sparse graph has weights between points and nodes only.")

    def average(self, x: Tensor, log_noise: Tensor) -> Tensor:
        raise ValueError("SWING walks move in space, on an ImplicitGraph; on a sparse graph use grf_kernel, or walks=None.")

    def redraw(self, edge: EdgeFunction, generator: torch.Generator) -> SparseFeatures:
        return self
