"""Small systems as dense matrices in float64."""

from __future__ import annotations

from functools import cached_property

import torch
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from swing_gp.linalg.structure import LowRank, Products
from swing_gp.solvers.protocol import Report, Solved


class Dense:
    """The Cholesky factor, by plain torch: derivatives of every order are right."""

    method, differentiable, posterior = "dense", True, "solves"

    def __init__(self, matrix: Products, noise: Tensor | None, reason: str = "") -> None:
        self.matrix, self.noise, self.reason = matrix, noise, reason

    @cached_property
    def factor(self) -> Tensor:  # (n, n), float64
        matrix, size, like = self.matrix, self.matrix.size, self.matrix.like
        eye = torch.eye(size, dtype=like.dtype, device=like.device)
        dense = (matrix.product(eye) if matrix.entries is None else matrix.entries()).double()
        dense = 0.5 * (dense + dense.mT)
        return psd_safe_cholesky(dense if self.noise is None else dense + self.noise.double().expand(size).diag())

    def solve(self, rhs: Tensor, tol: float | None = None, max_steps: int | None = None) -> Solved:
        solution = torch.cholesky_solve(rhs.double(), self.factor).to(rhs.dtype)
        return Solved(solution, Report(self.method, self.reason))

    def inv_quad_logdet(self, rhs: Tensor, probes: int) -> tuple[Tensor, Tensor]:
        doubled = rhs.double()
        terms = (doubled * torch.cholesky_solve(doubled, self.factor)).sum(0)
        return terms, 2 * self.factor.diagonal().log().sum(-1, keepdim=True)


class DenseLowRank:
    """Few rows of many features: the matrix itself is the smallest system. It may be indefinite, so its factors are LU."""

    method, differentiable, posterior = "dense", True, "low rank"

    def __init__(self, matrix: LowRank, reason: str = "") -> None:
        self.matrix, self.reason = matrix, reason

    @cached_property
    def _factors(self) -> tuple[Tensor, Tensor]:
        factor = self.matrix.factor.double()
        eye = torch.eye(factor.shape[-2], dtype=torch.float64, device=factor.device)
        dense = factor @ self.matrix.core.double() @ factor.mT + self.matrix.own.times(eye)
        return torch.linalg.lu_factor(0.5 * (dense + dense.mT))

    def solve(self, rhs: Tensor, tol: float | None = None, max_steps: int | None = None) -> Solved:
        return Solved(torch.linalg.lu_solve(*self._factors, rhs.double()).to(rhs.dtype), Report(self.method, self.reason))

    def inv_quad_logdet(self, rhs: Tensor, probes: int) -> tuple[Tensor, Tensor]:
        doubled = rhs.double()
        lu, pivots = self._factors
        terms = (doubled * torch.linalg.lu_solve(lu, pivots, doubled)).sum(-2)
        return terms, lu.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1, keepdim=True)
