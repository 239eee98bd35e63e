r"""The collapsed kernel on a Fourier grid: one type-1 transform, FFTs of the mode grid, one type-2 transform.

With :math:`E_{jm} = e^{i h m \cdot p_j}` and mode weights B the graph is :math:`W = E B E^*`, and every power of the
normalised matrix has the same outer factors,

.. math:: K = \alpha_0 I + D^{-1/2} E\, B\, h(T B)\, E^* D^{-1/2}, \qquad T = E^* D^{-1} E ,

where T is Toeplitz: a product with it is a multiplication by :math:`1/d` on a uniform grid, at the cost of two FFTs and
*nothing in N*. h is expanded in Chebyshev polynomials.
"""

from __future__ import annotations

import math
import warnings
from functools import cached_property
from typing import Any

import scipy.fft
import torch
from linear_operator.operators import LinearOperator, RootLinearOperator
from linear_operator.utils.memoize import cached
from torch import Tensor

from swing_gp.features.grid import FourierGrid
from swing_gp.features.landmarks import AccuracyWarning
from swing_gp.features.pairwise import PairwiseFeatures
from swing_gp.linalg.polynomial import clenshaw
from swing_gp.operators.diagnostics import GraphOperator
from swing_gp.operators.low_rank_plus_diagonal import LowRankPlusDiagonal
from swing_gp.operators.matrix_free import MatrixFreeLinearOperator
from swing_gp.operators.preconditioning import LandmarkControl
from swing_gp.parallel.shards import check_place, extremes, largest_of, total
from swing_gp.series.families import Series

__all__ = ["GridKernelLinearOperator", "grid_kernel"]

# Up to here the diagonal is exact, column by column; above it is estimated.
EXACT_DIAGONAL = 2048
# Relative standard errors of an estimated diagonal beyond which who asked for it is told.
VISIBLE_ERROR = 0.01
BLOCK = 16
# Points of the padded grids that are worked on at once: what stays in the cache is twice as fast.
CACHED = 2**20


