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

from functools import cached_property
from typing import Any

import torch
from linear_operator.operators import LinearOperator
from torch import Tensor

from swing_gp.linalg.coincident import per_group
from swing_gp.operators.batch import Stack
from swing_gp.operators.kernel_block import KernelBlock, KernelBlocks
from swing_gp.operators.low_rank_covariance import LowRankCross, LowRankPlusGroups, as_cross
from swing_gp.operators.low_rank_plus_diagonal import LowRankPlusDiagonal
from swing_gp.operators.noisy import NoisyKernelLinearOperator
from swing_gp.operators.posterior import PosteriorCovariance, batched_covariance
from swing_gp.operators.precision_posterior import PrecisionPosteriorCovariance, seen_after
from swing_gp.operators.precision_solver import NoisyPrecision


def posterior_of(noisy: Any, offset: Tensor, cross: Any) -> LowRankPosterior | IterativePosterior | None:
    """The posterior that can read these blocks; None for blocks of other kernels.

    :param noisy: K + noise on the training inputs.
    :param offset: observations without their prior mean, (\\*batch, n).
    :param cross: the covariance between test and training inputs.
    """
    if isinstance(noisy, LowRankPlusDiagonal) and isinstance(cross, (LowRankCross, LowRankPlusDiagonal)):
        return LowRankPosterior(noisy, offset)
    if isinstance(noisy, (NoisyKernelLinearOperator, Stack)) and isinstance(cross, (KernelBlock, KernelBlocks)):
        solver = noisy.structured_solver() if isinstance(noisy, NoisyKernelLinearOperator) else None
        return PrecisionPosterior(noisy, offset) if isinstance(solver, NoisyPrecision) else IterativePosterior(noisy, offset)
    return None


class LowRankPosterior:
    """In closed form."""

    def __init__(self, noisy: LowRankPlusDiagonal, offset: Tensor) -> None:
        self.noisy, self.offset = noisy, offset

    def reads(self, cross: Any) -> bool:
        """Whether a block is in the features of this posterior."""
        core = getattr(cross, "core", None)
        return core is not None and core.shape[-2:] == self.noisy.core.shape[-2:] and bool((core == self.noisy.core).all())

    @cached_property
    def _weights(self) -> tuple[Tensor, Tensor, Tensor]:  # (k, k), (*batch, k, 1), (*batch, n, 1)
        """M, m and what the features leave of the observations, L^-1 (y - F m)."""
        noisy, offset = self.noisy, self.offset.unsqueeze(-1)
        woodbury = noisy.woodbury()
        mean = woodbury.solve(noisy.project(offset))
        return woodbury.posterior_core(), mean, noisy._inverse_of_diagonal(offset - noisy.factor @ mean.to(noisy.dtype))

    @property
    def weights(self) -> Tensor:  # (*batch, n)
        """(K + noise)^-1 (y - mean)."""
        return self._weights[2].squeeze(-1)

    def mean(self, cross: LowRankCross | LowRankPlusDiagonal) -> Tensor:  # (*batch, t)
        cross = _as_cross(cross)
        _, weights, left_over = self._weights
        mean = cross.left @ weights.to(cross.left.dtype)
        return (mean + cross.matches(left_over) if cross.any_matches else mean).squeeze(-1)

    def covariance(self, test: LowRankPlusDiagonal, cross: LowRankCross | LowRankPlusDiagonal) -> LowRankPlusDiagonal:
        cross = _as_cross(cross)
        core, _, left_over = self._weights
        factor = test.factor
        own = test._member if isinstance(test, LowRankPlusGroups) else test._full_diag()
        if cross.any_matches:
            factor = factor - cross.matches(self.noisy._inverse_of_diagonal(self.noisy.factor))
            # S_* L^-1 S_*^T couples equal points only; on one of them it is the value of the constant vector 1 there.
            information = self.noisy._inverse_of_diagonal(torch.ones_like(left_over))
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


