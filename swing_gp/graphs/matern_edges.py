r"""Matérn edge functions: the covariances of plain Gaussian processes, in the convention of GPyTorch.

With the smoothness :math:`\nu = m + 1/2` and :math:`s = \sqrt{2 \nu}\, |z / \ell|`,

======================  ======================================
``Matern12`` (Laplace)  :math:`f(z) = e^{-s}`
``Matern32``            :math:`f(z) = (1 + s)\, e^{-s}`
``Matern52``            :math:`f(z) = (1 + s + s^2/3)\, e^{-s}`
======================  ======================================

The spectral density is a multivariate t law with :math:`2 \nu` degrees of freedom, in every dimension d,

.. math:: S(\omega) = \frac{\Gamma(\nu + d/2)}{\Gamma(\nu)\, (2 \pi \nu)^{d/2}} \prod_i \ell_i
          \Bigl(1 + \frac{|\ell \omega|^2}{2 \nu}\Bigr)^{-\nu - d/2} .

A plain GP with a Matérn kernel is one step of the walk on the raw graph:

>>> import torch
>>> from swing_gp import ImplicitGraph, Matern32, OneStep, graph_kernel
>>> points = torch.tensor([[0.0], [1.0], [3.0]])
>>> graph_kernel(ImplicitGraph(points, Matern32(1.0), normalization=None), OneStep()).to_dense()
tensor([[1.0000, 0.4834, 0.0343],
        [0.4834, 1.0000, 0.1397],
        [0.0343, 0.1397, 1.0000]])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import scipy.optimize
import scipy.special
import torch
from torch import Tensor

from swing_gp.graphs.edges import EdgeFunction, Laplace, SmoothEdge
from swing_gp.linalg.ensembles import gaussian_ensemble


class Matern12(Laplace):
    r""":math:`f(z) = \exp(-|z/\ell|)`: :class:`~swing_gp.graphs.edges.Laplace` under its name as a covariance function."""


class _MaternEdge(SmoothEdge):
    r"""A polynomial in s times :math:`e^{-s}`.

    :cvar nu: the smoothness.
    :cvar terms: the coefficients of the polynomial, lowest order first.
    """

    nu: float
    terms: tuple[float, ...]

    def log_of_square(self, square: Tensor) -> Tensor:
        return _LogMatern.apply(square, self.nu, self.terms)

    def tempered(self, temperature: float) -> EdgeFunction:
        if temperature == 1:
            return self
        raise ValueError(
            f"A power of a {type(self).__name__} edge is no Matérn function, so walks cannot move on it; use Gaussian, "
            "Matern12 or walks=None."
        )

    def spectral_density(self, frequency: Tensor) -> Tensor:
        dim, twice = frequency.shape[-1], 2 * self.nu
        power = self.nu + dim / 2
        scaled = frequency * self.lengthscale.to(frequency)
        constant = math.exp(math.lgamma(power) - math.lgamma(self.nu) - dim / 2 * math.log(twice * math.pi))
        return constant * self._volume(frequency) * (1 + scaled.square().sum(-1) / twice).pow(-power)

    def sample_frequencies(self, number: int, dim: int, *, generator: torch.Generator) -> Tensor:
        # Multivariate t: a normal vector over the root of the mean of 2 nu squares of normal numbers.
        normal = gaussian_ensemble(number, dim, ensemble="orthogonal", generator=generator)
        degrees = round(2 * self.nu)
        others = torch.randn(number, degrees, dtype=torch.float64, generator=generator, device=generator.device)
        return normal / others.square().mean(-1, keepdim=True).sqrt()

    def reach(self, eps: float) -> float:
        def profile(s: float) -> float:
            return sum(c * s**k for k, c in enumerate(self.terms)) * math.exp(-s)

        return _falling_root(profile, eps) / math.sqrt(2 * self.nu)

    def band(self, eps: float, dim: int) -> float:
        # S^2 falls like (1 + t)^-(2 nu + dim) with t = |omega|^2 / (2 nu): a beta law in t / (1 + t).
        beta = scipy.special.betainccinv(dim / 2, 2 * self.nu + dim / 2, eps**2)
        return math.sqrt(2 * self.nu * beta / (1 - beta))

    def cutoff(self, eps: float, dim: int) -> float:
        # Every term of s^(dim - 1) f is a gamma law.
        masses = [coefficient * math.gamma(dim + k) for k, coefficient in enumerate(self.terms)]

        def tail(s: float) -> float:
            return sum(m * scipy.special.gammaincc(dim + k, s) for k, m in enumerate(masses)) / sum(masses)

        return _falling_root(tail, eps) / math.sqrt(2 * self.nu)


class _LogMatern(torch.autograd.Function):
    r"""The logarithm of a Matérn function of :math:`u = |z/\ell|^2`. With p the polynomial and :math:`s = \sqrt{2 \nu u}` its
    slope is :math:`\nu\,(p' - p)(s) / (s\, p(s))`, where s cancels, and autograd would divide by it."""

    @staticmethod
    def forward(ctx: Any, square: Tensor, nu: float, terms: tuple[float, ...]) -> Tensor:
        ctx.nu, ctx.terms = nu, terms
        ctx.save_for_backward(square)
        s = (2 * nu * square).sqrt_()
        return torch.log1p(s * _polynomial(terms[1:], s)).sub_(s)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (square,), nu, terms = ctx.saved_tensors, ctx.nu, ctx.terms
        same = square == 0
        s = (2 * nu * square.masked_fill(same, 1)).sqrt().masked_fill(same, 0)
        rising = [(k + 1) * term for k, term in enumerate(terms[1:])] + [0.0]
        left = [one - two for one, two in zip(rising, terms, strict=True)][1:]
        return grad * (nu * _polynomial(left, s) / _polynomial(terms, s)), None, None


def _polynomial(coefficients: Sequence[float], s: Tensor) -> Tensor:
    result = torch.full_like(s, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        result = result * s + coefficient
    return result


class Matern32(_MaternEdge):
    r""":math:`f(z) = (1 + s)\, e^{-s}` with :math:`s = \sqrt 3\, |z/\ell|`: once differentiable sample paths."""

    nu, terms = 1.5, (1.0, 1.0)


class Matern52(_MaternEdge):
    r""":math:`f(z) = (1 + s + s^2/3)\, e^{-s}` with :math:`s = \sqrt 5\, |z/\ell|`: twice differentiable sample paths."""

    nu, terms = 2.5, (1.0, 1.0, 1 / 3)


def _falling_root(function: Callable[[float], float], value: float) -> float:
    """Root s >= 0 of function(s) = value, for a function that falls from one to zero; 0 if the value is above one."""
    if value >= 1:
        return 0.0
    high = 1.0
    while function(high) > value:
        high *= 2
    return float(scipy.optimize.brentq(lambda s: function(s) - value, 0.0, high, xtol=1e-12))
