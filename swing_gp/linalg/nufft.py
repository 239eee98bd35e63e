r"""Non-uniform Fourier transforms between values at points and the modes of a grid, with gradients (``finufft``).

For real values only the half of the modes with a non-negative last index is kept. The two transforms

.. math:: c_m = \sum_j v_j e^{-i m \cdot \theta_j}, \qquad u_j = \mathrm{Re} \sum_{m \,\mathrm{kept}} c_m e^{i m \cdot \theta_j}

are adjoint to each other, so each is the other's backward pass. Modes are in FFT order: 0..M, -M..-1, the last axis 0..M.
Two real columns go through one complex transform, as its real and imaginary parts.
"""

from __future__ import annotations

from typing import Any

import finufft
import numpy as np
import torch
from torch import Tensor

# Pairs of columns of one call: finufft's memory grows with them.
BATCH = 8
# Below this many points a second thread costs more than it brings: finufft's threads and torch's wait for each other.
THREADED = 20_000


def fold(half_width: int) -> Tensor:  # (M + 1,), float64
    """How many modes each kept one of the last axis stands for: itself and, off the plane of zeros, its mirror image."""
    return torch.tensor([1.0] + [2.0] * half_width, dtype=torch.float64)


class PointTransform:
    """Transforms between one set of points and one grid of modes; plans are made once and reused.

    :param angles: the points in units in which the grid's period is 2 pi, (N, d), on the CPU.
    :param half_widths: M of each axis; the axis has 2 M + 1 modes.
    :param eps: the relative accuracy asked of finufft.
    :param mask: points that are left out (False) give and take zeros; None for none.
    """

    def __init__(self, angles: Tensor, half_widths: tuple[int, ...], eps: float, *, mask: Tensor | None = None) -> None:
        self.angles, self.half_widths = angles.detach(), tuple(half_widths)
        self.mask = None if mask is None else mask.unsqueeze(-1)
        self.number = len(angles)
        single = angles.dtype == torch.float32
        self.eps = min(max(eps, 1e-6 if single else 1e-14), 0.1)
        self._complex = np.complex64 if single else np.complex128
        self._plans: dict[tuple[int, int], Any] = {}

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_plans": {}}  # plans are handles into C; they are made anew when needed

    @property
    def modes(self) -> tuple[int, ...]:
        """The shape of the kept modes."""
        return (*(2 * m + 1 for m in self.half_widths[:-1]), self.half_widths[-1] + 1)

    @property
    def _full(self) -> tuple[int, ...]:
        return tuple(2 * m + 1 for m in self.half_widths)

    def to_modes(self, values: Tensor) -> Tensor:  # (N, k) real -> (k, *modes) complex
        return _Transform.apply(values if self.mask is None else values * self.mask, self, 1)

    def to_points(self, coefficients: Tensor) -> Tensor:  # (k, *modes) complex -> (N, k) real
        """The adjoint of :meth:`to_modes`."""
        values = _Transform.apply(coefficients, self, 2)
        return values if self.mask is None else values * self.mask

    def _execute(self, kind: int, blocks: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        key = (kind, len(blocks))
        if key not in self._plans:
            options = {"modeord": 1, "nthreads": 0 if self.number >= THREADED else 1}
            sign = -1 if kind == 1 else 1
            plan = finufft.Plan(kind, self._full, len(blocks), self.eps, sign, dtype=self._complex.__name__, **options)
            plan.setpts(*(np.ascontiguousarray(axis) for axis in self.angles.numpy().T))
            self._plans[key] = plan
        return self._plans[key].execute(blocks if len(blocks) > 1 else blocks[0]).reshape(len(blocks), *shape)

    def _type1(self, values: Tensor) -> Tensor:
        columns = values.detach().numpy().T
        result = np.empty((len(columns), *self.modes), dtype=self._complex)
        for start in range(0, len(columns), 2 * BATCH):
            block = columns[start : start + 2 * BATCH]
            real, imaginary = block[0::2], block[1::2]
            pairs = np.zeros((len(real), self.number), dtype=self._complex)
            pairs.real = real
            pairs.imag[: len(imaginary)] = imaginary
            full = self._execute(1, pairs, self._full)
            # Real values have c_-m = conj(c_m), which tells the two columns of a pair apart.
            kept, mirrored = (modes[..., : self.modes[-1]] for modes in (full, self._flipped(full).conj()))
            out = result[start : start + 2 * BATCH]
            out[0::2] = 0.5 * (kept + mirrored)
            out[1::2] = (-0.5j * (kept - mirrored))[: len(imaginary)]
        return torch.from_numpy(result)

    def _type2(self, coefficients: Tensor) -> Tensor:
        half = coefficients.detach().numpy()
        result = np.empty((len(half), self.number), dtype=self.angles.numpy().dtype)
        for start in range(0, len(half), 2 * BATCH):
            block = half[start : start + 2 * BATCH]
            real, imaginary = block[0::2], np.zeros((len(block[0::2]), *self.modes), dtype=self._complex)
            imaginary[: len(block) // 2] = 1j * block[1::2]
            # Coefficients with c_-m = conj(c_m) give real values: half of each to m, half of its conjugate to -m.
            full = np.zeros((len(real), *self._full), dtype=self._complex)
            full[..., : self.modes[-1]] = (real - imaginary).conj()
            full = self._flipped(full)
            full[..., : self.modes[-1]] += real + imaginary
            values = self._execute(2, 0.5 * full, (self.number,))
            out = result[start : start + 2 * BATCH]
            out[0::2] = values.real
            out[1::2] = values.imag[: len(block) // 2]
        return torch.from_numpy(np.ascontiguousarray(result.T))

    def _flipped(self, full: np.ndarray) -> np.ndarray:
        """The modes m at the places of -m."""
        axes = tuple(range(1, full.ndim))
        return np.roll(np.flip(full, axes), 1, axes)


class _Transform(torch.autograd.Function):
    """One of the two transforms; the backward pass is the other."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, transform: PointTransform, kind: int) -> Tensor:
        ctx.transform, ctx.kind = transform, kind
        return transform._type1(x) if kind == 1 else transform._type2(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _Transform.apply(grad, ctx.transform, 3 - ctx.kind), None, None
