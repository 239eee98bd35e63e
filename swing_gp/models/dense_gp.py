r"""A Gaussian process with a trend by dense algebra: restricted likelihood, predictions, and values that are left out.

With C the noisy covariance of the n observations, H a basis of the trend with a flat prior on its coefficients, and

.. math:: P = C^{-1} - C^{-1} H (H^\top C^{-1} H)^{-1} H^\top C^{-1} ,

the restricted log-likelihood of a target y (Harville, 1974) is, up to a constant,
:math:`-\frac12 y^\top P y - \frac12 \log |C| - \frac12 \log |H^\top C^{-1} H|`, its derivative in C is
:math:`-\frac12 (P - P y\, y^\top P)`, and if a set of values is left out, trend and all, they are missed by

.. math:: y_S - \mathrm{E}[y_S \mid \text{the others}] = [P_{SS}]^{-1} [P y]_S

with the covariance :math:`[P_{SS}]^{-1}`, noise included. So every fold comes from one factor.

>>> x = torch.linspace(0, 1, 6, dtype=torch.float64).unsqueeze(-1)
>>> gp = DenseGP(torch.exp(-torch.cdist(x, x)) + 0.1 * torch.eye(6).double(), torch.ones(6, 1).double(), x)
>>> gp.left_out(torch.tensor([5]))[0].round(decimals=3)          # predicted by about 0.68, having been 1
tensor([[0.3190]], dtype=torch.float64)
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from swing_gp.gp.trend import Trend, independent, line_through, untold
from swing_gp.linalg.cholesky import cholesky_with_jitter

# The precision of a trend of which others say nothing, in units of that of the values: next to none.
UNTOLD = 1e-6


class DenseGP:
    """Observations of k targets with one covariance.

    :param covariance: C, (n, n), float64, noise included.
    :param basis: H, (n, p), of full rank.
    :param values: the targets, (n, k).
    """

    def __init__(self, covariance: Tensor, basis: Tensor, values: Tensor) -> None:
        self.basis, self.values = basis, values
        self.factor = cholesky_with_jitter(covariance)
        line = line_through(basis, values)
        white = torch.linalg.solve_triangular(self.factor, torch.cat([basis, values - basis @ line], -1), upper=False)
        self._of_basis, of_values = white.split([basis.shape[1], values.shape[1]], -1)
        trend = Trend.whitened(self._of_basis, of_values)
        self._orthogonal = self._of_basis @ trend.root
        self._left = of_values - self._orthogonal @ (self._orthogonal.mT @ of_values)
        self.trend = replace(trend, coefficients=trend.coefficients + line)

    @cached_property
    def weights(self) -> Tensor:  # (n, k)
        """P y."""
        return torch.linalg.solve_triangular(self.factor.mT, self._left, upper=True)

    @cached_property
    def projected_inverse(self) -> Tensor:  # (n, n)
        """P."""
        solved = torch.linalg.solve_triangular(self.factor.mT, self._orthogonal, upper=True)
        return torch.cholesky_inverse(self.factor).addmm_(solved, solved.mT, alpha=-1)

    def log_likelihood(self) -> Tensor:
        """Restricted, of all targets together."""
        size, number = self._left.shape
        logs = self.factor.diagonal().log().sum() + 0.5 * self.trend.logdet
        return -0.5 * self._left.square().sum() - number * (logs + 0.5 * (size - self.trend.number) * math.log(2 * math.pi))

    def slope(self) -> Tensor:  # (n, n)
        """The derivative of the log-likelihood in C."""
        return torch.addmm(self.projected_inverse, self.weights, self.weights.mT, alpha=0.5, beta=-0.5 * self.values.shape[1])

    def left_out(self, rows: Tensor) -> tuple[Tensor, Tensor]:  # (h,) -> (h, k), (h,)
        """What is missed of the values of some rows if all others predict them, and its variances, with noise. A trend of which
        the others say nothing is zero."""
        own, lost = self.projected_inverse[rows][:, rows], untold(self._orthonormal, rows)
        covariance = torch.linalg.inv(own + UNTOLD * own.diagonal().mean() * lost @ lost.mT)
        return covariance @ self.weights[rows] + lost @ (lost.mT @ self.values[rows]), covariance.diagonal()

    @cached_property
    def _orthonormal(self) -> Tensor:  # (n, r)
        return independent(self.basis)

    def predict(self, cross: Tensor, basis: Tensor, prior: Tensor) -> tuple[Tensor, Tensor]:
        """Means and variances of the function, or covariances.

        :param cross: covariances with the observations, (n, m).
        :param basis: of the trend there, (m, p).
        :param prior: variances, (m,), or covariances, (m, m).
        """
        white = torch.linalg.solve_triangular(self.factor, cross, upper=False)
        rest = basis - white.mT @ self._of_basis  # what the observations do not say of the trend
        mean = self.mean(cross, basis)
        if prior.dim() == 2:
            missing = rest @ self.trend.root
            return mean, prior - white.mT @ white + missing @ missing.mT
        return mean, (prior - white.square().sum(0) + self.trend.variance(rest)).clamp_min(0)

    def mean(self, cross: Tensor, basis: Tensor) -> Tensor:  # (n, m), (m, p) -> (m, k)
        """Means alone, for a matrix product."""
        return cross.mT @ self.weights + basis @ self.trend.coefficients
