"""Sparse matrices with differentiable values: a fixed pattern, for products with the matrix and with its transpose."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

# Numbers that are gathered at a time for the gradient of the values: few enough to stay in the cache.
GATHERED = 2**18


@dataclass(frozen=True)
class SparsePattern:
    """Where the entries of a sparse matrix are; products take the values as an argument, so gradients reach them.

    Indices are int32 where they fit: products are bound by memory, and twice as fast.
    """

    shape: tuple[int, int]
    crow: Tensor
    col: Tensor

    @classmethod
    def from_scipy(cls, matrix: scipy.sparse.csr_array) -> SparsePattern:
        """The pattern of a canonical CSR matrix, in the order of its ``data``."""
        dtype = np.int32 if max(matrix.nnz, *matrix.shape) < 2**31 else np.int64
        crow, col = (torch.from_numpy(index.astype(dtype, copy=False)) for index in (matrix.indptr, matrix.indices))
        return cls(matrix.shape, crow, col)

    @property
    def num_entries(self) -> int:
        return len(self.col)

    def rows(self, start: int = 0, stop: int | None = None) -> Tensor:
        """The row of every entry (of the rows from ``start`` to ``stop``)."""
        stop = self.shape[0] if stop is None else stop
        return torch.repeat_interleave(torch.arange(start, stop), self.crow[start : stop + 1].diff())

    def blocks(self, entries: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows and columns of the entries, about ``entries`` of them at a time, in order."""
        start = 0
        while True:  # no rows are one block too
            bound = int(self.crow[start]) + entries
            stop = min(self.shape[0], max(start + 1, int(torch.searchsorted(self.crow, bound, right=True)) - 1))
            yield self.rows(start, stop), self.col[int(self.crow[start]) : int(self.crow[stop])].long()
            if stop == self.shape[0]:
                return
            start = stop

    def log_sum(self, log_values: Tensor) -> Tensor:  # (entries,) -> (rows,)
        """Logarithms of the row sums of exponentials; every row has an entry."""
        rows = self.rows().to(log_values.device)
        like = torch.empty(self.shape[0], dtype=log_values.dtype, device=log_values.device)
        # Finite also where a row has nothing but zeros, whose sum is zero.
        largest = torch.full_like(like, torch.finfo(like.dtype).min).scatter_reduce(0, rows, log_values.detach(), "amax")
        return torch.zeros_like(like).index_add(0, rows, (log_values - largest[rows]).exp()).log() + largest

    def csr(self, values: Tensor) -> Tensor:  # (entries,) -> (rows, columns)
        """The matrix as a tensor of torch."""
        with warnings.catch_warnings():  # torch says once that CSR is in beta
            warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
            crow, col = self.crow.to(values.device), self.col.to(values.device)
            return torch.sparse_csr_tensor(crow, col, values, self.shape, check_invariants=False)

    def matmul(self, values: Tensor, rhs: Tensor) -> Tensor:  # (entries,), (columns, k) -> (rows, k)
        return _Product.apply(self, values, rhs)

    def t_matmul(self, values: Tensor, rhs: Tensor) -> Tensor:
        order, flipped = self.transposed
        return flipped.matmul(values[order.to(values.device)], rhs)

    @cached_property
    def transposed(self) -> tuple[Tensor, SparsePattern]:
        """The transpose as a pattern of its own, because torch multiplies CSC tensors far more slowly."""
        entries = (np.arange(self.num_entries), self.col.numpy(), self.crow.numpy())
        numbered = scipy.sparse.csr_array(entries, shape=self.shape).T.tocsr()
        return torch.from_numpy(numbered.data), SparsePattern.from_scipy(numbered)


def advance(matrix: Tensor, rhs: Tensor, scale: float, before: Tensor) -> Tensor:  # (n, n), (n, k), (n, k)
    """``scale * matrix @ rhs - before``, written into ``before``, for a CSR tensor; without gradients."""
    if rhs.shape[-1] == 1:  # twice as fast as a matrix of one column
        column = before.squeeze(-1)
        torch.addmv(column, matrix, rhs.squeeze(-1), beta=-1, alpha=scale, out=column)
        return before
    return torch.addmm(before, matrix, rhs, beta=-1, alpha=scale, out=before)


def sparse_tensor(matrix: scipy.sparse.csr_array, dtype: torch.dtype = torch.float64) -> Tensor:
    """A SciPy matrix as a torch CSR tensor without gradients, whose products with blocks of columns run on all threads."""
    matrix = scipy.sparse.csr_array(matrix)
    matrix.sort_indices()
    return SparsePattern.from_scipy(matrix).csr(torch.from_numpy(matrix.data).to(dtype))


def sampled_product(pattern: SparsePattern, left: Tensor, right: Tensor) -> Tensor:  # (rows, k), (columns, k) -> (entries,)
    r"""The entries of :math:`L R^\top` on a pattern, differentiable in both."""
    return _Sampled.apply(pattern, left, right)


class _Product(torch.autograd.Function):
    """A sparse matrix times a dense one. torch's own backward pass makes a dense matrix of the full shape for the values."""

    @staticmethod
    def forward(ctx: Any, pattern: SparsePattern, values: Tensor, rhs: Tensor) -> Tensor:
        ctx.pattern = pattern
        ctx.save_for_backward(values, rhs)
        return pattern.csr(values) @ rhs

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor | None, Tensor | None]:
        values, rhs = ctx.saved_tensors
        for_values = _Sampled.apply(ctx.pattern, grad, rhs) if ctx.needs_input_grad[1] else None
        return None, for_values, ctx.pattern.t_matmul(values, grad.contiguous()) if ctx.needs_input_grad[2] else None


class _Sampled(torch.autograd.Function):
    r"""The entries of :math:`L R^\top` on a pattern, L (rows, k) and R (columns, k): the gradient of the values. Its own
    gradients are products again."""

    @staticmethod
    def forward(ctx: Any, pattern: SparsePattern, left: Tensor, right: Tensor) -> Tensor:  # (entries,)
        ctx.pattern = pattern
        ctx.save_for_backward(left, right)
        result = torch.empty(pattern.num_entries, dtype=left.dtype, device=left.device)
        done = 0
        for rows, cols in pattern.blocks(max(1, GATHERED // max(1, left.shape[-1]))):
            pairs = left.index_select(0, rows.to(left.device)), right.index_select(0, cols.to(right.device))
            result[done : done + len(rows)] = torch.einsum("ek,ek->e", *pairs)
            done += len(rows)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor | None, Tensor | None]:
        left, right = ctx.saved_tensors
        for_left = ctx.pattern.matmul(grad, right) if ctx.needs_input_grad[1] else None
        return None, for_left, ctx.pattern.t_matmul(grad, left) if ctx.needs_input_grad[2] else None
