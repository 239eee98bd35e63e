r"""The posterior covariance of a matrix-free kernel, :math:`K_{**} - K_{*X} (K_{XX} + R)^{-1} K_{X*}`."""

from __future__ import annotations

from typing import Any

import torch
from linear_operator.operators import DiagLinearOperator, LinearOperator
from torch import Tensor

from swing_gp.linear_algebra import frozen_signs
from swing_gp.operators.broadcast import BroadcastLinearOperator
from swing_gp.operators.kernel_block import COLUMNS, KernelBlock
from swing_gp.operators.low_rank_plus_diagonal import LowRankPlusDiagonal
from swing_gp.operators.noisy import NoisyKernelLinearOperator

__all__ = ["PosteriorCovariance"]

# Variances at up to this many points are solved for one by one; above, they are estimated.
EXACT_VARIANCES = 512
PROBES = 64


class PosteriorCovariance(LinearOperator):
    """The posterior covariance at test inputs, through solves; nothing of size test x train is kept.

    Variances at many points are those of the landmark kernel's posterior, in closed form, plus an unbiased estimate of the
    difference; :meth:`variance_standard_error` says how good it is. Samples are pathwise (Wilson et al., 2020): a prior
    sample, corrected by one solve.
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

    def _unsqueeze_batch(self, dim: int) -> LinearOperator:
        return BroadcastLinearOperator(self, repeats=torch.Size((1,)))

    def _expand_batch(self, batch_shape: torch.Size | list[int]) -> LinearOperator:
        return BroadcastLinearOperator(self, repeats=torch.Size(batch_shape)) if len(batch_shape) else self

    def _matmul(self, rhs: Tensor) -> Tensor:
        solved = self.noisy.solve(self.cross.mT @ rhs)
        return self.test @ rhs - self.cross @ solved

    def _diagonal(self) -> Tensor:
        return self._variances()[0]

    def variance_standard_error(self) -> Tensor:
        """Standard errors of the variances; zeros where they were solved for."""
        return self._variances()[1]

    def _variances(self) -> tuple[Tensor, Tensor]:
        if "variances" not in self.__dict__:
            exact = self.shape[-1] <= EXACT_VARIANCES
            self.__dict__["variances"] = self._solved() if exact else self._estimated()
        return self.__dict__["variances"]

    def _solved(self) -> tuple[Tensor, Tensor]:
        prior = self.test._diagonal()
        parts = []
        for start in range(0, self.shape[-1], COLUMNS):
            index = torch.arange(start, min(start + COLUMNS, self.shape[-1]), device=self.device)
            unit = torch.zeros(self.shape[-1], len(index), dtype=self.dtype, device=self.device)
            unit[index, torch.arange(len(index), device=self.device)] = 1
            block = self.cross.mT @ unit
            parts.append((block * self.noisy.solve(block)).sum(0))
        variances = (prior - torch.cat(parts)).clamp_min(0)
        return variances, torch.zeros_like(variances)

    def _estimated(self) -> tuple[Tensor, Tensor]:
        close = self._landmark_posterior()
        signs = frozen_signs(self.shape[-1], PROBES, self.dtype)
        terms = signs * (self._matmul(signs) - close._matmul(signs))
        error = terms.std(-1) / PROBES**0.5
        # Even if all else were known, the identity part that a point has for itself is seen through noise only.
        own = self.test.head[0] * self.test.outputscale
        noise = self.noisy._diag_tensor._diagonal().min()
        return (close.diagonal() + terms.mean(-1)).clamp_min(float(own * noise / (own + noise))), error

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
        if isinstance(other, DiagLinearOperator):
            return NoisyPosteriorCovariance(self, other)
        return super().__add__(other)


class NoisyPosteriorCovariance(LinearOperator):
    """The posterior covariance of noisy observations."""

    def __init__(self, posterior: PosteriorCovariance, noise: DiagLinearOperator) -> None:
        super().__init__(posterior, noise)
        self.posterior, self.noise = posterior, noise

    def _size(self) -> torch.Size:
        return self.posterior.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.posterior.dtype

    @property
    def device(self) -> torch.device:
        return self.posterior.device

    def _transpose_nonbatch(self) -> LinearOperator:
        return self

    def _matmul(self, rhs: Tensor) -> Tensor:
        return self.posterior._matmul(rhs) + self.noise._matmul(rhs)

    def _diagonal(self) -> Tensor:
        return self.posterior._diagonal() + self.noise._diagonal()

    def zero_mean_mvn_samples(self, num_samples: int) -> Tensor:
        sample = self.posterior.zero_mean_mvn_samples(num_samples)
        return sample + self.noise._diagonal().sqrt() * torch.randn_like(sample)
