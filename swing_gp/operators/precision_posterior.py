r"""The posterior covariance in precision form, at inputs :math:`f_* = L_* f + e_*` on and off the graph.

With the notation of :mod:`swing_gp.operators.precision_solver` and E for covariances of e,

.. math:: J M^{-1} J^\top + E_{**} - E_{*X} T^{-1} E_{X*}, \qquad J = L_* - E_{*X} T^{-1} L .

At nodes J picks rows and all of E vanishes: the posterior covariance is a part of :math:`M^{-1}`, and nothing cancels, however
large the prior variance is.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from swing_gp.linalg.precision_matrix import COLUMNS
from swing_gp.operators.kernel_block import KernelBlock
from swing_gp.operators.noisy import NoisyKernelLinearOperator
from swing_gp.operators.observations import AtSites, draw_own, in_double
from swing_gp.operators.posterior import PosteriorCovariance
from swing_gp.operators.precision_solver import NoisyPrecision, sites_of
from swing_gp.solvers.sizes import EXACT_VARIANCES, MOST_SOLVED

# Columns of products that find the diagonal of what inputs off the graph have for themselves.
PROBED = 256


class PrecisionPosteriorCovariance(PosteriorCovariance):
    """Where gradients are wanted, it is the covariance by solves that it inherits."""

    def __init__(self, test: KernelBlock, cross: KernelBlock, noisy: NoisyKernelLinearOperator) -> None:
        super().__init__(test, cross, noisy)
        self.given: NoisyPrecision = noisy.structured_solver()

    @property
    def _differentiable(self) -> bool:
        return torch.is_grad_enabled() and self.requires_grad

    @cached_property
    def _seen(self) -> SeenNodes:
        return seen_after(self.test, self.given)

    def _apply(self, rhs: Tensor) -> Tensor:
        if self._differentiable:
            return super()._apply(rhs)
        return self._seen.covariance(rhs.double()).to(rhs.dtype)

    @cached_property
    def _variances(self) -> tuple[Tensor, Tensor]:
        size, nodes = self.shape[-1], self.given.precision.size
        if self._differentiable:
            return super()._solved() if size <= EXACT_VARIANCES else super()._estimated()
        if size <= EXACT_VARIANCES and size * nodes <= MOST_SOLVED:
            inputs = torch.arange(size).split(COLUMNS)
            exact = torch.cat([self._columns(part)[part].diagonal() for part in inputs])
            return exact.clamp_min(0), torch.zeros_like(exact)
        variance, error = self._seen.variances()
        return variance.to(self.dtype), error.to(self.dtype)

    @property
    def can_sample(self) -> bool:
        return True

    def samples(self, number: int, generator: torch.Generator | None = None) -> Tensor:  # (n, number)
        return self._seen.samples(number, generator).to(self.dtype)


class SeenNodes:
    """Test inputs that are nodes, after the observations; without gradients, in float64."""

    def __init__(self, test: KernelBlock, solver: NoisyPrecision) -> None:
        self.solver, self.nodes = solver, test.inputs[0].nodes

    def from_nodes(self, values: Tensor) -> Tensor:  # (N, k) -> (t, k)
        """J v."""
        return values[self.nodes]

    def to_nodes(self, values: Tensor) -> Tensor:  # (t, k) -> (N, k)
        """The transpose."""
        return values.new_zeros(self.solver.precision.size, values.shape[-1]).index_add(0, self.nodes, values)

    def own(self, values: Tensor) -> Tensor:  # (t, k) -> (t, k)
        """Products with what is left of the covariance of e."""
        return torch.zeros_like(values)

    def mean(self, node_mean: Tensor, weights: Tensor) -> Tensor:  # (N, k), (n, k) -> (t, k)
        """From the mean at the nodes and the solution of the observations."""
        return node_mean[self.nodes]

    def covariance(self, rhs: Tensor) -> Tensor:  # (t, k) -> (t, k)
        return self.solver.scale * (self.from_nodes(self.solver.node_solve(self.to_nodes(rhs))) + self.own(rhs))

    def variances(self) -> tuple[Tensor, Tensor]:  # (t,), (t,)
        variance, error = self.solver.variances()
        return variance[self.nodes], error[self.nodes]

    def samples(self, number: int, generator: torch.Generator | None) -> Tensor:  # (t, number)
        return self.from_nodes(self.solver.samples(number, generator))


class SeenSites(SeenNodes):
    """Test inputs anywhere."""

    def __init__(self, test: KernelBlock, solver: NoisyPrecision) -> None:
        super().__init__(test, solver)
        kernel = test.base
        self.sites = sites_of(kernel.precision, test)
        leading = kernel.series.coefficients(2).detach().to(self.sites.points.dtype)
        self._own = in_double(self.sites.own(self.sites, leading), self.sites)
        # What test inputs share with observations beyond the nodes, if those are off the graph too
        self.seen = solver.observations if isinstance(solver.observations, AtSites) else None
        if self.seen is not None:
            self._crossed = in_double(self.sites.own(self.seen.sites, leading), self.sites)
            self._crossed_back = in_double(self.seen.sites.own(self.sites, leading), self.sites)

    def from_nodes(self, values: Tensor) -> Tensor:
        result = in_double(self.sites.from_nodes, self.sites)(values)
        return result if self.seen is None else result - self._crossed(self.seen.solve(self.seen.from_nodes(values)))

    def to_nodes(self, values: Tensor) -> Tensor:
        result = in_double(self.sites.to_nodes, self.sites)(values)
        return result if self.seen is None else result - self.seen.to_nodes(self.seen.solve(self._crossed_back(values)))

    def own(self, values: Tensor) -> Tensor:
        result = self._own(values)
        return result if self.seen is None else result - self._crossed(self.seen.solve(self._crossed_back(values)))

    def mean(self, node_mean: Tensor, weights: Tensor) -> Tensor:
        result = in_double(self.sites.from_nodes, self.sites)(node_mean)
        return result if self.seen is None else result + self._crossed(weights)

    def variances(self) -> tuple[Tensor, Tensor]:
        """At nodes after Rao-Blackwellisation; off the graph the mean squares of samples, and what is known exactly."""
        variance, error = super().variances()
        squares = super().samples(2 * COLUMNS, torch.Generator().manual_seed(0)).square()
        own = self.solver.scale * self._own_diagonal()
        off = self.sites.off
        spread = squares.std(-1) / squares.shape[-1] ** 0.5
        return torch.where(off, squares.mean(-1) + own, variance), torch.where(off, spread, error)

    def _own_diagonal(self) -> Tensor:  # (t,)
        result = torch.zeros(len(self.nodes), dtype=torch.float64)
        for part in self.sites.off.nonzero().squeeze(-1).split(PROBED):
            unit = torch.zeros(len(self.nodes), len(part), dtype=torch.float64)
            unit[part, torch.arange(len(part))] = 1
            result[part] = self.own(unit)[part, torch.arange(len(part))]
        return result

    def samples(self, number: int, generator: torch.Generator | None) -> Tensor:
        own = draw_own(self.sites, self.own, number, generator)
        return super().samples(number, generator) + self.solver.scale**0.5 * own


def seen_after(test: KernelBlock, solver: NoisyPrecision) -> SeenNodes:
    """Test inputs after the observations."""
    kind = SeenNodes if bool((test.inputs[0].nodes >= 0).all()) else SeenSites
    with torch.no_grad():
        return kind(test, solver)
