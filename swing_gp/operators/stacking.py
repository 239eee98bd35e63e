"""Operators of the elements of a batch as one batched operator."""

from __future__ import annotations

from typing import Any

import torch
from linear_operator.operators import LinearOperator
from torch import Tensor

from swing_gp.operators.batch import Stack
from swing_gp.operators.low_rank_covariance import LowRankCross, LowRankPlusGroups
from swing_gp.operators.low_rank_plus_diagonal import LowRankPlusDiagonal


def stacked(parts: list[LinearOperator], batch: torch.Size) -> LinearOperator:
    """Operators of equal shape as one: low-rank ones through their tensors, others one after another."""
    kind = type(parts[0])
    if kind in (LowRankPlusDiagonal, LowRankPlusGroups, LowRankCross) and all(type(part) is kind for part in parts):
        tensors = [_padded(list(items)).unflatten(0, batch) for items in zip(*map(_tensors, parts), strict=True)]
        options = dict(parts[0]._kwargs)
        if kind is not LowRankPlusDiagonal:
            sides = zip(*(part._kwargs["groups"] for part in parts), strict=True)
            options["groups"] = tuple(torch.stack(side).unflatten(0, batch) for side in sides)
        return kind(*tensors, **options)
    return Stack(*parts, batch=batch)


def _tensors(part: Any) -> tuple[Tensor, ...]:
    if type(part) is LowRankPlusDiagonal:  # whose diagonal may be one number
        return part.factor, part.core, part._full_diag()
    return part._args


def _padded(items: list[Tensor]) -> Tensor:
    """Features and groups may differ in number between the elements of a batch: missing ones are zero."""
    sizes = [max(lengths) for lengths in zip(*(item.shape for item in items), strict=True)]
    missing = [[n for size, own in zip(sizes, item.shape, strict=True) for n in (size - own, 0)][::-1] for item in items]
    return torch.stack([torch.nn.functional.pad(item, widths) for item, widths in zip(items, missing, strict=True)])
