"""Protocol of solvers: the verbs, and the results that they hand back.

A solver is made for one matrix, a covariance with or without noise, and computes numbers. Closed forms are plain torch, which
autograd differentiates. The others say so (``differentiable``), and :mod:`swing_gp.solvers.implicit` differentiates them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Estimate:
    """A value and its standard error, which is zero where the value is exact."""

    value: Tensor
    error: Tensor

    @classmethod
    def of_terms(cls, terms: Tensor) -> Estimate:  # (m,)
        """The mean of independent estimates, as a scalar."""
        error = terms.std() / len(terms) ** 0.5 if len(terms) > 1 else torch.zeros_like(terms[0])
        return cls(terms.mean(), error.detach())

    @classmethod
    def exact(cls, value: Tensor) -> Estimate:
        return cls(value, torch.zeros_like(value))


@dataclass(frozen=True)
class Report:
    """Account of a solve.

    :ivar method: one word.
    :ivar reason: why this method was taken.
    :ivar residuals: relative residuals, the largest over right-hand sides, after every step; none for closed forms.
    """

    method: str
    reason: str
    residuals: tuple[float, ...] = ()

    @property
    def steps(self) -> int:
        return len(self.residuals)


@dataclass(frozen=True)
class Solved:
    """A solution, (\\*batch, n, c), and how it was found."""

    solution: Tensor
    report: Report


@dataclass(frozen=True)
class Quadrature:
    r"""Solutions together with estimates of the log-determinant, and the pairs that give its gradient.

    :ivar solution: (n, c).
    :ivar terms: unbiased estimates of the log-determinant, one a probe, float64.
    :ivar solved: of the pairs, (n, m): :math:`d \log|A| = \frac1m \sum_p \mathrm{solved}_p^\top\, dA\, \mathrm{probes}_p`.
    :ivar probes: the other halves of the pairs, (n, m).
    :ivar residuals: of the steps.
    """

    solution: Tensor
    terms: Tensor
    solved: Tensor
    probes: Tensor
    residuals: tuple[float, ...] = ()


class Solver(Protocol):
    """A matrix that is solved with. Right-hand sides are columns, (n, c), with a batch in front for low rank only."""

    @property
    def method(self) -> str:
        """One word."""

    @property
    def reason(self) -> str:
        """Why this method was taken."""

    @property
    def differentiable(self) -> bool:
        """True where plain autograd is right for all results."""

    @property
    def posterior(self) -> str:
        """Name of the posterior in :mod:`swing_gp.operators.posterior` that knows this solver."""

    def solve(self, rhs: Tensor, tol: float | None = None, max_steps: int | None = None) -> Solved:
        """Solve to a relative residual, by default that of :func:`swing_gp.solvers.sizes.solve_tolerance`."""


class Exact(Solver, Protocol):
    """A solver that autograd can follow."""

    def inv_quad_logdet(self, rhs: Tensor, probes: int) -> tuple[Tensor, Tensor]:
        """Quadratic forms of the inverse, one a column, and estimates of the log-determinant: one a probe, or it alone. No
        log-determinant, and any number, where there are no probes."""


class Numerical(Solver, Protocol):
    """A solver whose derivatives are those of an implicit function."""

    def quadrature(self, rhs: Tensor, probes: int) -> Quadrature:
        """Solutions and estimates of the log-determinant in one go."""

    def for_adjoint(self, rhs: Tensor) -> Numerical:
        """The solver for right-hand sides that a backward pass brings."""
