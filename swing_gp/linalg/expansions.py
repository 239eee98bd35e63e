"""Expansions of functions of one variable, in float64: where to cut power series, their roots, Chebyshev coefficients."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor


def horner(coefficients: Tensor, x: Tensor) -> Tensor:
    """A polynomial, elementwise, from its coefficients in rising order."""
    result = torch.zeros_like(x)
    for coefficient in coefficients.flip(0):
        result = result * x + coefficient
    return result


def series_root(alpha: Tensor) -> Tensor:
    """The power series whose square is ``alpha``: one coefficient after the other, then Newton steps for gradients."""
    target = alpha.detach().cpu().numpy()
    rho = np.zeros_like(target)
    rho[0] = math.sqrt(target[0])
    for k in range(1, len(rho)):
        rho[k] = (target[k] - rho[1:k] @ rho[k - 1 : 0 : -1]) / (2 * rho[0])
    root = torch.from_numpy(rho).to(alpha)
    if not alpha.requires_grad:
        return root
    # rho * rho = alpha defines rho. The steps add zero but carry derivatives: one those of the first order, two those up to
    # the third.
    return _newton_step(_newton_step(root, alpha), alpha)


def _newton_step(rho: Tensor, alpha: Tensor) -> Tensor:
    shift = torch.arange(len(rho)).unsqueeze(-1) - torch.arange(len(rho))
    convolution = rho[shift.clamp_min(0)].tril()
    residual = (alpha - convolution @ rho).unsqueeze(-1)
    return rho + torch.linalg.solve_triangular(2 * convolution, residual - residual.detach(), upper=False).squeeze(-1)


def truncation(terms: Callable[[int], Tensor], tol: float, most: int) -> float:
    """The number of terms n after which what remains, the sum of the terms from n on, is below ``tol`` of the whole.

    :param terms: the absolute values of the first n terms.
    :param most: look at no more terms than this; a number above it is extrapolated.
    """
    number = min(32, most)
    while True:
        values = terms(number)
        tail = values.flip(0).cumsum(0).flip(0)
        # Geometric tails are seen to end inside the window.
        if float(values[-8:].sum()) < 1e-3 * tol * float(tail[0]):
            return max(1, int((tail >= tol * tail[0]).sum()))
        if number >= most:
            decay = float(values[number // 2] / values[-1].clamp_min(1e-300))
            rate = max(math.log2(max(decay, 1.0)) - 1, 1e-3)  # terms like k^-(1+rate) leave a tail like k^-rate
            left = float(values[-1]) * number / rate / float(tail[0])
            return number * max(1.0, left / tol) ** (1 / rate)
        number = min(2 * number, most)


def chebyshev_coefficients(
    function: Callable[[Tensor], Tensor], interval: tuple[float, float], tol: float, most: int, degree: int | None = None
) -> Tensor | None:
    """Chebyshev coefficients of a function on an interval, as many as ``tol`` (relative to the largest) asks for.

    They are a linear image of values of the function, so gradients reach its parameters.

    :param most: give up, with None, above this degree.
    :param degree: the degree of a function that is a polynomial.
    """
    low, high = interval
    with torch.no_grad():
        ends = function(torch.tensor([high, low], dtype=torch.float64))
    number = 16 if degree is None else max(degree, 1) + 1  # a constant is a line, so that every polynomial has its matrix in it
    while True:
        order = torch.arange(number, dtype=torch.float64)
        angles = (order + 0.5) * (math.pi / number)
        nodes = 0.5 * (high - low) * angles.cos() + 0.5 * (high + low)
        values = function(nodes)
        transform = torch.cos(torch.outer(order, angles)) * (2 / number)
        coefficients = transform @ values
        coefficients = torch.cat([coefficients[:1] / 2, coefficients[1:]])
        if degree is not None:
            return coefficients
        fitted = coefficients.detach()
        size = fitted.abs()
        # Values are rounded, and inherit the rounding of the nodes times the slope: so are the coefficients.
        slope = (values.detach().diff() / nodes.diff()).abs().max()
        noise = max(1e-14 * float(size.max()), 4e-16 * max(abs(low), abs(high)) * float(slope))
        error = max(tol * float(size.max()), noise)
        # A function may be large where no node is, which is at an end; there the polynomial must agree too.
        gap = torch.stack([fitted.sum(), fitted[::2].sum() - fitted[1::2].sum()]) - ends
        if float(size[-max(2, number // 8) :].max()) <= max(0.1 * error, noise) and float(gap.abs().max()) <= number * error:
            tail = size.flip(0).cumsum(0).flip(0)
            return coefficients[: max(2, int((tail > error).sum()))]
        if number >= most:
            return None
        number *= 2
