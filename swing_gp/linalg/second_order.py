r"""Backward passes that are to be differentiated themselves: exactly, or refused by name.

PyTorch runs a backward pass with gradients enabled where a second derivative may follow (``create_graph=True``). What such a
pass returns must be made of its inputs and of saved tensors by operations that are differentiable again.
``once_differentiable`` is not enough: it notices the incoming gradient alone, and where that is constant, as in the Hessian of
:math:`v^\top K v`, the second derivative loses terms without a word. So every ``torch.autograd.Function`` of this package,
where :func:`wanted` says so, returns :func:`gradients`, or its numbers through :func:`refused`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Gradients = tuple[Tensor | None, ...]


class SecondDerivativeError(RuntimeError):
    """A second derivative that is not known on this route."""


def wanted() -> bool:
    """Ask, in a backward pass, whether its result may be differentiated."""
    return torch.is_grad_enabled()


def gradients(function: Callable[..., Tensor], tensors: Sequence[Tensor], grad: Tensor) -> Gradients:
    """Pull a gradient back through a function of plain torch, differentiably.

    :param tensors: the inputs; None is returned for those that need no gradient or have none.
    :param grad: the gradient of the value, which may require gradients.
    """
    # Views are inputs of their own: if one tensor was made of another, a derivative in that must not follow both ways.
    live = [tensor.view_as(tensor) if tensor.requires_grad else tensor for tensor in tensors]
    followed = [tensor for tensor in live if tensor.requires_grad]
    value = function(*live)
    if not (followed and value.requires_grad):
        return (None,) * len(live)
    found = iter(torch.autograd.grad(value, followed, grad, create_graph=True, allow_unused=True))
    return tuple(next(found) if tensor.requires_grad else None for tensor in live)


def refused(reason: str, values: Gradients, sources: Sequence[Any]) -> Gradients:
    """The values of a backward pass, whose own derivatives in the sources raise :class:`SecondDerivativeError`.

    :param reason: what is not known, and what to do instead.
    :param sources: everything that the values depend on; what is no tensor with a gradient is passed over.
    """
    live = [source for source in sources if isinstance(source, Tensor) and source.requires_grad]
    if not (wanted() and live):
        return values
    barrier = _Barrier.apply(reason, *live)
    return tuple(value if value is None else value + barrier.to(value) for value in values)


class _Barrier(torch.autograd.Function):
    """Zero, with an error in place of its derivatives."""

    @staticmethod
    def forward(ctx: Any, reason: str, *sources: Tensor) -> Tensor:
        ctx.reason = reason
        return torch.zeros((), dtype=sources[0].dtype, device=sources[0].device)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        raise SecondDerivativeError(ctx.reason)
