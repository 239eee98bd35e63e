r"""Solves by conjugate gradients, log-determinants by Lanczos quadrature, and their gradients.

With a preconditioner P, :math:`H H^\top = P^{-1}` and random signs s, preconditioned conjugate gradients with the right-hand
side :math:`b = P H s` run Lanczos on :math:`M = H^\top A H` from s, so that

.. math:: \log|A| = \log|P| + E\, s^\top \log(M)\, s, \qquad d \log|A| = E\, (A^{-1} b)^\top dA\, (P^{-1} b) .

The signs are the same at every call. linear_operator's own functions draw from the global generator and ask global switches.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from linear_operator import settings
from torch import Tensor

from swing_gp.linalg.conjugate_gradients import ConvergenceWarning, Iterations, conjugate_gradients
from swing_gp.linalg.gram import frozen_signs
from swing_gp.solvers.sizes import solve_tolerance

# Observations up to which the gradient of a log-determinant by a structured solver is exact, from a solve for each.
EXACT_TRACE = 64


def solve(operator: Any, rhs: Tensor) -> Tensor:  # (N, k) -> (N, k)
    """The solution, differentiable once."""
    return _Solve.apply(operator, rhs, *operator.representation())


def inv_quad_logdet(operator: Any, rhs: Tensor, probes: int) -> tuple[Tensor, Tensor]:  # (N, k) -> (k,), (probes,)
    """Quadratic forms of the inverse, one a column, and estimates of the log-determinant (float64), one a probe."""
    return _InvQuadLogdet.apply(operator, rhs, probes, *operator.representation())


def _iterate(operator: Any, rhs: Tensor) -> Iterations:
    if (found := operator.iterate(rhs)) is not None:
        return found
    tol = solve_tolerance(rhs.dtype)
    found = conjugate_gradients(
        operator._matmul,
        rhs,
        tol=tol,
        max_iterations=settings.max_cg_iterations.value(),
        precondition=operator._preconditioner()[0],
    )
    if not found.residuals[-1] <= tol:
        warnings.warn(
            f"Conjugate gradients reached a residual of {found.residuals[-1]:.2g} in {len(found.residuals)} steps, not "
            f"{tol:g}. Raise the noise or gpytorch.settings.max_cg_iterations, or use float64.",
            ConvergenceWarning,
            stacklevel=3,
        )
    return found


class _Solve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, operator: Any, rhs: Tensor, *tensors: Tensor) -> Tensor:
        ctx.operator = operator
        solution = _iterate(operator, rhs).solution
        ctx.save_for_backward(solution)
        return solution

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        (solution,) = ctx.saved_tensors
        left = _iterate(ctx.operator, grad).solution
        return None, left, *ctx.operator._bilinear_derivative(-left, solution)


class _InvQuadLogdet(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, operator: Any, rhs: Tensor, probes: int, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        # H s = P^-1 b, and b itself
        image = starts = frozen_signs(len(rhs), probes, rhs.dtype, rhs.device)
        if (solver := operator.structured_solver()) is not None:
            if probes and len(rhs) <= EXACT_TRACE:  # one after another they are the trace itself
                probes, image = len(rhs), len(rhs) ** 0.5 * torch.eye(len(rhs), dtype=rhs.dtype, device=rhs.device)
                starts = image
            solution = operator.iterate(torch.cat([starts, rhs], dim=-1)).solution
            ctx.operator = operator
            ctx.save_for_backward(solution, image)
            return (rhs * solution[:, probes:]).sum(0), solver.logdet_terms(probes)
        _, preconditioner, logdet = operator._preconditioner()
        if preconditioner is not None and probes:
            image = preconditioner.root_inv_decomposition().root @ starts
            starts = preconditioner @ image
        found = _iterate(operator, torch.cat([starts, rhs], dim=-1))
        ctx.operator = operator
        ctx.save_for_backward(found.solution, image)
        values, vectors = torch.linalg.eigh(found.tridiagonal(probes))
        terms = len(rhs) * (vectors[:, 0].square() * values.clamp_min(1e-300).log()).sum(-1)
        if preconditioner is not None:
            terms = terms + logdet.double()
        return (rhs * found.solution[:, probes:]).sum(0), terms

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, for_quadratic: Tensor, for_terms: Tensor) -> tuple[Any, ...]:
        solution, image = ctx.saved_tensors
        probed, solved = solution.tensor_split([image.shape[-1]], dim=-1)
        left = torch.cat([for_terms.to(probed.dtype) * probed, -for_quadratic * solved], dim=-1)
        right = torch.cat([image, solved], dim=-1)
        return None, 2 * for_quadratic * solved, None, *ctx.operator._bilinear_derivative(left, right)