class GridKernelLinearOperator(GraphOperator, MatrixFreeLinearOperator):
    r"""The collapsed kernel of a :class:`FourierGrid`. Made by
    :func:`~swing_gp.operators.grid_kernel.grid_kernel`.

    Gradients reach the mode weights (and through them the lengthscale), the degrees and the series.

    :param weights: the mode weights B, on the kept half of the modes.
    :param symbol: :math:`1/d`, band-limited, on the uniform grid that T multiplies on.
    :param scales: the factors of rows and columns, (2, N).
    :param identity: :math:`\alpha_0`, (1,).
    :param coefficients: Chebyshev coefficients of h on ``interval``.
    """

    features: FourierGrid
    series: Series

    def __init__(
        self,
        weights: Tensor,
        symbol: Tensor,
        scales: Tensor,
        identity: Tensor,
        coefficients: Tensor,
        *,
        features: FourierGrid,
        series: Series,
        interval: tuple[float, float],
        tol: float,
    ) -> None:
        super().__init__(
            weights, symbol, scales, identity, coefficients, features=features, series=series, interval=interval, tol=tol
        )
        self.weights, self.symbol, self.scales, self.identity = weights, symbol, scales, identity
        self.coefficients, self.interval, self.tol = coefficients, interval, tol
        self.features, self.series, self.graph = features, series, features.graph

    def _size(self) -> torch.Size:
        return torch.Size((self.graph.num_nodes, self.graph.num_nodes))

    def _transpose_nonbatch(self) -> LinearOperator:
        return self.__class__(self.weights, self.symbol, self.scales.flip(0), self.identity, self.coefficients, **self._kwargs)

    def _apply(self, rhs: Tensor) -> Tensor:
        check_place(self.graph.made_at, "An operator")
        # A block of columns at a time: each takes a padded grid of its own.
        return torch.cat([self._apply_block(block) for block in rhs.split(BLOCK, dim=-1)], dim=-1)

    def _apply_block(self, rhs: Tensor) -> Tensor:
        left, right = self.scales.unsqueeze(-1)
        modes = self.features.sums(None, right * rhs)
        modes = clenshaw(self._step, self.coefficients, self.interval, modes)
        return self.identity * rhs + left * self.features.nodes.to_points(self.features.fold * self.weights * modes)

    def between(self, x: Tensor, y: Tensor, rhs: Tensor, slope: Tensor, tail: Tensor) -> Tensor:
        r"""The kernel beyond its identity part between any points, before it is normalised.

        :param slope: :math:`\alpha_1`.
        :param tail: not needed here.
        """
        blocks = []
        for block in rhs.split(BLOCK, dim=-1):
            modes = clenshaw(self._step, self.coefficients, self.interval, self.features.sums(y, block))
            blocks.append(self.features.at(x).to_points(self.features.fold * self.weights * modes))
        return torch.cat(blocks, dim=-1) + self._beyond(x, y, rhs, slope)

    def _beyond(self, x: Tensor, y: Tensor, rhs: Tensor, slope: Tensor) -> Tensor | float:
        """The first-order weights to and from points that no node reaches, which the grid leaves out. Their neighbours lie
        beyond the box of the nodes, too."""
        reached = [self.features.reached(z) for z in (x, y)]
        if all(seen is None for seen in reached):
            return 0.0
        far = [
            torch.zeros(len(z), dtype=torch.bool) if seen is None else ~seen for z, seen in zip((x, y), reached, strict=True)
        ]
        low, high = extremes(self.graph.points)
        beyond = [((z < low) | (z > high)).any(-1) for z in (x, y)]
        between = PairwiseFeatures(self.graph).between
        total = torch.zeros(len(x), rhs.shape[-1], dtype=rhs.dtype)
        for rows, columns in ((far[0], beyond[1]), (beyond[0] & ~far[0], far[1])):
            total = total.index_put((rows,), slope * between(x[rows], y[columns], rhs[columns]))
        return total

    def draw(self, x: Tensor, number: int) -> Tensor:  # (n, d) -> (n, number)
        r"""Samples of a Gaussian process with the covariance of :meth:`between`, at any points.

        In the space of modes the covariance is :math:`B^{1/2} h(\hat T) B^{1/2}` with
        :math:`\hat T = B^{1/2} T B^{1/2}`, so white noise goes through a Chebyshev polynomial of :math:`\sqrt h`.
        """
        root = self.weights.clamp_min(0).sqrt()
        sizes = tuple(2 * width + 1 for width in self.features.half_widths)
        white = torch.randn(number, *sizes, dtype=self.dtype, device=self.device)
        modes = torch.fft.rfftn(white, dim=tuple(range(1, white.dim())), norm="ortho")

        def step(modes: Tensor) -> Tensor:
            return root * toeplitz_product(self.symbol, root * modes)

        tol = max(0.1 * self.tol, 1e-10)
        half = self.series.chebyshev(self.interval, tol, lambda x: self.series.remainder(x).clamp_min(0).sqrt())
        modes = root * clenshaw(step, half.to(self.weights), self.interval, modes)
        return self.features.at(x).to_points(self.features.fold * modes)

    def _step(self, modes: Tensor) -> Tensor:
        """T B on the kept modes: to the uniform grid, times 1/d, and back."""
        return toeplitz_product(self.symbol, self.weights * modes)

    # The diagonal

    _scatter = 0.0  # mean standard error of the last estimate, over its mean

    @cached_property
    def _control(self) -> LandmarkControl:
        return LandmarkControl(self.graph, self.series)

    def _diagonal(self) -> Tensor:
        if self.graph.num_nodes <= EXACT_DIAGONAL:
            return super()._diagonal()
        estimate, error = self._control.diagonal(self)
        self._scatter = float(error.mean() / estimate.detach().abs().mean())
        return estimate

    def diagonal(self, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
        """The diagonal: exact up to 2,048 nodes, above them an estimate that warns where its standard errors exceed 1%."""
        values = super().diagonal(offset, dim1, dim2)
        if self._scatter > VISIBLE_ERROR:
            warnings.warn(
                f"The diagonal is an estimate, with standard errors of {self._scatter:.1%} in the mean "
                "(diagonal_standard_error()). For exact entries take K[nodes, nodes], at a product for each, or "
                "features='landmarks' where they resolve the graph.",
                AccuracyWarning,
                stacklevel=2,
            )
        return values

    def diagonal_standard_error(self) -> Tensor:  # (N,)
        """Standard errors of the estimated diagonal; zeros where it is exact."""
        if self.graph.num_nodes <= EXACT_DIAGONAL:
            return torch.zeros(self.graph.num_nodes, dtype=self.dtype)
        return self._control.diagonal(self)[1]

    # Roots: polynomials of the square root of g

    def _of_function(self, function: Any) -> LinearOperator:
        """The same matrix with another function of the spectrum in place of g."""

        def remainder(x: Tensor) -> Tensor:
            # (F(x) - F(0)) / x; near zero by its derivative, where F = sqrt(g) or its inverse is smooth.
            origin = function(self.series(torch.zeros_like(x)))
            slope = (function(self.series(torch.full_like(x, 1e-4))) - function(self.series(torch.full_like(x, -1e-4)))) / 2e-4
            small = x.abs() < 1e-7
            return torch.where(small, slope, (function(self.series(x)) - origin) / torch.where(small, torch.ones_like(x), x))

        tol = max(0.1 * self.tol, 1e-10)
        coefficients = self.series.chebyshev(self.interval, tol, remainder).to(self.weights)
        identity = function(self.series(torch.zeros(1, dtype=torch.float64))).to(self.weights)
        return self.__class__(self.weights, self.symbol, self.scales, identity, coefficients, **self._kwargs)

    @cached(name="root_decomposition")
    def root_decomposition(self, method: str | None = None) -> LinearOperator:
        self.check_symmetric()
        return RootLinearOperator(self._of_function(torch.sqrt))

    @cached(name="root_inv_decomposition")
    def root_inv_decomposition(
        self, initial_vectors: Tensor | None = None, test_vectors: Tensor | None = None, method: str | None = None
    ) -> LinearOperator:
        return RootLinearOperator(self._of_function(torch.rsqrt))

    # Noise: solves are preconditioned by landmarks where those resolve the spectrum

    def precondition(self, noise: Tensor) -> LowRankPlusDiagonal | None:
        return self._control.precondition(self, noise)


def toeplitz_product(symbol: Tensor, modes: Tensor) -> Tensor:  # (*grid), (k, *modes) -> (k, *modes)
    """Convolve kept modes with the Fourier coefficients of a real symbol on a uniform grid."""
    if len(modes) == 0:  # which FFTs do not take
        return modes
    axes = tuple(range(1, modes.dim()))
    parts = modes.split(max(1, CACHED // symbol.numel()))

    def product(part: Tensor) -> Tensor:
        return crop_modes(torch.fft.rfftn(place_on_grid(part, symbol.shape) * symbol, dim=axes), modes.shape[1:])

    return torch.cat([product(part) for part in parts])


def place_on_grid(modes: Tensor, grid: torch.Size) -> Tensor:  # (k, *modes) -> (k, *grid) real
    """The real trigonometric polynomial of kept modes on a uniform grid, over the number of grid points."""
    padded = modes
    for axis in range(1, modes.dim() - 1):
        width = modes.shape[axis] // 2
        gap = list(padded.shape)
        gap[axis] = grid[axis - 1] - modes.shape[axis]
        head, tail = padded.split([width + 1, width], dim=axis)
        padded = torch.cat([head, padded.new_zeros(gap), tail], dim=axis)
    return torch.fft.irfftn(padded, s=tuple(grid), dim=tuple(range(1, modes.dim())))


def crop_modes(spectrum: Tensor, kept: torch.Size) -> Tensor:
    """The kept modes of a transform of real values."""
    for axis, size in enumerate(kept[:-1], start=1):
        width = size // 2
        spectrum = torch.cat(
            [spectrum.narrow(axis, 0, width + 1), spectrum.narrow(axis, spectrum.shape[axis] - width, width)], axis
        )
    return spectrum[..., : kept[-1]]


def grid_kernel(features: FourierGrid, series: Series) -> GridKernelLinearOperator:
    """The collapsed kernel of a Fourier grid."""
    graph = features.graph
    log_degree = features.log_degree()
    low, high = _spectrum(features, log_degree)
    series.check_spectrum((low, high), psd=graph.normalization != "random_walk")
    # The error of the grid may carry an eigenvalue out of the interval by about the tolerance.
    slack = 10 * features.tol * high
    interval = (low - slack if low < 0 else low, high + slack)
    series.check_spectrum(interval, psd=False)
    powers = {"symmetric": (-0.5, -0.5), "random_walk": (-1.0, 0.0), None: (0.0, 0.0)}[graph.normalization]
    scales = torch.stack([(power * log_degree).exp() for power in powers])
    weights = features.mode_weights
    density = (-log_degree).exp() if graph.normalization else torch.ones_like(log_degree)
    symbol = _symbol(features, density)
    coefficients = series.chebyshev(interval, 0.1 * features.tol, series.remainder).to(weights)
    return GridKernelLinearOperator(
        weights,
        symbol,
        scales,
        series.coefficients(1).to(weights),
        coefficients,
        features=features,
        series=series,
        interval=interval,
        tol=features.tol,
    )


def _symbol(features: FourierGrid, density: Tensor) -> Tensor:
    """The sum of density_j over the points, limited to differences of kept modes, on a uniform grid."""
    grid = torch.Size(scipy.fft.next_fast_len(4 * m + 1, real=True) for m in features.half_widths)
    modes = total(features.transform(features.graph.points, stretch=2).to_modes(density.unsqueeze(-1)), "degrees")
    return place_on_grid(modes, grid).squeeze(0) * math.prod(grid)


def _spectrum(features: FourierGrid, log_degree: Tensor) -> tuple[float, float]:
    low, high = features.graph.spectrum
    if features.graph.normalization is None:
        high = math.exp(largest_of(log_degree))
        low = -high if low < 0 else 0.0
    return low, high
