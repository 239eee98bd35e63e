"""Entries, rows and columns of operators, picked the way torch does it.

``linear_operator`` knows slices, tensors of ids and non-negative numbers. Here ``K[-1]``, ``K[mask]`` and empty slices work,
and what is picked can be indexed again.

>>> import torch
>>> from swing_gp import Diffusion, Gaussian, ImplicitGraph, graph_kernel
>>> K = graph_kernel(ImplicitGraph(torch.rand(4, 2).double(), Gaussian(0.5)), Diffusion(1.0))
>>> mask = torch.tensor([True, False, True, True])
>>> K[mask].shape, K[mask][:, -2:].shape, K[-1].shape
(torch.Size([3, 4]), torch.Size([3, 2]), torch.Size([4]))
"""

from __future__ import annotations

from typing import Any

import torch
from linear_operator.operators import LinearOperator
from torch import Tensor

__all__ = ["Indexed", "Submatrix"]


class Indexed(LinearOperator):
    """An operator with torch's indexing; without batch dimensions, what is picked is a :class:`Submatrix`."""

    def __getitem__(self, index: Any) -> LinearOperator | Tensor:
        index = index if isinstance(index, tuple) else (index,)
        filled = next((place for place, item in enumerate(index) if item is Ellipsis), len(index))
        missing = self.dim() - len(index) + (filled < len(index))
        index = (*index[:filled], *[slice(None)] * missing, *index[filled + 1 :])
        return super().__getitem__(tuple(_plain(item, size) for item, size in zip(index, self.shape, strict=True)))

    def _getitem(self, row_index: Any, col_index: Any, *batch_indices: Any) -> LinearOperator:
        whole = isinstance(row_index, slice) and row_index == slice(None) == col_index
        if self.dim() > 2 or whole:
            return super()._getitem(row_index, col_index, *batch_indices)
        rows, columns = (torch.arange(size, device=self.device) for size in self.shape)
        return Submatrix(self, nodes=(rows[row_index], columns[col_index]))


class Submatrix(Indexed):
    """Rows and columns of an operator: its products are those of the whole, with values scattered and gathered.

    :param base: the operator, without batch dimensions.
    :param nodes: the rows and the columns, non-negative, in a tuple, because linear_operator changes the dtype of tensors.
    """

    def __init__(self, base: LinearOperator, *, nodes: tuple[Tensor, Tensor]) -> None:
        super().__init__(base, nodes=nodes)
        self.base, self.nodes = base, nodes

    def _size(self) -> torch.Size:
        return torch.Size((len(self.nodes[0]), len(self.nodes[1])))

    @property
    def dtype(self) -> torch.dtype:
        return self.base.dtype

    @property
    def device(self) -> torch.device:
        return self.base.device

    def _transpose_nonbatch(self) -> LinearOperator:
        return self.__class__(self.base._transpose_nonbatch(), nodes=self.nodes[::-1])

    def _matmul(self, rhs: Tensor) -> Tensor:
        columns = rhs.unsqueeze(-1) if rhs.dim() == 1 else rhs
        full = torch.zeros(*columns.shape[:-2], self.base.shape[-1], columns.shape[-1], dtype=rhs.dtype, device=rhs.device)
        product = self.base._matmul(full.index_add(-2, self.nodes[1], columns))[..., self.nodes[0], :]
        return product.squeeze(-1) if rhs.dim() == 1 else product

    def _get_indices(self, row_index: Tensor, col_index: Tensor, *batch_indices: Tensor) -> Tensor:
        return self.base._get_indices(self.nodes[0][row_index], self.nodes[1][col_index])

    def _getitem(self, row_index: Any, col_index: Any, *batch_indices: Any) -> LinearOperator:
        return self.base._getitem(self.nodes[0][row_index], self.nodes[1][col_index])

    def _diagonal(self) -> Tensor:
        return self.base._get_indices(*self.nodes)


def _plain(index: Any, size: int) -> Any:
    """An index in the forms that linear_operator knows: slices, numbers and ids from zero up."""
    if isinstance(index, list):
        index = torch.tensor(index)
    if isinstance(index, int):
        if not -size <= index < size:
            raise IndexError(f"index {index} is out of range for a dimension of size {size}.")
        return index % size
    if not torch.is_tensor(index) or index.dim() == 0:
        return index if not torch.is_tensor(index) else _plain(int(index), size)
    if index.dtype == torch.bool:
        if index.shape != (size,):
            raise IndexError(f"a mask must have {size} entries, got shape {tuple(index.shape)}.")
        return index.nonzero().squeeze(-1)
    if index.numel() and not -size <= int(index.min()) <= int(index.max()) < size:
        raise IndexError(f"ids must lie in {-size}..{size - 1}, got {int(index.min())}..{int(index.max())}.")
    return torch.where(index < 0, index + size, index)
