r"""Low rank plus diagonal in closed form, :math:`A = D + W C W^\top`, by a small system (:mod:`swing_gp.linalg.woodbury`)."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from swing_gp.linalg.gram import cross_gram
from swing_gp.linalg.structure import LowRank
from swing_gp.linalg.woodbury import Woodbury
from swing_gp.solvers.protocol import Report, Solved


class ClosedForm:
    """Solves at O(n k) a column; what does not depend on it is computed once."""

    method, differentiable, posterior = "woodbury", True, "low rank"

    def __init__(self, matrix: LowRank, reason: str = "") -> None:
        self.matrix, self.reason = matrix, reason

    @cached_property
    def gram(self) -> Tensor:  # (*batch, k, k), float64
        r""":math:`W^\top D^{-1} W`."""
        return self.matrix.shards.sum(self.matrix.own.gram(self.matrix.factor), "Gram matrix")

    @cached_property
    def small(self) -> Woodbury:
        return Woodbury(self.matrix.core, self.gram)

    def project(self, x: Tensor) -> Tensor:  # (*batch, n, c) -> (*batch, k, c), float64
        r""":math:`W^\top D^{-1} x`."""
        return self.matrix.shards.sum(cross_gram(self.matrix.factor, self.matrix.own.inverse(x)), "projection")

    def weights(self, rhs: Tensor) -> tuple[Tensor, Tensor]:  # (*batch, n, c) -> (*batch, k, c), (*batch, n, c)
        r"""The posterior means m of the weights of features, and the solution :math:`D^{-1} (y - W m)`."""
        mean = self.small.solve(self.project(rhs))
        return mean, self.matrix.own.inverse(rhs - self.matrix.factor @ mean.to(self.matrix.factor.dtype))

    def solve(self, rhs: Tensor, tol: float | None = None, max_steps: int | None = None) -> Solved:
        return Solved(self.weights(rhs)[1], Report(self.method, self.reason))

    def inv_quad_logdet(self, rhs: Tensor, probes: int) -> tuple[Tensor, Tensor]:
        matrix, projected = self.matrix, self.project(rhs)
        own = (rhs.double() * matrix.own.inverse(rhs).double()).sum(-2)
        own = matrix.shards.sum(own, "inner products")
        terms = own - (projected * self.small.solve(projected)).sum(-2)
        return terms, (self.small.logdet() + self._own_logdet()).unsqueeze(-1)

    def logdet(self) -> Tensor:  # (*batch,), float64
        return self.small.logdet() + self._own_logdet()

    def _own_logdet(self) -> Tensor:
        return self.matrix.shards.sum(self.matrix.own.logdet(self.matrix.factor.shape[-2]), "log-determinant")

    # As a preconditioner

    def root_inverse(self, x: Tensor) -> Tensor:  # (n, c) -> (n, c)
        r"""H x for :math:`H H^\top = A^{-1}`."""
        diagonal, factor, core = square_root(self.matrix, self.gram, inverse=True)
        return diagonal.unsqueeze(-1) * (x + factor @ (core @ (factor.mT @ x).to(core.dtype)).to(x.dtype))


def square_root(matrix: LowRank, gram: Tensor, *, inverse: bool) -> tuple[Tensor, Tensor, Tensor]:
    r"""The parts d, V and C' of a root of A, or of its inverse, with D diagonal:
    :math:`D^{\pm 1/2} (I + V C V^\top)^{\pm 1/2} = \mathrm{diag}(d)\, (I + V C' V^\top)`.

    For an analytic function with :math:`\phi(z) = ((1+z)^{\pm 1/2} - 1)/z` the middle factor is
    :math:`I + V C \phi(G C) V^\top`, and splitting :math:`\phi(z) = \phi(0) + z \psi(z)` gives
    :math:`C \phi(GC) = \phi(0) C + C G^{1/2} \psi(M) G^{1/2} C` with :math:`M = G^{1/2} C G^{1/2}` symmetric: no
    inverse of C or G appears.
    """
    noise, core = matrix.own.noise, 0.5 * (matrix.core + matrix.core.mT).double()
    values, vectors = torch.linalg.eigh(gram)
    half = (vectors * values.clamp_min(0).sqrt().unsqueeze(-2)) @ vectors.mT
    values, vectors = torch.linalg.eigh(half @ core @ half)
    s = (1 + values).clamp_min(0).sqrt()
    psi = (s + 2) / (2 * s * (s + 1).square()) if inverse else -1 / (2 * (s + 1).square())
    inner = core @ half @ vectors
    middle = (-0.5 if inverse else 0.5) * core + (inner * psi.unsqueeze(-2)) @ inner.mT
    full = noise.expand(matrix.factor.shape[:-1])
    return full.rsqrt() if inverse else full.sqrt(), matrix.factor * noise.rsqrt().unsqueeze(-1), middle
