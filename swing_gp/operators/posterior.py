r"""The posterior covariance of a matrix-free kernel, :math:`K_{**} - K_{*X} (K_{XX} + R)^{-1} K_{X*}`."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from linear_operator.operators import DiagLinearOperator, LinearOperator
from torch import Tensor

from swing_gp.linalg.gram import frozen_signs
from swing_gp.operators.kernel_block import KernelBlock
from swing_gp.operators.low_rank_plus_diagonal import LowRankPlusDiagonal
from swing_gp.operators.matrix_free import COLUMNS, MatrixFreeLinearOperator
from swing_gp.operators.noisy import NoisyKernelLinearOperator
from swing_gp.operators.preconditioning import estimated_variances

__all__ = ["PosteriorCovariance"]

# Variances at up to this many points are solved for one by one; above, they are estimated.
EXACT_VARIANCES = 512
PROBES = 64


class PosteriorCovariance(MatrixFreeLinearOperator):
    """The posterior covariance at test inputs, through solves; nothing of size test x train is kept.

    Variances at many points are those of the landmark kernel's posterior, in closed form, plus an unbiased estimate of the
    difference or, where landmarks do not resolve the graph, mean squares of samples; :meth:`variance_standard_error` says how
    good they are. Samples are pathwise (Wilson et al., 2020): a prior sample, corrected by one solve.
    """

    def __init__(self, test: KernelBlock, cross: KernelBlock, noisy: NoisyKernelLinearOperator) -> None:
        super().__init__(test, cross, noisy)
        self.test, self.cross, self.noisy = test, cross, noisy

    def _size(self) -> torch.Size:
        return self.test.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.test.dtype

    @property
    def device(self) -> torch.device:
        return self.test.device

    def _transpose_nonbatch(self) -> LinearOperator:
        return self

    def _apply(self, rhs: Tensor) -> Tensor:
        solved = self.noisy.solve(self.cross.mT @ rhs)
        return self.test @ rhs - self.cross @ solved

    def _diagonal(self) -> Tensor:
        return self._variances[0]

    def variance_standard_error(self) -> Tensor:
        """Standard errors of the variances; zeros where they were solved for."""
        return self._variances[1]

    @cached_property
    def _variances(self) -> tuple[Tensor, Tensor]:
        return self._solved() if self.shape[-1] <= EXACT_VARIANCES else self._estimated()

    def _solved(self) -> tuple[Tensor, Tensor]:
        prior = self.test._diagonal()
        parts = []
        for start in range(0, self.shape[-1], COLUMNS):
            index = torch.arange(start, min(start + COLUMNS, self.shape[-1]), device=self.device)
            block = self.cross.mT._columns(index)
            parts.append((block * self.noisy.solve(block)).sum(0))
        variances = (prior - torch.cat(parts)).clamp_min(0)
        return variances, torch.zeros_like(variances)

    def _estimated(self) -> tuple[Tensor, Tensor]:
        signs = frozen_signs(self.shape[-1], PROBES, self.dtype, self.device)
        close = self._landmark_posterior() if self.test.control.exists else None
        drawn = self.test.has_root and self.noisy._linear_op.has_root
        sample = (lambda number: self.zero_mean_mvn_samples(number).mT) if drawn else None
        estimate, error = estimated_variances(signs, self._apply(signs), close, sample)
        # Even if all else were known, the identity part that a point has for itself is seen through noise only.
        own = self.test.head[0] * self.test.outputscale
        noise = self.noisy._diag_tensor._diagonal().min()
        return estimate.clamp_min(float(own * noise / (own + noise))), error

    def _landmark_posterior(self) -> LowRankPlusDiagonal:
        """The posterior covariance of the landmark kernel with the same noise, ignoring what equal points share."""
        with torch.no_grad():
            train = self.noisy._linear_op.close().add_diagonal(self.noisy._diag_tensor._diagonal())
            test = self.test.close()
            assert isinstance(train, LowRankPlusDiagonal)
            posterior = torch.linalg.solve(train._capacitance(), train._symmetric_core())
            return LowRankPlusDiagonal(test.factor, 0.5 * (posterior + posterior.mT), test.diag)

    def zero_mean_mvn_samples(self, num_samples: int) -> Tensor:  # (S, n)
        joint = self.test.prior_samples(self.noisy._linear_op, num_samples)
        test, train = joint.split([self.shape[-1], self.noisy.shape[-1]])
        noise = self.noisy._diag_tensor._diagonal().sqrt().unsqueeze(-1) * torch.randn_like(train)
        return (test - self.cross @ self.noisy.solve(train + noise)).mT

    def add_diagonal(self, diag: Tensor) -> LinearOperator:
        return self + DiagLinearOperator(diag.expand(self.shape[-1]))

    def __add__(self, other: Any) -> LinearOperator:
        return NoisyPosteriorCovariance(self, other) if isinstance(other, DiagLinearOperator) else super().__add__(other)


class NoisyPosteriorCovariance(NoisyKernelLinearOperator):
    """The posterior covariance of noisy observations."""

    def zero_mean_mvn_samples(self, num_samples: int) -> Tensor:
        sample = self._linear_op.zero_mean_mvn_samples(num_samples)
        return sample + self._diag_tensor._diagonal().sqrt() * torch.randn_like(sample)
