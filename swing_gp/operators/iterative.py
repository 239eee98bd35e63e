r"""Solves by conjugate gradients, log-determinants by Lanczos quadrature, and their gradients.

With a preconditioner P, :math:`H H^\top = P^{-1}` and random signs s, preconditioned conjugate gradients with the right-hand
side :math:`b = P H s` run Lanczos on :math:`M = H^\top A H` from s, so that

.. math:: \log|A| = \log|P| + E\, s^\top \log(M)\, s, \qquad d \log|A| = E\, (A^{-1} b)^\top dA\, (P^{-1} b) .

The signs are the same at every call. linear_operator's own functions draw from the global generator and ask global switches.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import torch
from linear_operator import settings
from torch import Tensor

from swing_gp.linalg.conjugate_gradients import ConvergenceWarning, Iterations, conjugate_gradients
from swing_gp.linalg.gram import frozen_signs
from swing_gp.linalg.second_order import Gradients, gradients, refused, wanted
from swing_gp.operators.regimes import MOST_DENSE, solve_tolerance

ESTIMATED_LOGDET = (
    f"Second derivatives of a log-determinant above {MOST_DENSE} observations are not known, whose value is an estimate: those "
    "of products, solves and quadratic forms are. Use fewer observations, features='landmarks', or differences of gradients."
)
# Observations up to which the gradient of a log-determinant by a structured solver is exact, from a solve for each.
EXACT_TRACE = 64


def solve(operator: Any, rhs: Tensor) -> Tensor:  # (N, k) -> (N, k)
    """The solution; derivatives of any order are solves again."""
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
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        (solution,) = ctx.saved_tensors
        if wanted():
            left = solve(ctx.operator, grad)
            return None, left, *_bilinear(ctx.operator, -left, solution)
        left = _iterate(ctx.operator, grad).solution
        return None, left, *ctx.operator._bilinear_derivative(-left, solution)


class _InvQuadLogdet(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, operator: Any, rhs: Tensor, probes: int, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        ctx.operator = operator
        # H s = P^-1 b, and b itself
        image = starts = frozen_signs(len(rhs), probes, rhs.dtype, rhs.device)
        if (solver := operator.structured_solver()) is not None:
            if probes and len(rhs) <= EXACT_TRACE:  # one after another they are the trace itself
                probes, image = len(rhs), len(rhs) ** 0.5 * torch.eye(len(rhs), dtype=rhs.dtype, device=rhs.device)
                starts = image
            solution = operator.iterate(torch.cat([starts, rhs], dim=-1)).solution
            ctx.save_for_backward(rhs, solution, image)
            return (rhs * solution[:, probes:]).sum(0), solver.logdet_terms(probes)
        _, preconditioner, logdet = operator._preconditioner()
        if preconditioner is not None and probes:
            image = preconditioner.root_inv_decomposition().root @ starts
            starts = preconditioner @ image
        found = _iterate(operator, torch.cat([starts, rhs], dim=-1))
        ctx.save_for_backward(rhs, found.solution, image)
        values, vectors = torch.linalg.eigh(found.tridiagonal(probes))
        terms = len(rhs) * (vectors[:, 0].square() * values.clamp_min(1e-300).log()).sum(-1)
        if preconditioner is not None:
            terms = terms + logdet.double()
        return (rhs * found.solution[:, probes:]).sum(0), terms

    @staticmethod
    def backward(ctx: Any, for_quadratic: Tensor, for_terms: Tensor) -> tuple[Any, ...]:
        rhs, solution, image = ctx.saved_tensors
        if wanted():
            return _again(ctx.operator, rhs, for_quadratic, for_terms, solution, image)
        probed, solved = solution.tensor_split([image.shape[-1]], dim=-1)
        left = torch.cat([for_terms.to(probed.dtype) * probed, -for_quadratic * solved], dim=-1)
        right = torch.cat([image, solved], dim=-1)
        return None, 2 * for_quadratic * solved, None, *ctx.operator._bilinear_derivative(left, right)


# Backward passes that are differentiated again


def _bilinear(operator: Any, left: Tensor, right: Tensor) -> Gradients:
    """The gradients of the sum of a bilinear form over columns in what the operator is made of."""
    tree = operator.representation_tree()
    return gradients(lambda *tensors: tree(*tensors)._matmul(right), operator.representation(), left)


def _again(
    operator: Any, rhs: Tensor, for_quadratic: Tensor, for_terms: Tensor, solution: Tensor, image: Tensor
) -> tuple[Any, ...]:
    """Quadratic forms by solves; a log-determinant from the dense matrix, up to 2,000 rows."""
    tensors = operator.representation()
    solved = solve(operator, rhs)
    quadratic = _bilinear(operator, -for_quadratic * solved, solved)
    logdet: Gradients
    if not image.shape[-1]:
        logdet = (None,) * len(tensors)
    elif len(rhs) <= MOST_DENSE:
        logdet = gradients(partial(_dense_logdet, operator), tensors, for_terms.sum())
    else:
        with torch.no_grad():
            left = for_terms.to(solution.dtype) * solution[:, : image.shape[-1]]
            logdet = operator._bilinear_derivative(left, image)
        logdet = refused(ESTIMATED_LOGDET, logdet, (*tensors, for_terms))
    both = (two if one is None else one if two is None else one + two for one, two in zip(quadratic, logdet, strict=True))
    return None, 2 * for_quadratic * solved, None, *both


def _dense_logdet(operator: Any, *tensors: Tensor) -> Tensor:
    matrix = operator.representation_tree()(*tensors)
    dense = matrix._matmul(torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)).double()
    return 2 * torch.linalg.cholesky(0.5 * (dense + dense.mT)).diagonal().log().sum()
