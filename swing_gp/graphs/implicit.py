r"""Implicit graphs: points and an edge function define a weighted graph with up to N^2 edges, which are never stored.

>>> import torch
>>> from swing_gp.graphs.edges import Gaussian
>>> graph = ImplicitGraph(torch.tensor([[0.0], [1.0], [3.0]]), Gaussian(1.0))
>>> graph.num_nodes, graph.dim, graph.normalization
(3, 1, 'symmetric')
>>> graph.weight_rows(torch.tensor([0]))
tensor([[1.0000, 0.6065, 0.0111]])
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from swing_gp.graphs.edges import EdgeFunction
from swing_gp.graphs.graph import Graph
from swing_gp.linalg.reducer import LOCAL, Reducer


class ImplicitGraph(Graph):
    r"""The graph with weights :math:`w_{ij} = f(p_i - p_j)`, self-loops included.

    :param points: the nodes, (N, d), float32 or float64, on any device; they may require gradients.
    :param edge: the edge function f.
    :param normalization: the matrix that kernels are series of: ``"symmetric"`` for
        :math:`\tilde W = D^{-1/2} W D^{-1/2}` (spectrum in [0, 1] for positive-definite f), ``"random_walk"`` for
        :math:`P = D^{-1} W`, ``None`` for W itself, whose norm grows up to N.
    :param density: the exponent a in [0, 1] of :math:`W_a = D^{-a} W D^{-a}`, which replaces W before it is normalised. At 0
        kernels depend on the density of the points. At 1 they do not: for points on a manifold and a short lengthscale,
        :math:`I - P` is then its Laplace-Beltrami operator up to a factor, however unevenly it was sampled. Off the graph the
        degree is :math:`\delta(x) = d(x)^a \sum_j f(x - p_j) d_j^{-a}`, and at least 1, the least degree of a node.
    :param shards: the processes that hold the nodes: this one alone, or several, of whose nodes ``points`` are a shard
        (:class:`swing_gp.parallel.Shards`).
    """

    def __init__(
        self,
        points: Tensor,
        edge: EdgeFunction,
        normalization: str | None = "symmetric",
        *,
        density: float = 0.0,
        shards: Reducer = LOCAL,
    ) -> None:
        if not torch.is_tensor(points):
            raise TypeError(f"points must be a torch.Tensor of shape (N, d), got {type(points).__name__}.")
        if points.dim() != 2 or shards.count(points.shape[0]) == 0 or points.shape[1] == 0:
            raise ValueError(
                f"points must have shape (N, d) with at least one node and one dimension, got {tuple(points.shape)}."
            )
        if points.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"points must be float32 or float64, got {points.dtype}; convert with points.double().")
        if not shards.all(bool(torch.isfinite(points.detach()).all())):
            raise ValueError("points must be finite: they contain NaN or infinity; drop or impute those rows.")
        if not isinstance(edge, EdgeFunction):
            raise TypeError(f"edge must be an EdgeFunction such as Gaussian(1.0), got {type(edge).__name__}.")
        if edge.lengthscale.dim() == 1 and edge.lengthscale.numel() not in (1, points.shape[1]):
            raise ValueError(
                f"lengthscale has {edge.lengthscale.numel()} entries but points have {points.shape[1]} dimensions; "
                "give one number, or one per dimension."
            )
        if edge.dim not in (None, points.shape[1]):
            raise ValueError(f"edge was made for points in {edge.dim} dimensions, but points have {points.shape[1]}: {edge!r}.")
        self._set_normalization(normalization, density)
        self.points, self.edge, self.shards = points, edge, shards

    def __repr__(self) -> str:
        density = f", density={self.density:g}" if self.density else ""
        return (
            f"ImplicitGraph(num_nodes={self.num_nodes}, dim={self.dim}, edge={self.edge!r}, "
            f"normalization={self.normalization!r}{density})"
        )

    extends = True

    @property
    def positive_definite(self) -> bool:
        return self.edge.positive_definite

    def with_edge(self, edge: EdgeFunction) -> ImplicitGraph:
        """Copy the graph with another edge function, which is not checked."""
        return self._copy(self.points, edge)

    def fixed_tensors(self) -> tuple[Tensor, ...]:
        return (self.points,)

    def parameters(self) -> tuple[Tensor, ...]:
        return self.edge.parameters()

    def with_tensors(self, *tensors: Tensor) -> ImplicitGraph:
        points, *parameters = tensors
        return self._copy(points, self.edge.with_parameters(*parameters))

    def _copy(self, points: Tensor, edge: EdgeFunction) -> ImplicitGraph:
        # No validation: operators rebuild graphs inside autograd, and a check costs a pass over the points.
        other = copy.copy(self)
        other.points, other.edge = points, edge
        return other

    def subgraph(self, nodes: Tensor) -> ImplicitGraph:
        return self._copy(self.points[nodes].detach(), self.edge)

    def settings(self) -> tuple:
        edge, parameters = self.edge, {id(tensor) for tensor in self.edge.parameters()}
        others = {name: value for name, value in vars(edge).items() if id(value) not in parameters}
        return self.normalization, self.density, type(edge), others

    def weight_rows(self, nodes: Tensor) -> Tensor:  # (n,) -> (n, N)
        return self.edge.weights(self.points[nodes], self.points)

    def weight_matrix(self) -> Tensor:
        points = self.points.double()
        return self.edge.weights(points, points)


def recomputed(function: Callable[..., Tensor], graph: ImplicitGraph) -> Callable[..., Tensor]:
    """Bind ``function(rows, edge, points, ...)`` to a graph; its backward pass recomputes the block instead of storing it.

    :param function: a function of query points, an edge function, the nodes and other tensors.
    :param graph: the graph whose edge function and nodes it takes; gradients reach them.
    """

    def block(rows: Tensor, *others: Tensor) -> Tensor:
        def run(rows: Tensor, points: Tensor, *tensors: Tensor) -> Tensor:
            split = len(graph.edge.parameters())
            return function(rows, graph.edge.with_parameters(*tensors[:split]), points, *tensors[split:])

        tensors = (rows, *graph.tensors(), *others)
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            return checkpoint(run, *tensors, use_reentrant=False, preserve_rng_state=False)
        return run(*tensors)

    return block
