r"""Toeplitz matrices among the modes of a grid: :math:`T_{mn} = t_{m-n}`, by FFTs, and as dense matrices in real coordinates.

They multiply functions by their symbol, the real function :math:`t(\theta) = \sum_k t_k e^{i k \cdot \theta}`. Modes of real
functions have :math:`c_{-m} = \overline{c_m}`; the half with a non-negative last index is kept, in FFT order
(:mod:`swing_gp.linalg.nufft`).
"""

from __future__ import annotations

import math

import scipy.fft
import torch
from torch import Tensor

# Points of the padded grids that are worked on at once: what stays in the cache is twice as fast.
CACHED = 2**18


def padded_grid(half_widths: tuple[int, ...]) -> torch.Size:
    """A uniform grid on which products of two functions with these modes do not alias, of sizes that FFTs like."""
    return torch.Size(scipy.fft.next_fast_len(4 * m + 1, real=True) for m in half_widths)


def symbol_of(generator: Tensor, grid: torch.Size) -> Tensor:  # (1, *modes) -> (*grid)
    """The values on a uniform grid of the function with kept Fourier coefficients."""
    return place_on_grid(generator, grid).squeeze(0) * math.prod(grid)


def toeplitz_product(symbol: Tensor, modes: Tensor) -> Tensor:  # (*grid), (k, *modes) -> (k, *modes)
    """Convolve kept modes with the Fourier coefficients of a real symbol on a uniform grid."""
    if len(modes) == 0:  # which FFTs do not take
        return modes
    parts = modes.split(max(1, CACHED // symbol.numel()))
    return torch.cat([modes_of(place_on_grid(part, symbol.shape) * symbol, modes.shape[1:]) for part in parts])


def place_on_grid(modes: Tensor, grid: torch.Size) -> Tensor:  # (k, *modes) -> (k, *grid) real
    """The real trigonometric polynomial of kept modes on a uniform grid, over the number of grid points.

    One axis after another, so that zeros are not transformed.
    """
    for axis in range(1, modes.dim() - 1):
        width = modes.shape[axis] // 2
        gap = list(modes.shape)
        gap[axis] = grid[axis - 1] - modes.shape[axis]
        head, tail = modes.split([width + 1, width], dim=axis)
        modes = torch.fft.ifft(torch.cat([head, modes.new_zeros(gap), tail], dim=axis), dim=axis)
    return torch.fft.irfft(modes, n=grid[-1], dim=-1)


def modes_of(values: Tensor, kept: torch.Size) -> Tensor:  # (k, *grid) real -> (k, *kept)
    """The kept modes of values on a uniform grid, times the number of grid points."""
    modes = torch.fft.rfft(values, dim=-1)[..., : kept[-1]]
    for axis in range(values.dim() - 2, 0, -1):
        width, modes = kept[axis - 1] // 2, torch.fft.fft(modes, dim=axis)
        modes = torch.cat([modes.narrow(axis, 0, width + 1), modes.narrow(axis, -width, width)], axis)
    return modes


class RealModes:
    r"""Real orthonormal coordinates of the modes of real functions: :math:`r_m = \mathrm{Re}\, c_m + \mathrm{Im}\, c_m`.

    The basis functions are :math:`\cos m\theta - \sin m\theta` (Hartley), one a mode, so that any set of modes with m also
    has -m has as many coordinates as modes, and inner products of coordinates are those of all modes.

    :param used: which of the kept modes there are coordinates for, (\*modes).

    >>> import torch
    >>> modes = RealModes((1,), torch.ones(2, dtype=torch.bool))
    >>> modes.from_modes(torch.tensor([[2.0 + 0.0j, 3.0 + 1.0j]])).squeeze(-1)
    tensor([2., 4., 2.], dtype=torch.float64)
    """

    def __init__(self, half_widths: tuple[int, ...], used: Tensor) -> None:
        self.half_widths, self.kept = half_widths, used.shape
        axes = [torch.cat([torch.arange(m + 1), torch.arange(-m, 0)]) for m in half_widths]
        axes[-1] = torch.arange(half_widths[-1] + 1)
        half = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1)[used]  # (h, d)
        mirrored = half[:, -1] > 0  # whose mirror images are not kept
        #: The modes, (P, d): those that are kept, then the mirror images of the others.
        self.numbers = torch.cat([half, -half[mirrored]])
        flat = used.flatten().nonzero().squeeze(-1)
        self._places = torch.cat([flat, flat[mirrored]])
        self._signs = torch.cat([torch.ones(len(half)), -torch.ones(int(mirrored.sum()))]).double().unsqueeze(-1)
        # Where the mirror image of each kept mode has its coordinate.
        ours, theirs = self._keys(half), self._keys(-self.numbers)
        order = theirs.argsort()
        self._mirrors = order[torch.searchsorted(theirs[order], ours)]
        self._flat = flat

    def __len__(self) -> int:
        return len(self.numbers)

    def _keys(self, numbers: Tensor) -> Tensor:
        key = torch.zeros(len(numbers), dtype=torch.long)
        for column, width in zip(numbers.unbind(-1), self.half_widths, strict=True):
            key = key * (2 * width + 1) + column + width
        return key

    def spread(self, values: Tensor) -> Tensor:  # (*modes) -> (P,)
        """Values of kept modes that they share with their mirror images, one a coordinate."""
        return values.flatten()[self._places]

    def from_modes(self, modes: Tensor) -> Tensor:  # (k, *modes) complex -> (P, k)
        picked = modes.flatten(1)[:, self._places].mT
        return picked.real + self._signs * picked.imag

    def to_modes(self, coordinates: Tensor) -> Tensor:  # (P, k) -> (k, *modes) complex
        one, two = coordinates[: len(self._flat)].mT, coordinates[self._mirrors].mT
        modes = torch.zeros(len(one), math.prod(self.kept), dtype=torch.complex128)
        modes = modes.index_copy(1, self._flat, 0.5 * torch.complex(one + two, one - two))
        return modes.unflatten(1, self.kept)

    # As dense matrices, of some of the coordinates

    def _pairs(self, some: Tensor | slice, grid: torch.Size) -> tuple[Tensor, Tensor]:  # (p, p), (p, p)
        """Where a uniform grid of Fourier coefficients has those of the differences and the sums of modes."""
        numbers = self.numbers[some]
        minus = plus = torch.zeros(len(numbers), len(numbers), dtype=torch.long)
        for column, size in zip(numbers.unbind(-1), grid, strict=True):
            one, two = column.unsqueeze(1), column.unsqueeze(0)
            minus, plus = minus * size + (one - two) % size, plus * size + (one + two) % size
        return minus, plus

    def matrix(self, symbol: Tensor, some: Tensor | slice = slice(None)) -> Tensor:  # (*grid) -> (p, p)
        r"""The Toeplitz matrix of a symbol: :math:`\mathrm{Re}\, t_{m-n} + \mathrm{Im}\, t_{m+n}`."""
        coefficients = torch.fft.fftn(symbol) / symbol.numel()
        minus, plus = self._pairs(some, symbol.shape)
        return coefficients.real.flatten()[minus] + coefficients.imag.flatten()[plus]

    def diagonal_function(
        self, matrix: Tensor, diagonal: Tensor, some: Tensor | slice, grid: torch.Size
    ) -> Tensor:  # (p, p), (P,) -> (1, *2 modes)
        r"""The modes of :math:`x \mapsto \phi(x)^\top M \phi(x)`, a function with twice as many of them: sums over pairs of
        modes of equal difference, and of equal sum.

        :param matrix: M between some coordinates.
        :param diagonal: what its diagonal has besides, of all coordinates.
        """
        minus, plus = self._pairs(some, grid)
        doubled = torch.zeros(len(self), dtype=torch.long)
        for column, size in zip(self.numbers.unbind(-1), grid, strict=True):
            doubled = doubled * size + (2 * column) % size
        sums = [matrix.new_zeros(grid.numel()).index_add(0, pairs.flatten(), matrix.flatten()) for pairs in (minus, plus)]
        sums = [one.index_add(0, at, diagonal) for one, at in zip(sums, (torch.zeros_like(doubled), doubled), strict=True)]
        values = torch.fft.ifftn(torch.complex(*sums).reshape(grid)).real  # over their number
        kept = torch.Size((*(4 * m + 1 for m in self.half_widths[:-1]), 2 * self.half_widths[-1] + 1))
        return modes_of(values.unsqueeze(0), kept)
