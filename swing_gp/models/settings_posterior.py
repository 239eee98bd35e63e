r"""Deviations that know how uncertain settings are: a Gaussian process integrated over kernels, noise, amplitude and trend.

With few known values, or in wide gaps, many kernels explain what is known about as well, and differ in what they say of the
rest. Let s be a kernel with a noise ratio :math:`\sigma^2` (over the mean prior variance of the known nodes), H the basis of
the trend at the known nodes, Q an orthonormal basis of what is orthogonal to it, and :math:`z = Q^\top y` the m contrasts of
the values, which the trend does not enter. With :math:`S = Q^\top K Q + \sigma^2 I`, :math:`q = z^\top S^{-1} z`, and flat
priors of the trend and of the logarithm of the amplitude a,

.. math:: \log p(y \mid s) = -\tfrac12 \log\det S - \tfrac m2 \log q + \text{const}, \qquad
          \mathrm{E}\, a^2 = \frac q{m - 2} ,

where of three contrasts and fewer, whose amplitude has no mean square or hardly one, it is q. Posterior weights are the prior
ones times these. A prediction :math:`\mu`, of whatever settings, then misses the function by

.. math:: \mathrm{E}\,(f - \mu)^2 = \sum_s w_s \left( \mathrm{E}\, a_s^2\, v_s + (\mu_s - \mu)^2 \right)

in the mean square, with :math:`\mu_s` and :math:`v_s` those of universal kriging. One eigendecomposition of :math:`Q^\top K Q`
serves all noises of a kernel, and with its eigenvectors one product serves all of their predictions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from swing_gp.linalg.chunks import row_chunks

# Known values up to which settings are integrated over: an eigendecomposition then takes 0.2 seconds.
MOST_KNOWN = 600
# From how many known values on all kernels are tried on a sample of so many, and how many of the likeliest go on to all of
# them. What a sample says of kernels is less sharp, so that the likeliest are among these.
SAMPLE, LIKELIEST = 150, 16
# Noise variances over the mean prior variance of the known nodes, half a decade apart; the prior of their logarithm is normal,
# as wide as that which hyper-parameters are learnt with.
NOISES = tuple(10.0 ** (step / 2) for step in range(-12, 2))
NOISE_CENTER, NOISE_WIDTH = math.log(0.03), 3.0
# The share of the weight that predictions are made of; and the fewest kernels that this may take, more where products among
# nodes and known ones are below so many multiplications.
SHARE, FEWEST, WORK = 0.99, 4, 2**34
# Contrasts, over the largest value, and kernels, over their diagonal, that are zero but for rounding.
ROUNDING = 1e-13


class Alternative(Protocol):
    """A kernel on nodes that may be the right one."""

    @property
    def log_prior(self) -> float:
        """The logarithm of its prior weight, up to a constant that all alternatives share."""

    def with_log_prior(self, log_prior: float) -> Alternative:
        """The kernel with another prior weight."""

    def covariance(self, rows: Tensor, columns: Tensor) -> Tensor:  # (m,), (n,) -> (m, n)
        """Of some nodes with others, float64."""

    def variance(self, rows: Tensor) -> Tensor:  # (m,) -> (m,)
        """Prior variances of some nodes."""


class SettingsPosterior:
    """Deviations of predictions, with the settings integrated over.

    :param alternatives: kernels between the N nodes.
    :param known: ids of the known nodes, (n,).
    :param values: their values, (n, k); columns share their settings and have amplitudes of their own.
    :param basis: of the trend, at all nodes, (N, p).
    :param mean: the predictions, (N, k); None for the means of the mixture, which have the least deviations.
    :param noises: noise ratios; one is no choice.

    >>> from swing_gp.models.alternatives import alternatives_on_coordinates
    >>> from swing_gp.models.coordinates import CoordinateGP
    >>> x, known = torch.linspace(-2, 2, 9).double().unsqueeze(-1), torch.arange(0, 9, 2)
    >>> kernels = alternatives_on_coordinates(CoordinateGP(x, None, 1.5, "constant"))
    >>> found = SettingsPosterior(kernels, known, torch.sin(x[known]), torch.ones(9, 1).double(), torch.sin(x))
    >>> bool((found.std[1::2] > found.std[:-1:2]).all()), found.noise_std.shape
    (True, torch.Size([1]))
    """

    def __init__(
        self,
        alternatives: Sequence[Alternative],
        known: Tensor,
        values: Tensor,
        basis: Tensor,
        mean: Tensor | None = None,
        noises: Sequence[float] | Tensor = NOISES,
    ) -> None:
        self.alternatives, self.known, self.values = tuple(alternatives), known, values.double()
        self.basis, self._predictions = basis.double(), mean
        self.noises = torch.as_tensor(noises, dtype=torch.float64)
        self.contrasts = _Contrasts(self.basis[known], self.values)

    @cached_property
    def log_evidence(self) -> Tensor:  # (kernels, noises)
        """Logarithms of posterior weights, but for the prior of the noise, up to a constant."""
        found = torch.full((len(self.alternatives), len(self.noises)), -math.inf, dtype=torch.float64)
        for i in self._likely():
            found[i] = self._decomposed(self.alternatives[i]).log_evidence(self.noises) + self.alternatives[i].log_prior
        return found

    def _likely(self) -> list[int]:
        """Places of the kernels that are worth all values."""
        if len(self.known) <= SAMPLE or len(self.alternatives) <= LIKELIEST:
            return list(range(len(self.alternatives)))
        sample = torch.randperm(len(self.known), generator=torch.Generator().manual_seed(0))[:SAMPLE]
        few = SettingsPosterior(self.alternatives, self.known[sample], self.values[sample], self.basis, noises=self.noises)
        return few.weights.sum(1).topk(LIKELIEST).indices.tolist()

    @cached_property
    def weights(self) -> Tensor:  # (kernels, noises)
        """Posterior weights of settings; they sum to one."""
        prior = -0.5 * ((self.noises.log() - NOISE_CENTER) / NOISE_WIDTH).square()
        return (self.log_evidence + prior).flatten().softmax(0).reshape(self.log_evidence.shape)

    @torch.no_grad()
    def _decomposed(self, alternative: Alternative) -> _Decomposed:
        return _Decomposed(alternative, self.known, self.contrasts)

    @cached_property
    def _kept(self) -> list[tuple[_Decomposed, Tensor]]:
        """The likeliest kernels, with their posterior weights for every noise."""
        shares, order = self.weights.sum(1).sort(descending=True)
        most = max(FEWEST, WORK // (len(self.basis) * len(self.known) ** 2))
        number = min(most, int((shares.cumsum(0) < SHARE).sum()) + 1)
        chosen = order[:number].tolist()
        total = self.weights[chosen].sum()
        return [(self._decomposed(self.alternatives[i]), self.weights[i] / total) for i in chosen]

    @cached_property
    def mean(self) -> Tensor:  # (N, k)
        """The predictions."""
        if self._predictions is not None:
            return self._predictions
        return self._summed(lambda rows, weights, means, _: torch.einsum("s,msk->mk", weights, means)) * self.contrasts.largest

    @cached_property
    def std(self) -> Tensor:  # (N, k)
        """Deviations of the function from the predictions at all nodes: roots of mean squares."""
        predictions = self.mean.double() / self.contrasts.largest

        def squares(rows: slice, weights: Tensor, means: Tensor, variances: Tensor) -> Tensor:
            missed = (means - predictions[rows].unsqueeze(1)).square()
            return torch.einsum("s,msk->mk", weights, variances + missed)

        return self._summed(squares).sqrt() * self.contrasts.largest

    @torch.no_grad()
    def _summed(self, part: Callable[[slice, Tensor, Tensor, Tensor], Tensor]) -> Tensor:  # (N, k)
        """Sums over kernels, a block of nodes after the other.

        :param part: of a kernel at some nodes, (m, k), from their places, the weights of noises, (s,), and means and variances
            for each of these, (m, s, k), in units of the largest values.
        """
        every = torch.arange(len(self.basis))
        total = torch.zeros(len(every), self.values.shape[1], dtype=torch.float64)
        for kernel, weights in self._kept:
            amplitudes = kernel.amplitudes(self.noises)  # (s, k)
            for rows in row_chunks(len(every), max(4 * len(self.known), amplitudes.numel())):
                means, variances = kernel.predict(every[rows], self.basis, self.noises)
                total[rows] += part(rows, weights, means, variances.unsqueeze(-1) * amplitudes)
        return total

    @cached_property
    def noise_std(self) -> Tensor:  # (k,)
        """The deviation of the noise: the root of the mean of its variance."""
        variances = [weights @ (kernel.amplitudes(self.noises) * self.noises.unsqueeze(-1)) for kernel, weights in self._kept]
        return torch.stack(variances).sum(0).sqrt() * self.contrasts.largest


@dataclass(frozen=True)
class IntegratedPosterior:
    """A posterior with chosen settings, whose deviations are integrated over all of them.

    :ivar chosen: with means, (N, k), and variances for an amplitude of one, (N,).
    :ivar settings: that deviations are integrated over, around predictions of the chosen ones or of all.
    """

    chosen: Any
    settings: SettingsPosterior

    @property
    def mean(self) -> Tensor:  # (N, k)
        return self.settings.mean

    @property
    def variance(self) -> Tensor:  # (N,)
        """With the chosen settings, for an amplitude of one."""
        return self.chosen.variance

    @property
    def std(self) -> Tensor:  # (N, k)
        return self.settings.std

    @property
    def noise_std(self) -> Tensor:  # (k,)
        return self.settings.noise_std


class _Contrasts:
    """Known values without their trend, in units of the largest: squares neither overflow nor vanish.

    :ivar largest: the largest value of every column, (k,); one where all are zero.
    :ivar matrix: Q, (n, m).
    :ivar fit: coefficients of the trend, from values, by ordinary least squares, (p, n).
    :ivar line: these coefficients, (p, k).
    :ivar values: z in units of ``unit``, (m, k).
    :ivar unit: the root of the mean square of the contrasts of a column, (k,); zero where nothing but rounding is left.
    """

    def __init__(self, basis: Tensor, values: Tensor) -> None:  # (n, p), (n, k)
        vectors, sizes, _ = torch.linalg.svd(basis, full_matrices=True)
        self.matrix = vectors[:, int((sizes > ROUNDING * len(basis) * sizes.amax()).sum()) if sizes.numel() else 0 :]
        largest = values.abs().amax(0)
        self.largest = torch.where(largest > 0, largest, 1.0)
        self.fit = torch.linalg.pinv(basis)
        self.line, left = self.fit @ (values / self.largest), self.matrix.mT @ (values / self.largest)
        size = left.square().sum(0).div(max(1, len(left))).sqrt()
        varies = size > ROUNDING
        self.values = torch.where(varies, left / torch.where(varies, size, 1.0), 0.0)
        self.unit = torch.where(varies, size, 0.0)


class _Decomposed:
    """One kernel between known nodes, by its eigenvalues among contrasts."""

    def __init__(self, alternative: Alternative, known: Tensor, contrasts: _Contrasts) -> None:
        self.alternative, self.known, self.contrasts = alternative, known, contrasts
        covariance = alternative.covariance(known, known)
        self.scale = float(covariance.diagonal().mean())
        self.covariance = covariance / self.scale
        among = contrasts.matrix.mT @ self.covariance @ contrasts.matrix
        values, self.vectors = torch.linalg.eigh(0.5 * (among + among.mT))
        self.eigenvalues = values.clamp_min(ROUNDING)
        self.rotated = self.vectors.mT @ contrasts.values  # (m, k)

    def _spectrum(self, noises: Tensor) -> Tensor:  # (s,) -> (s, m)
        return self.eigenvalues + noises.unsqueeze(-1)

    def _squares(self, noises: Tensor) -> Tensor:  # (s,) -> (s, k)
        """q, in units of the contrasts."""
        return (1 / self._spectrum(noises)) @ self.rotated.square()

    def log_evidence(self, noises: Tensor) -> Tensor:  # (s,) -> (s,)
        """Of all columns that vary, together."""
        varies = self.contrasts.unit > 0
        squares = self._squares(noises)[:, varies]
        return -0.5 * (int(varies.sum()) * self._spectrum(noises).log().sum(-1) + len(self.rotated) * squares.log().sum(-1))

    def amplitudes(self, noises: Tensor) -> Tensor:  # (s,) -> (s, k)
        """Posterior means of squared amplitudes, in units of the largest values."""
        return self._squares(noises) / max(1, len(self.rotated) - 2) * self.contrasts.unit.square()

    def predict(self, rows: Tensor, basis: Tensor, noises: Tensor) -> tuple[Tensor, Tensor]:
        """Means at some nodes, (m, s, k), in units of the largest values, and variances for an amplitude of one, (m, s).

        It is universal kriging: predictions are of what a plain trend leaves, which no coefficients of the trend change.
        """
        told, trend = self.contrasts, basis[rows]
        cross = self.alternative.covariance(rows, self.known) / self.scale
        spread = trend @ (told.fit @ self.covariance)  # covariances of the plain trend's error with the known nodes
        left = (cross - spread) @ told.matrix @ self.vectors
        inverse = 1 / self._spectrum(noises)
        means = torch.einsum("mi,si,ik->msk", left, inverse, self.rotated) * told.unit
        reached = trend @ told.fit
        own = self.alternative.variance(rows).unsqueeze(-1) / self.scale
        prior = own.squeeze(-1) + ((spread - 2 * cross) * reached).sum(-1)
        variances = prior.unsqueeze(-1) + reached.square().sum(-1, keepdim=True) * noises - left.square() @ inverse.mT
        return means + (trend @ told.line).unsqueeze(1), _with_missing(variances.clamp_min(0), own)


def _with_missing(variances: Tensor, prior: Tensor) -> Tensor:  # (m, s), (m, 1) -> (m, s)
    """Variances, raised where a kernel gives nodes less prior variance than known nodes have in the mean.

    That is no knowledge of their values (diffusion over long times knows nodes by their degrees): of what they miss the share
    is left that is left of what they have.
    """
    left = (variances / prior.clamp_min(torch.finfo(prior.dtype).tiny)).clamp_max(1.0)
    return variances + (1 - prior).clamp_min(0) * left
