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
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from linear_operator.operators import LinearOperator, RootLinearOperator
from linear_operator.utils.memoize import cached
from torch import Tensor

from swing_gp.features.grid import FourierGrid
from swing_gp.features.landmarks import AccuracyWarning
from swing_gp.features.pairwise import PairwiseFeatures
from swing_gp.graphs.inputs import Inputs, nodes_of
from swing_gp.linalg.gram import white_noise
from swing_gp.linalg.polynomial import clenshaw
from swing_gp.linalg.structure import LowRank, Modes, Products, Structure, Waves
from swing_gp.linalg.toeplitz import padded_grid, symbol_of, toeplitz_product
from swing_gp.operators.estimated_diagonal import estimated_diagonal
from swing_gp.operators.kernel_block import MatrixFreeKernel
from swing_gp.operators.low_rank_plus_diagonal import LowRankPlusDiagonal
from swing_gp.operators.preconditioning import LandmarkApproximation
from swing_gp.series.base import Series
from swing_gp.solvers.sizes import EXACT_DIAGONAL

# Relative standard errors of an estimated diagonal beyond which who asked for it is told.
VISIBLE_ERROR = 0.01
BLOCK = 16
# Relative error of the roots that samples are drawn with.
ROOT_TOL = {torch.float32: 1e-5, torch.float64: 1e-8}


