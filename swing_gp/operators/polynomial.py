"""Polynomials of an operator, in the Chebyshev basis of an interval that holds its spectrum."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

__all__ = ["clenshaw"]


def clenshaw(
    action: Callable[[Tensor], Tensor], coefficients: Tensor, interval: tuple[float, float], rhs: Tensor
) -> Tensor:
    r""":math:`\sum_k c_k T_k(B) v` by Clenshaw's recurrence, B the operator A mapped from the interval to [-1, 1]."""
    low, high = interval
    scale, shift = 2 / (high - low), (high + low) / (high - low)

    def mapped(v: Tensor) -> Tensor:
        return scale * action(v) - shift * v

    last, before = coefficients[-1] * rhs, None
    for coefficient in coefficients[1:-1].flip(0):
        twice = 2 * mapped(last)
        last, before = coefficient * rhs + (twice if before is None else twice - before), last
    if len(coefficients) == 1:
        return last
    result = coefficients[0] * rhs + mapped(last)
    return result if before is None else result - before
