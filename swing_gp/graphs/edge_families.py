r"""More edge functions: balls (epsilon-neighbourhoods), and edge functions given by their spectral densities.

The indicator of a ball has no random features: its Fourier transform is not absolutely integrable. ``Ball(radius,
softness)`` convolves it with a narrow Gaussian (a factor :math:`e^{-s^2 |\omega|^2/2}` on the transform), which is smooth,
converges, and tends to the epsilon-graph as the softness vanishes; a hard ball is exact as a neighbour list. Both
transforms change sign, so W is not positive semi-definite.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import scipy.interpolate
import scipy.special
import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction, FunctionCtx

from swing_gp.graphs.edges import EdgeFunction
from swing_gp.graphs.radial import FREQUENCIES, RadialTransform
from swing_gp.linalg.second_order import refused
from swing_gp.utils.validation import as_number, as_parameter, check_choice

# Distances of the table of a SpectralEdge, in lengthscales: even below the shortest, geometric above it, up to the end, beyond
# which f counts as zero.
SHORTEST_DISTANCE, TABLE_END = 1e-6, 300.0
# Rounding error of the table, absolute (f(0) = 1): smaller values count as zero.
TABLE_ERROR = 1e-12


class Ball(EdgeFunction):
    r"""The epsilon-neighbourhood: weight one within ``radius``, zero beyond, with a boundary blurred by ``softness``.

    The soft ball is the indicator convolved with a Gaussian of standard deviation ``softness`` and divided by its value at
    zero. A gradient in the radius scales the softness with it; that of a hard ball is zero.

    :param radius: the radius, one positive number.
    :param softness: the standard deviation of the blur, in the units of the radius; 0 for the hard ball
        (``features="neighbors"`` or ``"pairwise"``).
    :param norm: ``"l2"``, ``"linf"`` (the box; what the paper's product of sines transforms to), or, hard only, ``"l1"``.

    >>> import torch
    >>> Ball(1.0)(torch.tensor([[0.5, 0.5], [0.9, 0.9]]))
    tensor([1., 0.])
    """

    positive_definite = False

    def __init__(self, radius: float | Tensor, softness: float = 0.0, norm: str = "l2") -> None:
        super().__init__(as_parameter("radius", radius, vector=True))
        if self.lengthscale.dim() != 0:
            raise ValueError("radius must be a single number; scale the points for an ellipsoid.")
        check_choice("norm", norm, ("l1", "l2", "linf"))
        if not 0 <= as_number("softness", softness) < math.inf:
            raise ValueError(f"softness must be non-negative and finite, got {softness!r}.")
        if softness > 0 and norm == "l1":
            raise ValueError("norm='l1' has no soft form; use softness=0 with features='neighbors', or another norm.")
        self.norm_name = norm
        self.norm = {"l1": 1.0, "l2": 2.0, "linf": math.inf}[norm]
        self.softness = softness / self.lengthscale.item()  # in units of the radius

    def __repr__(self) -> str:
        radius = self.lengthscale.item()
        return f"Ball(radius={radius:g}, softness={self.softness * radius:g}, norm={self.norm_name!r})"

    def log_profile(self, distance: Tensor) -> Tensor:
        # Points at the radius belong to the ball, whatever the rounding of their distance.
        inside = distance <= 1 + 4 * torch.finfo(distance.dtype).eps
        return torch.where(inside, 0 * distance, torch.full_like(distance, -math.inf))  # the product keeps a gradient, zero

    def log_weight(self, difference: Tensor) -> Tensor:
        if self.softness == 0:
            return super().log_weight(difference)
        scaled = self.scaled(difference)
        if self.norm == math.inf:
            width = self.softness * math.sqrt(2)
            sides = torch.erf((scaled + 1) / width) - torch.erf((scaled - 1) / width)
            positive = sides > 0  # the logarithm of zero has no gradient
            logs = torch.where(positive, sides, torch.ones_like(sides)).log() - math.log(2 * math.erf(1 / width))
            return torch.where(positive, logs, torch.full_like(logs, -math.inf)).sum(-1)
        squared, dim = scaled.square().sum(-1) / self.softness**2, difference.shape[-1]
        # The probability that a Gaussian around z lies in the ball is a non-central chi-squared law. Its derivative is half of
        # the difference of two such laws.
        centrality = squared.detach().double().cpu().numpy()
        values, next_values = (scipy.special.chndtr(self.softness**-2, degrees, centrality) for degrees in (dim, dim + 2))
        return _log_with_slopes(squared, values, 0.5 * (next_values - values)) - math.log(self._peak(dim))

    def log_weights(self, x: Tensor, y: Tensor) -> Tensor:
        return self.log_weight(x.unsqueeze(-2) - y.unsqueeze(-3))

    def _peak(self, dim: int) -> float:
        """Value of the blurred indicator at zero, the divisor of f."""
        if self.norm == math.inf:
            return math.erf(1 / (self.softness * math.sqrt(2))) ** dim
        return float(scipy.special.chndtr(self.softness**-2, dim, 0.0))

    def tempered(self, temperature: float) -> Ball:
        if self.softness == 0:
            return self  # an indicator is its own power
        raise ValueError("A soft ball has no tempered copy, so walks cannot move on it; use softness=0, or walks=None.")

    def spectral_density(self, frequency: Tensor) -> Tensor:
        self._check_soft()
        dim = frequency.shape[-1]
        radius = self.lengthscale.to(frequency)
        scaled = frequency * radius
        blur = (-0.5 * self.softness**2 * scaled.square().sum(-1)).exp()
        if self.norm == math.inf:
            transform = (radius / math.pi * torch.sinc(scaled / math.pi)).prod(-1)
        else:
            transform = (radius / (2 * math.pi)) ** dim * _ball_transform(scaled.norm(dim=-1), dim)
        return transform * blur / self._peak(dim)

    def reach(self, eps: float) -> float:
        # In units of the norm of the ball: each coordinate of a box has the reach of one dimension.
        return 1 + self.softness * math.sqrt(2 * math.log(1 / eps))

    def band(self, eps: float, dim: int) -> float:
        self._check_soft()
        return math.sqrt(scipy.special.gammainccinv(dim / 2, eps**2)) / self.softness

    def cutoff(self, eps: float, dim: int) -> float:
        # The slack keeps the pairs at the radius, whatever their rounding; weights beyond are zero.
        return 1 + 1e-6 if self.softness == 0 else self.reach(eps)

    def sample_frequencies(self, number: int, dim: int, *, generator: torch.Generator) -> Tensor:
        raise ValueError(
            f"{self!r} has a spectral density of both signs, which cannot be sampled; use features='grid' or 'neighbors'."
        )

    def _check_soft(self) -> None:
        """Refuse a hard ball."""
        if self.softness == 0:
            raise ValueError(
                "A hard ball has no integrable spectrum; use features='neighbors', which is exact, or a softness above 0."
            )


def _ball_transform(x: Tensor, dim: int) -> Tensor:
    """Fourier transform of the unit ball at |omega| = x: (2 pi / x)^(d/2) J_{d/2}(x)."""
    small = x < 1e-4
    safe = torch.where(small, torch.ones_like(x), x)
    if dim == 1:
        return 2 * torch.sinc(x / math.pi)
    if dim == 2:  # SciPy: the Bessel functions of torch have errors of 5e-7 between 5 and 8
        detached = safe.detach().cpu().numpy()
        value = scipy.special.j1(detached)
        far = 2 * math.pi / safe * _WithSlopes.apply(safe, value, scipy.special.j0(detached) - value / detached)
        return torch.where(small, math.pi * (1 - x.square() / 8), far)
    if dim == 3:
        far = 4 * math.pi * (safe.sin() - safe * safe.cos()) / safe**3
        return torch.where(small, 4 * math.pi / 3 * (1 - x.square() / 10), far)
    raise ValueError(f"The spectrum of a soft ball is known in 1, 2 and 3 dimensions, got {dim}; use features='neighbors'.")


ONE_SLOPE = (
    "Second derivatives of a SpectralEdge and of a soft Ball are not known, which are tables and special functions. Use "
    "another edge function, or differences of gradients."
)


class _WithSlopes(torch.autograd.Function):
    """A function of x with given values and first derivatives, computed outside torch."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, values: np.ndarray, slopes: np.ndarray) -> Tensor:
        ctx.save_for_backward(x, torch.as_tensor(slopes).to(x))
        return torch.as_tensor(values).to(x)

    @staticmethod
    def backward(ctx: BackwardCFunction, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, slopes = list(ctx.saved_tensors)
        return *refused(ONE_SLOPE, (grad * slopes,), (x,)), None, None


def _log_with_slopes(x: Tensor, values: np.ndarray, slopes: np.ndarray) -> Tensor:
    """Logarithm of a function of x with given values and slopes; -inf, without a gradient, at values that are not positive."""
    positive = values > 0
    safe = np.where(positive, values, 1.0)
    return _WithSlopes.apply(x, np.where(positive, np.log(safe), -math.inf), np.where(positive, slopes / safe, 0.0))


class SpectralEdge(EdgeFunction):
    r"""A radial edge function given by its spectral density at lengthscale one.

    The edge function is the Hankel transform of the density, tabulated once, with an error of about 1e-12 for densities that
    are smooth in the logarithm of the frequency.

    :param density: a non-negative function of :math:`|\omega|`, tensor to tensor of the same shape, integrable in ``dim``
        dimensions. Its factor does not matter: f(0) = 1.
    :param dim: the dimension of the points: 1, 2 or 3.
    :param lengthscale: one positive number, or a tensor (d,) with one entry per dimension; it may require gradients.

    >>> import torch
    >>> edge = SpectralEdge(lambda w: torch.exp(-w**2 / 2), dim=2)           # a Gaussian, the long way round
    >>> float(edge(torch.tensor([1.0, 0.0]))).__round__(4)
    0.6065
    """

    dim: int

    def __init__(self, density: Callable[[Tensor], Tensor], *, dim: int, lengthscale: float | Tensor = 1.0) -> None:
        super().__init__(lengthscale)
        check_choice("dim", dim, (1, 2, 3))
        self.density, self.dim = density, dim
        if not callable(density):
            raise TypeError(f"density must be a function of frequencies, got {density!r}.")
        transform = RadialTransform(self._checked_density, dim)
        mass = transform.mass
        if mass[-100:].sum() > 1e-3 * mass.sum():
            raise ValueError(f"density does not fall off fast enough to be integrable in {dim} dimensions.")
        self._norm_constant = transform.total
        squares = (mass / FREQUENCIES**dim) ** 2 * FREQUENCIES**dim
        self._tail = np.cumsum(squares[::-1])[::-1] / squares.sum()
        self._cdf = np.cumsum(mass) / transform.total
        scale = np.linspace(0, np.log1p(TABLE_END / SHORTEST_DISTANCE), 3001)
        distances = SHORTEST_DISTANCE * np.expm1(scale)
        table = transform(distances)
        if table.min() < -1e-6:
            raise ValueError(
                f"density gives an edge function that is negative ({table.min():.2g} at {distances[table.argmin()]:.2g} "
                "lengthscales), and weights of a graph are not; use a density without a gap or an edge, such as a falling one."
            )
        self._table = scipy.interpolate.make_interp_spline(scale, table, k=5)
        self._profile = distances, table

    def _checked_density(self, frequencies: np.ndarray) -> np.ndarray:
        result = self.density(torch.from_numpy(frequencies))
        if not torch.is_tensor(result) or result.shape != frequencies.shape:
            raise TypeError("density must return a tensor with one value for every frequency of the tensor that it is given.")
        values = result.detach().numpy()
        if not (np.isfinite(values).all() and (values >= 0).all() and values.max() > 0):
            raise ValueError("density must be finite and non-negative; a signed density is not supported.")
        return values

    def __repr__(self) -> str:
        return f"SpectralEdge(dim={self.dim}, lengthscale={self.lengthscale.detach().tolist()})"

    def log_profile(self, distance: Tensor) -> Tensor:
        scaled = distance.detach().double().cpu().numpy()
        inside = scaled <= self._profile[0][-1]
        values, slopes = (np.where(inside, self._table(np.log1p(scaled / SHORTEST_DISTANCE), order), 0.0) for order in (0, 1))
        return _log_with_slopes(distance, values, slopes / (SHORTEST_DISTANCE + scaled))

    def spectral_density(self, frequency: Tensor) -> Tensor:
        scaled = frequency * self.lengthscale.to(frequency)
        return self._volume(frequency) * self.density(scaled.norm(dim=-1)) / self._norm_constant

    def tempered(self, temperature: float) -> EdgeFunction:
        raise ValueError("A power of a SpectralEdge has no known spectral density, so walks cannot move on it; use walks=None.")

    def reach(self, eps: float) -> float:
        distances, table = self._profile
        above = np.flatnonzero(np.abs(table) > max(eps, TABLE_ERROR))
        return float(distances[min(above[-1] + 1, len(distances) - 1)])

    def band(self, eps: float, dim: int) -> float:
        return float(FREQUENCIES[np.flatnonzero(self._tail > max(eps, 1e-12) ** 2)[-1]])

    def cutoff(self, eps: float, dim: int) -> float:
        distances, table = self._profile
        share = np.where(np.abs(table[1:]) > TABLE_ERROR, np.abs(table[1:]), 0.0) * distances[1:] ** dim
        tail = np.cumsum(share[::-1])[::-1] / share.sum()
        return float(distances[1:][np.flatnonzero(tail > eps)[-1]])

    def sample_frequencies(self, number: int, dim: int, *, generator: torch.Generator) -> Tensor:
        directions = torch.randn(number, dim, dtype=torch.float64, generator=generator, device=generator.device)
        uniform = torch.rand(number, dtype=torch.float64, generator=generator, device=generator.device).cpu().numpy()
        lengths = torch.from_numpy(np.interp(uniform, self._cdf, FREQUENCIES)).to(directions)
        return directions / directions.norm(dim=-1, keepdim=True) * lengths.unsqueeze(-1)
