"""Hyper-parameters of Matérn GPs: what is likeliest within a family, from several starts.

Smoothness, scaling, one lengthscale or one for each dimension: all of it by the marginal likelihood, first of a small sample of
the observations and then, for what won, of a larger one. A lengthscale for each dimension must gain more likelihood than so
many parameters gain from noise (the Bayesian information criterion).
"""

from __future__ import annotations

import copy
import itertools
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from swing_gp.gp.lbfgs import minimize_lbfgs
from swing_gp.models.manifold_priors import BETAS, SMOOTHNESS, TAU, kernel_with_priors
from swing_gp.models.matern_gp import CONDITIONED, MaternGP
from swing_gp.operators.diffusion_coordinates import DiffusionCoordinates
from swing_gp.utils.progress import progress_bar

# Observations that the likelihood is made from: first, and at last.
FIRST, LAST = 300, 1000
# Observations for each coefficient of a trend, at the least.
VALUES = 3
# Steps of L-BFGS from an optimum to that of a slightly different model.
MORE_STEPS = 30
# Where hyper-parameters may start, lengthscales in units of the root of the total variance.
LENGTHSCALES, LENGTHSCALES_OF_EXTENDED, NOISES = (0.1, 0.3, 1.0, 3.0), (0.3, 1.0), (0.01, 0.3)
# In more dimensions there is one lengthscale for all.
MOST_LENGTHSCALES = 30
# More targets than this share their hyper-parameters, whatever they want.
MOST_TARGETS = 8


@dataclass
class Places:
    """Inputs in one scaling.

    :ivar scaling: its name.
    :ivar x: of the observations, (n, d), with a total variance of about one.
    :ivar coordinates: diffusion coordinates of a graph of these and other inputs.
    """

    scaling: str | None
    x: Tensor
    coordinates: DiffusionCoordinates | None = None


@dataclass
class Fit:
    """A GP with learnt hyper-parameters.

    :ivar loss: the negative log posterior density per value, of ``size`` values.
    :ivar seconds: that it took.
    """

    gp: MaternGP
    scaling: str | None
    loss: float
    size: int
    seconds: float

    @property
    def settings(self) -> dict[str, Any]:
        several = self.gp.kernel.base_kernel.ard_num_dims is not None
        return {"nu": self.gp.nu, "lengthscales": "each" if several else "one", "mean": self.gp.mean, "scaling": self.scaling}


