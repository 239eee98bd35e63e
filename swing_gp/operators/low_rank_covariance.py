r"""Low-rank covariances between lists of inputs, where an input may appear more than once.

Off the diagonal of the nodes a kernel with dense features is :math:`F_1 C F_2^\top + S`, and S holds the diagonal part d of
a point wherever both inputs are that point. Within one list that has repeated points S is no longer diagonal, but it is
block diagonal with rank-one blocks, so everything stays in closed form and linear in the number of inputs.
"""

from __future__ import annotations

from typing import Any

import torch
from linear_operator.operators import (
    CatLinearOperator,
    DiagLinearOperator,
    InterpolatedLinearOperator,
    LinearOperator,
    RootLinearOperator,
    to_linear_operator,
)
from linear_operator.utils.memoize import cached
from torch import Tensor

from swing_gp.linalg.gram import cross_gram
from swing_gp.operators.indexing import Indexed
from swing_gp.operators.low_rank_plus_diagonal import LowRankPlusDiagonal
from swing_gp.operators.matrix_free import submatrix
from swing_gp.parallel.shards import total

__all__ = ["LowRankCross", "LowRankPlusGroups", "as_cross", "group_sum", "per_group"]


def num_groups(*groups: Tensor) -> int:
    """How many groups there are in lists of inputs, which may be empty."""
    return 1 + max((int(group.max()) for group in groups if group.numel()), default=-1)


def group_sum(group: Tensor, values: Tensor) -> Tensor:  # (*batch, n), (*batch, n, k) -> (*batch, n, k)
    """For every entry the sum over all entries of its group."""
    index = group.unsqueeze(-1).expand_as(values)
    totals = torch.zeros(*values.shape[:-2], num_groups(group), values.shape[-1], dtype=values.dtype, device=values.device)
    return totals.scatter_add(-2, index, values).gather(-2, index)


def per_group(group: Tensor, values: Tensor) -> Tensor:  # (*batch, n), (*batch, n) -> (*batch, groups)
    """One value a group, from values that agree within groups."""
    count = num_groups(group)
    return torch.zeros(*values.shape[:-1], count, dtype=values.dtype, device=values.device).scatter(-1, group, values)


