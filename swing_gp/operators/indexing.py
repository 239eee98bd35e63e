"""Entries, rows and columns of operators, picked the way torch does it.

``linear_operator`` knows slices, tensors of ids and non-negative numbers. Here ``K[-1]``, ``K[mask]`` and ids as arrays, lists
or ranges work too.

>>> import torch
>>> from swing_gp import Diffusion, Gaussian, ImplicitGraph, graph_kernel
>>> K = graph_kernel(ImplicitGraph(torch.rand(4, 2).double(), Gaussian(0.5)), Diffusion(1.0))
>>> mask = torch.tensor([True, False, True, True])
>>> K[mask].shape, K[mask][:, -2:].shape, K[-1].shape
(torch.Size([3, 4]), torch.Size([3, 2]), torch.Size([4]))
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
import torch
from linear_operator.functions._matmul import Matmul
from linear_operator.operators import LinearOperator
from linear_operator.utils.broadcasting import _matmul_broadcast_shape
from torch import Tensor

from swing_gp.linalg.second_order import gradients, refused, wanted

FOREIGN_FUNCTION = (
    "Second derivatives of sums, roots and other functions of linear_operator are not known. Take products, solves and "
    "log-determinants of the kernels themselves, K.to_dense() for few inputs, or differences of gradients."
)


class _OperatorProduct(Matmul):
    """A product, the derivative of whose backward pass linear_operator leaves out."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        if not wanted():
            return Matmul.backward(ctx, grad)

        def product(rhs: Tensor, *tensors: Tensor) -> Tensor:
            columns = rhs.unsqueeze(-1) if rhs.dim() == 1 else rhs
            result = ctx.representation_tree(*tensors)._matmul(columns)
            return result.squeeze(-1) if rhs.dim() == 1 else result

        return None, *gradients(product, ctx.saved_tensors, grad)


class Indexed(LinearOperator):
    """An operator with torch's indexing, whose quadratic forms are those of its ``inv_quad_logdet``."""

    def matmul(self, other: Any) -> Any:
        if isinstance(other, LinearOperator):
            return super().matmul(other)
        _matmul_broadcast_shape(self.shape, other.shape)
        return _OperatorProduct.apply(self.representation_tree(), other, *self.representation())

    def _bilinear_derivative(self, left_vecs: Tensor, right_vecs: Tensor) -> tuple[Tensor | None, ...]:
        # For functions of linear_operator, which keep intermediate results without their derivatives.
        found = super()._bilinear_derivative(left_vecs, right_vecs)
        return refused(FOREIGN_FUNCTION, found, (*self.representation(), left_vecs, right_vecs))

    def inv_quad(self, inv_quad_rhs: Tensor, reduce_inv_quad: bool = True) -> Tensor:
        return self.inv_quad_logdet(inv_quad_rhs, reduce_inv_quad=reduce_inv_quad)[0]

    def __getitem__(self, index: Any) -> LinearOperator | Tensor:
        index = index if isinstance(index, tuple) else (index,)
        if any(item is None for item in index):
            raise IndexError("None makes a new dimension, which an operator gets by unsqueeze: use K.unsqueeze(0).")
        filled = next((place for place, item in enumerate(index) if item is Ellipsis), len(index))
        missing = self.dim() - len(index) + (filled < len(index))
        if missing < 0:
            raise IndexError(f"too many indices for an operator of shape {tuple(self.shape)}.")
        index = (*index[:filled], *[slice(None)] * missing, *index[filled + 1 :])
        return super().__getitem__(tuple(_plain(item, size) for item, size in zip(index, self.shape, strict=True)))


def _plain(index: Any, size: int) -> Any:
    """An index in the forms that linear_operator knows: slices, numbers and ids from zero up."""
    if isinstance(index, (Sequence, np.ndarray)) and not isinstance(index, str):
        index = torch.as_tensor(np.asarray(index))
        index = index if index.numel() else index.long()  # an empty list has no type that means anything
    if torch.is_tensor(index) and index.dim() == 0:
        index = index.item()
    if isinstance(index, Integral):
        if not -size <= int(index) < size:
            raise IndexError(f"index {index} is out of range for a dimension of size {size}.")
        return int(index) % size
    if isinstance(index, slice):
        return index
    if not torch.is_tensor(index) or index.is_floating_point() or index.is_complex():
        raise IndexError(f"an index must be a number, a slice, a mask or node ids, got {index!r}.")
    if index.dtype == torch.bool:
        if index.shape != (size,):
            raise IndexError(f"a mask must have {size} entries, got shape {tuple(index.shape)}.")
        return index.nonzero().squeeze(-1)
    if index.numel() and not -size <= int(index.min()) <= int(index.max()) < size:
        raise IndexError(f"ids must lie in {-size}..{size - 1}, got {int(index.min())}..{int(index.max())}.")
    return torch.where(index < 0, index + size, index)
