r"""Non-uniform Fourier transforms between values at points and the modes of a grid, with gradients (``finufft``).

For real values only the half of the modes with a non-negative last index is kept. The two transforms

.. math:: c_m = \sum_j v_j e^{-i m \cdot \theta_j}, \qquad u_j = \mathrm{Re} \sum_{m \,\mathrm{kept}} c_m e^{i m \cdot \theta_j}

are adjoint to each other, so each is the other's backward pass. Modes are in FFT order: 0..M, -M..-1, the last axis 0..M.
"""

from __future__ import annotations

from typing import Any

import finufft
import numpy as np
import torch
from torch import Tensor

__all__ = ["PointTransform"]

# Right-hand sides of one call: finufft's memory grows with them.
BATCH = 8
# Below this many points a second thread costs more than it brings: finufft's threads and torch's wait for each other.
THREADED = 20_000


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

    def to_modes(self, values: Tensor) -> Tensor:  # (N, k) real -> (k, *modes) complex
        return _ToModes.apply(values if self.mask is None else values * self.mask, self)

    def to_points(self, coefficients: Tensor) -> Tensor:  # (k, *modes) complex -> (N, k) real
        """The adjoint of :meth:`to_modes`."""
        values = _ToPoints.apply(coefficients, self)
        return values if self.mask is None else values * self.mask

    def _plan(self, kind: int, transforms: int) -> Any:
        key = (kind, transforms)
        if key not in self._plans:
            full = tuple(2 * m + 1 for m in self.half_widths)
            options = {"modeord": 1, "nthreads": 0 if self.number >= THREADED else 1}
            sign = -1 if kind == 1 else 1
            plan = finufft.Plan(kind, full, transforms, self.eps, sign, dtype=self._complex.__name__, **options)
            plan.setpts(*(np.ascontiguousarray(axis) for axis in self.angles.numpy().T))
            self._plans[key] = plan
        return self._plans[key]

    def _type1(self, values: Tensor) -> Tensor:
        columns = np.ascontiguousarray(values.detach().numpy().T.astype(self._complex))
        result = np.empty((len(columns), *self.modes), dtype=self._complex)
        for start in range(0, len(columns), BATCH):
            block = columns[start : start + BATCH]
            full = self._plan(1, len(block)).execute(block if len(block) > 1 else block[0])
            result[start : start + BATCH] = full.reshape(len(block), *(2 * m + 1 for m in self.half_widths))[
                ..., : self.modes[-1]
            ]
        return torch.from_numpy(result)

    def _type2(self, coefficients: Tensor) -> Tensor:
        blocks = []
        for start in range(0, len(coefficients), BATCH):
            half = coefficients[start : start + BATCH].detach().numpy()
            full = np.zeros((len(half), *(2 * m + 1 for m in self.half_widths)), dtype=self._complex)
            full[..., : self.modes[-1]] = half
            values = self._plan(2, len(half)).execute(full if len(half) > 1 else full[0])
            blocks.append(values.reshape(len(half), self.number).real.T)
        return torch.from_numpy(np.ascontiguousarray(np.concatenate(blocks, axis=1)))


class _ToModes(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, transform: PointTransform) -> Tensor:
        ctx.transform = transform
        return transform._type1(values)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.transform.to_points(grad), None


class _ToPoints(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, coefficients: Tensor, transform: PointTransform) -> Tensor:
        ctx.transform = transform
        return transform._type2(coefficients)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.transform.to_modes(grad), None