class LowRankPlusGroups(LowRankPlusDiagonal):
    r"""The symmetric matrix :math:`R + P D P^\top + W C W^\top`, with P the membership of inputs in groups of equal points.

    For a group with noise R and shared value d the inverse of :math:`R + d 1 1^\top` is written out (Sherman-Morrison).

    :param factor: W, (\*batch, n, k).
    :param core: C, (\*batch, k, k).
    :param diag: the diagonal of R, (\*batch, n): noise, zero before any is added.
    :param shared: d of every group, (\*batch, groups).
    :param groups: the group of every input, (\*batch, n), in a tuple.
    """

    def __init__(self, factor: Tensor, core: Tensor, diag: Tensor, shared: Tensor, *, groups: tuple[Tensor]) -> None:
        # In a tuple, because linear_operator changes the dtype of tensors.
        LinearOperator.__init__(self, factor, core, diag, shared, groups=groups)
        self._hold(factor, core, diag)
        self.shared = shared
        self.group = groups[0].expand(factor.shape[:-1])

    def _check_args(self, *args: Any, **kwargs: Any) -> str | None:
        return None

    def _transpose_nonbatch(self) -> LinearOperator:
        return self.__class__(self.factor, self.core.mT, self.diag, self.shared, groups=(self.group,))

    def _expand_batch(self, batch_shape: torch.Size | list[int]) -> LinearOperator:
        parts = (part.expand(*batch_shape, *part.shape[self.factor.dim() - 2 :]) for part in self._args)
        group = self.group.expand(*batch_shape, self.group.shape[-1])
        return self.__class__(*parts, groups=(group,))

    @property
    def _member(self) -> Tensor:  # (*batch, n)
        """d of the group of every input."""
        return self.shared.gather(-1, self.group)

    def _group_of(self, values: Tensor) -> Tensor:
        return self.group.expand(values.shape[:-1])

    def _matmul(self, rhs: Tensor) -> Tensor:
        vector = rhs.dim() == 1
        rhs = rhs.unsqueeze(-1) if vector else rhs
        batch = torch.broadcast_shapes(self.batch_shape, rhs.shape[:-2])
        rhs = rhs.expand(*batch, *rhs.shape[-2:])
        small = self.core @ (self.factor.mT @ rhs).to(self.core.dtype)
        result = self.diag.unsqueeze(-1) * rhs + self.factor @ small.to(self.factor.dtype)
        result = result + self._member.unsqueeze(-1) * group_sum(self._group_of(rhs), rhs)
        return result.squeeze(-1) if vector else result

    def _diagonal(self) -> Tensor:
        return super()._diagonal() + self._member

    def _get_indices(self, row_index: Tensor, col_index: Tensor, *batch_indices: Tensor) -> Tensor:
        entries = super()._get_indices(row_index, col_index, *batch_indices)
        rows, columns = self.group[(*batch_indices, row_index)], self.group[(*batch_indices, col_index)]
        shared = self._member[(*batch_indices, row_index)]
        return entries + torch.where(rows == columns, shared, torch.zeros_like(shared))

    def _getitem(self, row_index: Any, col_index: Any, *batch_indices: Any) -> LinearOperator:
        if not self.batch_shape:
            return submatrix(self, row_index, col_index)
        return LinearOperator._getitem(self, row_index, col_index, *batch_indices)

    @cached
    def to_dense(self) -> Tensor:
        dense = self.factor @ self.core.to(self.factor.dtype) @ self.factor.mT
        same = self.group.unsqueeze(-1) == self.group.unsqueeze(-2)
        return dense + torch.diag_embed(self._full_diag()) + same * self._member.unsqueeze(-1)

    def _mul_constant(self, other: float | Tensor) -> LinearOperator:
        scaled = super()._mul_constant(other)
        assert isinstance(scaled, LowRankPlusDiagonal)
        shared = self.shared * (other.unsqueeze(-1) if torch.is_tensor(other) else other)
        group = self.group.expand(scaled.diag.shape)
        return self.__class__(scaled.factor, scaled.core, scaled.diag, shared, groups=(group,))

    def add_diagonal(self, diag: Tensor) -> LinearOperator:
        noisy = super().add_diagonal(diag)
        assert isinstance(noisy, LowRankPlusDiagonal)
        diag = noisy._full_diag()
        shared = self.shared.expand(*diag.shape[:-1], self.shared.shape[-1])
        return self.__class__(noisy.factor, noisy.core, diag, shared, groups=(self.group.expand(diag.shape),))

    def __add__(self, other: Any) -> LinearOperator:
        if isinstance(other, LowRankPlusDiagonal):
            return LinearOperator.__add__(self, other)
        return super().__add__(other)

    # The block-diagonal part R + P D P^T

    def _group_information(self) -> Tensor:  # (*batch, n)
        r""":math:`1^\top R^{-1} 1` of the group of every input."""
        return group_sum(self.group, (1 / self._full_diag()).unsqueeze(-1)).squeeze(-1)

    def _inverse_of_diagonal(self, x: Tensor) -> Tensor:
        inverse = x / self._full_diag().unsqueeze(-1)
        share = self._member / ((1 + self._member * self._group_information()) * self._full_diag())
        return inverse - share.unsqueeze(-1) * group_sum(self._group_of(inverse), inverse)

    def _gram(self) -> Tensor:
        product = cross_gram(self.factor, self._inverse_of_diagonal(self.factor))
        return 0.5 * (product + product.mT)

    def _logdet_of_diagonal(self) -> Tensor:
        total = self._group_information()
        size = group_sum(self.group, torch.ones_like(total).unsqueeze(-1)).squeeze(-1)
        return (self._full_diag().double().log() + (self._member * total).double().log1p() / size).sum(-1)

    # Roots

    @cached(name="root_decomposition")
    def root_decomposition(self, method: str | None = None) -> LinearOperator:
        half = self._root_of_core()
        if half is None:
            return LinearOperator.root_decomposition(self, method)
        # One column for what the members of a group share, then one of its own for every input.
        ones = torch.ones(*self.batch_shape, num_groups(self.group), dtype=self.dtype, device=self.device)
        member = InterpolatedLinearOperator(
            DiagLinearOperator(ones),
            left_interp_indices=self.group.unsqueeze(-1),
            left_interp_values=self._member.sqrt().unsqueeze(-1),
        )
        own = DiagLinearOperator(self._full_diag().sqrt())
        return RootLinearOperator(CatLinearOperator(to_linear_operator(self.factor @ half), member, own, dim=-1))

    @cached(name="root_inv_decomposition")
    def root_inv_decomposition(
        self, initial_vectors: Tensor | None = None, test_vectors: Tensor | None = None, method: str | None = None
    ) -> LinearOperator:
        return LinearOperator.root_inv_decomposition(self, initial_vectors, test_vectors, method)

    def _own_samples(self, num_samples: int) -> Tensor:
        draws = self._white(num_groups(self.group), num_samples)
        shared = draws.gather(-2, self.group.unsqueeze(-1).expand(*self.group.shape, num_samples))
        return super()._own_samples(num_samples) + self._member.sqrt().unsqueeze(-1) * shared


