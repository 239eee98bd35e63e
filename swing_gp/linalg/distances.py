"""Euclidean distances with derivatives of every order; those of a distance of zero are taken as zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from swing_gp.linalg.second_order import wanted


def distances(x: Tensor, y: Tensor) -> Tensor:  # (*batch, n, d), (*batch, m, d) -> (*batch, n, m)
    """Distances between all pairs of two point sets, by differences: an expanded square would leave 1e-4 where points coincide
    in float32, and a kink makes that 1e-2."""
    return _of_pairs(x, y, False)


def squared_distances(x: Tensor, y: Tensor) -> Tensor:  # (*batch, n, d), (*batch, m, d) -> (*batch, n, m)
    """Squares of :func:`distances`, whose derivatives are right at zero too."""
    return _of_pairs(x, y, True)


def length(z: Tensor) -> Tensor:  # (..., d) -> (...)
    """Euclidean norms."""
    return _Length.apply(z)


def _of_pairs(x: Tensor, y: Tensor, squared: bool) -> Tensor:
    batch = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    return _Pairs.apply(x.expand(*batch, *x.shape[-2:]), y.expand(*batch, *y.shape[-2:]), squared)


class _Pairs(torch.autograd.Function):
    """torch has no derivative of the backward pass of ``cdist``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, squared: bool) -> Tensor:
        found = torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")
        result = found.square() if squared else found
        ctx.squared = squared
        ctx.save_for_backward(x, y, result)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, y, result = ctx.saved_tensors
        if wanted():
            pull: Callable[..., Tensor] = _differentiable
            parts: tuple[Tensor, ...] = (2 * grad if ctx.squared else _divided(grad, result),)
        else:
            found, pull = result.sqrt() if ctx.squared else result, _at_once
            parts = 2 * grad * found if ctx.squared else grad, found
        for_x = pull(x, y, *parts) if ctx.needs_input_grad[0] else None
        return for_x, pull(y, x, *(part.mT for part in parts)) if ctx.needs_input_grad[1] else None, None


def _at_once(x: Tensor, y: Tensor, grad: Tensor, found: Tensor) -> Tensor:
    """The gradient in x of distances between x and y."""
    return torch.ops.aten._cdist_backward(grad.contiguous(), x.contiguous(), y.contiguous(), 2.0, found.contiguous())


def _differentiable(x: Tensor, y: Tensor, share: Tensor) -> Tensor:
    """The gradient in x from the gradients of distances, divided by these."""
    return share.sum(-1, keepdim=True) * x - share @ y


class _Length(torch.autograd.Function):
    """The second derivative of torch's norm is NaN at zero."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        found = z.norm(dim=-1)
        ctx.save_for_backward(z, found)
        return found

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        z, found = ctx.saved_tensors
        return _divided(grad, found).unsqueeze(-1) * z


def _divided(grad: Tensor, distance: Tensor) -> Tensor:
    same = distance == 0
    return (grad / distance.masked_fill(same, 1)).masked_fill(same, 0)
