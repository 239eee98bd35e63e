r"""Classification as regression with known noise (Milios et al., 2018): one Gaussian process for each class, in closed form.

A label is seen as a draw from a categorical law with Dirichlet prior: its posterior has parameters
:math:`\alpha_c = \alpha_0 + 1` for the class that was seen and :math:`\alpha_0` for all others. A Dirichlet law is a normalised
vector of gamma variables, each of which is nearly log-normal,

.. math:: \log \gamma_c \approx N(\log \alpha_c - \sigma_c^2 / 2,\ \sigma_c^2), \qquad \sigma_c^2 = \log(1 + 1 / \alpha_c) ,

so that each label is one observation of every latent function :math:`f_c`, with known noise. Probabilities are
:math:`\mathrm{E}\, \mathrm{softmax}(f)`. GPyTorch's ``DirichletClassificationLikelihood`` has the same targets.

The classes share the kernel; each has a constant mean of its own, by generalised least squares.

>>> targets, noise = dirichlet_targets(torch.tensor([0, 1]), 2, 0.01)
>>> targets.round(decimals=2), noise.round(decimals=2)
(tensor([[-0.3300, -6.9100],
        [-6.9100, -0.3300]], dtype=torch.float64), tensor([[0.6900, 4.6200],
        [4.6200, 0.6900]], dtype=torch.float64))
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

# Draws of the latent functions that probabilities are means over.
DRAWS = 512


def dirichlet_targets(labels: Tensor, num_classes: int, alpha: float) -> tuple[Tensor, Tensor]:  # (n,) -> (C, n), (C, n)
    r"""What the latent function of every class is observed as, and the variance of the noise.

    :param labels: classes as numbers from 0.
    :param alpha: :math:`\alpha_0`.
    """
    seen = torch.nn.functional.one_hot(labels, num_classes).double().mT
    noise = torch.log1p(1 / (seen + alpha))
    return torch.log(seen + alpha) - 0.5 * noise, noise


class DirichletGP(torch.nn.Module):
    """Latent Gaussian processes of several classes with one kernel.

    :param kernel: a GPyTorch kernel, with its variance.
    :param x: inputs, (n, d).
    :param labels: classes as numbers from 0, (n,).
    """

    def __init__(self, kernel: Any, x: Tensor, labels: Tensor, num_classes: int, alpha: float) -> None:
        super().__init__()
        self.kernel, self.x, self.labels, self.alpha = kernel, x, labels, alpha
        self.targets, self.noise = dirichlet_targets(labels, num_classes, alpha)
        self._fitted: tuple[Tensor, Tensor, Tensor] | None = None

    def _whitened(self, covariance: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # (C, n, n), (C, n, 1), (C, n, 1)
        """Cholesky factors of the noisy covariances, and ones and targets divided by them."""
        factor = torch.linalg.cholesky(covariance + torch.diag_embed(self.noise))
        columns = torch.stack([torch.ones_like(self.targets), self.targets], -1)
        ones, values = torch.linalg.solve_triangular(factor, columns, upper=False).split(1, -1)
        return factor, ones, values

    def log_likelihood(self) -> Tensor:
        """The log marginal likelihood of all targets, with the best constants."""
        factor, ones, values = self._whitened(self.kernel(self.x).to_dense())
        left = values.square().sum() - ((ones * values).sum(-2).square() / ones.square().sum(-2)).sum()
        logs = factor.diagonal(dim1=-2, dim2=-1).log().sum()
        return -0.5 * left - logs - 0.5 * values.numel() * math.log(2 * math.pi)

    def loss(self) -> Tensor:
        """The negative log posterior of the hyper-parameters, per label."""
        priors = sum(prior.log_prob(closure(module)).sum() for _, module, prior, closure, _ in self.kernel.named_priors())
        return -(self.log_likelihood() + priors) / len(self.x)

    @torch.no_grad()
    def constants(self) -> Tensor:  # (2, C)
        """The constant means of the classes, and their variances."""
        _, ones, values = self._whitened(self.kernel(self.x).to_dense())
        information = ones.square().sum(-2)
        return torch.stack([(ones * values).sum(-2) / information, 1 / information]).squeeze(-1)

    @torch.no_grad()
    def leave_one_out(self) -> tuple[Tensor, Tensor]:  # (n, C), (n, C)
        """Means and variances of the latent functions at every input, without its own label."""
        factor, ones, _ = self._whitened(self.kernel(self.x).to_dense())
        # With P what is left of the inverse after the constant, the others predict y_i - [P y]_i / P_ii.
        solved = torch.linalg.solve_triangular(factor.mT, ones, upper=True)
        left = torch.cholesky_inverse(factor) - solved @ solved.mT / ones.square().sum(-2, keepdim=True)
        own = left.diagonal(dim1=-2, dim2=-1)
        mean = self.targets - (left @ self.targets.unsqueeze(-1)).squeeze(-1) / own
        return mean.mT, (1 / own - self.noise).mT.clamp_min(0)

    def left_out_losses(self, seed: int) -> Tensor:  # (n,)
        """The negative log-probability of every label from all others."""
        chances = expected_softmax(*self.leave_one_out(), seed=seed).gather(1, self.labels.unsqueeze(1))
        return -chances.squeeze(1).clamp_min(1e-300).log()

    @torch.no_grad()
    def latent(self, x: Tensor) -> tuple[Tensor, Tensor]:  # (m, d) -> (m, C), (m, C)
        """Means and variances of the latent functions. The kernel must not change between two calls."""
        if self._fitted is None:
            self._fitted = self._whitened(self.kernel(self.x).to_dense())
        factor, ones, values = self._fitted
        cross = torch.linalg.solve_triangular(
            factor, self.kernel(self.x, x).to_dense().expand(len(factor), -1, -1), upper=False
        )
        weight = ones.square().sum(-2)  # (C, 1): one over the variance of a constant
        constant = (ones * values).sum(-2) / weight
        missing = 1 - (ones * cross).sum(-2)
        mean = (values * cross).sum(-2) + missing * constant
        variance = self.kernel(x, diag=True) - cross.square().sum(-2) + missing.square() / weight
        return mean.mT, variance.mT.clamp_min(0)

    @torch.no_grad()
    def sample(self, x: Tensor, number: int, generator: torch.Generator) -> Tensor:  # (m, d) -> (m, C, number)
        """Latent functions from the posterior, the trend's constants included, by dense algebra."""
        mean, _ = self.latent(x)
        assert self._fitted is not None
        factor, ones, _ = self._fitted
        cross, prior = self.kernel(self.x, x).to_dense(), self.kernel(x).to_dense()
        draws = []
        for each, one in zip(factor, ones, strict=True):  # one class after the other: (m, m) at a time
            white = torch.linalg.solve_triangular(each, cross, upper=False)
            missing = 1 - one.mT @ white  # (1, m)
            covariance = prior - white.mT @ white + missing.mT @ missing / one.square().sum()
            values, vectors = torch.linalg.eigh(covariance)
            normal = torch.randn(len(x), number, generator=generator, dtype=torch.float64)
            draws.append((vectors * values.clamp_min(0).sqrt()) @ normal)
        return mean.unsqueeze(-1) + torch.stack(draws, 1)


def expected_softmax(mean: Tensor, variance: Tensor, *, seed: int) -> Tensor:  # (m, C), (m, C) -> (m, C)
    """The mean of the softmax of independent normal variables, over quasi-random draws that all rows share."""
    engine = torch.quasirandom.SobolEngine(mean.shape[-1], scramble=True, seed=seed)
    uniform = engine.draw(DRAWS, dtype=torch.float64).clamp(1e-12, 1 - 1e-12)
    normal = math.sqrt(2) * torch.erfinv(2 * uniform - 1)
    rows = max(1, 2**22 // normal.numel())
    parts = [
        (m.unsqueeze(1) + v.sqrt().unsqueeze(1) * normal).softmax(-1).mean(1)
        for m, v in zip(mean.split(rows), variance.split(rows), strict=True)
    ]
    return torch.cat(parts)
