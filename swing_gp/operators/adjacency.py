r"""The graph's own matrices W, P and :math:`\tilde W`, through the two verbs of any feature map."""

from __future__ import annotations

from functools import cached_property

import torch
from linear_operator.operators import LinearOperator
from torch import Tensor

from swing_gp.features.base import FeatureMap
from swing_gp.linalg.polynomial import clenshaw, clenshaw_in_place
from swing_gp.linalg.sparse import SparsePattern, advance
from swing_gp.operators.diagnostics import GraphOperator
from swing_gp.operators.matrix_free import MatrixFreeLinearOperator


class AdjacencyLinearOperator(GraphOperator, MatrixFreeLinearOperator):
    r"""W, :math:`P = D^{-1} W` or :math:`\tilde W = D^{-1/2} W D^{-1/2}` as the graph's ``normalization`` says.

    Made by :func:`~swing_gp.adjacency`. Gradients reach the points, the edge parameters and the degrees.

    :param log_degree: logarithms of the degrees of the nodes, (N,).
    :param residual: what is added to the diagonal of the features' W, (N,); zeros where there is nothing.
    :param log_density: :math:`a \log d` of the nodes, (N,).
    :param entries: of the normalised matrix, in the order of ``features.node_matrix()``; none where products go by the verbs.
    :param tensors: the tensors of the graph.
    """

    def __init__(
        self,
        log_degree: Tensor,
        residual: Tensor,
        log_density: Tensor,
        entries: Tensor,
        *tensors: Tensor,
        features: FeatureMap,
        transposed: bool = False,
    ) -> None:
        super().__init__(log_degree, residual, log_density, entries, *tensors, features=features, transposed=transposed)
        if any(new is not old for new, old in zip(tensors, features.graph.tensors(), strict=True)):
            features = features.bind(features.graph.with_tensors(*tensors))
        self.features, self.graph, self.series = features, features.graph, None
        self.log_degree, self.residual, self.log_density = log_degree, residual, log_density
        self.entries, self.transposed = entries, transposed

    def _size(self) -> torch.Size:
        return torch.Size((self.graph.num_nodes, self.graph.num_nodes))

    def _transpose_nonbatch(self) -> LinearOperator:
        return self.__class__(*self._args, features=self.features, transposed=not self.transposed)

    @property
    def _pattern(self) -> SparsePattern | None:
        matrix = self.features.node_matrix()
        return None if matrix is None else matrix[0]

    @cached_property
    def _csr(self) -> Tensor | None:
        return None if self._pattern is None or self.transposed else self._pattern.csr(self.entries)

    def advance(self, rhs: Tensor, scale: float, before: Tensor) -> Tensor:  # (N, k)
        """The matrix times ``scale`` times ``rhs``, less ``before``, written into ``before``; without gradients."""
        if self._csr is None:
            return before.neg_().add_(self._apply(rhs), alpha=scale)
        return advance(self._csr, rhs, scale, before)

    def polynomial(self, coefficients: Tensor, interval: tuple[float, float], rhs: Tensor) -> Tensor:  # (N, k)
        """A polynomial of this matrix, from its Chebyshev coefficients on an interval that holds the spectrum."""
        if torch.is_grad_enabled():
            return clenshaw(self._apply, coefficients, interval, rhs)
        return clenshaw_in_place(self.advance, coefficients, interval, rhs)

    def _apply(self, rhs: Tensor) -> Tensor:
        pattern = self._pattern
        if pattern is not None:
            return (pattern.t_matmul if self.transposed else pattern.matmul)(self.entries, rhs.contiguous())
        features, scales = self.features, self.graph.degree_scales(self.log_degree, self.log_density)
        left, right = (scale.unsqueeze(-1) for scale in (scales[::-1] if self.transposed else scales))
        scaled = right * rhs
        if self.transposed:
            product = features.project_adjoint(features.evaluate_adjoint(None, scaled))
        else:
            product = features.evaluate(None, features.project(scaled))
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
    graph.shards.refuse(
        "The adjacency matrix, of which other kernels are polynomials,", "use normalization='symmetric' or None"
    )
    log_degree, residual = features.log_degree(), features.node_residual()
    residual = torch.zeros_like(log_degree) if residual is None else residual
    if graph.normalization and not bool(torch.isfinite((-log_degree.detach()).exp()).all()):
        raise ValueError(
            f"{type(features).__name__} do not see some node: its degree is exp({float(log_degree.detach().min()):.3g}), which "
            "cannot be divided by. Use more features (num_features), a larger lengthscale, or features='landmarks'."
        )
    log_density = features.log_density()
    entries = _normalized(features, log_degree, log_density)
    return AdjacencyLinearOperator(log_degree, residual, log_density, entries, *graph.tensors(), features=features)


def _normalized(features: FeatureMap, log_degree: Tensor, log_density: Tensor) -> Tensor:
    """The entries of the normalised matrix of a sparse map."""
    matrix = features.node_matrix()
    if matrix is None:
        return log_degree[:0]
    pattern, weights = matrix
    if features.graph.normalization is None:
        return weights
    left, right = features.graph.degree_scales(log_degree, log_density)
    per_row = pattern.crow.diff().to(left.device)
    return torch.repeat_interleave(left, per_row) * weights * right[pattern.col.to(right.device)]
