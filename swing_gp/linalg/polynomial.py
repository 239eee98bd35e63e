"""Polynomials of an operator, in the Chebyshev basis of an interval that holds its spectrum."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.sparse.linalg
import torch
from torch import Tensor


def spectral_radius(action: Callable[[Tensor], Tensor], like: Tensor, bound: float) -> float:  # like: (N, k)
    """The spectral radius of a symmetric non-negative matrix, from a few products, never above ``bound``.

    A Chebyshev polynomial on an interval that is wider than the spectrum loses digits wherever g grows fast, as the
    diffusion does on raw weights, so the largest degree alone is too generous a bound.
    """
    size = like.shape[0]
    if size < 3:  # too small for the Lanczos process
        with torch.no_grad():
            return min(bound, float(torch.linalg.eigvalsh(action(torch.eye(size).to(like)).double()).abs().max()))

    def product(v: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return action(torch.as_tensor(v.reshape(-1, 1)).to(like)).double().cpu().numpy().ravel()

    matrix = scipy.sparse.linalg.LinearOperator((size, size), matvec=product, dtype=np.float64)
    start = np.ones(size)  # the Perron vector of a non-negative matrix is never orthogonal to it
    (largest,) = scipy.sparse.linalg.eigsh(matrix, k=1, v0=start, tol=1e-4, return_eigenvectors=False)
    return min(bound, float(largest) * (1 + 1e-3))


def clenshaw(action: Callable[[Tensor], Tensor], coefficients: Tensor, interval: tuple[float, float], rhs: Tensor) -> Tensor:
    r""":math:`\sum_k c_k T_k(B) v`, from two coefficients on, B the operator A mapped from the interval to [-1, 1]."""
    low, high = interval
    scale, shift = 2 / (high - low), (high + low) / (high - low)

    def mapped(v: Tensor) -> Tensor:
        return scale * action(v) - shift * v

    last: Tensor = coefficients[-1] * rhs
    before: Tensor | float = 0.0
    for coefficient in coefficients[1:-1].flip(0):
        last, before = coefficient * rhs + (2 * mapped(last) - before), last
    return coefficients[0] * rhs + mapped(last) - before


def clenshaw_in_place(
    advance: Callable[[Tensor, float, Tensor], Tensor], coefficients: Tensor, interval: tuple[float, float], rhs: Tensor
) -> Tensor:
    """The same without gradients, in three blocks of the size of ``rhs``: new ones take as long as a sparse product.

    :param advance: :math:`s A v - u` of v, s and u, written into u.
    """
    low, high = interval
    scale, shift = 2 / (high - low), (high + low) / (high - low)
    rhs = rhs.contiguous()
    last, before = coefficients[-1] * rhs, torch.zeros_like(rhs)
    for number in range(len(coefficients) - 2, -1, -1):
        twice = 2 if number else 1
        advance(last, twice * scale, before).sub_(last, alpha=twice * shift).addcmul_(rhs, coefficients[number])
        last, before = before, last
    return last
