r"""Preconditioned conjugate gradients for several right-hand sides at once, and the Lanczos matrices that come with them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.linalg import vecdot

from swing_gp.linalg.reducer import LOCAL, Reducer


class ConvergenceWarning(UserWarning):
    """A solve ended before it reached the residual that was asked for."""


@dataclass(frozen=True)
class Iterations:
    """What the iterations found.

    :ivar solution: x, (N, k).
    :ivar residuals: the largest relative residual over right-hand sides, after every step.
    :ivar steps: the step length of every step and right-hand side, (m, k); zero once a side is solved exactly.
    :ivar ratios: by which every search direction holds on to the one before, (m, k).
    """

    solution: Tensor
    residuals: list[float]
    steps: Tensor
    ratios: Tensor

    def tridiagonal(self, number: int) -> Tensor:  # (number, m, m), float64
        """The Lanczos matrices of the first right-hand sides, for quadrature; a side that is solved goes on as the identity."""
        steps, ratios = self.steps[:, :number].mT.double(), self.ratios[:, :number].mT.double()
        live = steps > 0
        inverse = 1 / torch.where(live, steps, torch.ones_like(steps))
        diagonal = inverse.clone()
        diagonal[:, 1:] += torch.where(live[:, 1:], ratios[:, :-1] * inverse[:, :-1], 0.0)
        beside = torch.where(live[:, 1:], ratios[:, :-1].clamp_min(0).sqrt() * inverse[:, :-1], 0.0)
        return torch.diag_embed(diagonal) + torch.diag_embed(beside, 1) + torch.diag_embed(beside, -1)


def conjugate_gradients(
    action: Callable[[Tensor], Tensor],
    rhs: Tensor,  # (N, k)
    *,
    tol: float = 1e-6,
    max_iterations: int = 1000,
    precondition: Callable[[Tensor], Tensor] | None = None,
    energy: bool = False,
) -> Iterations:
    r"""Solve until the largest relative residual is at most ``tol``.

    :param energy: measure residuals r by the preconditioner P instead of by their length,
        :math:`\sqrt{r^\top P^{-1} r / b^\top P^{-1} b}`. That is about the error of the solution in the norm of the matrix,
        which falls on where rounding keeps the length of residuals from falling.

    ``linear_operator.utils.linear_cg`` gives no history, takes at least ten steps (twenty for a log-determinant) where a good
    preconditioner needs three, and stands still at residuals of 1e-5.
    """
    x = torch.zeros_like(rhs)
    residual = rhs.clone()
    direction = residual.clone() if precondition is None else precondition(residual)
    start = product = vecdot(residual, direction, dim=0)
    residuals: list[float] = []
    steps, ratios = [], []
    while len(residuals) < max_iterations:
        image = action(direction)
        curvature = vecdot(direction, image, dim=0)
        # A right-hand side that is solved exactly has no direction left.
        steps.append(torch.where(curvature > 0, product / curvature, torch.zeros_like(product)))
        x.addcmul_(steps[-1], direction)  # in place: large blocks of new memory take longer than the sums
        residual.addcmul_(steps[-1], image, value=-1)
        preconditioned = residual if precondition is None else precondition(residual)
        before, product = product, vecdot(residual, preconditioned, dim=0)
        residuals.append(_largest_ratio(product, start) if energy else largest_residual(residual, rhs))
        if residuals[-1] <= tol or not math.isfinite(residuals[-1]):
            break
        ratios.append(torch.where(before > 0, product / before, torch.zeros_like(product)))
        direction.mul_(ratios[-1]).add_(preconditioned)
    return Iterations(x, residuals, torch.stack(steps), torch.stack([*ratios, torch.zeros_like(product)][: len(steps)]))


def _largest_ratio(squares: Tensor, start: Tensor) -> float:
    ratio = squares.clamp_min(0) / start.clamp_min(torch.finfo(start.dtype).tiny)
    return float(ratio.max().sqrt()) if len(ratio) else 0.0


def largest_residual(residual: Tensor, rhs: Tensor, shards: Reducer = LOCAL) -> float:
    """The largest relative residual over right-hand sides; zero for none."""
    if rhs.shape[-1] == 0:
        return 0.0
    squares = torch.stack([residual.norm(dim=0).square(), rhs.norm(dim=0).square()])
    over, under = shards.sum(squares, "inner products").sqrt()
    # A side of zeros has no size of its own, and products of several sides at once leave roundings of the others in it.
    size = torch.where(under > 0, under, under.max()).clamp_min(torch.finfo(rhs.dtype).tiny)
    return float((over / size).max())


def lanczos_logarithm(found: Iterations, sizes: Tensor) -> Tensor:  # (m,) -> (m,), float64
    r"""Quadratic forms :math:`s^\top \log(M)\, s` of the first m right-hand sides, by quadrature from their Lanczos matrices.

    :param sizes: :math:`s^\top s`.
    """
    values, vectors = torch.linalg.eigh(found.tridiagonal(len(sizes)))
    return sizes * (vectors[:, 0].square() * values.clamp_min(1e-300).log()).sum(-1)
