"""Second derivatives, entry by entry: of what autograd says, of differences of dense values, and which are refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from swing_gp.linalg.second_order import SecondDerivativeError

# Five-point stencils at -2..2 steps.
FIRST = torch.tensor([1.0, -8.0, 0.0, 8.0, -1.0], dtype=torch.float64) / 12
SECOND = torch.tensor([-1.0, 16.0, -30.0, 16.0, -1.0], dtype=torch.float64) / 12


def hessian(value: Tensor, leaves: Sequence[Tensor]) -> tuple[Tensor, set[tuple[int, int]]]:
    """Every second derivative on its own, and those that are refused: one that is refused must not hide another."""
    refused: set[tuple[int, int]] = set()
    found = torch.zeros(len(leaves), len(leaves), dtype=torch.float64)
    for i, one in enumerate(leaves):
        (slope,) = torch.autograd.grad(value, one, create_graph=True, allow_unused=True)
        for j, two in enumerate(leaves):
            if slope is None or not slope.requires_grad:
                continue
            try:
                (second,) = torch.autograd.grad(slope, two, retain_graph=True, allow_unused=True)
            except SecondDerivativeError:
                refused.add((i, j))
                continue
            found[i, j] = 0.0 if second is None else float(second)
    return found, refused


@torch.no_grad()
def differences(function: Callable[[Tensor], Tensor], at: Tensor, step: float) -> Tensor:  # (p,) -> (*, p, p)
    """Second derivatives of a function with several values, by differences of the fourth order."""
    number = len(at)
    steps = step * at.abs().clamp_min(0.1)
    values: dict[tuple[float, ...], Tensor] = {}

    def value(*moves: tuple[int, int]) -> Tensor:
        place = at.clone()
        for which, count in moves:
            place[which] += count * steps[which]
        key = tuple(place.tolist())
        if key not in values:
            values[key] = function(place)
        return values[key]

    result = function(at).new_zeros(*function(at).shape, number, number)
    for i in range(number):
        terms = [SECOND[k] * value((i, k - 2)) for k in range(5)]
        result[..., i, i] = torch.stack(terms).sum(0) / steps[i] ** 2
        for j in range(i):
            terms = [FIRST[k] * FIRST[m] * value((i, k - 2), (j, m - 2)) for k in (0, 1, 3, 4) for m in (0, 1, 3, 4)]
            result[..., i, j] = result[..., j, i] = torch.stack(terms).sum(0) / (steps[i] * steps[j])
    return result


def check(value: Tensor, leaves: Sequence[Tensor], truth: Tensor, refused: set[tuple[int, int]], tol: float = 1e-4) -> None:
    """Every entry is right, or refused where that is expected, and nowhere else."""
    found, said = hessian(value, leaves)
    assert said == refused, f"refused {sorted(said)}, expected {sorted(refused)}"
    known = torch.ones_like(truth, dtype=torch.bool)
    for entry in refused:
        known[entry] = False
    assert bool(found[known].isfinite().all())
    error = (found - truth)[known].abs()
    assert float(error.max() if error.numel() else 0.0) <= tol * max(1e-3, float(truth.abs().max())), (found, truth)
