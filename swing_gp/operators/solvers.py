r"""Solves that say how they were done: :math:`(K + \sigma^2 I) x = b`, for notebooks and for checks.

>>> import torch
>>> from swing_gp import Diffusion, Gaussian, ImplicitGraph, graph_kernel, solve
>>> points = torch.rand(1000, 2, generator=torch.Generator().manual_seed(0)).double()
>>> K = graph_kernel(ImplicitGraph(points, Gaussian(0.03)), Diffusion(2.0), features="neighbors")
>>> result = solve(K, torch.ones(1000).double(), noise=0.1)
>>> result.method, result.converged, result.residuals[-1] < 1e-6
('cg', True, True)
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from linear_operator import settings
from linear_operator.operators import LinearOperator
from torch import Tensor

from swing_gp.linalg.conjugate_gradients import ConvergenceWarning, largest_residual
from swing_gp.linalg.reducer import LOCAL, Reducer
from swing_gp.linalg.structure import Products
from swing_gp.operators.base import Structured
from swing_gp.solvers.policy import solver_for
from swing_gp.solvers.protocol import Solver
from swing_gp.utils.validation import as_number, as_real, check_rhs


@dataclass(frozen=True)
class Solution:
    """A solution and how it was found.

    :ivar solution: x, of the shape of the right-hand side.
    :ivar method: ``"woodbury"`` (closed form), ``"dense"`` (a factor of a small matrix), ``"cg"``, ``"pcg"`` (conjugate
        gradients, preconditioned by landmarks); of a Fourier grid with many observations ``"modes"`` (closed form among its
        modes) or ``"modes-pcg"`` (conjugate gradients there, preconditioned by the modes of the largest weights); of a sparse
        graph ``"precision"`` (conjugate gradients with the posterior precision of the nodes, preconditioned by multigrid).
    :ivar iterations: steps that the method took, products with the matrix; 0 in closed form.
    :ivar residuals: relative residuals, the largest over right-hand sides, after every iteration; the last is measured. In
        precision form the others are those of the nodes, in the norm of the preconditioner.
    :ivar converged: whether the last one, the measured residual, is at most the tolerance.
    :ivar reason: why this method was taken.
    """

    solution: Tensor
    method: str
    iterations: int
    residuals: tuple[float, ...]
    converged: bool
    reason: str


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
    if not isinstance(operator, LinearOperator):
        raise TypeError(f"operator must be a LinearOperator such as graph_kernel(...) gives, got {type(operator).__name__}.")
    if not torch.is_tensor(rhs):
        raise TypeError(f"rhs must be a torch.Tensor, got {type(rhs).__name__}.")
    if operator.dim() != 2 or operator.shape[0] != operator.shape[1]:
        raise ValueError(f"operator must be square and without batch dimensions, got shape {tuple(operator.shape)}.")
    shards: Reducer = getattr(operator, "shards", LOCAL)
    if not shards.all(rhs.dim() in (1, 2) and rhs.shape[0] == operator.shape[0]):
        raise ValueError(f"rhs must have {operator.shape[0]} rows, got shape {tuple(rhs.shape)}.")
    check_rhs(rhs, operator.dtype)
    noise = as_real("noise", noise).to(dtype=operator.dtype, device=operator.device)
    if noise.shape not in ((), (1,), (operator.shape[0],)):
        raise ValueError(f"noise must be one number, or one per node ({operator.shape[0]}), got shape {tuple(noise.shape)}.")
    if not shards.all(bool((torch.isfinite(noise) & (noise > 0)).all())):
        raise ValueError("noise must be positive and finite: without it the system may be singular.")
    if not shards.all(bool(torch.isfinite(rhs).all())):
        raise ValueError("rhs must be finite: it contains NaN or infinity; leave out nodes without a value.")
    if not as_number("tol", tol) > 0:
        raise ValueError(f"tol must be positive, got {tol!r}.")
    noisy = operator.add_diagonal(noise.reshape(1) if noise.dim() == 0 else noise)
    solver = _solver(noisy)
    # Until the *measured* residual meets the tolerance, or rounding keeps it from falling: methods go by residuals that drift
    # from it.
    columns = rhs.unsqueeze(-1) if rhs.dim() == 1 else rhs
    x, left, measured = torch.zeros_like(columns), columns, 1.0
    history: list[float] = []
    while True:
        found = solver.solve(left, tol / measured, max_iterations - len(history))
        history += [measured * residual for residual in found.report.residuals]
        x = x + found.solution
        left = columns - noisy._matmul(x)
        before, measured = measured, largest_residual(left, columns, shards)
        if measured <= tol or not measured < 0.5 * before or len(history) >= max_iterations:
            break
    method, converged = found.report.method, measured <= tol
    if not converged:
        warnings.warn(
            f"The solve ({method}) reached a residual of {measured:.2g} in {len(history)} iterations, not {tol:g}. Raise "
            "max_iterations or the noise, use float64, or make the operator with a smaller tol: its error bounds the residual.",
            ConvergenceWarning,
            stacklevel=2,
        )
    return Solution(x.reshape(rhs.shape), method, len(history), (*history, measured), converged, found.report.reason)


def _solver(noisy: LinearOperator) -> Solver:
    """The solver that the operator has itself; for operators of other libraries, that of their products."""
    if isinstance(noisy, Structured):
        noisy.check_symmetric()
        return noisy.solver(fast=settings.fast_computations.solves.on())
    like = torch.empty(0, dtype=noisy.dtype, device=noisy.device)
    return solver_for(Products(size=noisy.shape[-1], product=noisy._matmul, like=like))
