r"""The collapsed kernel as a Chebyshev polynomial of the adjacency operator: for maps without a feature matrix, and for
random-walk normalisation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from linear_operator import settings
from linear_operator.operators import LinearOperator, RootLinearOperator
from linear_operator.utils.memoize import cached
from torch import Tensor

from swing_gp.features.base import DenseFeatures, FeatureMap, NodeFeatures
from swing_gp.graphs.inputs import Inputs
from swing_gp.graphs.sparse import SparseGraph
from swing_gp.linalg.gram import symmetric_function
from swing_gp.linalg.polynomial import spectral_radius
from swing_gp.linalg.structure import Products, Structure
from swing_gp.operators.adjacency import AdjacencyLinearOperator, adjacency
from swing_gp.operators.kernel_block import MatrixFreeKernel
from swing_gp.operators.precision import PrecisionLinearOperator, precision_of
from swing_gp.series.base import Series
from swing_gp.solvers.sizes import MOST_DENSE

# Relative error of the square root that samples are drawn with.
ROOT_TOL = 1e-6


class SeriesLinearOperator(MatrixFreeKernel):
    r"""A polynomial of an adjacency operator, :math:`\sum_k c_k T_k(A)` with A mapped from ``interval`` to [-1, 1].

    Gradients reach the coefficients (and through them the series), the graph and the degrees.
    """

    def __init__(
        self,
        adjacency: AdjacencyLinearOperator,
        coefficients: Tensor,
        *,
        interval: tuple[float, float],
        series: Series,
        **kwargs: Any,
    ) -> None:
        super().__init__(adjacency, coefficients, interval=interval, series=series, **kwargs)
        self.adjacency, self.coefficients, self.interval = adjacency, coefficients, interval
        self.series, self.features, self.graph = series, adjacency.features, adjacency.graph

    def _transpose_nonbatch(self) -> LinearOperator:
        return self.__class__(self.adjacency._transpose_nonbatch(), self.coefficients, **self._kwargs)

    def _apply(self, rhs: Tensor) -> Tensor:
        return self._polynomial(self.coefficients.to(rhs.dtype), rhs)

    def _polynomial(self, coefficients: Tensor, rhs: Tensor) -> Tensor:
        """Another polynomial of the same matrix."""
        return self.adjacency.polynomial(coefficients, self.interval, rhs)

    @cached(name="root_decomposition")
    def root_decomposition(self, method: str | None = None) -> LinearOperator:
        """A polynomial of the square root of g; a dense factor where one is affordable, or asked for by name."""
        self.check_symmetric()
        if method is not None or self.shape[-1] <= settings.max_cholesky_size.value():
            return super().root_decomposition(method=method)
        root = self.series.chebyshev(self.interval, ROOT_TOL, lambda x: self.series(x).clamp_min(0).sqrt())
        return RootLinearOperator(self.__class__(self.adjacency, root.to(self.coefficients), **self._kwargs))

    can_sample_anywhere = False  # off the graph

    @cached_property
    def precision(self) -> PrecisionLinearOperator | None:
        """The inverse, where it is sparse."""
        return precision_of(self.adjacency, self.series, self.interval)

    def structure_at(self, products: Products, inputs: Inputs, scale: Tensor) -> Structure:
        return products if self.precision is None else self.precision.kernel_structure(products, inputs, scale, self.series)

    def second_coefficients(self) -> Tensor:
        r"""Chebyshev coefficients for :meth:`between`: of :math:`h_2 = (h - \alpha_1)/\lambda`, or of h and :math:`h^2/g`."""
        series, tol = self.series, 10 * torch.finfo(self.dtype).eps
        if self.features.weighs_any_pair:
            return series.chebyshev(self.interval, tol, series.second_remainder).to(self.coefficients)
        functions = series.remainder, lambda x: series.remainder(x).square() / series(x)
        pair = [series.chebyshev(self.interval, tol, function).to(self.coefficients) for function in functions]
        return torch.nn.utils.rnn.pad_sequence(pair)  # (degree + 1, 2)

    def between(self, rows: Inputs, columns: Inputs, leading: Tensor, second: Tensor) -> Callable[[Tensor], Tensor]:
        r"""Products with :math:`s\,(\alpha_1 w(x, y) + w(x, p) h_2(\tilde W) w(p, y))\, s`."""
        matrix, features = self.adjacency, self.features
        assert isinstance(features, NodeFeatures)
        root = (-0.5 * matrix.log_degree).exp().unsqueeze(-1) if self.graph.normalization else 1.0
        if not features.weighs_any_pair:
            return self._through_nodes(rows, columns, root, leading, second)
        left, right = rows.scale.unsqueeze(-1), columns.scale.unsqueeze(-1)
        ours, theirs = features.prepare(rows.points), features.prepare(columns.points)
        direct = features.weights_between(rows.points, columns.points)

        def product(rhs: Tensor) -> Tensor:
            rhs = right * rhs
            inner = root * features.evaluate_adjoint(theirs, rhs)
            inner = root * self._polynomial(second, inner)
            return left * (leading[1] * direct(rhs) + features.evaluate(ours, inner))

        return product

    def _through_nodes(
        self, rows: Inputs, columns: Inputs, root: Tensor | float, leading: Tensor, second: Tensor
    ) -> Callable[[Tensor], Tensor]:
        r"""Where no weight is known between two points off the graph: their values are independent given those of the nodes.

        With b(x) the normalised weights of x to the nodes, :math:`E[f(x) \mid f] = b^\top (h/g)(A) f`, so that

        .. math:: k(x, p_j) = [h(A)\, b(x)]_j, \qquad k(x, y) = b(x)^\top (h^2 / g)(A)\, b(y) + \alpha_0 [x = y] ,

        which is positive semi-definite, nodes included, wherever g is positive.
        """
        features, size = self.features, self.graph.num_nodes
        remainder, through = second.unbind(-1)
        (ours, on_rows, off_rows), (theirs, on_columns, off_columns) = (
            (features.prepare(at.points[at.nodes < 0]), at.nodes >= 0, at.scale[at.nodes < 0].unsqueeze(-1))
            for at in (rows, columns)
        )

        def product(rhs: Tensor) -> Tensor:
            nodes = rhs.new_zeros(size, rhs.shape[-1]).index_add(0, columns.nodes[on_columns], rhs[on_columns])
            others = root * features.evaluate_adjoint(theirs, off_columns * rhs[~on_columns])
            at_nodes = self._apply(nodes) - leading[0] * nodes + self._polynomial(remainder, others)
            inner, outer = self._pair((remainder, through), (nodes, others))
            off = off_rows * features.evaluate(ours, root * (inner + outer))
            result = rhs.new_zeros(len(rows.nodes), rhs.shape[-1])
            result = result.index_put((on_rows,), at_nodes[rows.nodes[on_rows]])
            return result.index_put((~on_rows,), off)

        return product

    def _pair(self, functions: tuple[Tensor, Tensor], rhs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Two polynomials, of a right-hand side each, at once."""
        number = rhs[0].shape[-1]
        one, two = self._polynomial(torch.stack(functions, -1).repeat_interleave(number, -1), torch.cat(rhs, -1)).chunk(2, -1)
        return one, two

    def draw(self, x: Tensor, number: int, generator: torch.Generator | None = None) -> Tensor:
        raise ValueError(
            f"{type(self.features).__name__} sample at nodes only: off the graph their kernel has no root. Give nodes "
            "as inputs, or use features='grid' or 'landmarks'."
        )