class MaternSearch:
    """Fits of Matérn GPs to the same targets.

    :param y: standardised targets, (n, k).
    :param smoothness: what nu may be.
    :param ard: one lengthscale for each dimension: True, False, or None where the likelihood wants it.
    :param max_steps: of L-BFGS from each start.
    :param progress: as of :func:`~swing_gp.utils.progress.progress_bar`.
    """

    def __init__(
        self,
        y: Tensor,
        *,
        smoothness: Sequence[float] = SMOOTHNESS,
        ard: bool | None = None,
        max_steps: int = 100,
        seed: int = 0,
        progress: bool | None = False,
    ) -> None:
        self.y, self.smoothness, self.ard, self.max_steps, self.progress = y, smoothness, ard, max_steps, progress
        self._order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))

    def fit(self, places: Iterable[Places], mean: str | None = "constant", near: Fit | None = None) -> tuple[Fit, Fit]:
        """The likeliest GP in some scalings, with their coordinates where they have any; and the likeliest with one
        lengthscale, which may be the same.

        :param near: a fit whose lengthscales for each dimension are a start, if it has them.
        """
        began = time.perf_counter()
        places = list(places)
        best = [self._first(places, nu, mean) for nu in progress_bar(self.smoothness, "fit", self.progress)]
        one = min(best, key=lambda fit: fit.loss)
        found = plain = self._refined(one)
        plain.seconds = time.perf_counter() - began
        dim = places[0].x.shape[1]
        if dim > 1 and self.ard is not False and (self.ard or dim <= MOST_LENGTHSCALES):
            each = [self._each(fit, near) for fit in progress_bar(best, "fit each dimension", self.progress)]
            several = self._refined(min(each, key=lambda fit: fit.loss))
            price = 0.5 * (dim - 1) * math.log(several.size) / (several.size * self.y.shape[1])
            if self.ard or several.loss + price < found.loss:
                found = several
                found.seconds = time.perf_counter() - began
        return found, plain

    def _first(self, places: list[Places], nu: float, mean: str | None) -> Fit:
        """From the likeliest start."""
        tried = []
        for place in places:
            gp = self._model(place, nu, mean, None)
            rows, near = self._sample(gp, FIRST)
            lengths = LENGTHSCALES if place.coordinates is None else LENGTHSCALES_OF_EXTENDED
            loss = set_likeliest(gp, starts(lengths, NOISES, extended=gp.extended), partial(_loss, gp, rows, near))
            tried.append((loss, place.scaling, gp, rows, near))
        _, scaling, gp, rows, near = min(tried, key=lambda each: each[0])
        return self._minimized(gp, scaling, rows, near)

    def _each(self, fit: Fit, near: Fit | None) -> Fit:
        """With a lengthscale for each dimension, from one for all, or from those of another fit."""
        gp, dim = fit.gp, fit.gp.x.shape[1]
        other = self._model(
            Places(fit.scaling, gp.x, gp.kernel.base_kernel.coordinates if gp.extended else None), gp.nu, gp.mean, dim
        )
        lengths = gp.kernel.base_kernel.lengthscale.detach().expand(1, dim)
        if near is not None and near.gp.kernel.base_kernel.ard_num_dims and near.scaling == fit.scaling:
            theirs = near.gp.kernel.base_kernel.lengthscale.detach()
            lengths = lengths * theirs / theirs.log().mean().exp()
        values = {"lengthscale": lengths, "outputscale": gp.kernel.outputscale.detach(), "noise": float(gp.noise.detach())}
        if gp.extended:
            values |= {name: getattr(gp.kernel.base_kernel, name).detach() for name in ("beta", "tau")}
        _set(other, values)
        return self._minimized(other, fit.scaling, *self._sample(other, FIRST))

    def _refined(self, fit: Fit) -> Fit:
        """The same from more observations, and neighbours by its own lengthscales."""
        return fit if fit.size >= min(LAST, len(self.y)) else self._minimized(fit.gp, fit.scaling, *self._sample(fit.gp, LAST))

    def with_mean(self, fit: Fit, mean: str | None) -> Fit:
        """The same with another mean function."""
        began = time.perf_counter()
        kernel = copy.deepcopy(fit.gp.kernel)
        gp = MaternGP(kernel, fit.gp.x, fit.gp.y, mean=mean, noise=float(fit.gp.noise.detach()))
        found = self._minimized(gp, fit.scaling, *self._sample(gp, LAST), most=MORE_STEPS)
        found.seconds = time.perf_counter() - began
        return found

    def target_by_target(self, fit: Fit) -> list[Fit]:
        """A fit for each target, if the targets together are clearly likelier with hyper-parameters of their own; otherwise the
        one that there is."""
        number = self.y.shape[1]
        if not 1 < number <= MOST_TARGETS:
            return [fit]
        fits = []
        for column in range(number):
            gp = copy.deepcopy(fit.gp)
            gp.y = gp.y[:, column : column + 1].contiguous()
            fits.append(self._minimized(gp, fit.scaling, *self._sample(gp, LAST), most=MORE_STEPS))
        price = 0.5 * (number - 1) * sum(p.numel() for p in fit.gp.parameters()) * math.log(fit.size) / (fit.size * number)
        mean = sum(each.loss for each in fits) / number
        return fits if mean + price < fit.loss else [fit]

    def _model(self, place: Places, nu: float, mean: str | None, ard: int | None) -> MaternGP:
        return MaternGP(kernel_with_priors(place.coordinates, nu, 1.0, ard), place.x, self.y, mean=mean)

    def _sample(self, gp: MaternGP, most: int) -> tuple[Tensor, Tensor | None]:
        most = max(most, VALUES * gp.basis.number)
        rows = self._order[:most]
        return rows, None if len(self.y) <= most else gp.nearest(rows, CONDITIONED)

    def _minimized(self, gp: MaternGP, scaling: str | None, rows: Tensor, near: Tensor | None, *, most: int = 10_000) -> Fit:
        began = time.perf_counter()
        loss = minimize_lbfgs(lambda: _loss(gp, rows, near), gp, max_steps=min(most, self.max_steps))
        return Fit(gp, scaling, loss, len(rows), time.perf_counter() - began)


def _loss(gp: MaternGP, rows: Tensor, near: Tensor | None) -> Tensor:
    """Where there are neighbours, the mean of two losses: of rows given their neighbours, which know what happens nearby, and
    of the rows together, which know what happens far away."""
    return gp.loss(rows) if near is None else 0.5 * (gp.loss(rows, near) + gp.loss(rows))


def starts(lengthscales: Sequence[float], noises: Sequence[float], *, extended: bool) -> list[dict[str, float]]:
    """Values that hyper-parameters may start from: all combinations."""
    plain = [{"lengthscale": length, "noise": noise} for length, noise in itertools.product(lengthscales, noises)]
    if not extended:
        return plain
    return [
        {**start, "lengthscale": start["lengthscale"] * (1 + beta**2) ** 0.5, "beta": beta, "tau": TAU}
        for start, beta in itertools.product(plain, BETAS)
    ]


def set_likeliest(gp: MaternGP, starts: list[dict[str, float]], loss: Callable[[], Tensor]) -> float:
    """Set a GP to the start with the least loss, and return it."""
    losses = []
    with torch.no_grad():
        for start in starts:
            _set(gp, start)
            losses.append(float(loss()))
    best = min(range(len(starts)), key=losses.__getitem__)
    _set(gp, starts[best])
    return losses[best]


def learn(
    gp: MaternGP, starts: list[dict[str, float]], rows: Tensor, near: Tensor | None, *, max_steps: int
) -> None:  # (s,), (s, m)
    """Hyper-parameters by :meth:`~swing_gp.models.matern_gp.MaternGP.loss`, from the likeliest start."""
    loss = partial(gp.loss, rows, near)
    set_likeliest(gp, starts, loss)
    minimize_lbfgs(loss, gp, max_steps=max_steps)


def _set(gp: MaternGP, values: dict[str, Any]) -> None:
    with torch.no_grad():
        gp.log_noise.fill_(math.log(values["noise"]))
    gp.kernel.outputscale = values.get("outputscale", 1.0)
    gp.kernel.base_kernel.initialize(**{name: value for name, value in values.items() if name not in ("noise", "outputscale")})
