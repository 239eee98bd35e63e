r"""Solves that say how they were done: :math:`(K + \sigma^2 I) x = b`, for notebooks and for checks.

>>> import torch
>>> from swing_gp import Diffusion, Gaussian, ImplicitGraph, graph_kernel, solve
>>> points = torch.rand(300, 2, generator=torch.Generator().manual_seed(0)).double()
>>> K = graph_kernel(ImplicitGraph(points, Gaussian(0.1)), Diffusion(2.0), features="grid")
>>> result = solve(K, torch.ones(300).double(), noise=0.1)
>>> result.method, result.converged, result.residuals[-1] < 1e-6
('cg', True, True)
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from linear_operator.operators import LinearOperator
from torch import Tensor

from swing_gp.operators.low_rank_plus_diagonal import LowRankPlusDiagonal
from swing_gp.operators.noisy import NoisyKernelLinearOperator

__all__ = ["ConvergenceWarning", "Solution", "conjugate_gradients", "solve"]


class ConvergenceWarning(UserWarning):
    """A solve ended before it reached the residual that was asked for."""


@dataclass(frozen=True)
class Solution:
    """A solution and how it was found.

    :ivar solution: x, of the shape of the right-hand side.
    :ivar method: ``"woodbury"`` (closed form), ``"cg"``, or ``"pcg"`` (conjugate gradients, preconditioned by landmarks).
    :ivar iterations: products with the matrix that the method took; 0 in closed form.
    :ivar residuals: relative residuals, the largest over right-hand sides, after every iteration; the last is measured.
    :ivar converged: whether the last is at most the tolerance.
    """

    solution: Tensor
    method: str
    iterations: int
    residuals: tuple[float, ...]
    converged: bool


@torch.no_grad()
def solve(
    operator: LinearOperator, rhs: Tensor, noise: float | Tensor, tol: float = 1e-6, *, max_iterations: int = 1000
) -> Solution:
    """Solve with an operator plus noise on its diagonal.

    :param operator: any symmetric positive semi-definite operator; those of this package bring closed forms or
        preconditioners.
    :param rhs: (N,) or (N, k).
    :param noise: the noise variance: one number, or one per node.
    :param tol: the relative residual to reach.
    """
    if operator.dim() != 2 or operator.shape[0] != operator.shape[1]:
        raise ValueError(f"operator must be square and without batch dimensions, got shape {tuple(operator.shape)}.")
    if rhs.dim() not in (1, 2) or rhs.shape[0] != operator.shape[0]:
        raise ValueError(f"rhs must have {operator.shape[0]} rows, got shape {tuple(rhs.shape)}.")
    if rhs.dtype != operator.dtype:
        raise ValueError(f"rhs must be {operator.dtype} like the operator, got {rhs.dtype}; convert with rhs.to(K.dtype).")
    noise = torch.as_tensor(noise, dtype=operator.dtype, device=operator.device)
    if not bool((torch.isfinite(noise) & (noise > 0)).all()):
        raise ValueError("noise must be positive and finite: without it the system may be singular.")
    if not bool(torch.isfinite(rhs).all()):
        raise ValueError("rhs must be finite: it contains NaN or infinity; leave out nodes without a value.")
    if not tol > 0:
        raise ValueError(f"tol must be positive, got {tol!r}.")
    noisy = operator.add_diagonal(noise.reshape(1) if noise.dim() == 0 else noise)
    columns = rhs.unsqueeze(-1) if rhs.dim() == 1 else rhs
    history: list[float] = []
    if isinstance(noisy, LowRankPlusDiagonal):
        x, method = noisy.solve(columns), "woodbury"
    else:
        precondition = noisy._preconditioner()[0] if isinstance(noisy, NoisyKernelLinearOperator) else None
        x, history = conjugate_gradients(
            noisy._matmul, columns, tol=tol, max_iterations=max_iterations, precondition=precondition
        )
        method = "cg" if precondition is None else "pcg"
    iterations = len(history)
    history.append(_largest(noisy._matmul(x) - columns, columns))
    converged = history[-1] <= 2 * tol if method != "woodbury" else history[-1] <= max(tol, 1e-5)
    if not converged:
        warnings.warn(
            f"The solve ({method}) reached a residual of {history[-1]:.2g} in {iterations} iterations, not {tol:g}. Raise "
            "max_iterations or the noise, use float64, or make the operator with a smaller tol: its error bounds the residual.",
            ConvergenceWarning,
            stacklevel=2,
        )
    return Solution(x.reshape(rhs.shape), method, iterations, tuple(history), converged)


def conjugate_gradients(
    action: Callable[[Tensor], Tensor],
    rhs: Tensor,  # (N, k)
    *,
    tol: float = 1e-6,
    max_iterations: int = 1000,
    precondition: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, list[float]]:
    """Preconditioned conjugate gradients for several right-hand sides, with the history of the largest relative residual.

    ``linear_operator.utils.linear_cg`` gives no history, takes at least ten steps, and stands still at residuals of 1e-5.
    """
    x = torch.zeros_like(rhs)
    residual = rhs.clone()
    direction = residual if precondition is None else precondition(residual)
    product = (residual * direction).sum(0)
    history: list[float] = []
    while len(history) < max_iterations and (not history or history[-1] > tol):
        image = action(direction)
        curvature = (direction * image).sum(0)
        # A right-hand side that is solved exactly has no direction left.
        step = torch.where(curvature > 0, product / curvature, torch.zeros_like(product))
        x = x + step * direction
        residual = residual - step * image
        history.append(_largest(residual, rhs))
        if not math.isfinite(history[-1]):
            break
        preconditioned = residual if precondition is None else precondition(residual)
        before, product = product, (residual * preconditioned).sum(0)
        direction = preconditioned + torch.where(before > 0, product / before, torch.zeros_like(product)) * direction
    return x, history


def _largest(residual: Tensor, rhs: Tensor) -> float:
    return float((residual.norm(dim=0) / rhs.norm(dim=0).clamp_min(torch.finfo(rhs.dtype).tiny)).max())
