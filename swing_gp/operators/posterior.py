r"""Gaussian processes conditioned on noisy observations, through blocks of a graph kernel.

With dense features the prior at any inputs is :math:`F u + e`: features times weights :math:`u \sim N(0, C)` plus a part e
that every point has for itself. With noise R, :math:`L = R + S` on the training inputs and
:math:`M = (C^{-1} + F^\top L^{-1} F)^{-1}`,

.. math:: E f_* = F_* m + S_* L^{-1} (y - F m), \quad m = M F^\top L^{-1} y, \qquad
          \mathrm{Cov} f_* = H M H^\top + (S_{**} - S_* L^{-1} S_*^\top), \quad H = F_* - S_* L^{-1} F ,

where :math:`S_*` couples inputs that are the same point. Nothing larger than k x k is inverted, and K(test, train) never
exists. Every other kernel goes through solves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any, cast

import torch
from linear_operator.operators import LinearOperator
from torch import Tensor

from swing_gp.linalg.coincident import per_group
from swing_gp.linalg.structure import Modes
from swing_gp.operators.base import NoisyKernelLinearOperator, Structured
from swing_gp.operators.batch import Batch, Stack
from swing_gp.operators.kernel_block import KernelBlock, KernelBlocks
from swing_gp.operators.low_rank_covariance import LowRankCross, LowRankPlusGroups, as_cross
from swing_gp.operators.low_rank_plus_diagonal import LowRankPlusDiagonal
from swing_gp.operators.posterior_covariance import (
    ModePosteriorCovariance,
    PosteriorCovariance,
    PrecisionPosteriorCovariance,
    batched_covariance,
    field_posterior,
)
from swing_gp.solvers.mode_solver import ModeSolver
from swing_gp.solvers.precision import NoisyPrecision
from swing_gp.solvers.protocol import Estimate
from swing_gp.solvers.woodbury import ClosedForm


class Posterior(ABC):
    """A Gaussian process given observations. It follows gradients of the kernel, the noise and the observations.

    :param noisy: K + noise on the training inputs.
    :param offset: observations without their prior mean, (\\*batch, n).
    """

    @property
    @abstractmethod
    def weights(self) -> Tensor:  # (*batch, n)
        """(K + noise)^-1 (y - mean)."""

    @abstractmethod
    def serves(self, cross: LinearOperator) -> bool:
        """Decide if a covariance between test and training inputs is of the same kernel, in the same features or modes."""

    @abstractmethod
    def mean(self, cross: Any) -> Tensor:  # (*batch, t)
        """The change that the observations make to the prior mean."""

    @abstractmethod
    def covariance(self, test: Any, cross: Any) -> LinearOperator:
        """The covariance of the test inputs."""

    def variance(self, test: Any, cross: Any) -> Estimate:  # (*batch, t)
        """The variances of the test inputs, with their standard errors."""
        return Estimate.exact(self.covariance(test, cross).diagonal())

    def samples(self, test: Any, cross: Any, number: int, generator: torch.Generator | None = None) -> Tensor:
        """Samples as columns around zero, (\\*batch, t, number)."""
        return self.covariance(test, cross).samples(number, generator)


def condition(noisy: LinearOperator, offset: Tensor) -> Posterior | None:
    """The posterior of a covariance with noise; None where it has no structure, as sums with other kernels have none.

    :param noisy: K + noise on the training inputs.
    :param offset: observations without their prior mean, (\\*batch, n).
    """
    if isinstance(noisy, Batch):  # matrix-free, each with a solver of its own
        return SolvesPosterior(noisy, offset)
    return POSTERIORS[noisy.solver().posterior](noisy, offset) if isinstance(noisy, Structured) else None


class LowRankPosterior(Posterior):
    """Low-rank posterior, in closed form."""

    def __init__(self, noisy: LowRankPlusDiagonal, offset: Tensor) -> None:
        self.noisy, self.offset = noisy, offset

    def serves(self, cross: LinearOperator) -> bool:
        if not isinstance(cross, (LowRankCross, LowRankPlusDiagonal)):
            return False
        return cross.core.shape[-2:] == self.noisy.core.shape[-2:] and bool((cross.core == self.noisy.core).all())

    @cached_property
    def _conditioned(self) -> tuple[Tensor, Tensor, Tensor]:  # (k, k), (*batch, k, 1), (*batch, n, 1)
        """M, m and what the features leave of the observations, L^-1 (y - F m); by features, also where rows are fewer."""
        system = ClosedForm(self.noisy.structure())
        return system.small.posterior_core(), *system.weights(self.offset.unsqueeze(-1))

    @property
    def weights(self) -> Tensor:
        return self._conditioned[2].squeeze(-1)

    def mean(self, cross: LowRankCross | LowRankPlusDiagonal) -> Tensor:
        cross = _as_cross(cross)
        _, weights, left_over = self._conditioned
        mean = cross.left @ weights.to(cross.left.dtype)
        return (mean + cross.matches(left_over) if cross.any_matches else mean).squeeze(-1)

    def covariance(self, test: LowRankPlusDiagonal, cross: LowRankCross | LowRankPlusDiagonal) -> LowRankPlusDiagonal:
        cross = _as_cross(cross)
        core, _, left_over = self._conditioned
        factor = test.factor
        own = test._member if isinstance(test, LowRankPlusGroups) else test._full_diag()
        if cross.any_matches:
            factor = factor - cross.matches(self.noisy.own.inverse(self.noisy.factor))
            # S_* L^-1 S_*^T couples equal points only; on one of them it is the value of the constant vector 1 there.
            information = self.noisy.own.information().unsqueeze(-1).expand_as(left_over)
            own = own * (1 - cross.matches(information).squeeze(-1))
        batch = torch.broadcast_shapes(factor.shape[:-2], core.shape[:-2], own.shape[:-1])
        parts = factor.expand(*batch, *factor.shape[-2:]), core.expand(*batch, *core.shape[-2:])
        own = own.expand(*batch, own.shape[-1])
        if isinstance(test, LowRankPlusGroups):
            group = test.group.expand(own.shape)
            return LowRankPlusGroups(*parts, torch.zeros_like(own), per_group(group, own), groups=(group,))
        return LowRankPlusDiagonal(*parts, own, shards=test.shards)


def _as_cross(block: LowRankCross | LowRankPlusDiagonal) -> LowRankCross:
    return block if isinstance(block, LowRankCross) else as_cross(block)  # at the training inputs themselves


class SolvesPosterior(Posterior):
    """Posterior by linear solves. Elements of a batch may have training inputs of their own, as fantasies, or test inputs."""

    block_covariance: type[PosteriorCovariance] = PosteriorCovariance

    def __init__(self, noisy: NoisyKernelLinearOperator | Batch, offset: Tensor) -> None:
        self.noisy, self.offset = noisy, offset

    def serves(self, cross: LinearOperator) -> bool:
        return isinstance(cross, (KernelBlock, KernelBlocks))

    @cached_property
    def weights(self) -> Tensor:  # for all targets in one solve
        return self.noisy.solve(self.offset.unsqueeze(-1)).squeeze(-1)

    def mean(self, cross: KernelBlock | KernelBlocks) -> Tensor:
        return (cross @ self.weights.unsqueeze(-1)).squeeze(-1)

    def covariance(self, test: KernelBlock | KernelBlocks, cross: KernelBlock | KernelBlocks) -> LinearOperator:
        if isinstance(cross, KernelBlocks) and isinstance(test, KernelBlocks) and not self.noisy.batch_shape:
            return batched_covariance(test, cross, self.noisy)
        batch = torch.broadcast_shapes(test.batch_shape, cross.batch_shape, self.noisy.batch_shape)
        if not batch:
            return self.block_covariance(test, cross, self.noisy)
        return Stack(*map(PosteriorCovariance, *(_elements(part, batch) for part in (test, cross, self.noisy))), batch=batch)

    def variance(self, test: KernelBlock | KernelBlocks, cross: KernelBlock | KernelBlocks) -> Estimate:
        covariance = self.covariance(test, cross)
        return covariance.variances if isinstance(covariance, PosteriorCovariance) else Estimate.exact(covariance.diagonal())


def _elements(part: Any, batch: torch.Size) -> list[Any]:
    return part._expand_batch(batch).elements() if part.batch_shape else [part] * batch.numel()


class ModePosterior(SolvesPosterior):
    """Posterior by linear solves, with means and variances among the modes of a grid where these reach all test inputs."""

    block_covariance = ModePosteriorCovariance

    @property
    def _solver(self) -> ModeSolver:
        return cast(ModeSolver, self.noisy.solver())

    def serves(self, cross: LinearOperator) -> bool:
        if not isinstance(cross, KernelBlock):
            return super().serves(cross)
        training = cross._transpose_nonbatch().of_rows().structure()
        return isinstance(training, Modes) and training.waves.alike(self._solver.waves)

    def mean(self, cross: KernelBlock | KernelBlocks) -> Tensor:
        test = cross.of_rows().structure() if isinstance(cross, KernelBlock) else None
        if not isinstance(test, Modes):
            return super().mean(cross)
        columns = self._solver.mean(test, self.offset.movedim(-1, 0).reshape(self.offset.shape[-1], -1))
        return columns.movedim(0, -1).reshape(*self.offset.shape[:-1], cross.shape[-2])


class PrecisionPosterior(SolvesPosterior):
    """Posterior from the precision of the nodes: means at all of them from one, and nothing cancels."""

    block_covariance = PrecisionPosteriorCovariance

    @cached_property
    def _solver(self) -> NoisyPrecision:
        return cast(NoisyPrecision, self.noisy.solver())

    @cached_property
    def _conditioned(self) -> tuple[Tensor, Tensor]:  # (N, k), (n, k), float64
        """The mean at the nodes and the solution of the observations, without gradients."""
        with torch.no_grad():
            mean, weights, _ = self._solver.condition(self.offset.reshape(-1, self.offset.shape[-1]).mT)
            return mean, weights

    @property
    def _learns(self) -> bool:
        return torch.is_grad_enabled() and (self.noisy.requires_grad or self.offset.requires_grad)

    @property
    def weights(self) -> Tensor:
        if self._learns:
            return self.noisy.solve(self.offset.unsqueeze(-1)).squeeze(-1)
        weights = self._conditioned[1] / self._solver.scale
        return weights.mT.reshape(self.offset.shape).to(self.offset.dtype)

    def mean(self, cross: KernelBlock | KernelBlocks) -> Tensor:
        whole = cross.whole if isinstance(cross, KernelBlocks) else cross
        if len(whole.inputs[1]) != self.noisy.shape[-1]:
            return super().mean(cross)  # every list has training inputs of its own
        with torch.no_grad():
            values = field_posterior(whole.of_rows(), self._solver).mean(*self._conditioned).to(self.offset.dtype)  # (t, k)
            values = values.mT.reshape(*self.offset.shape[:-1], *(cross.rows if isinstance(cross, KernelBlocks) else (-1,)))
        if not (self._learns or (torch.is_grad_enabled() and cross.requires_grad)):
            return values
        # Gradients by products with the kernel, whose values have fewer digits.
        followed = super().mean(cross)
        return values + (followed - followed.detach())


#: The posterior that knows a solver, by its word for it.
POSTERIORS: dict[str, Any] = {
    "low rank": LowRankPosterior,
    "solves": SolvesPosterior,
    "modes": ModePosterior,
    "nodes": PrecisionPosterior,
}