class EigenvalueLinearOperator(SeriesLinearOperator):
    r"""The kernel of at most 2,000 nodes from all eigenvalues, as a dense matrix: of series that have no polynomial, such as
    fractional powers at long ranges. Made by :func:`eigenvalue_kernel`.

    :param coefficients: :math:`g(A)`, (N, N), in place of coefficients.
    :param eigenpairs: of A, without gradients.
    """

    def structure_at(self, products: Products, inputs: Inputs, scale: Tensor) -> Structure:
        return replace(products, dense_up_to=MOST_DENSE)

    def _function(self, function: Callable[[Tensor], Tensor]) -> Tensor:  # (N, N)
        return of_adjacency(self.adjacency, function, self._kwargs["eigenpairs"])

    def _polynomial(self, coefficients: Tensor, rhs: Tensor) -> Tensor:
        return coefficients @ rhs

    def _pair(self, functions: tuple[Tensor, Tensor], rhs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return functions[0] @ rhs[0], functions[1] @ rhs[1]

    def root_decomposition(self, method: str | None = None) -> LinearOperator:
        self.check_symmetric()
        return RootLinearOperator(self._function(lambda x: self.series(x).clamp_min(0).sqrt()).to(self.dtype))

    @cached_property
    def precision(self) -> PrecisionLinearOperator | None:
        return None

    def second_coefficients(self) -> Tensor:  # (N, N) or (N, N, 2)
        series = self.series
        if self.features.weighs_any_pair:
            return self._function(series.second_remainder).to(self.dtype)
        functions = series.remainder, lambda x: series.remainder(x).square() / series(x)
        return torch.stack([self._function(function) for function in functions], -1).to(self.dtype)


def of_adjacency(
    matrix: AdjacencyLinearOperator, function: Callable[[Tensor], Tensor], eigenpairs: tuple[Tensor, Tensor]
) -> Tensor:  # (N, N), float64
    """A function of a symmetric adjacency matrix, with gradients in its entries."""
    return symmetric_function(_dense(matrix), function, eigenpairs)


def _dense(matrix: AdjacencyLinearOperator) -> Tensor:
    dense = matrix._matmul(torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)).double()
    return 0.5 * (dense + dense.mT)


