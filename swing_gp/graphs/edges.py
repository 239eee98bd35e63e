r"""Edge functions, the weights of a graph as a function of differences: :math:`w_{ij} = f(p_i - p_j)` with :math:`f(0) = 1`.

An edge function is radial in the scaled difference :math:`z / \ell`, where the lengthscale :math:`\ell` is one number or
one per dimension. Its spectral density :math:`S` integrates to one and uses angular frequencies,

.. math:: f(z) = \int S(\omega) \cos(\omega^\top z) \, d\omega .

>>> import torch
>>> edge = Gaussian(2.0)
>>> edge(torch.tensor([[2.0, 0.0]]))
tensor([0.6065])
>>> edge.tempered(0.25).lengthscale          # f^4 is a Gaussian of half the lengthscale
tensor(1., dtype=torch.float64)
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod

import scipy.special
import torch
from torch import Tensor

from swing_gp.linalg.distances import distances, length, squared_distances
from swing_gp.linalg.ensembles import gaussian_ensemble
from swing_gp.utils.validation import as_parameter

# Largest |z|^2 / 2, z the distance to the centre in lengthscales, for Gaussian weights by expanded squares. Their rounding
# error is 1e-12 at this bound, and landmark features amplify it.
LARGEST_HALF = 5e3


class EdgeFunction(ABC):
    """A radial edge function of the scaled difference.

    :param lengthscale: one positive number, or a tensor (d,) with one entry per dimension; it may require gradients.
    """

    #: W is positive semi-definite for every point set, so the spectrum of the normalised graph lies in [0, 1].
    positive_definite = True
    #: The order p of the norm of the scaled difference; f is a function of this norm.
    norm = 2.0
    #: The dimension of the points if f is defined in one dimension only, else None.
    dim: int | None = None

    def __init__(self, lengthscale: float | Tensor) -> None:
        self.lengthscale = as_parameter("lengthscale", lengthscale, vector=True)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(lengthscale={self.lengthscale.detach().tolist()})"

    def parameters(self) -> tuple[Tensor, ...]:
        """Tensors that gradients flow to."""
        return (self.lengthscale,)

    def with_parameters(self, *parameters: Tensor) -> EdgeFunction:
        """Copy the edge function with other parameters, which are not checked."""
        other = copy.copy(self)
        (other.lengthscale,) = parameters
        return other

    def scaled(self, x: Tensor) -> Tensor:
        """Divide points by the lengthscale."""
        return x / self.lengthscale.to(x)

    def __call__(self, difference: Tensor) -> Tensor:  # (..., d) -> (...)
        """Weight of the edge between two points that differ by ``difference``."""
        return self.log_weight(difference).exp()

    def log_weight(self, difference: Tensor) -> Tensor:  # (..., d) -> (...)
        scaled = self.scaled(difference)
        return self.log_profile(length(scaled) if self.norm == 2.0 else scaled.norm(p=self.norm, dim=-1))

    def log_weights(self, x: Tensor, y: Tensor) -> Tensor:  # (n, d), (m, d) -> (n, m)
        """Logarithms of the weights between all pairs of two point sets."""
        return self.log_of_pairs(*self._centered(x, y))

    def log_of_pairs(self, x: Tensor, y: Tensor) -> Tensor:  # (*batch, n, d), (*batch, m, d) -> (*batch, n, m)
        """Logarithms of the weights between all pairs of points in units of the lengthscale."""
        return self.log_profile(distances(x, y))

    def _centered(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Scale points about a centre: a division far from zero loses digits."""
        center = y.detach().mean(0)
        return self.scaled(x - center), self.scaled(y - center)

    def weights(self, x: Tensor, y: Tensor) -> Tensor:  # (n, d), (m, d) -> (n, m)
        """Weights between all pairs of two point sets."""
        return self.log_weights(x, y).exp()

    def smooth_weights(self, x: Tensor, y: Tensor) -> Tensor:  # (n, d), (m, d) -> (n, m)
        """Pairwise weights at the cost of a matrix product, by expanded squares, if these are accurate for f."""
        return self.weights(x, y)

    @abstractmethod
    def log_profile(self, distance: Tensor) -> Tensor:
        """Logarithm of f at scaled distances, elementwise."""

    @abstractmethod
    def tempered(self, temperature: float) -> EdgeFunction:
        """Edge function f^(1/temperature), of the same family."""

    @abstractmethod
    def spectral_density(self, frequency: Tensor) -> Tensor:  # (..., d) -> (...)
        """Spectral density at angular frequencies."""

    @abstractmethod
    def reach(self, eps: float) -> float:
        r"""Distance, in lengthscales, beyond which :math:`|f|` stays below ``eps``."""

    @abstractmethod
    def band(self, eps: float, dim: int) -> float:
        """Frequency, in inverse lengthscales, above which lies the share eps^2 of the integral of S^2 over R^dim.

        By Parseval, omitting these frequencies is a relative root-mean-square error of ``eps``.
        """

    @abstractmethod
    def cutoff(self, eps: float, dim: int) -> float:
        """Distance, in lengthscales, beyond which lies the share ``eps`` of the integral of f over R^dim."""

    @abstractmethod
    def sample_frequencies(self, number: int, dim: int, *, generator: torch.Generator) -> Tensor:
        """Draw frequencies, (number, dim), float64, from the spectral density *at lengthscale one*.

        They multiply points scaled by the lengthscale, so that gradients reach the lengthscale at fixed draws.
        """

    def _volume(self, frequency: Tensor) -> Tensor:  # (..., d) -> ()
        """Product of the lengthscales over all dimensions, in the dtype of the frequencies."""
        return self.lengthscale.to(frequency).expand(frequency.shape[-1]).prod()


