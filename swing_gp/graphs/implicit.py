r"""Implicit graphs: points and an edge function stand for a weighted graph with up to N^2 edges that nobody stores.

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
import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from swing_gp.graphs.edges import EdgeFunction
from swing_gp.linalg.reducer import LOCAL, Reducer
from swing_gp.utils.validation import check_choice

NORMALIZATIONS = ("symmetric", "random_walk", None)


class ImplicitGraph:
    r"""The graph with weights :math:`w_{ij} = f(p_i - p_j)`, self-loops included.

    :param points: the nodes, (N, d), float32 or float64, on any device; may require gradients.
    :param edge: the edge function f.
    :param normalization: the matrix that kernels are series of: ``"symmetric"`` for
        :math:`\tilde W = D^{-1/2} W D^{-1/2}` (spectrum in [0, 1] for positive-definite f), ``"random_walk"`` for
        :math:`P = D^{-1} W`, ``None`` for W itself, whose norm grows up to N.
    :param shards: where the nodes are: all in this process, or ``points`` are a shard of them
        (:class:`swing_gp.parallel.Shards`).
    """

    def __init__(
        self, points: Tensor, edge: EdgeFunction, normalization: str | None = "symmetric", *, shards: Reducer = LOCAL
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
        check_choice("normalization", normalization, NORMALIZATIONS)
        self.points, self.edge, self.normalization, self.shards = points, edge, normalization, shards

    def __repr__(self) -> str:
        return (
            f"ImplicitGraph(num_nodes={self.num_nodes}, dim={self.dim}, edge={self.edge!r}, "
            f"normalization={self.normalization!r})"
        )

    @property
    def num_nodes(self) -> int:
        return self.points.shape[0]

    @property
    def dim(self) -> int:
        return self.points.shape[1]

    @property
    def spectrum(self) -> tuple[float, float]:
        """The interval that holds the spectrum of the normalised matrix; for raw W the degrees must say."""
        bound = 1.0 if self.normalization else math.inf
        return (0.0 if self.edge.positive_definite else -bound, bound)

    def check_symmetric(self, what: str) -> None:
        """Refuse random-walk normalisation for something that needs a symmetric matrix."""
        if self.normalization == "random_walk":
            raise ValueError(
                f"{what} needs a symmetric matrix, and normalization='random_walk' gives none; use normalization='symmetric'."
            )

    def degree_scales(self, log_degree: Tensor) -> tuple[Tensor, Tensor]:  # (N,) -> (N,), (N,)
        """What the rows and the columns of W are multiplied by: the powers of the degrees that the normalisation names."""
        one = torch.ones_like(log_degree)
        if self.normalization is None:
            return one, one
        if self.normalization == "random_walk":
            return (-log_degree).exp(), one
        root = (-0.5 * log_degree).exp()
        return root, root

    def with_edge(self, edge: EdgeFunction) -> ImplicitGraph:
        return self._replace(self.points, edge)

    def tensors(self) -> tuple[Tensor, ...]:
        """Every tensor that gradients flow to: the points, then the parameters of the edge function."""
        return (self.points, *self.edge.parameters())

    def with_tensors(self, points: Tensor, *parameters: Tensor) -> ImplicitGraph:
        return self._replace(points, self.edge.with_parameters(*parameters))

    def _replace(self, points: Tensor, edge: EdgeFunction) -> ImplicitGraph:
        # Validated once already; operators rebuild graphs inside autograd, where a check would cost a pass.
        other = copy.copy(self)
        other.points, other.edge = points, edge
        return other

    def weight_rows(self, nodes: Tensor) -> Tensor:  # (n,) -> (n, N)
        """Exact rows of W, at O(N) each: the yardstick of ``estimate_error``."""
        return self.edge.weights(self.points[nodes], self.points)


def recomputed(function: Callable[..., Tensor], graph: ImplicitGraph) -> Callable[..., Tensor]:
    """``function(rows, edge, points, ...)`` on the tensors of the graph; its backward pass computes the block anew."""

    def block(rows: Tensor, *others: Tensor) -> Tensor:
        def run(rows: Tensor, points: Tensor, *tensors: Tensor) -> Tensor:
            split = len(graph.edge.parameters())
            return function(rows, graph.edge.with_parameters(*tensors[:split]), points, *tensors[split:])

        tensors = (rows, *graph.tensors(), *others)
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            return checkpoint(run, *tensors, use_reentrant=False, preserve_rng_state=False)
        return run(*tensors)

    return block