def eigenvalue_kernel(
    matrix: AdjacencyLinearOperator, series: Series, interval: tuple[float, float]
) -> EigenvalueLinearOperator:
    """The kernel from all eigenvalues."""
    values, vectors = torch.linalg.eigh(_dense(matrix).detach())
    pairs = values.clamp(*interval), vectors
    kernel = of_adjacency(matrix, series, pairs).to(matrix.dtype)
    return EigenvalueLinearOperator(matrix, kernel, interval=interval, series=series, eigenpairs=pairs)


def polynomial_kernel(features: FeatureMap, series: Series, tol: float | None = None) -> SeriesLinearOperator:
    """The kernel of any feature map.

    :param tol: relative tolerance of the polynomial; machine precision if None.
    """
    matrix, interval = spectral_interval(features, series)
    tol = 100 * torch.finfo(matrix.dtype).eps if tol is None else tol
    # Of the kernel beyond its identity part, which may be next to nothing beside it.
    share = series.share_beyond_identity(interval)
    goal = max(0.1 * tol * share, 1e-15)
    coefficients = series.expansion(interval, goal)
    if coefficients is None and matrix.shape[-1] <= MOST_DENSE and matrix.asymmetry is None:
        return eigenvalue_kernel(matrix, series, interval)
    coefficients = series.chebyshev(interval, goal) if coefficients is None else coefficients  # which says why not
    coefficients = coefficients.to(matrix.log_degree)
    return SeriesLinearOperator(matrix, coefficients, interval=interval, series=series)


def spectral_interval(features: FeatureMap, series: Series) -> tuple[AdjacencyLinearOperator, tuple[float, float]]:
    """The matrix of a graph, and an interval that holds its spectrum, after a check that the series has a kernel there."""
    matrix = adjacency(features)
    low, high = _spectral_interval(matrix)
    psd = features.graph.normalization != "random_walk"
    series.check_spectrum((low, high), psd=psd, dtype=features.graph.points.dtype)
    # The little that features may put below the interval belongs to it: polynomials of sharp series grow fast there.
    return matrix, (min(low, max(low - features.deficit * high, -high, series.least)), high)


@torch.no_grad()
def _spectral_interval(matrix: AdjacencyLinearOperator) -> tuple[float, float]:
    """An interval that holds the spectrum of the matrix as the features see it."""
    low, high = matrix.graph.spectrum
    if isinstance(matrix.features, DenseFeatures):
        # Approximate features may leave [0, 1] a little, where a Chebyshev polynomial grows fast.
        loops = matrix.residual * (-matrix.log_degree).exp()
        eigenvalues = torch.linalg.eigvalsh(matrix.features.normalized_gram(matrix.log_degree))
        root = (0.5 * matrix.log_degree - matrix.log_density).exp().unsqueeze(-1)
        bound = float(eigenvalues.max() + loops.max())
        largest = spectral_radius(lambda v: root * matrix._apply(v / root), root, bound)  # P is similar to a symmetric matrix
        return min(low, float(eigenvalues.min())), max(high, largest)
    if matrix.graph.normalization is None:
        largest = math.exp(float(matrix.log_degree.max()))  # the largest degree bounds every eigenvalue of W
        high = spectral_radius(matrix._apply, matrix.log_degree.unsqueeze(-1), largest)
        low = -high if low < 0 else 0.0
    elif isinstance(matrix.graph, SparseGraph):
        # Discs of Gershgorin: P has rows of sum one, and self-loops keep it away from -1, where some series vanish.
        pattern, weights = matrix.graph.pattern, matrix.graph.weights
        rows = pattern.rows()
        at = (rows == pattern.col).nonzero().squeeze(-1)
        loops = weights.new_zeros(matrix.graph.num_nodes)
        loops[rows[at].long()] = weights[at]
        low += 2 * float((loops * (-matrix.log_degree).exp()).min()) - 1e-9
        low = max(low, -1.0)
    return low, high
