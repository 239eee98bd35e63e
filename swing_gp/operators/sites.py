r"""Inputs of a kernel seen from the nodes of a sparse graph: :math:`f(x) = L f + e`.

At a node L picks its value. Elsewhere, with b(x) the normalised weights of x to the nodes and
:math:`r(\lambda) = (1 - g(0)/g(\lambda)) / \lambda`,

.. math:: L(x) = b(x)^\top r(A), \qquad
          \mathrm{Cov}(e, e') = \alpha_0 [x = x'] + \alpha_1\, s\, w(x, x')\, s' + \alpha_0\, b^\top r_2(A)\, b' ,
          \qquad r_2 = (r - r(0)) / \lambda ,

so that :math:`L K L^\top + \mathrm{Cov}(e, e)` is the kernel that every other route has there. Where no weights are known
between two points off the graph (nearest neighbours), e is independent of all else, and :math:`\alpha_0 [x = x']` is all.
Nothing here has to be solved for: r is a polynomial of degree :math:`\nu - 1` for a Matérn kernel of whole :math:`\nu`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from swing_gp.features.base import NodeFeatures
from swing_gp.graphs.inputs import Inputs
from swing_gp.linalg.coincident import groups_of, sum_of_equals
from swing_gp.linalg.expansions import chebyshev_coefficients
from swing_gp.linalg.structure import FieldInputs
from swing_gp.operators.adjacency import AdjacencyLinearOperator
from swing_gp.series.base import MAX_CHEBYSHEV_DEGREE, Inverse
from swing_gp.utils.copies import WithoutCaches

# Relative error of the polynomials by which a kernel goes on off the graph. The remainders of fractional powers are rounded by
# 2e-14 and have no polynomial to 1e-13 from a range (kappa) of 100 on.
EXTENSION_TOL = 1e-12


def extension_coefficients(
    inverse: Inverse, interval: tuple[float, float], joint: bool
) -> Tensor:  # (degree + 1, 1 or 2), float64
    r"""Chebyshev coefficients of r and, for ``joint`` covariances off the graph, of :math:`\alpha_0 r_2`.

    With :math:`q = 1/g`, r is minus the remainder of q over q(0), and :math:`\alpha_0 = 1/q(0)`.
    """
    closed = inverse.closed
    at_zero = closed.coefficients(1)[0]

    def first(x: Tensor) -> Tensor:
        return -closed.remainder(x) / at_zero

    def second(x: Tensor) -> Tensor:
        return -closed.second_remainder(x) / at_zero.square()

    columns = []
    for order, function in enumerate((first, second) if joint else (first,), start=1):
        degree = None if closed.degree is None else max(0, closed.degree - order)
        found = chebyshev_coefficients(function, interval, EXTENSION_TOL, MAX_CHEBYSHEV_DEGREE, degree)
        if found is None:
            raise ValueError(
                f"The kernel goes on off the graph by a polynomial of degree above {MAX_CHEBYSHEV_DEGREE}. Use a shorter range "
                "(kappa), a whole nu, or nodes as inputs."
            )
        columns.append(found)
    return torch.nn.utils.rnn.pad_sequence(columns)


class Sites(WithoutCaches):
    """A list of inputs, differentiable in their coordinates; a :class:`~swing_gp.linalg.structure.FieldInputs`.

    :param extension: :func:`extension_coefficients`.
    :param leading: :math:`\\alpha_0, \\alpha_1`.
    """

    def __init__(
        self,
        matrix: AdjacencyLinearOperator,
        interval: tuple[float, float],
        inputs: Inputs,
        extension: Tensor,
        leading: Tensor,
    ) -> None:
        assert isinstance(matrix.features, NodeFeatures)
        self.matrix, self.features, self.interval = matrix, matrix.features, interval
        self.extension, self.leading, self.identity = extension, leading, float(leading[0].detach())
        # A node that may move is seen as what it moves to.
        moves = inputs.points.requires_grad and self.features.weighs_any_pair
        self.nodes = torch.full_like(inputs.nodes, -1) if moves else inputs.nodes
        self.off = self.nodes < 0
        self.keys = inputs.keys[self.off]
        self.points, self.scale = inputs.points[self.off], inputs.scale[self.off].unsqueeze(-1)

    def __len__(self) -> int:
        return len(self.nodes)

    @cached_property
    def prepared(self) -> Any:
        return self.features.prepare(self.points)

    @property
    def _root(self) -> Tensor:
        return (-0.5 * self.matrix.log_degree).exp().unsqueeze(-1)

    def weights_to_nodes(self, values: Tensor) -> Tensor:  # (off, k) -> (N, k)
        """Products with b, a column for every input off the graph."""
        return self._root * self.features.evaluate_adjoint(self.prepared, self.scale * values)

    def weights_from_nodes(self, values: Tensor) -> Tensor:  # (N, k) -> (off, k)
        return self.scale * self.features.evaluate(self.prepared, self._root * values)

    def _polynomial(self, column: int, values: Tensor) -> Tensor:
        return self.matrix.polynomial(self.extension[:, column].to(values.dtype), self.interval, values)

    def from_nodes(self, values: Tensor) -> Tensor:  # (N, k) -> (n, k)
        """L v."""
        result = values.new_zeros(len(self), values.shape[-1])
        result = result.index_put((~self.off,), values[self.nodes[~self.off]])
        if not bool(self.off.any()):
            return result
        off = self.weights_from_nodes(self._polynomial(0, values.to(self.points.dtype)))
        return result.index_put((self.off,), off.to(values.dtype))

    def to_nodes(self, values: Tensor) -> Tensor:  # (n, k) -> (N, k)
        r""":math:`L^\top v`."""
        result = values.new_zeros(self.matrix.shape[-1], values.shape[-1])
        result = result.index_add(0, self.nodes[~self.off], values[~self.off])
        if not bool(self.off.any()):
            return result
        off = self.weights_to_nodes(values[self.off].to(self.points.dtype))
        return result + self._polynomial(0, off).to(values.dtype)

    def direct(self, other: FieldInputs) -> Callable[[Tensor], Tensor]:  # (m, k) -> (n, k)
        r"""Products with the covariance of e beyond :math:`\alpha_0 [x = x']`, between the rows here and columns elsewhere."""
        if not (self.features.weighs_any_pair and bool(self.off.any()) and isinstance(other, Sites) and bool(other.off.any())):
            return lambda values: values.new_zeros(len(self), values.shape[-1])
        between = self.features.weights_between(self.points, other.points)

        def product(values: Tensor) -> Tensor:
            moved = values[other.off].to(self.points.dtype)
            near = self.leading[1] * self.scale * between(other.scale * moved)
            near = near + self.weights_from_nodes(self._polynomial(1, other.weights_to_nodes(moved)))
            return values.new_zeros(len(self), values.shape[-1]).index_put((self.off,), near.to(values.dtype))

        return product

    def own(self, other: FieldInputs) -> Callable[[Tensor], Tensor]:  # (m, k) -> (n, k)
        """Products with the covariance of e."""
        direct = self.direct(other)
        if not isinstance(other, Sites):
            return direct
        rows, columns = groups_of(self.keys, other.keys)
        place = self.off.nonzero().squeeze(-1)

        def product(values: Tensor) -> Tensor:
            shared = self.leading[0].to(values.dtype) * sum_of_equals(rows, columns, values[other.off])
            return direct(values).index_add(0, place, shared)

        return product
