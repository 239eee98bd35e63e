r"""Local Gaussian processes: each prediction is conditioned on its nearest known values.

For a covariance function k that is known in closed form, with A the noisy covariance of the m known values nearest to x and b
their covariances with x,

.. math:: \mathrm{E} f(x) = \mu + b^\top A^{-1} (y - \mu), \qquad \mathrm{var} f(x) = k(x, x) - b^\top A^{-1} b .

The cost is one Cholesky factor of size m a prediction, in batches that fit into a cache, whatever the number of known values;
with m at least that number it is the exact GP. Nearby values screen those behind them, so that some tens are enough where the
noise is small; under much noise take more.

>>> import torch
>>> from swing_gp import LocalGP, Matern32
>>> x = torch.rand(2000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
>>> y = torch.sin(6 * x[:, 0]) + x[:, 1]
>>> model = LocalGP(Matern32(0.5), x[:1500], y[:1500], noise=1e-4)
>>> found = model.predict(x[1500:])
>>> bool((found.mean - y[1500:]).abs().max() < 0.05), found.variance.shape
(True, torch.Size([500]))
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gpytorch
import torch
from torch import Tensor

from swing_gp.gp.trend import Trend
from swing_gp.graphs.edges import EdgeFunction
from swing_gp.linalg.cholesky import cholesky_with_jitter
from swing_gp.linalg.chunks import row_chunks
from swing_gp.models.neighbors import NeighborSearch
from swing_gp.utils.progress import progress_bar
from swing_gp.utils.validation import as_number, as_real, check_count

Covariance = Callable[[Tensor, Tensor], Tensor]

# Bytes of the covariances of a batch: a few of them fit into a cache, which halves the time.
BATCH_BYTES = 2**21
# Known values that a global mean is estimated from, at most.
MEAN_SAMPLE = 2000


@dataclass(frozen=True)
class LocalPrediction:
    """Means and variances of predictions.

    :ivar mean: (n,), or (n, k) for k targets.
    :ivar variance: (n,), the same for all targets.
    """

    mean: Tensor
    variance: Tensor


class LocalGP:
    r"""A Gaussian process that conditions each prediction on its nearest known values.

    :param covariance: the covariance function: an edge function such as :class:`~swing_gp.Matern32`, a GPyTorch kernel, or any
        function of points (\*batch, n, d) and (\*batch, m, d) that returns covariances (\*batch, n, m). For a
        :class:`~swing_gp.ManifoldMaternKernel` give its ``edge``, and its ``extended_points`` as coordinates.
    :param x: coordinates of the known values, (n, d), float32 or float64.
    :param y: the known values, (n,) or (n, k).
    :param noise: the variance of their noise, one number or one for each, (n,).
    :param neighbors: how many known values a prediction is conditioned on. They are the nearest in units of the lengthscales.
    :param mean: ``"local"`` for a constant that is estimated among the neighbours of each prediction by generalised least
        squares, whose uncertainty is part of the variance (ordinary kriging); ``"global"`` for one constant, by the same from
        up to 2,000 of the known values; or a number, or one for each target.
    :param mean_variance: the variance of a mean that is given; predictions know the mean the better the more neighbours say.
    :param leading: look for neighbours among the first coordinates only, by a tree, and take the nearest in all of them among
        four times as many. For extended points, whose dimension is too high for a tree, it is that of the points.
    """

    def __init__(
        self,
        covariance: EdgeFunction | gpytorch.kernels.Kernel | Covariance,
        x: Tensor,
        y: Tensor,
        *,
        noise: float | Tensor,
        neighbors: int = 64,
        mean: str | float | Tensor = "local",
        mean_variance: float = 0.0,
        leading: int | None = None,
    ) -> None:
        if not callable(covariance):
            raise TypeError(f"covariance must be an edge function, a kernel or a function, got {type(covariance).__name__}.")
        self.x, self.y = _checked(x, y)
        self.neighbors = check_count("neighbors", neighbors)
        self._single = y.dim() == 1
        noises = as_real("noise", noise).detach().to(self.x)
        if noises.dim() > 1 or noises.numel() not in (1, len(self.x)) or not bool(((noises >= 0) & noises.isfinite()).all()):
            raise ValueError(f"noise must be one non-negative variance or {len(self.x)} of them, and finite, got {noise!r}.")
        self._one_noise = noises.numel() == 1
        self.noise = noises.expand(len(self.x))
        self._covariance, self._variance = _functions(covariance)
        self._search = NeighborSearch(self.x, scale=_lengthscale(covariance, self.x.shape[1]), leading=leading)
        self._local = isinstance(mean, str) and mean == "local"
        if isinstance(mean, str) and mean not in ("local", "global"):
            raise ValueError(f"mean must be 'local', 'global' or a number, got {mean!r}.")
        if not 0 <= as_number("mean_variance", mean_variance) < math.inf or (mean_variance and isinstance(mean, str)):
            raise ValueError(f"mean_variance must be a finite variance of a mean that is a number, got {mean_variance!r}.")
        self._mean_variance = float(mean_variance)
        if self._local:
            self.mean = torch.zeros_like(self.y[:1])
        elif isinstance(mean, str):
            self.mean = self._global_mean()
        else:
            self.mean = as_real("mean", mean).detach().to(self.y).reshape(1, -1).expand(1, self.y.shape[1])

    @torch.no_grad()
    def _global_mean(self) -> Tensor:  # (1, k)
        """Generalised least squares for a constant, by dense algebra on a sample of the known values."""
        rows = torch.randperm(len(self.x), generator=torch.Generator().manual_seed(0))[:MEAN_SAMPLE].to(self.x.device)
        x = self.x[rows]
        factor = cholesky_with_jitter(self._covariance(x, x) + self.noise[rows].diag())
        columns = torch.cat([torch.ones_like(self.y[rows, :1]), self.y[rows]], -1)
        white = torch.linalg.solve_triangular(factor, columns, upper=False)
        return (white[:, :1].mT @ white[:, 1:]) / white[:, :1].square().sum()

    def predict(self, x: Tensor, *, with_noise: bool = False, progress: bool | None = None) -> LocalPrediction:
        """Means and variances at any points, (n, d).

        :param with_noise: the variance of a new observation, not of the function.
        :param progress: show a progress bar; None for a terminal alone, after a few seconds.
        """
        if not torch.is_tensor(x) or x.dim() != 2 or x.shape[1] != self.x.shape[1]:
            raise ValueError(f"x must be a torch.Tensor of shape (n, {self.x.shape[1]}) like the known coordinates.")
        if with_noise and not self._one_noise:
            raise ValueError("with_noise=True needs one variance for all; add that of the new observations to the variance.")
        at = x.detach().to(self.x)
        if not bool(torch.isfinite(at).all()):
            raise ValueError("x must be finite: it contains NaN or infinity; drop or impute those rows.")
        if self.neighbors >= len(self.x):
            found = self._shared(at)
        else:
            found = self._conditioned(at, lambda rows: self._search.nearest(at[rows], self.neighbors), self.neighbors, progress)
        return LocalPrediction(found.mean, found.variance + self.noise[0]) if with_noise else found

    def leave_one_out(
        self, nodes: Tensor | None = None, *, with_noise: bool = False, progress: bool | None = None
    ) -> LocalPrediction:
        """Means and variances at known values, each predicted from the others.

        :param nodes: the rows of the known values to predict, (n,); all by default.
        :param with_noise: as of :meth:`predict`, with the noise of each value.
        """
        if len(self.x) < 2:
            raise ValueError("leave_one_out needs at least two known values.")
        ids = torch.arange(len(self.x), device=self.x.device) if nodes is None else nodes.to(self.x.device).long()
        if ids.numel() and (int(ids.min()) < 0 or int(ids.max()) >= len(self.x)):
            raise ValueError(f"nodes must lie in 0..{len(self.x) - 1}, got {int(ids.min())}..{int(ids.max())}.")
        at, number = self.x[ids], min(self.neighbors, len(self.x) - 1)

        found = self._conditioned(at, lambda rows: self._search.nearest_others(ids[rows], number), number, progress)
        return LocalPrediction(found.mean, found.variance + self.noise[ids]) if with_noise else found

    @torch.no_grad()
    def _shared(self, at: Tensor) -> LocalPrediction:  # (n, d)
        """Predictions from all known values, which have one factor."""
        every = torch.arange(len(self.x), device=at.device).unsqueeze(0)
        parts = [self._batch(at[rows].unsqueeze(0), every) for rows in row_chunks(len(at), len(self.x), at.dtype)]
        return self._prediction(*(torch.cat(part, 1).squeeze(0) for part in zip(*parts, strict=True)))

    @torch.no_grad()
    def _conditioned(
        self, at: Tensor, nearest: Callable[[slice], Tensor], number: int, progress: bool | None
    ) -> LocalPrediction:  # (n, d)
        """Predictions from their own neighbours, in batches."""
        means, variances = self.y.new_empty(len(at), self.y.shape[1]), at.new_empty(len(at))
        batch = max(1, BATCH_BYTES // (number**2 * at.element_size()))
        many = batch * max(1, 2**16 // batch)  # neighbours of many at a time: the search is parallel
        starts = range(0, len(at), many)
        for start in progress_bar(starts, "predict", progress):
            near = nearest(slice(start, start + many))
            for first in range(0, len(near), batch):
                rows = slice(start + first, min(start + first + batch, len(at)))
                mean, variance = self._batch(at[rows].unsqueeze(1), near[first : first + batch])
                means[rows], variances[rows] = mean.squeeze(1), variance.squeeze(1)
        return self._prediction(means, variances)

    def _prediction(self, means: Tensor, variances: Tensor) -> LocalPrediction:  # (n, k), (n,)
        return LocalPrediction(means.squeeze(-1) if self._single else means, variances.clamp_min(0))

    def _batch(self, at: Tensor, near: Tensor) -> tuple[Tensor, Tensor]:  # (c, q, d), (c, m) -> (c, q, k), (c, q)
        """Predictions at c lists of points, each from a list of known values."""
        known = self.x[near]
        matrix = self._covariance(known, known)
        matrix.diagonal(dim1=-2, dim2=-1).add_(self.noise[near])
        values = self.y[near] - self.mean
        columns = torch.cat([torch.ones_like(values[..., :1]), values, self._covariance(known, at)], -1)
        white = torch.linalg.solve_triangular(cholesky_with_jitter(matrix), columns, upper=False)
        ones, values, cross = white.split([1, values.shape[-1], at.shape[-2]], -1)
        mean = self.mean + cross.mT @ values
        variance = self._variance(at) - cross.square().sum(-2)
        rest = 1 - cross.mT @ ones
        if not self._local:
            return mean, variance + self._mean_variance * rest.squeeze(-1).square()
        constant = Trend.whitened(ones, values)
        return mean + rest @ constant.coefficients, variance + constant.variance(rest)


def _functions(covariance: Any) -> tuple[Covariance, Callable[[Tensor], Tensor]]:
    """The covariances between points, and the variances at points, (\\*batch, n, d) -> (\\*batch, n)."""
    if isinstance(covariance, EdgeFunction):
        edge = covariance

        def between(one: Tensor, two: Tensor) -> Tensor:
            one, two = edge.scaled(one), edge.scaled(two)
            return edge.log_profile(torch.cdist(one, two, edge.norm, "donot_use_mm_for_euclid_dist")).exp_()

        return between, lambda x: torch.ones_like(x[..., 0])
    if isinstance(covariance, gpytorch.kernels.Kernel):
        kernel = covariance
        return lambda one, two: kernel(one, two).to_dense().detach(), lambda x: kernel(x, diag=True).detach()
    return covariance, lambda x: covariance(x.unsqueeze(-2), x.unsqueeze(-2))[..., 0, 0]


def _lengthscale(covariance: Any, dim: int) -> Tensor | None:
    """The lengthscales of every dimension, where there is one for each."""
    if isinstance(covariance, gpytorch.kernels.Kernel):
        while hasattr(covariance, "base_kernel"):
            covariance = covariance.base_kernel
        if covariance.active_dims is not None:
            return None
    found = getattr(covariance, "lengthscale", None)
    if not torch.is_tensor(found) or found.numel() != dim:
        return None
    return found.detach().reshape(dim)


def _checked(x: Any, y: Any) -> tuple[Tensor, Tensor]:  # (n, d), (n, k)
    if not (torch.is_tensor(x) and x.dim() == 2 and 0 not in x.shape and x.dtype in (torch.float32, torch.float64)):
        raise ValueError("x must be a torch.Tensor of shape (n, d), float32 or float64, with at least one row and column.")
    if not (torch.is_tensor(y) and y.dim() in (1, 2) and len(y) == len(x)):
        raise ValueError(f"y must be a torch.Tensor of shape ({len(x)},) or ({len(x)}, k), one row for each row of x.")
    y = y.to(x).reshape(len(x), -1)
    if not bool(torch.isfinite(x).all() and torch.isfinite(y).all()):
        raise ValueError("x and y must be finite: they contain NaN or infinity; drop those rows.")
    return x.detach(), y.detach()