class IterativePosterior:
    """By solves. Every element of a batch may have its own training inputs, as fantasies do, or its own test inputs."""

    def __init__(self, noisy: NoisyKernelLinearOperator | Stack, offset: Tensor) -> None:
        self.noisy, self.offset = noisy, offset

    def reads(self, cross: Any) -> bool:
        """Whether a block is in the modes of this posterior, where it has any."""
        solver: Any = self.noisy.solver() if isinstance(self.noisy, NoisyKernelLinearOperator) else None
        return not (hasattr(solver, "same_modes") and isinstance(cross, KernelBlock)) or solver.same_modes(cross)

    @cached_property
    def weights(self) -> Tensor:  # (*batch, n)
        """(K + noise)^-1 (y - mean), for all targets in one solve."""
        return self.noisy.solve(self.offset.unsqueeze(-1)).squeeze(-1)

    def mean(self, cross: KernelBlock | KernelBlocks) -> Tensor:  # (*batch, t)
        single = isinstance(self.noisy, NoisyKernelLinearOperator) and isinstance(cross, KernelBlock)
        if single and (solver := self.noisy.posterior_solver(cross)) is not None:
            columns = solver.mean(cross, self.offset.movedim(-1, 0).reshape(self.offset.shape[-1], -1))
            return columns.movedim(0, -1).reshape(*self.offset.shape[:-1], cross.shape[0])
        return (cross @ self.weights.unsqueeze(-1)).squeeze(-1)

    def covariance(self, test: KernelBlock | KernelBlocks, cross: KernelBlock | KernelBlocks) -> LinearOperator:
        if isinstance(cross, KernelBlocks) and isinstance(test, KernelBlocks) and not self.noisy.batch_shape:
            return batched_covariance(test, cross, self.noisy)
        batch = torch.broadcast_shapes(test.batch_shape, cross.batch_shape, self.noisy.batch_shape)
        if not batch:
            return PosteriorCovariance(test, cross, self.noisy)
        return Stack(*map(PosteriorCovariance, *(_elements(part, batch) for part in (test, cross, self.noisy))), batch=batch)


def _elements(part: Any, batch: torch.Size) -> list[Any]:
    return part._expand_batch(batch).elements() if part.batch_shape else [part] * batch.numel()


class PrecisionPosterior(IterativePosterior):
    """By solves with the posterior precision of the nodes: means at all of them from one, and nothing cancels."""

    @cached_property
    def _conditioned(self) -> tuple[Tensor, Tensor]:  # (N, k), (n, k), float64
        """The mean at the nodes and the solution of the observations, without gradients."""
        with torch.no_grad():
            columns = self.offset.reshape(-1, self.offset.shape[-1]).mT
            mean, weights, _ = self.noisy.structured_solver().condition(columns)
            return mean, weights

    @property
    def _learns(self) -> bool:
        return torch.is_grad_enabled() and (self.noisy.requires_grad or self.offset.requires_grad)

    @property
    def weights(self) -> Tensor:
        if self._learns:
            return self.noisy.solve(self.offset.unsqueeze(-1)).squeeze(-1)
        weights = self._conditioned[1] / self.noisy.structured_solver().scale
        return weights.mT.reshape(self.offset.shape).to(self.offset.dtype)

    def mean(self, cross: KernelBlock | KernelBlocks) -> Tensor:  # (*batch, t)
        whole = cross.whole if isinstance(cross, KernelBlocks) else cross
        if not isinstance(whole, KernelBlock) or len(whole.inputs[1]) != self.noisy.shape[-1]:
            return super().mean(cross)  # every list has training inputs of its own
        with torch.no_grad():
            values = seen_after(whole, self.noisy.structured_solver()).mean(*self._conditioned).to(self.offset.dtype)  # (t, k)
            values = values.mT.reshape(*self.offset.shape[:-1], *(cross.rows if isinstance(cross, KernelBlocks) else (-1,)))
        if not (self._learns or (torch.is_grad_enabled() and cross.requires_grad)):
            return values
        # Gradients by products with the kernel, whose values have fewer digits.
        followed = super().mean(cross)
        return values + (followed - followed.detach())

    def covariance(self, test: KernelBlock | KernelBlocks, cross: KernelBlock | KernelBlocks) -> LinearOperator:
        if isinstance(test, KernelBlock) and isinstance(cross, KernelBlock):
            return PrecisionPosteriorCovariance(test, cross, self.noisy)
        return super().covariance(test, cross)