class LowRankCross(Indexed):
    r"""The rectangular matrix :math:`F_1 C F_2^\top + S` between two lists of inputs.

    :param left: :math:`F_1`, (\*batch, n, k).
    :param core: C, (\*batch, k, k).
    :param right: :math:`F_2`, (\*batch, m, k).
    :param shared: the diagonal part of every row's point, (\*batch, n).
    :param groups: for rows and for columns, a number that agrees where the points do; (\*batch, n) and (\*batch, m).
    """

    def __init__(self, left: Tensor, core: Tensor, right: Tensor, shared: Tensor, *, groups: tuple[Tensor, Tensor]) -> None:
        super().__init__(left, core, right, shared, groups=groups)
        self.left, self.core, self.right, self.shared, self.groups = left, core, right, shared, groups

    def _size(self) -> torch.Size:
        return torch.Size((*self.left.shape[:-1], self.right.shape[-2]))

    def _transpose_nonbatch(self) -> LinearOperator:
        rows, columns = self.groups
        count = num_groups(rows, columns)
        # The value of a point, seen from the columns: zero where no row is that point.
        values = torch.zeros(*self.shared.shape[:-1], count, dtype=self.dtype, device=self.device)
        values = values.scatter(-1, rows.expand(self.shared.shape), self.shared)
        shared = values.gather(-1, columns.expand(*self.shared.shape[:-1], columns.shape[-1]))
        return self.__class__(self.right, self.core.mT, self.left, shared, groups=(columns, rows))

    def _expand_batch(self, batch_shape: torch.Size | list[int]) -> LinearOperator:
        parts = (part.expand(*batch_shape, *part.shape[self.left.dim() - 2 :]) for part in self._args)
        groups = tuple(group.expand(*batch_shape, group.shape[-1]) for group in self.groups)
        return self.__class__(*parts, groups=groups)  # type: ignore[arg-type]

    def _matmul(self, rhs: Tensor) -> Tensor:
        vector = rhs.dim() == 1
        rhs = rhs.unsqueeze(-1) if vector else rhs
        batch = torch.broadcast_shapes(self.batch_shape, rhs.shape[:-2])
        small = self.core @ total(self.right.mT @ rhs, "product").to(self.core.dtype)
        result = self.left @ small.to(self.left.dtype) + self.matches(rhs.expand(*batch, *rhs.shape[-2:]))
        return result.squeeze(-1) if vector else result

    def _getitem(self, row_index: Any, col_index: Any, *batch_indices: Any) -> LinearOperator:
        if not self.batch_shape:
            return submatrix(self, row_index, col_index)
        return super()._getitem(row_index, col_index, *batch_indices)

    def matches(self, rhs: Tensor) -> Tensor:  # (*batch, m, k) -> (*batch, n, k)
        """S v."""
        rows, columns = (group.expand(*rhs.shape[:-2], group.shape[-1]) for group in self.groups)
        count = num_groups(rows, columns)
        totals = torch.zeros(*rhs.shape[:-2], count, rhs.shape[-1], dtype=rhs.dtype, device=rhs.device)
        totals = totals.scatter_add(-2, columns.unsqueeze(-1).expand_as(rhs), rhs)
        index = rows.unsqueeze(-1).expand(*rows.shape, rhs.shape[-1])
        return self.shared.unsqueeze(-1) * totals.gather(-2, index)

    def _get_indices(self, row_index: Tensor, col_index: Tensor, *batch_indices: Tensor) -> Tensor:
        rows, columns = self.left[(*batch_indices, row_index)], self.right[(*batch_indices, col_index)]
        core = self.core[batch_indices] if batch_indices else self.core
        entries = (rows.unsqueeze(-2) @ core.to(rows.dtype) @ columns.unsqueeze(-1)).squeeze(-1).squeeze(-1)
        same = self.groups[0][(*batch_indices, row_index)] == self.groups[1][(*batch_indices, col_index)]
        shared = self.shared[(*batch_indices, row_index)]
        return entries + torch.where(same, shared, torch.zeros_like(shared))

    @cached
    def to_dense(self) -> Tensor:
        same = self.groups[0].unsqueeze(-1) == self.groups[1].unsqueeze(-2)
        return self.left @ self.core.to(self.left.dtype) @ self.right.mT + same * self.shared.unsqueeze(-1)

    def _mul_constant(self, other: float | Tensor) -> LinearOperator:
        if not torch.is_tensor(other):
            return self.__class__(self.left, self.core * other, self.right, self.shared * other, groups=self.groups)
        core = self.core * other.to(self.core.dtype)[..., None, None]
        shared = self.shared * other.unsqueeze(-1)
        batch = core.shape[:-2]
        left, right = (part.expand(*batch, *part.shape[-2:]) for part in (self.left, self.right))
        groups = tuple(group.expand(*batch, group.shape[-1]) for group in self.groups)
        return self.__class__(left, core, right, shared, groups=groups)  # type: ignore[arg-type]


def as_cross(matrix: LowRankPlusDiagonal) -> LowRankCross:
    """The covariance of a list of inputs as one between two lists that happen to be equal."""
    if isinstance(matrix, LowRankPlusGroups):
        group, shared = matrix.group, matrix._member
    else:
        group, shared = torch.arange(matrix.shape[-1], device=matrix.device).expand(matrix.shape[:-1]), matrix._full_diag()
    return LowRankCross(matrix.factor, matrix.core, matrix.factor, shared, groups=(group, group))
