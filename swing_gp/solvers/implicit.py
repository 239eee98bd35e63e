r"""Derivatives of what is solved for by iteration: one autograd Function for all of it.

With x = A^-1 b for the columns b of a right-hand side, and pairs (u, p) that estimate the log-determinant,

.. math:: d x = A^{-1} (d b - dA\, x), \qquad d (b^\top x) = 2 x^\top d b - x^\top dA\, x, \qquad
          d \log|A| = E\, u^\top dA\, p .

What a system is made of, and how a bilinear form in dA becomes a gradient in it, is the system's business: the products of an
operator with its right-hand sides, or the modes of a grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from swing_gp.linalg.second_order import wanted
from swing_gp.solvers.protocol import Quadrature

Pair = tuple[Tensor, Tensor]  # (n, c), (n, c)


class System(Protocol):
    """A symmetric matrix that is solved with."""

    def quadrature(self, rhs: Tensor, probes: int) -> Quadrature:
        """Solutions and estimates of the log-determinant."""

    def for_adjoint(self, rhs: Tensor) -> System:
        """The system for right-hand sides that a backward pass brings."""


class Gradients(Protocol):
    r"""Bilinear forms in a matrix A as gradients in the tensors that it is made of.

    In a backward pass that is differentiated again (:mod:`swing_gp.linalg.second_order`) they follow all they are given, or
    refuse to by name.
    """

    def __call__(self, one: Pair, two: Pair, logdet: Pair, weights: Tensor | None) -> tuple[Tensor | None, ...]:
        r"""Differentiate :math:`\sum f^\top A^{-1} g + \sum u^\top A\, p`.

        :param one: columns f, and their solutions.
        :param two: columns g, and their solutions.
        :param logdet: u, with their weights, and p.
        :param weights: the gradients of the terms of the log-determinant; None where there are none.
        """


class _Implicit(torch.autograd.Function):
    """Solutions, quadratic forms and terms of the log-determinant; and, without a gradient, residuals."""

    @staticmethod
    def forward(
        ctx: Any, system: System, gradients: Gradients, rhs: Tensor, probes: int, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        found = system.quadrature(rhs, probes)
        ctx.system, ctx.gradients = system, gradients
        ctx.save_for_backward(rhs, found.solution, found.solved, found.probes, *tensors)
        ctx.set_materialize_grads(False)
        residuals = torch.tensor(found.residuals, dtype=torch.float64)
        ctx.mark_non_differentiable(residuals)
        return found.solution, (rhs * found.solution).sum(0), found.terms, residuals

    @staticmethod
    def backward(
        ctx: Any, for_solution: Tensor | None, for_quadratic: Tensor | None, for_terms: Tensor | None, _: None
    ) -> tuple[Tensor | None, ...]:
        rhs, solution, solved, probes, *tensors = ctx.saved_tensors

        def solve(system: System, columns: Tensor) -> Tensor:
            if wanted():
                return implicit(system, ctx.gradients, columns, 0, tensors)[0]
            return system.quadrature(columns, 0).solution

        if wanted() and not (for_solution is None and for_quadratic is None):
            solution = solve(ctx.system, rhs)  # what is saved has no derivatives of its own
        ones, twos, for_rhs = [], [], None
        if for_solution is not None:
            for_rhs = solve(ctx.system.for_adjoint(for_solution), for_solution)
            ones.append((for_solution, for_rhs))
            twos.append((rhs, solution))
        if for_quadratic is not None:
            ones.append((for_quadratic * rhs, for_quadratic * solution))
            twos.append((rhs, solution))
            more = 2 * for_quadratic * solution
            for_rhs = more if for_rhs is None else for_rhs + more
        logdet = (solved[:, :0], probes[:, :0]) if for_terms is None else (for_terms.to(solved.dtype) * solved, probes)
        found = ctx.gradients(_columns(ones, rhs), _columns(twos, rhs), logdet, for_terms)
        return None, None, for_rhs, None, *found


def _columns(pairs: list[Pair], like: Tensor) -> Pair:
    if not pairs:
        return like[:, :0], like[:, :0]
    one, two = (torch.cat(side, dim=-1) for side in zip(*pairs, strict=True))
    return one, two


def implicit(
    system: System, gradients: Gradients, rhs: Tensor, probes: int, tensors: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor, tuple[float, ...]]:  # (n, c) -> (n, c), (c,), (probes,)
    """Solve, with derivatives in the right-hand side and in the tensors that the system is made of: of any order for solutions
    and quadratic forms, which are solves again.

    :return: solutions, quadratic forms, estimates of the log-determinant (float64), and the residuals of the steps.
    """
    solution, quadratic, terms, residuals = _Implicit.apply(system, gradients, rhs, probes, *tensors)
    return solution, quadratic, terms, tuple(residuals.tolist())
