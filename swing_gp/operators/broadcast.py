"""One matrix seen as a batch of equal ones, for operators whose tensors have no batch dimension to repeat."""

from __future__ import annotations

from typing import Any

import torch
from linear_operator.operators import DiagLinearOperator, LinearOperator
from torch import Tensor

from swing_gp.operators.indexing import Indexed


class BroadcastLinearOperator(Indexed):
    """``base`` expanded over batch dimensions, at no cost. (``BatchRepeatLinearOperator`` repeats the tensors instead.)"""

    def __init__(self, base: LinearOperator, *, repeats: torch.Size) -> None:
        super().__init__(base, repeats=torch.Size(repeats))
        self.base, self.repeats = base, torch.Size(repeats)

    def _size(self) -> torch.Size:
        return torch.Size((*self.repeats, *self.base.shape))

    def _transpose_nonbatch(self) -> LinearOperator:
        return self.__class__(self.base._transpose_nonbatch(), repeats=self.repeats)

    def _matmul(self, rhs: Tensor) -> Tensor:
        return self.base._matmul(self._expanded(rhs))

    def _expanded(self, rhs: Tensor) -> Tensor:  # (N,) or (*batch, N, k) -> (*repeats, N, k)
        rhs = rhs.unsqueeze(-1) if rhs.dim() == 1 else rhs
        return rhs.expand(*torch.broadcast_shapes(self.repeats, rhs.shape[:-2]), *rhs.shape[-2:])

    def _get_indices(self, row_index: Tensor, col_index: Tensor, *batch_indices: Tensor) -> Tensor:
        entries = self.base._get_indices(row_index, col_index)
        return entries.expand(torch.broadcast_shapes(entries.shape, *(index.shape for index in batch_indices)))

    def _getitem(self, row_index: Any, col_index: Any, *batch_indices: Any) -> LinearOperator:
        left = torch.empty(()).expand(self.repeats)[batch_indices].shape if batch_indices else self.repeats
        whole = isinstance(row_index, slice) and row_index == slice(None) == col_index
        base = self.base if whole else self.base._getitem(row_index, col_index)
        return self.__class__(base, repeats=left) if left else base

    def _expand_batch(self, batch_shape: torch.Size | list[int]) -> LinearOperator:
        return self.__class__(self.base, repeats=torch.Size(batch_shape))

    def _unsqueeze_batch(self, dim: int) -> LinearOperator:
        return self.__class__(self.base, repeats=torch.Size((*self.repeats[:dim], 1, *self.repeats[dim:])))

    def _permute_batch(self, *dims: int) -> LinearOperator:
        return self.__class__(self.base, repeats=torch.Size(self.repeats[dim] for dim in dims))

    def _sum_batch(self, dim: int) -> LinearOperator:
        left = torch.Size((*self.repeats[:dim], *self.repeats[dim + 1 :]))
        total = self.base._mul_constant(torch.tensor(float(self.repeats[dim]), dtype=self.dtype, device=self.device))
        return total._expand_batch(left) if left else total

    def _mul_constant(self, other: float | Tensor) -> LinearOperator:
        if torch.is_tensor(other) and other.numel() > 1:
            return super()._mul_constant(other)
        scalar = other.reshape(()) if torch.is_tensor(other) else other
        return self.__class__(self.base._mul_constant(scalar), repeats=self.repeats)

    def _diagonal(self) -> Tensor:
        return self.base._diagonal().expand(*self.repeats, -1)

    # Noise and solves: of one matrix, for all right-hand sides of the batch at once

    def add_diagonal(self, diag: Tensor) -> LinearOperator:
        batch = diag.shape[:-1]
        if diag.numel() > 1 and any(stride for stride, size in zip(diag.stride(), batch, strict=False) if size > 1):
            return super().add_diagonal(diag)  # not one diagonal over and over
        one = diag[(0,) * len(batch)] if batch else diag
        return self.__class__(self.base.add_diagonal(one), repeats=torch.broadcast_shapes(self.repeats, batch))

    def __add__(self, other: Any) -> LinearOperator:
        return self.add_diagonal(other._diagonal()) if isinstance(other, DiagLinearOperator) else super().__add__(other)

    def solve(self, right_tensor: Tensor, left_tensor: Tensor | None = None) -> Tensor:
        solution = self.base.solve(self._expanded(right_tensor))
        return solution if left_tensor is None else left_tensor @ solution

    def inv_quad_logdet(
        self, inv_quad_rhs: Tensor | None = None, logdet: bool | None = False, reduce_inv_quad: bool | None = True
    ) -> tuple[Tensor, Tensor]:
        rhs = None if inv_quad_rhs is None else self._expanded(inv_quad_rhs)
        terms, logdet_term = self.base.inv_quad_logdet(rhs, logdet, reduce_inv_quad)
        return terms if rhs is not None else terms.expand(self.repeats), logdet_term.expand(self.repeats)