class SmoothEdge(EdgeFunction):
    """An edge function that is smooth in the square of the distance: it has second derivatives where points coincide."""

    @abstractmethod
    def log_of_square(self, square: Tensor) -> Tensor:
        """log f at the square of a scaled distance."""

    def log_profile(self, distance: Tensor) -> Tensor:
        return self.log_of_square(distance.square())

    def log_weight(self, difference: Tensor) -> Tensor:
        return self.log_of_square(self.scaled(difference).square().sum(-1))

    def log_of_pairs(self, x: Tensor, y: Tensor) -> Tensor:
        return self.log_of_square(squared_distances(x, y))


class Gaussian(SmoothEdge):
    r""":math:`f(z) = \exp(-|z/\ell|^2 / 2)`.

    The weights of the paper's mesh experiments, :math:`\exp(-|z|^2/\sigma^2)`, are ``Gaussian(sigma / sqrt(2))``.
    """

    def log_of_square(self, square: Tensor) -> Tensor:
        return square.mul(-0.5)

    def smooth_weights(self, x: Tensor, y: Tensor) -> Tensor:
        one, two = self._centered(x, y)
        halves = [0.5 * z.square().sum(-1) for z in (one, two)]
        if float(torch.cat(halves).detach().max()) > LARGEST_HALF:
            return self.weights(x, y)
        # In place: memory traffic dominates the cost.
        return torch.addmm(-halves[1], one, two.mT).sub_(halves[0].unsqueeze(-1)).clamp_max_(0).exp_()

    def tempered(self, temperature: float) -> Gaussian:
        return Gaussian(self.lengthscale * math.sqrt(temperature))

    def spectral_density(self, frequency: Tensor) -> Tensor:
        dim = frequency.shape[-1]
        scaled = frequency * self.lengthscale.to(frequency)
        constant = self._volume(frequency) / (2 * math.pi) ** (dim / 2)
        return constant * scaled.square().sum(-1).mul(-0.5).exp()

    def sample_frequencies(self, number: int, dim: int, *, generator: torch.Generator) -> Tensor:
        return gaussian_ensemble(number, dim, ensemble="orthogonal", generator=generator)

    def reach(self, eps: float) -> float:
        return math.sqrt(2 * math.log(1 / eps))

    def band(self, eps: float, dim: int) -> float:
        return math.sqrt(scipy.special.gammainccinv(dim / 2, eps**2))

    def cutoff(self, eps: float, dim: int) -> float:
        return math.sqrt(2 * scipy.special.gammainccinv(dim / 2, eps))


class Laplace(EdgeFunction):
    r""":math:`f(z) = \exp(-|z/\ell|_2)`, with a kink at the origin and a Cauchy spectral density.

    The gradient in two points that coincide is undefined; zero is returned for such a pair.
    """

    def log_profile(self, distance: Tensor) -> Tensor:
        return -distance

    def tempered(self, temperature: float) -> Laplace:
        return type(self)(self.lengthscale * temperature)

    def spectral_density(self, frequency: Tensor) -> Tensor:
        dim = frequency.shape[-1]
        scaled = frequency * self.lengthscale.to(frequency)
        half = (dim + 1) / 2
        constant = self._volume(frequency) * math.exp(math.lgamma(half) - half * math.log(math.pi))
        return constant * (1 + scaled.square().sum(-1)).pow(-half)

    def sample_frequencies(self, number: int, dim: int, *, generator: torch.Generator) -> Tensor:
        # Multivariate Cauchy: a normal vector over an independent normal number.
        normal = gaussian_ensemble(number, dim, ensemble="orthogonal", generator=generator)
        divisor = torch.randn(number, 1, dtype=torch.float64, generator=generator, device=generator.device)
        return normal / divisor.abs().to(normal.device)

    def reach(self, eps: float) -> float:
        return math.log(1 / eps)

    def band(self, eps: float, dim: int) -> float:
        # S^2 falls like (1 + |omega|^2)^-(dim + 1): a beta law in |omega|^2 / (1 + |omega|^2).
        beta = scipy.special.betainccinv(dim / 2, dim / 2 + 1, eps**2)
        return math.sqrt(beta / (1 - beta))

    def cutoff(self, eps: float, dim: int) -> float:
        return float(scipy.special.gammainccinv(dim, eps))
