r"""Low-rank covariances between lists of inputs, where an input may appear more than once.

Off the diagonal of the nodes a kernel with dense features is :math:`F_1 C F_2^\top + S`, and S holds the diagonal part d of
a point wherever both inputs are that point. Within one list that has repeated points S is no longer diagonal, but it is
block diagonal with rank-one blocks, so everything stays in closed form and linear in the number of inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from linear_operator.operators import (
    DiagLinearOperator,
    InterpolatedLinearOperator,
    LinearOperator,
)
from linear_operator.utils.memoize import cached
from torch import Tensor

from swing_gp.linalg.coincident import OwnPart, num_groups, per_group, sum_of_equals
from swing_gp.linalg.gram import white_noise
from swing_gp.linalg.reducer import LOCAL, Reducer
from swing_gp.linalg.structure import Products, Structure
from swing_gp.operators.base import Structured
from swing_gp.operators.low_rank_plus_diagonal import LowRankPlusDiagonal
from swing_gp.operators.matrix_free import submatrix
from swing_gp.utils.validation import check_rhs


class Grouped(Structured):
    """A matrix with groups of inputs, which share the batch of its tensors.

    They come in a tuple of their own, because linear_operator changes the dtype of tensors.
    """

    groups: tuple[Tensor, ...]

    def _rebatched(self, change: Callable[[Tensor], Tensor]) -> LinearOperator:
        """The matrix with another batch: every tensor and every group changes alike."""
        groups = (group.expand(*self.batch_shape, group.shape[-1]) for group in self.groups)
        return self.__class__(*map(change, self._args), **{**self._kwargs, "groups": tuple(map(change, groups))})

    def _unsqueeze_batch(self, dim: int) -> LinearOperator:
        return self._rebatched(lambda part: part.unsqueeze(dim))

    def _permute_batch(self, *dims: int) -> LinearOperator:
        return self._rebatched(lambda part: part.permute(*dims, *range(len(dims), part.dim())))

    def _getitem(self, row_index: Any, col_index: Any, *batch_indices: Any) -> LinearOperator:
        if not self.batch_shape:
            return submatrix(self, row_index, col_index)
        if isinstance(row_index, slice) and row_index == slice(None) == col_index:
            return self._rebatched(lambda part: part[batch_indices])
        return LinearOperator._getitem(self, row_index, col_index, *batch_indices)


class LowRankPlusGroups(Grouped, LowRankPlusDiagonal):
    r"""The symmetric matrix :math:`R + P D P^\top + W C W^\top`, with P the membership of inputs in groups of equal points.

    For a group with noise R and shared value d the inverse of :math:`R + d 1 1^\top` is written out (Sherman-Morrison).

    :param factor: W, (\*batch, n, k).
    :param core: C, (\*batch, k, k).
    :param diag: the diagonal of R, (\*batch, n): noise, zero before any is added.
    :param shared: d of every group, (\*batch, groups).
    :param groups: the group of every input, (\*batch, n), in a tuple.
    """

    def __init__(
        self, factor: Tensor, core: Tensor, diag: Tensor, shared: Tensor, *, groups: tuple[Tensor], shards: Reducer = LOCAL
    ) -> None:
        super().__init__(factor, core, diag, shared, groups=groups, shards=shards)
        self.shared, self.groups = shared, groups
        self.group = groups[0].expand(factor.shape[:-1])

    def _derived(self, factor: Tensor, *others: Tensor) -> LowRankPlusGroups:
        return LowRankPlusGroups(factor, *others, groups=(self.group.expand(factor.shape[:-1]),), shards=self.shards)

    @property
    def _member(self) -> Tensor:  # (*batch, n)
        """d of the group of every input."""
        return self.shared.gather(-1, self.group)

    @property
    def own(self) -> OwnPart:
        return OwnPart(self.diag, self._member, self.group)

    def _times_own(self, x: Tensor) -> Tensor:
        return self.own.times(x)

    def _diagonal(self) -> Tensor:
        return super()._diagonal() + self._member

    def _get_indices(self, row_index: Tensor, col_index: Tensor, *batch_indices: Tensor) -> Tensor:
        entries = super()._get_indices(row_index, col_index, *batch_indices)
        rows, columns = self.group[(*batch_indices, row_index)], self.group[(*batch_indices, col_index)]
        return entries + self._member[(*batch_indices, row_index)] * (rows == columns)

    # Roots

    def _roots_of_diagonal(self) -> list[LinearOperator]:
        # One column for what the members of a group share, then one of its own for every input.
        ones = DiagLinearOperator(torch.ones(*self.batch_shape, num_groups(self.group), dtype=self.dtype, device=self.device))
        values = self._member.sqrt().unsqueeze(-1)
        member = InterpolatedLinearOperator(ones, left_interp_indices=self.group.unsqueeze(-1), left_interp_values=values)
        return [member, *super()._roots_of_diagonal()]

    def _square_root(self, *, inverse: bool) -> LinearOperator:
        find = LinearOperator.root_inv_decomposition if inverse else LinearOperator.root_decomposition
        return find(self).root

    def _own_samples(self, number: int, generator: torch.Generator | None) -> Tensor:
        draws = white_noise(self, *self.batch_shape, num_groups(self.group), number, generator=generator)
        shared = draws.gather(-2, self.group.unsqueeze(-1).expand(*self.group.shape, number))
        return super()._own_samples(number, generator) + self._member.sqrt().unsqueeze(-1) * shared


class LowRankCross(Grouped):
    r"""The rectangular matrix :math:`F_1 C F_2^\top + S` between two lists of inputs.

    :param left: :math:`F_1`, (\*batch, n, k).
    :param core: C, (\*batch, k, k).
    :param right: :math:`F_2`, (\*batch, m, k).
    :param shared: the diagonal part of every row's point, (\*batch, n).
    :param groups: for rows and for columns, a number that agrees where the points do; (\*batch, n) and (\*batch, m), and
        without the batch where all of it shares one list.
    """

    def __init__(
        self,
        left: Tensor,
        core: Tensor,
        right: Tensor,
        shared: Tensor,
        *,
        groups: tuple[Tensor, ...],
        shards: Reducer = LOCAL,
    ) -> None:
        super().__init__(left, core, right, shared, groups=groups, shards=shards)
        self.left, self.core, self.right, self.shared = left, core, right, shared
        self.groups, self.shards = groups, shards

    def _derived(self, left: Tensor, core: Tensor, right: Tensor, shared: Tensor, groups: Any) -> LowRankCross:
        """The matrix of these parts, over all batch dimensions of the core."""
        batch = core.shape[:-2]
        left, right = (part.expand(*batch, *part.shape[-2:]) for part in (left, right))
        return self.__class__(left, core, right, shared.expand(*batch, -1), groups=groups, shards=self.shards)

    def _size(self) -> torch.Size:
        return torch.Size((*self.left.shape[:-1], self.right.shape[-2]))

    def _transpose_nonbatch(self) -> LinearOperator:
        rows, columns = self.groups
        # The value of a point, seen from the columns: zero where no row is that point.
        values = per_group(rows, self.shared, num_groups(rows, columns))
        shared = values.gather(-1, columns.expand(*self.shared.shape[:-1], columns.shape[-1]))
        return self._derived(self.right, self.core.mT, self.left, shared, (columns, rows))

    def _expand_batch(self, batch_shape: torch.Size | list[int]) -> LinearOperator:
        core = self.core.expand(*batch_shape, *self.core.shape[-2:])
        return self._derived(self.left, core, self.right, self.shared, self.groups)

    def _matmul(self, rhs: Tensor) -> Tensor:
        check_rhs(rhs, self.dtype)
        if rhs.dim() == 1:
            return self._matmul(rhs.unsqueeze(-1)).squeeze(-1)
        small = self.core @ self.shards.sum(self.right.mT @ rhs, "product").to(self.core.dtype)
        return self.left @ small.to(self.left.dtype) + self.matches(rhs)

    inv_quad = LinearOperator.inv_quad  # it has no inv_quad_logdet of its own

    def structure(self) -> Structure:
        return Products(size=self.shape[-1], product=self._matmul, like=self.left[:0])

    @property
    def any_matches(self) -> bool:
        """Whether some row and some column are the same point."""
        rows, columns = self.groups
        return bool(sum_of_equals(rows, columns, torch.ones_like(columns).unsqueeze(-1)).any())

    def matches(self, rhs: Tensor) -> Tensor:  # (*batch, m, k) -> (*batch, n, k)
        """S v."""
        return self.shared.unsqueeze(-1) * sum_of_equals(self.groups[0], self.groups[1], rhs)

    def _get_indices(self, row_index: Tensor, col_index: Tensor, *batch_indices: Tensor) -> Tensor:
        rows, columns = self.left[(*batch_indices, row_index)], self.right[(*batch_indices, col_index)]
        rows = (rows.unsqueeze(-2) @ self.core[batch_indices].to(rows.dtype)).squeeze(-2)
        one, two = (group.expand(*self.batch_shape, group.shape[-1]) for group in self.groups)
        same = one[(*batch_indices, row_index)] == two[(*batch_indices, col_index)]
        return (rows * columns).sum(-1) + self.shared[(*batch_indices, row_index)] * same

    @cached
    def to_dense(self) -> Tensor:
        same = self.groups[0].unsqueeze(-1) == self.groups[1].unsqueeze(-2)
        return self.left @ self.core.to(self.left.dtype) @ self.right.mT + same * self.shared.unsqueeze(-1)

    def _mul_constant(self, other: float | Tensor) -> LinearOperator:
        scale = torch.as_tensor(other, dtype=self.core.dtype, device=self.core.device).unsqueeze(-1)
        shared = self.shared * scale.to(self.shared)
        return self._derived(self.left, self.core * scale.unsqueeze(-1), self.right, shared, self.groups)


def as_cross(matrix: LowRankPlusDiagonal) -> LowRankCross:
    """The covariance of a list of inputs as one between two lists that happen to be equal."""
    if isinstance(matrix, LowRankPlusGroups):
        group, shared = matrix.group, matrix._member
    else:
        group, shared = torch.arange(matrix.shape[-1], device=matrix.device).expand(matrix.shape[:-1]), matrix._full_diag()
    return LowRankCross(matrix.factor, matrix.core, matrix.factor, shared, groups=(group, group), shards=matrix.shards)
