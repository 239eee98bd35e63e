"""Kernels plus noise on their diagonal."""

from __future__ import annotations

from typing import Any

import torch
from linear_operator import settings
from linear_operator.operators import AddedDiagLinearOperator, DiagLinearOperator, LinearOperator
from torch import Tensor

from swing_gp.linalg.gram import white_noise
from swing_gp.linalg.structure import Structure
from swing_gp.operators.base import Solvable
from swing_gp.solvers.sizes import is_dense


class TakesNoise(Solvable):
    """A kernel that becomes a :class:`NoisyKernelLinearOperator` once noise is added to it."""

    def add_diagonal(self, diag: Tensor) -> LinearOperator:
        self.check_symmetric()
        if not self.is_square or diag.dim() > 1 or diag.shape[-1:] not in ((), (1,), (self.shape[-1],)):
            return LinearOperator.add_diagonal(self, diag)
        return NoisyKernelLinearOperator(self, DiagLinearOperator(diag.expand(self.shape[-1])))

    def __add__(self, other: Any) -> LinearOperator:
        return self.add_diagonal(other._diagonal()) if isinstance(other, DiagLinearOperator) else super().__add__(other)


class NoisyKernelLinearOperator(Solvable, AddedDiagLinearOperator):
    """A kernel plus noise on its diagonal. Made by adding one to the other.

    Results are the same at every call: the random signs of log-determinants are drawn from a seed of their own.
    """

    def structure(self) -> Structure:
        return self._linear_op.structure()

    @property
    def noise(self) -> Tensor:  # type: ignore[override]
        own = self._diag_tensor._diagonal()
        return own if self._linear_op.noise is None else self._linear_op.noise + own

    def _getitem(self, row_index: Any, col_index: Any, *batch_indices: Any) -> LinearOperator:
        return self._linear_op.part_of(self, row_index, col_index)

    def _mul_constant(self, other: float | Tensor) -> LinearOperator:
        if torch.is_tensor(other) and other.numel() > 1:
            return super()._mul_constant(other)
        return self._linear_op._mul_constant(other) + DiagLinearOperator(self.noise * other)

    def __add__(self, other: Any) -> LinearOperator:
        if isinstance(other, DiagLinearOperator):
            return super().__add__(other)
        return self._linear_op + other + self._diag_tensor  # a sum with something else has no structure

    def repeat(self, *sizes: Any) -> LinearOperator:
        sizes = tuple(sizes[0]) if len(sizes) == 1 else sizes
        return self._expand_batch(torch.Size(sizes[:-2])) if tuple(sizes[-2:]) == (1, 1) else super().repeat(*sizes)

    def samples(self, number: int, generator: torch.Generator | None = None) -> Tensor:  # (n, number)
        """Samples as columns."""
        if is_dense(self.shape[-1], settings.fast_computations.covar_root_decomposition):
            return self.dense_factor().to(self.dtype) @ white_noise(self, self.shape[-1], number, generator=generator)
        return self._linear_op.samples(number, generator) + self.noise_samples(number, generator)

    def noise_samples(self, number: int, generator: torch.Generator | None = None) -> Tensor:  # (n, number)
        """Samples of the noise alone."""
        return self.noise.sqrt().unsqueeze(-1) * white_noise(self, self.shape[-1], number, generator=generator)
