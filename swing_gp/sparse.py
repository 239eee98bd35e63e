"""Sparse matrices with differentiable values: a fixed pattern, kept for products with the matrix and with its transpose."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

__all__ = ["SparsePattern"]


@dataclass(frozen=True)
class SparsePattern:
    """Where the entries of a sparse matrix are; products take the values as an argument, so gradients reach them.

    The transpose is kept as a pattern of its own, because torch multiplies CSC tensors far more slowly.
    """

    shape: tuple[int, int]
    crow: Tensor
    col: Tensor
    crow_t: Tensor
    col_t: Tensor
    order_t: Tensor

    @classmethod
    def from_scipy(cls, matrix: scipy.sparse.csr_array) -> SparsePattern:
        """The pattern of a canonical CSR matrix, in the order of its ``data``."""
        rows, columns = matrix.shape
        numbered = scipy.sparse.csr_array((np.arange(matrix.nnz), matrix.indices, matrix.indptr), shape=matrix.shape)
        flipped = numbered.T.tocsr()
        indices = (matrix.indptr, matrix.indices, flipped.indptr, flipped.indices, flipped.data)
        return cls((rows, columns), *(torch.from_numpy(np.asarray(index, dtype=np.int64)) for index in indices))

    def rows(self) -> Tensor:
        """The row of every entry."""
        return torch.repeat_interleave(torch.arange(self.shape[0]), self.crow.diff())

    def log_sum(self, log_values: Tensor) -> Tensor:  # (entries,) -> (rows,)
        """Logarithms of the row sums of exponentials; every row has an entry."""
        rows = self.rows().to(log_values.device)
        like = torch.empty(self.shape[0], dtype=log_values.dtype, device=log_values.device)
        largest = torch.full_like(like, -torch.inf).scatter_reduce(0, rows, log_values.detach(), "amax")
        return torch.zeros_like(like).index_add(0, rows, (log_values - largest[rows]).exp()).log() + largest

    def matmul(self, values: Tensor, rhs: Tensor) -> Tensor:
        device = values.device
        return _csr(self.crow.to(device), self.col.to(device), values, self.shape) @ rhs

    def t_matmul(self, values: Tensor, rhs: Tensor) -> Tensor:
        device = values.device
        flipped = values[self.order_t.to(device)]
        return _csr(self.crow_t.to(device), self.col_t.to(device), flipped, self.shape[::-1]) @ rhs


def _csr(crow: Tensor, col: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    with warnings.catch_warnings():  # torch says once that CSR is in beta
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(crow, col, values, shape, check_invariants=False)
