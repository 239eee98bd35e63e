r"""The inverse of a kernel on a sparse graph, :math:`Q = K^{-1} = (1/g)(A)`, as an operator with gradients.

For a Matérn kernel :math:`Q = (c - A)^\nu`: sparse products where K is a long polynomial or a matrix without zeros (Lindgren,
Rue & Lindström, 2011). Gradients reach the graph and the parameters of the series through products with Q; everything that is
solved for goes through the numbers of :class:`~swing_gp.linalg.precision_matrix.PrecisionMatrix`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
import scipy.sparse
import torch
from linear_operator.operators import LinearOperator
from torch import Tensor

from swing_gp.features.auto import takes_precision
from swing_gp.graphs.inputs import Inputs
from swing_gp.linalg.expansions import chebyshev_coefficients
from swing_gp.linalg.precision_matrix import MatrixFunction, PrecisionMatrix
from swing_gp.linalg.structure import NodePrecision, Products, SparseMatrix, Structure
from swing_gp.operators.adjacency import AdjacencyLinearOperator
from swing_gp.operators.matrix_free import MatrixFreeLinearOperator
from swing_gp.operators.sites import Sites, extension_coefficients
from swing_gp.series.base import MAX_CHEBYSHEV_DEGREE, Inverse, Series
from swing_gp.solvers.sizes import MOST_DENSE

# Relative errors of the polynomials that stand for a power which is not whole: where no tolerance is given, of its root for
# samples, and of the rough inverse that preconditions it.
REST_TOL, ROOT_TOL, ROUGH_TOL = 1e-8, 1e-6, 1e-2


class PrecisionLinearOperator(MatrixFreeLinearOperator):
    r""":math:`Q = (a I + b A)^m \rho(A)`. Made by :func:`precision_of`.

    :param adjacency: A, symmetric, of a sparse graph.
    :param linear: a and b, (2,), float64.
    :param rest: Chebyshev coefficients of :math:`\rho`, float64; empty for one.
    :param inverse: the closed form, for what is not differentiated.
    """

    def __init__(
        self,
        adjacency: AdjacencyLinearOperator,
        linear: Tensor,
        rest: Tensor,
        *,
        inverse: Inverse,
        interval: tuple[float, float],
    ) -> None:
        super().__init__(adjacency, linear, rest, inverse=inverse, interval=interval)
        self.adjacency, self.linear, self.rest, self.inverse, self.interval = adjacency, linear, rest, inverse, interval

    def _size(self) -> torch.Size:
        return self.adjacency.shape

    def _transpose_nonbatch(self) -> LinearOperator:
        # The same matrix, but its gradients are those of the transpose.
        return self.__class__(self.adjacency._transpose_nonbatch(), self.linear, self.rest, **self._kwargs)

    def _apply(self, rhs: Tensor) -> Tensor:
        a, b = self.linear.to(rhs.dtype)
        if len(self.rest):
            rhs = self.adjacency.polynomial(self.rest.to(rhs.dtype), self.interval, rhs)
        for _ in range(self.inverse.whole):
            rhs = a * rhs + b * self.adjacency._apply(rhs)
        return rhs

    @cached_property
    def numbers(self) -> PrecisionMatrix:
        """This matrix without gradients, to compute with."""
        with torch.no_grad():
            a, b = self.linear.tolist()
            matrix, roots = sparse_adjacency(self.adjacency)
            return PrecisionMatrix(
                matrix,
                roots,
                linear=(a, b),
                whole=self.inverse.whole,
                order=self.inverse.order,
                is_power=self._is_power,
                rest=None if self.inverse.rest is None else self._rest,
            )

    def _rest(self, matrix: scipy.sparse.csr_array) -> MatrixFunction:
        function, interval = self.inverse.rest, self.interval
        assert function is not None
        if matrix.shape[0] <= MOST_DENSE:
            return MatrixFunction.dense(matrix, function)
        root = relative_chebyshev(lambda x: function(x).sqrt(), interval, ROOT_TOL)
        inverse = relative_chebyshev(lambda x: 1 / function(x), interval, ROUGH_TOL)
        assert root is not None
        assert inverse is not None
        return MatrixFunction.polynomial(matrix, interval, self.rest, root, inverse)

    @property
    def _is_power(self) -> bool:
        """True where the closed form is the power of a + b x that its order says."""
        if self.inverse.rest is None:
            return True
        x = torch.linspace(*self.interval, 33, dtype=torch.float64)
        a, b = self.linear.detach()
        return torch.allclose(self.inverse.rest(x), (a + b * x).pow(self.inverse.order - self.inverse.whole), rtol=1e-8)

    @property
    def pattern(self) -> object:
        """Which nodes are linked: the same object as long as the graph is."""
        found = self.adjacency.features.sparse_weights()
        assert found is not None
        return found[0]

    def extension(self) -> Tensor:
        """Coefficients of the kernel off the graph: :func:`~swing_gp.operators.sites.extension_coefficients`."""
        return extension_coefficients(self.inverse, self.interval, self.adjacency.features.weighs_any_pair)

    def kernel_structure(self, products: Products, inputs: Inputs, scale: Tensor, series: Series) -> NodePrecision:
        """The structure of a multiple of the kernel at inputs.

        :param products: the multiple by its products.
        """

        @torch.no_grad()
        def sites() -> Sites:
            leading = series.coefficients(2).detach().to(inputs.points.dtype)
            return Sites(self.adjacency, self.interval, inputs.detach(), self.extension(), leading)

        return NodePrecision(
            **vars(products),
            num_nodes=self.shape[-1],
            precision=lambda: self.numbers,
            nodes=inputs.nodes,
            off_graph=None if bool((inputs.nodes >= 0).all()) else sites,
            scale=scale,
            pattern=self.pattern,
        )

    def structure(self) -> Structure:
        return SparseMatrix(**vars(self.products()), matrix=lambda: self.numbers)


def sparse_adjacency(matrix: AdjacencyLinearOperator) -> tuple[scipy.sparse.csr_array, np.ndarray]:
    """The normalised matrix A of a sparse graph in float64, and the roots t of the degrees, after density, for which
    :math:`A t = t` (one for a node without edges)."""
    found = matrix.features.sparse_weights()
    assert found is not None
    pattern, weights = found
    log_degree, log_density = (part.detach().double().cpu() for part in (matrix.log_degree, matrix.log_density))
    entries = weights.detach().double().cpu().numpy(), pattern.col.numpy(), pattern.crow.numpy()
    scale = scipy.sparse.diags_array((-0.5 * log_degree).exp().numpy())  # zero for a node without edges
    array = scipy.sparse.csr_array(scale @ scipy.sparse.csr_array(entries, shape=pattern.shape) @ scale)
    root = (0.5 * log_degree - log_density).exp().numpy()
    return array, np.where(np.isfinite(root), root, 1.0)


def precision_of(
    matrix: AdjacencyLinearOperator, series: Series, interval: tuple[float, float], tol: float | None = None
) -> PrecisionLinearOperator | None:
    """The precision of a kernel, where it is sparse: on symmetrically normalised sparse graphs, for series with an inverse.

    :param interval: that holds the spectrum.
    :param tol: relative error of a power that is not whole.
    """
    inverse = series.inverse()
    if inverse is None or not takes_precision(matrix.features, series):
        return None
    rest = inverse.linear.new_empty(0)
    if inverse.rest is not None:
        found = relative_chebyshev(inverse.rest, interval, REST_TOL if tol is None else min(1e-3, 0.1 * tol))
        if found is None:
            return None
        rest = found
    return PrecisionLinearOperator(matrix, inverse.linear, rest, inverse=inverse, interval=interval)


def relative_chebyshev(function: Callable[[Tensor], Tensor], interval: tuple[float, float], tol: float) -> Tensor | None:
    """Chebyshev coefficients of a positive function, to a tolerance relative to its least value; None beyond all degrees.

    Where the function has parameters with gradients, the derivatives in them are followed as far as the values.
    """
    ends = torch.tensor(interval, dtype=torch.float64)
    with torch.no_grad():
        share = float(function(ends).min() / function(ends).max())

        def derivative(x: Tensor) -> Tensor:  # of a power in its exponent
            return function(x) * (function(x).log() + 1.0)

        values, slopes = (
            chebyshev_coefficients(one, interval, tol * share, MAX_CHEBYSHEV_DEGREE) for one in (function, derivative)
        )
    if values is None or slopes is None:
        return None
    if not (torch.is_grad_enabled() and function(ends).requires_grad):
        return values
    degree = max(len(values), len(slopes)) - 1
    return chebyshev_coefficients(function, interval, tol, MAX_CHEBYSHEV_DEGREE, degree)
