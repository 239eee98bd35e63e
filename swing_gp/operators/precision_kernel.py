r"""The kernel of a sparse graph as the inverse of its precision: long ranges, where its polynomial would be long."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from linear_operator.operators import LinearOperator
from torch import Tensor

from swing_gp.features.auto import solve_terms, takes_precision
from swing_gp.features.base import FeatureMap
from swing_gp.graphs.inputs import Inputs
from swing_gp.linalg.coincident import groups_of, sum_of_equals
from swing_gp.linalg.gram import frozen_signs
from swing_gp.linalg.structure import Products, Structure
from swing_gp.operators.base import followed_solve
from swing_gp.operators.kernel_block import MatrixFreeKernel
from swing_gp.operators.polynomial_kernel import polynomial_kernel, spectral_interval
from swing_gp.operators.precision import PrecisionLinearOperator, precision_of
from swing_gp.operators.sites import Sites
from swing_gp.series.base import Series
from swing_gp.solvers.precision import NoisyPrecision
from swing_gp.solvers.sizes import MOST_SOLVED


class PrecisionKernelLinearOperator(MatrixFreeKernel):
    r""":math:`K = Q^{-1}`: a product is a solve with :class:`~swing_gp.operators.precision.PrecisionLinearOperator`.

    Samples are exact. The diagonal of a graph above 2,048 nodes is an estimate from samples (see
    :meth:`diagonal_standard_error`).
    """

    can_sample_anywhere = False

    def __init__(self, precision: PrecisionLinearOperator, *, series: Series) -> None:
        super().__init__(precision, series=series)
        self.precision, self.series = precision, series
        self.features, self.graph = precision.adjacency.features, precision.adjacency.graph

    def _transpose_nonbatch(self) -> LinearOperator:
        return self.__class__(self.precision._transpose_nonbatch(), series=self.series)

    def _apply(self, rhs: Tensor) -> Tensor:
        return followed_solve(self.precision, self.precision.solver(), rhs)

    @property
    def can_sample(self) -> bool:
        return True

    def samples(self, number: int, generator: torch.Generator | None = None) -> Tensor:  # (N, number)
        numbers = self.precision.numbers
        return numbers.numbered(numbers.solve(numbers.noise(number, generator))).to(self.dtype)

    @cached_property
    def _estimated(self) -> tuple[Tensor, Tensor]:
        empty = torch.zeros(0, dtype=torch.int64)
        return NoisyPrecision.at_nodes(self.precision.numbers, empty, torch.zeros(0, dtype=torch.float64)).variances()

    def mean_variance_terms(self, probes: int) -> Tensor:  # (probes,)
        r"""Unbiased estimates of :math:`\mathrm{tr} K / N`. At long ranges most of it is the constants of the components, whose
        eigenvalue g(1) is known: random signs see what is left."""
        numbers = self.precision.numbers
        signs = frozen_signs(self.shape[-1], probes, torch.float64, torch.device("cpu"))
        rest = numbers.numbered(numbers.without_constants(numbers.renumbered(signs))).to(self.dtype)
        known = numbers.num_constants * self.series(torch.ones((), dtype=torch.float64)).to(self.dtype)
        return (known + (rest * self._matmul(rest)).sum(0)) / self.shape[-1]

    def exact_diagonal(self, number: int) -> bool:
        return number * self.shape[-1] <= MOST_SOLVED

    def _diagonal(self) -> Tensor:
        if self.exact_diagonal(self.shape[-1]):
            return super()._diagonal()
        return self._estimated[0].to(self.dtype)

    def diagonal_standard_error(self) -> Tensor:  # (N,)
        """Standard errors of the diagonal; zeros where it is exact."""
        exact = self.exact_diagonal(self.shape[-1])
        return torch.zeros(self.shape[-1], dtype=self.dtype) if exact else self._estimated[1].to(self.dtype)

    def structure_at(self, products: Products, inputs: Inputs, scale: Tensor) -> Structure:
        return self.precision.kernel_structure(products, inputs, scale, self.series)

    def second_coefficients(self) -> Tensor:
        return self.precision.extension()

    def between(self, rows: Inputs, columns: Inputs, leading: Tensor, second: Tensor) -> Callable[[Tensor], Tensor]:
        ours, theirs = (Sites(self.precision.adjacency, self.precision.interval, at, second, leading) for at in (rows, columns))
        direct = ours.direct(theirs)
        fixed = ~ours.off, ~theirs.off
        same_rows, same_columns = groups_of(ours.nodes[fixed[0]], theirs.nodes[fixed[1]])

        def product(rhs: Tensor) -> Tensor:
            result = ours.from_nodes(self._apply(theirs.to_nodes(rhs))) + direct(rhs)
            # Without the part that every point has for itself, which is not the business of this function.
            own = rhs.new_zeros(len(ours), rhs.shape[-1])
            return result - leading[0] * own.index_put((fixed[0],), sum_of_equals(same_rows, same_columns, rhs[fixed[1]]))

        return product


def sparse_kernel(features: FeatureMap, series: Series, tol: float | None = None) -> MatrixFreeKernel:
    """The kernel of a sparse graph: a polynomial of its matrix where that is short, the inverse of its precision elsewhere."""
    if takes_precision(features, series):
        matrix, interval = spectral_interval(features, series)
        goal = 100 * torch.finfo(matrix.dtype).eps if tol is None else tol
        if series.num_terms(interval, max(0.1 * goal, 1e-15)) > solve_terms(series):
            precision = precision_of(matrix, series, interval, tol)
            if precision is not None:
                return PrecisionKernelLinearOperator(precision, series=series)
    return polynomial_kernel(features, series, tol)
