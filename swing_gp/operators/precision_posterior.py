r"""The posterior covariance in precision form, at inputs :math:`f_* = L_* f + e_*` on and off the graph.

With the notation of :mod:`swing_gp.solvers.precision` and E for covariances of e,

.. math:: J M^{-1} J^\top + E_{**} - E_{*X} T^{-1} E_{X*}, \qquad J = L_* - E_{*X} T^{-1} L .

At nodes J picks rows and all of E vanishes: the posterior covariance is a part of :math:`M^{-1}`, and nothing cancels, however
large the prior variance is.
"""

from __future__ import annotations

from functools import cached_property
from typing import cast

import torch
from torch import Tensor

from swing_gp.linalg.precision_matrix import COLUMNS
from swing_gp.linalg.structure import NodePrecision
from swing_gp.operators.kernel_block import KernelBlock
from swing_gp.operators.noisy import NoisyKernelLinearOperator
from swing_gp.operators.posterior_covariance import PosteriorCovariance
from swing_gp.solvers.field import FieldPosterior
from swing_gp.solvers.precision import NoisyPrecision
from swing_gp.solvers.protocol import Estimate
from swing_gp.solvers.sizes import EXACT_VARIANCES, MOST_SOLVED


class PrecisionPosteriorCovariance(PosteriorCovariance):
    """Posterior covariance from the node precision; with gradients, by linear solves."""

    def __init__(self, test: KernelBlock, cross: KernelBlock, noisy: NoisyKernelLinearOperator) -> None:
        super().__init__(test, cross, noisy)
        self.given = cast(NoisyPrecision, noisy.solver())

    @property
    def _differentiable(self) -> bool:
        return torch.is_grad_enabled() and self.requires_grad

    @cached_property
    def _field(self) -> FieldPosterior:
        return field_posterior(self.test, self.given)

    def _apply(self, rhs: Tensor) -> Tensor:
        if self._differentiable:
            return super()._apply(rhs)
        return self._field.covariance(rhs.double()).to(rhs.dtype)

    @cached_property
    def variances(self) -> Estimate:
        size, nodes = self.shape[-1], self.given.precision.size
        if self._differentiable:
            return super()._solved() if size <= EXACT_VARIANCES else super()._estimated()
        if size <= EXACT_VARIANCES and size * nodes <= MOST_SOLVED:
            inputs = torch.arange(size).split(COLUMNS)
            return Estimate.exact(torch.cat([self._columns(part)[part].diagonal() for part in inputs]).clamp_min(0))
        found = self._field.variances()
        return Estimate(found.value.to(self.dtype), found.error.to(self.dtype))

    @property
    def can_sample(self) -> bool:
        return True

    def samples(self, number: int, generator: torch.Generator | None = None) -> Tensor:  # (n, number)
        return self._field.samples(number, generator).to(self.dtype)


def field_posterior(test: KernelBlock, solver: NoisyPrecision) -> FieldPosterior:
    """The posterior at the rows of a symmetric block."""
    with torch.no_grad():
        return FieldPosterior(cast(NodePrecision, test.structure()).inputs(), solver)
