r"""Conjugate gradients on the products of a covariance and its noise, and log-determinants by Lanczos quadrature.

With a preconditioner P, :math:`H H^\top = P^{-1}` and random signs s, preconditioned conjugate gradients with the right-hand
side :math:`b = P H s` run Lanczos on :math:`M = H^\top A H` from s, so that

.. math:: \log|A| = \log|P| + E\, s^\top \log(M)\, s, \qquad d \log|A| = E\, (A^{-1} b)^\top dA\, (P^{-1} b) .

The signs are the same at every call. linear_operator's own functions draw from the global generator and ask global switches.
"""

from __future__ import annotations

import warnings
from functools import cached_property

import torch
from linear_operator import settings
from torch import Tensor

from swing_gp.linalg.conjugate_gradients import ConvergenceWarning, conjugate_gradients, lanczos_logarithm
from swing_gp.linalg.gram import frozen_signs
from swing_gp.linalg.structure import Products
from swing_gp.solvers.protocol import Quadrature, Report, Solved
from swing_gp.solvers.sizes import solve_tolerance
from swing_gp.solvers.woodbury import ClosedForm


class ConjugateGradients:
    """Numbers without gradients, by products with the matrix and, where one is known, solves with a matrix close to it."""

    differentiable, posterior = False, "solves"

    def __init__(self, matrix: Products, noise: Tensor | None, reason: str = "") -> None:
        self.matrix, self.reason = matrix, reason
        self.noise = None if noise is None else noise.detach()

    @cached_property
    @torch.no_grad()
    def close(self) -> ClosedForm | None:
        """The preconditioner, made once for all solves."""
        found = None if self.noise is None else self.matrix.close(self.noise.expand(self.matrix.size))
        return None if found is None else ClosedForm(found)

    @property
    def method(self) -> str:
        return "cg" if self.close is None else "pcg"

    def _precondition(self, v: Tensor) -> Tensor:
        assert self.close is not None
        return self.close.solve(v).solution

    def _product(self, v: Tensor) -> Tensor:
        image = self.matrix.product(v)
        return image if self.noise is None else image + self.noise.unsqueeze(-1) * v

    @torch.no_grad()
    def solve(self, rhs: Tensor, tol: float | None = None, max_steps: int | None = None) -> Solved:
        most = settings.max_cg_iterations.value() if max_steps is None else max_steps
        found = conjugate_gradients(
            self._product,
            rhs,
            tol=solve_tolerance(rhs.dtype) if tol is None else tol,
            max_iterations=most,
            precondition=None if self.close is None else self._precondition,
        )
        return Solved(found.solution, Report(self.method, self.reason, tuple(found.residuals)))

    def for_adjoint(self, rhs: Tensor) -> ConjugateGradients:
        return self

    @torch.no_grad()
    def quadrature(self, rhs: Tensor, probes: int) -> Quadrature:
        image = starts = frozen_signs(len(rhs), probes, rhs.dtype, rhs.device)  # H s = P^-1 b, and b itself
        if self.close is not None and probes:
            image = self.close.root_inverse(starts)
            starts = self.close.matrix.product(image)
        tol = solve_tolerance(rhs.dtype)
        found = conjugate_gradients(
            self._product,
            torch.cat([starts, rhs], dim=-1),
            tol=tol,
            max_iterations=settings.max_cg_iterations.value(),
            precondition=None if self.close is None else self._precondition,
        )
        if not found.residuals[-1] <= tol:
            warnings.warn(
                f"Conjugate gradients reached a residual of {found.residuals[-1]:.2g} in {len(found.residuals)} steps, not "
                f"{tol:g}. Raise the noise or gpytorch.settings.max_cg_iterations, or use float64.",
                ConvergenceWarning,
                stacklevel=3,
            )
        solved, solution = found.solution.tensor_split([probes], dim=-1)
        terms = lanczos_logarithm(found, torch.full((probes,), float(len(rhs)), dtype=torch.float64))
        if self.close is not None:
            terms = terms + self.close.logdet()
        return Quadrature(solution, terms, solved, image, tuple(found.residuals))