class GridKernelLinearOperator(MatrixFreeKernel):
    r"""The collapsed kernel of a :class:`~swing_gp.FourierGrid`. Made by :func:`~swing_gp.operators.grid_kernel.grid_kernel`.

    Gradients reach the mode weights (and through them the lengthscale), the degrees and the series.

    :param weights: the mode weights B, on the kept half of the modes.
    :param symbol: :math:`1/d`, band-limited, on the uniform grid that T multiplies on.
    :param scales: the factors of rows and columns, (2, N).
    :param identity: :math:`\alpha_0`, (1,).
    :param coefficients: Chebyshev coefficients of h on ``interval``.
    """

    features: FourierGrid

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
    ) -> None:
        super().__init__(weights, symbol, scales, identity, coefficients, features=features, series=series, interval=interval)
        self.weights, self.symbol, self.scales, self.identity = weights, symbol, scales, identity
        self.coefficients, self.interval, self.tol = coefficients, interval, features.tol
        self.features, self.series, self.graph = features, series, features.graph

    def _transpose_nonbatch(self) -> LinearOperator:
        return self.__class__(self.weights, self.symbol, self.scales.flip(0), self.identity, self.coefficients, **self._kwargs)

    def _apply(self, rhs: Tensor) -> Tensor:
        left, right = self.scales.unsqueeze(-1)
        nodes = self.features.nodes

        def product(block: Tensor) -> Tensor:
            return self.identity * block + left * self._through_modes(nodes, nodes, right * block)

        # A few columns at a time: each takes a padded grid of its own.
        return torch.cat([product(block) for block in rhs.split(BLOCK, dim=-1)], dim=-1)

    def _through_modes(self, rows: Any, columns: Any, rhs: Tensor) -> Tensor:  # (m, k) -> (n, k)
        """The product beyond the identity part, before it is normalised, between points by their transforms."""
        modes = clenshaw(self._step, self.coefficients, self.interval, columns.to_modes(rhs))
        return rows.to_points(self.features.fold * self.weights * modes)

    def between(self, rows: Inputs, columns: Inputs, leading: Tensor, second: Tensor) -> Callable[[Tensor], Tensor]:
        """Products through the modes, and with the weights between points that no node reaches."""
        x, y = rows.points, columns.points
        ours, theirs = self.features.prepare(x), self.features.prepare(y)
        left, right = rows.scale.unsqueeze(-1), columns.scale.unsqueeze(-1)

        def product(block: Tensor) -> Tensor:
            block = right * block
            return left * (self._through_modes(ours, theirs, block) + self._beyond(x, y, block, leading[1]))

        return lambda rhs: torch.cat([product(block) for block in rhs.split(BLOCK, dim=-1)], dim=-1)

    def _beyond(self, x: Tensor, y: Tensor, rhs: Tensor, slope: Tensor) -> Tensor | float:
        """The first-order weights to and from points that no node reaches, which the grid leaves out. Their neighbours lie
        beyond the box of the nodes, too."""
        both = (x, y)
        reached = [self.features.reached(z) for z in both]
        if all(seen is None for seen in reached):
            return 0.0
        far = [torch.zeros(len(z), dtype=torch.bool) if seen is None else ~seen for z, seen in zip(both, reached, strict=True)]
        low, high = self.graph.points.amin(0), self.graph.points.amax(0)
        beyond = [((z < low) | (z > high)).any(-1) for z in both]
        total = torch.zeros(len(x), rhs.shape[-1], dtype=rhs.dtype)
        for rows, columns in ((far[0], beyond[1]), (beyond[0] & ~far[0], far[1])):
            weights = PairwiseFeatures(self.graph).weights_between(x[rows], y[columns])
            total = total.index_put((rows,), slope * weights(rhs[columns]))
        return total

    @property
    def can_sample_anywhere(self) -> bool:  # type: ignore[override]
        """Not where the modes have weights of both signs, which have no root."""
        return self.graph.positive_definite

    def draw(self, x: Tensor, number: int, generator: torch.Generator | None = None) -> Tensor:  # (n, d) -> (n, number)
        r"""Samples of a Gaussian process with the covariance of :meth:`between`, at any points.

        In the space of modes the covariance is :math:`B^{1/2} h(\hat T) B^{1/2}` with
        :math:`\hat T = B^{1/2} T B^{1/2}`, so white noise goes through a Chebyshev polynomial of :math:`\sqrt h`.
        """
        root = self.weights.clamp_min(0).sqrt()
        sizes = tuple(2 * width + 1 for width in self.features.half_widths)
        places = self.features.prepare(x)

        def step(modes: Tensor) -> Tensor:
            return root * toeplitz_product(self.symbol, root * modes)

        half = self._chebyshev(lambda x: self.series.remainder(x).clamp_min(0).sqrt())

        def block(count: int) -> Tensor:
            white = white_noise(self, count, *sizes, generator=generator)
            modes = torch.fft.rfftn(white, dim=tuple(range(1, white.dim())), norm="ortho")
            return places.to_points(self.features.fold * root * clenshaw(step, half, self.interval, modes))

        return torch.cat([block(min(BLOCK, number - start)) for start in range(0, max(1, number), BLOCK)], dim=-1)

    def _chebyshev(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Of a root, which need not be smooth."""
        return self.series.chebyshev(self.interval, max(0.1 * self.tol, ROOT_TOL[self.dtype]), function).to(self.weights)

    def _step(self, modes: Tensor) -> Tensor:
        """T B on the kept modes: to the uniform grid, times 1/d, and back."""
        return toeplitz_product(self.symbol, self.weights * modes)

    # Structure

    def structure(self) -> Structure:
        nodes = nodes_of(self.graph.points.detach(), torch.arange(self.graph.num_nodes))
        nodes = nodes.following(nodes.points, self.scales[0])
        products = replace(self.products(), close=self._close)
        return self.structure_at(products, nodes, torch.ones((), dtype=self.dtype))

    def structure_at(self, products: Products, inputs: Inputs, scale: Tensor) -> Structure:
        definite = self.graph.positive_definite and self.asymmetry is None and float(scale.detach()) > 0
        if not definite or inputs.points.requires_grad or self.features.reached(inputs.points) is not None:
            return products
        weighed = scale.sqrt() * inputs.scale
        identity = scale.double() * self.identity.double().squeeze()
        return Modes(
            **vars(products), waves=self.waves, points=inputs.points, keys=inputs.keys, scale=weighed, identity=identity
        )

    @property
    def waves(self) -> Waves:
        """The prior of the kernel among its modes."""
        features = self.features
        return Waves(
            modes=lambda: features.coordinates,
            weights=self.weights,
            symbol=self.symbol,
            coefficients=self.coefficients,
            interval=self.interval,
            tol=features.tol,
            frame=features.frame,
            transform=lambda points, stretch: features.transform(points, stretch=stretch, precise=True),
        )

    def _close(self, noise: Tensor) -> LowRank | None:
        return self._control.kernel.add_diagonal(noise).structure() if self._control.helps(self, float(noise.min())) else None

    # The diagonal

    _scatter = 0.0  # mean standard error of the last estimate, over its mean

    @cached_property
    def _control(self) -> LandmarkApproximation:
        return LandmarkApproximation(self.graph, self.series)

    def _diagonal(self) -> Tensor:
        if self.graph.num_nodes <= EXACT_DIAGONAL:
            return super()._diagonal()
        estimate, error = estimated_diagonal(self, self.landmark_approximation())
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
        return estimated_diagonal(self, self.landmark_approximation())[1]

    def landmark_approximation(self) -> LowRankPlusDiagonal | None:
        return self._control.kernel if self._control.exists else None

    # Roots: polynomials of the square root of g

    def _of_function(self, function: Any) -> LinearOperator:
        """The same matrix with another function of the spectrum in place of g."""

        def value(x: Tensor) -> Tensor:
            return function(self.series(x))

        def remainder(x: Tensor) -> Tensor:
            # (F(x) - F(0)) / x; near zero by its derivative, where F = sqrt(g) or its inverse is smooth.
            slope = (value(torch.full_like(x, 1e-4)) - value(torch.full_like(x, -1e-4))) / 2e-4
            small = x.abs() < 1e-7
            return torch.where(small, slope, (value(x) - value(torch.zeros_like(x))) / x.masked_fill(small, 1))

        identity = value(torch.zeros(1, dtype=torch.float64)).to(self.weights)
        return self.__class__(self.weights, self.symbol, self.scales, identity, self._chebyshev(remainder), **self._kwargs)

    @cached(name="root_decomposition")
    def root_decomposition(self, method: str | None = None) -> LinearOperator:
        self.check_symmetric()
        return RootLinearOperator(self._of_function(torch.sqrt))

    @cached(name="root_inv_decomposition")
    def root_inv_decomposition(
        self, initial_vectors: Tensor | None = None, test_vectors: Tensor | None = None, method: str | None = None
    ) -> LinearOperator:
        return RootLinearOperator(self._of_function(torch.rsqrt))


def grid_kernel(features: FourierGrid, series: Series) -> GridKernelLinearOperator:
    """The collapsed kernel of a Fourier grid."""
    features = features.trimmed
    graph = features.graph
    log_degree = features.log_degree()
    low, high = graph.spectrum
    if graph.normalization is None:
        high = math.exp(float(log_degree.detach().max()))
        low = -high if low < 0 else 0.0
    dtype = graph.points.dtype
    series.check_spectrum((low, high), psd=graph.normalization != "random_walk", dtype=dtype)
    # The error of the grid may carry an eigenvalue out of the interval by about the tolerance.
    slack = 10 * features.tol * high
    interval = (low - slack if low < 0 else low, high + slack)
    series.check_spectrum(interval, psd=False, dtype=dtype)
    scales = torch.stack(graph.degree_scales(log_degree, features.log_density()))
    # The symbol is the sum of 1/d over the points, limited to differences of kept modes, on a uniform grid.
    generator = features.transform(graph.points, stretch=2).to_modes(scales.prod(0).unsqueeze(-1))
    symbol = symbol_of(generator, padded_grid(features.half_widths))
    weights = features.mode_weights
    identity = series.coefficients(1).to(weights)
    coefficients = series.chebyshev(interval, 0.1 * features.tol, series.remainder).to(weights)
    options: dict[str, Any] = {"features": features, "series": series, "interval": interval}
    return GridKernelLinearOperator(weights, symbol, scales, identity, coefficients, **options)
