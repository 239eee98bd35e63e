r"""The exact map, :math:`\phi_1(x) = f(x - p)` and :math:`\phi_2(p_j) = e_j`: O(N^2) in time, chunked to O(N) in memory.

It is asymmetric: its coefficients are values at the nodes. It is for tests and small graphs, and the reference for other
maps. A graph of at most 2,000 nodes is one block, which is stored; of larger graphs no block outlives its product.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from swing_gp.features.base import NodeFeatures
from swing_gp.graphs.edges import EdgeFunction
from swing_gp.graphs.implicit import ImplicitGraph, recomputed
from swing_gp.linalg.chunks import row_chunks

# Nodes of the largest graph whose weights are stored as one block: 32 MB in float64.
ONE_BLOCK = 2000


class PairwiseFeatures(NodeFeatures):
    """Exact weights, computed block by block and, above 2,000 nodes, never stored, not even for the backward pass."""

    graph: ImplicitGraph

    @property
    def known_error(self) -> float:
        return 0.0

    def __repr__(self) -> str:
        return f"PairwiseFeatures(num_nodes={self.graph.num_nodes})"

    @cached_property
    def _weights(self) -> Tensor:
        with torch.no_grad():
            weights = self.graph.edge.weights(self.graph.points, self.graph.points)
        # Subnormal numbers slow products many times over.
        return torch.nn.functional.threshold(weights, torch.finfo(weights.dtype).tiny, 0.0)

    def _uses_stored_block(self, x: Tensor | None) -> bool:
        """Check if a product at x may use the stored block, which carries no gradients to the graph."""
        differentiable = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in self.graph.tensors())
        return x is None and self.graph.num_nodes <= ONE_BLOCK and not differentiable

    def evaluate(self, x: Tensor | None, coefficients: Tensor) -> Tensor:
        if self._uses_stored_block(x):
            return self._weights @ coefficients
        return self._by_rows(x, lambda rows, edge, p, c: edge.weights(rows, p) @ c, coefficients)

    def evaluate_adjoint(self, x: Tensor | None, values: Tensor) -> Tensor:
        if self._uses_stored_block(x):
            return self._weights.mT @ values
        x = self.graph.points if x is None else x
        block = recomputed(lambda rows, edge, p, v: edge.weights(rows, p).mT @ v, self.graph)
        chunks = row_chunks(x.shape[0], self.graph.num_nodes, x.dtype)
        return sum(block(x[rows], values[rows]) for rows in chunks)  # type: ignore[return-value]

    def weights_between(self, x: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda values: self._by_rows(x, lambda rows, edge, p, y, v: edge.weights(rows, y) @ v, y, values)

    def _log_sums(self, x: Tensor | None, log_loads: Tensor | None = None) -> Tensor:
        loads = torch.zeros_like(self.graph.points[:, 0]) if log_loads is None else log_loads
        if self._uses_stored_block(x):
            return (self._weights @ loads.exp()).log()
        return self._by_rows(x, lambda rows, edge, p, a: torch.logsumexp(edge.log_weights(rows, p) + a, dim=-1), loads)

    def average(self, x: Tensor, log_noise: Tensor) -> Tensor:
        def move(rows: Tensor, edge: EdgeFunction, p: Tensor, noise: Tensor) -> Tensor:
            return torch.softmax(edge.log_weights(rows, p) + noise.unsqueeze(-2), dim=-1) @ p

        block = recomputed(move, self.graph)
        chunks = row_chunks(x.shape[-2], len(x) * self.graph.num_nodes, x.dtype)
        return torch.cat([block(x[:, rows], log_noise) for rows in chunks], dim=-2)

    def _by_rows(self, x: Tensor | None, function: Callable[..., Tensor], *others: Tensor) -> Tensor:
        x = self.graph.points if x is None else x
        block = recomputed(function, self.graph)
        return torch.cat([block(x[rows], *others) for rows in row_chunks(x.shape[0], self.graph.num_nodes, x.dtype)])
