r"""Gradients of exact factors in the values of a sparse matrix.

With each entry of the matrix on its own,

.. math:: \frac{\partial \log|A|}{\partial A_{ij}} = (A^{-1})_{ij} , \qquad
          \frac{\partial}{\partial A_{ij}}\, g^\top A^{-1} b = -(A^{-1} g)_i \, (A^{-1} b)_j ,

so that the factor that gave the value gives the gradient. Solves may be differentiated again and again. Derivatives of selected
entries of the inverse would need entries that are not selected, and are refused.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from swing_gp.linalg.sparse import SparsePattern, sampled_product


class Factor(Protocol):
    """Numbers without gradients from the factor of a matrix."""

    @property
    def sparse(self) -> SparsePattern: ...
    @property
    def plain_inverse(self) -> Tensor: ...
    def plain_logdet(self) -> Tensor: ...
    def plain_solve(self, rhs: Tensor) -> Tensor: ...


def logdet(factor: Factor, values: Tensor) -> Tensor:  # (entries,) -> ()
    """The log-determinant of the matrix with these values, whose factor it is."""
    return _LogDet.apply(factor, values)


def solve(factor: Factor, values: Tensor, rhs: Tensor) -> Tensor:  # (entries,), (N, k) -> (N, k)
    """The inverse of the matrix times columns."""
    return _Solve.apply(factor, values, rhs)


def selected_inverse(factor: Factor, values: Tensor) -> Tensor:  # (entries,) -> (entries,)
    """The entries of the inverse where the matrix has entries; a derivative through them is refused, never zero."""
    return _SelectedInverse.apply(factor, values)


class _Context(FunctionCtx):
    """What a forward pass leaves for the backward pass."""

    factor: Factor
    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]


class _LogDet(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, factor: Factor, values: Tensor) -> Tensor:
        ctx.factor = factor
        ctx.save_for_backward(values)
        return factor.plain_logdet()

    @staticmethod
    def backward(ctx: _Context, grad: Tensor) -> tuple[None, Tensor]:
        return None, grad * selected_inverse(ctx.factor, ctx.saved_tensors[0])


class _SelectedInverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, factor: Factor, values: Tensor) -> Tensor:
        return factor.plain_inverse.clone()

    @staticmethod
    def backward(ctx: _Context, grad: Tensor) -> tuple[None, None]:
        raise NotImplementedError(
            "Derivatives of entries of a sparse inverse, and so second derivatives of its log-determinant, are not available. "
            "Differentiate once (create_graph=False), or take entries of the inverse from solve(), which has all derivatives."
        )


class _Solve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, factor: Factor, values: Tensor, rhs: Tensor) -> Tensor:
        ctx.factor = factor
        solution = factor.plain_solve(rhs)
        ctx.save_for_backward(values, solution)
        return solution

    @staticmethod
    def backward(ctx: _Context, grad: Tensor) -> tuple[None, Tensor | None, Tensor]:
        values, solution = ctx.saved_tensors
        adjoint = solve(ctx.factor, values, grad)
        for_values = -sampled_product(ctx.factor.sparse, adjoint, solution) if ctx.needs_input_grad[1] else None
        return None, for_values, adjoint
