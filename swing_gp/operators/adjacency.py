r"""The graph's own matrices W, P and :math:`\tilde W`, through the two verbs of any feature map."""

from __future__ import annotations

import torch
from linear_operator.operators import LinearOperator
from torch import Tensor

from swing_gp.features.base import FeatureMap
from swing_gp.operators.diagnostics import GraphOperator
from swing_gp.operators.matrix_free import MatrixFreeLinearOperator
from swing_gp.parallel.shards import check_place

__all__ = ["AdjacencyLinearOperator", "adjacency"]


class AdjacencyLinearOperator(GraphOperator, MatrixFreeLinearOperator):
    r"""W, :math:`P = D^{-1} W` or :math:`\tilde W = D^{-1/2} W D^{-1/2}` as the graph's ``normalization`` says.

    Made by :func:`adjacency`. Gradients reach the points, the edge parameters and the degrees.

    :param log_degree: logarithms of the degrees of the nodes, (N,).
    :param residual: what is added to the diagonal of the features' W, (N,); zeros where there is nothing.
    :param tensors: the tensors of the graph, as of :meth:`ImplicitGraph.tensors`.
    :param features: the feature map.
    """

    def __init__(
        self, log_degree: Tensor, residual: Tensor, *tensors: Tensor, features: FeatureMap, transposed: bool = False
    ) -> None:
        super().__init__(log_degree, residual, *tensors, features=features, transposed=transposed)
        if any(new is not old for new, old in zip(tensors, features.graph.tensors(), strict=True)):
            features = features.bind(features.graph.with_tensors(*tensors))
        self.features, self.graph, self.series = features, features.graph, None
        self.log_degree, self.residual, self.transposed = log_degree, residual, transposed

    def _size(self) -> torch.Size:
        return torch.Size((self.graph.num_nodes, self.graph.num_nodes))

    def _transpose_nonbatch(self) -> LinearOperator:
        return self.__class__(*self._args, features=self.features, transposed=not self.transposed)

    def _scales(self) -> tuple[Tensor | float, Tensor | float]:
        """Factors of the rows and of the columns of W."""
        if self.graph.normalization is None:
            return 1.0, 1.0
        if self.graph.normalization == "random_walk":
            return (-self.log_degree).exp().unsqueeze(-1), 1.0
        root = (-0.5 * self.log_degree).exp().unsqueeze(-1)
        return root, root

    def _apply(self, rhs: Tensor) -> Tensor:
        check_place(self.graph.made_at, "An operator")
        left, right = self._scales()
        if self.transposed:
            left, right = right, left
        scaled = right * rhs
        if self.transposed:
            product = self.features.project_adjoint(self.features.evaluate_adjoint(None, scaled))
        else:
            product = self.features.evaluate(None, self.features.project(scaled))
        return left * (product + self.residual.unsqueeze(-1) * scaled)


def adjacency(features: FeatureMap) -> AdjacencyLinearOperator:
    r"""The normalised (or raw) adjacency matrix of a feature map's graph.

    >>> import torch
    >>> from swing_gp import Gaussian, ImplicitGraph, PairwiseFeatures
    >>> graph = ImplicitGraph(torch.rand(5, 2).double(), Gaussian(0.5), normalization="random_walk")
    >>> P = adjacency(PairwiseFeatures(graph))
    >>> torch.allclose(P @ torch.ones(5).double(), torch.ones(5).double())
    True
    """
    graph = features.graph
    residual = features.node_residual()
    if residual is None:
        residual = torch.zeros(graph.num_nodes, dtype=graph.points.dtype, device=graph.points.device)
    log_degree = features.log_degree()
    if graph.normalization and not bool(torch.isfinite((-log_degree.detach()).exp()).all()):
        raise ValueError(
            f"{type(features).__name__} do not see some node: its degree is exp({float(log_degree.detach().min()):.3g}), which "
            "cannot be divided by. Use more features (num_features), a larger lengthscale, or features='landmarks'."
        )
    return AdjacencyLinearOperator(log_degree, residual, *graph.tensors(), features=features)
