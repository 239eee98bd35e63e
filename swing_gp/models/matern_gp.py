r"""A Gaussian process with a Matérn kernel on coordinates or extended coordinates, for any number of observations.

Hyper-parameters are those of the largest posterior: by the restricted likelihood of up to a thousand observations, and beyond
that by the conditional likelihood, restricted too, of a sample of them, each given its m nearest others (Vecchia, 1988), beside
that of the sample: one knows what happens nearby, the other what happens far away. With A the noisy covariance of a value and
its neighbours, z what the trend leaves of them and u the last column of :math:`A^{-1}`, the value is missed by
:math:`u^\top z / u_m` with variance :math:`1 / u_m`, so that

.. math:: -\log p(y_i \mid \text{neighbours}) = \tfrac12 (u^\top z)^2 / u_m - \tfrac12 \log u_m + \tfrac12 \log 2 \pi ,

and its derivative in A has rank two. Predictions are exact up to some thousand observations, and by :class:`~swing_gp.LocalGP`
beyond, of the basis of the trend as of the values; the trend is then that of a sample.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from gpytorch.kernels import ScaleKernel
from torch import Tensor, nn

from swing_gp.gp.manifold import EDGES, ManifoldMaternKernel
from swing_gp.gp.trend import Trend, TrendBasis
from swing_gp.graphs.nearest import TREE_DIM
from swing_gp.linalg.chunks import row_chunks
from swing_gp.models.dense_gp import DenseGP
from swing_gp.models.local_gp import LocalGP
from swing_gp.models.neighbors import NeighborSearch

# Observations up to which all are conditioned on; and up to which held-out values are, and trends and samples beyond.
DENSE, SAMPLE = 4000, 2000
# Nearest observations that a prediction is conditioned on beyond that: the fewest that are nearly as good as the most.
NEIGHBORS, ENOUGH = (128, 256), 1.01
# Neighbours that a sampled value is conditioned on in the likelihood, and values at a time: their covariances fit into a cache.
CONDITIONED, ROWS = 48, 100
# The logarithm of the variance of the noise, in units of that of the targets, has a normal prior; what it is at least.
NOISE, NOISE_WIDTH, LEAST_NOISE = math.log(0.03), 3.0, 1e-6
# Squares of distances, in units of the largest, that are zero but for rounding.
COINCIDENT = 1e-14


class MaternGP(nn.Module):
    """A GP on standardised inputs and targets; k targets share the hyper-parameters.

    :param kernel: a scaled Matérn kernel on coordinates or extended coordinates, with its priors
        (``kernel_with_priors`` of ``manifold_priors``).
    :param x: inputs, (n, d), float64.
    :param y: targets, (n, k).
    :param mean: the trend: ``"constant"``, ``"linear"`` or None.
    """

    def __init__(self, kernel: ScaleKernel, x: Tensor, y: Tensor, *, mean: str | None = "constant", noise: float = 0.1) -> None:
        super().__init__()
        self.kernel, self.x, self.y, self.mean = kernel, x, y, mean
        self.log_noise = nn.Parameter(torch.tensor(math.log(noise), dtype=torch.float64))
        self.neighbors = NEIGHBORS[0]
        self.basis = TrendBasis(mean, x)
        self._conditioned: DenseGP | tuple[LocalGP, Trend] | None = None

    @property
    def nu(self) -> float:
        return self.kernel.base_kernel.nu

    @property
    def extended(self) -> bool:
        return isinstance(self.kernel.base_kernel, ManifoldMaternKernel)

    @property
    def noise(self) -> Tensor:
        """The variance of the noise."""
        return self.log_noise.exp() + LEAST_NOISE

    def points(self, x: Tensor) -> Tensor:  # (n, d) -> (n, d + K)
        """Points that the kernel is the Matérn function of distances of."""
        base = self.kernel.base_kernel
        return base.extended_points(x) if self.extended else x / base.lengthscale

    def _covariance(self, one: Tensor, two: Tensor) -> Tensor:  # (*b, n, d), (*b, m, d) -> (*b, n, m)
        if not (one.requires_grad or two.requires_grad):  # by differences, without rounding
            distances = torch.cdist(one, two, compute_mode="donot_use_mm_for_euclid_dist")
            return self.kernel.outputscale * EDGES[self.nu](1.0).log_profile(distances).exp_()
        center = two.detach().mean(-2, keepdim=True)
        one, two = one - center, two - center
        # By a product of matrices, and with slopes in closed form: most of the time goes into memory.
        squares = one.square().sum(-1).unsqueeze(-1) + two.square().sum(-1).unsqueeze(-2) - 2 * one @ two.mT
        return self.kernel.outputscale * _Matern.apply(squares, self.nu)

    # Likelihoods

    def loss(self, rows: Tensor, near: Tensor | None = None) -> Tensor:
        """The negative log posterior density of the hyper-parameters, per value.

        :param rows: of observations that it is made from, (s,).
        :param near: others that each is conditioned on, (s, m); None for the likelihood of all together.
        """
        value = self._joint(rows) if near is None else self._conditional(rows, near)
        priors = sum(prior.log_prob(closure(module)).sum() for _, module, prior, closure, _ in self.kernel.named_priors())
        priors = priors - 0.5 * ((self.log_noise - NOISE) / NOISE_WIDTH).square()
        return -(value + priors) / (len(rows) * self.y.shape[1])

    def _joint(self, rows: Tensor) -> Tensor:
        x = self.x[rows]
        points = self.points(x)
        covariance = self._covariance(points, points)
        with torch.no_grad():
            gp = DenseGP(covariance + self.noise * torch.eye(len(x)).to(covariance), self.basis(x), self.y[rows])
            value, slope = gp.log_likelihood(), gp.slope()
        return _with_slope(value, slope, covariance, self.noise)

    def _conditional(self, rows: Tensor, near: Tensor) -> Tensor:
        used, place = torch.cat([near, rows.unsqueeze(-1)], -1).unique(return_inverse=True)  # (s, m + 1)
        points, sides = self.points(self.x[used]), torch.cat([self.y[used], self.basis(self.x[used])], -1)
        total = points.new_zeros(())
        parts = [(part, self._among(points[part])) for part in place.split(ROWS)]
        with torch.no_grad():
            solved = [_Solved(covariance, self.noise, sides[part]) for part, covariance in parts]
            missed = torch.cat([each.missed for each in solved])  # (s, k + p), in units of their deviations
            number = self.y.shape[1]
            trend = Trend.whitened(missed[:, number:], missed[:, :number])
            total = total + 0.5 * number * (trend.number * (1 + math.log(2 * math.pi)) - trend.logdet)
        for each, (_, covariance) in zip(solved, parts, strict=True):
            with torch.no_grad():
                value, slope = each.log_likelihood(trend.restriction, number)
            total = total + _with_slope(value, slope, covariance, self.noise)
        return total

    def _among(self, points: Tensor) -> Tensor:  # (s, m, d) -> (s, m, m)
        points = points - points[:, -1:].detach()  # small differences, small roundings
        return self._covariance(points, points)

    def nearest(self, rows: Tensor, number: int = CONDITIONED) -> Tensor:  # (s,) -> (s, m)
        """The nearest other observations, in units of the lengthscales as they are."""
        with torch.no_grad():
            points = self.points(self.x)
        return NeighborSearch(points, leading=self._leading).nearest_others(rows, min(number, len(points) - 1))

    @property
    def _leading(self) -> int | None:
        dim = self.x.shape[1]
        return dim if self.extended and dim <= TREE_DIM else None

    # Predictions

    @torch.no_grad()
    def condition(self) -> MaternGP:
        """Condition on all observations, with the hyper-parameters as they are."""
        self._conditioned = None  # frees what there was
        if len(self.x) <= DENSE:
            self._conditioned = self._dense(torch.arange(len(self.x)))
        else:
            sample = torch.randperm(len(self.x), generator=torch.Generator().manual_seed(0))[:SAMPLE]
            self._conditioned = self._local(torch.arange(len(self.x)), self.neighbors), self._dense(sample).trend
        return self

    def _dense(self, rows: Tensor) -> DenseGP:
        points = self.points(self.x[rows])
        covariance = self._covariance(points, points)
        covariance.diagonal().add_(self.noise)
        return DenseGP(covariance, self.basis(self.x[rows]), self.y[rows])

    def _local(self, rows: Tensor, neighbors: int) -> LocalGP:
        """On values and the basis of their trend, in units of the output scale."""
        x, noise = self.x[rows], self.noise / self.kernel.outputscale
        both = torch.cat([self.y[rows], self.basis(x)], -1)
        return LocalGP(
            EDGES[self.nu](1.0), self.points(x), both, noise=noise, neighbors=neighbors, mean=0.0, leading=self._leading
        )

    @torch.no_grad()
    def predict(
        self, x: Tensor, *, variances: bool = True, progress: bool | None = False
    ) -> tuple[Tensor, Tensor]:  # (m, d) -> (m, k), (m, k)
        """Means and variances of the function."""
        given, scale = self._conditioned, self.kernel.outputscale
        assert given is not None, "condition() comes first"
        if not isinstance(given, DenseGP):
            local, trend = given
            found = local.predict(self.points(x), progress=progress)
            mean, rest = trend.predict(found.mean, self.basis(x))
            return mean, (found.variance * scale + trend.variance(rest)).unsqueeze(-1).expand_as(mean)
        parts = []
        known = self.points(self.x)
        for rows in row_chunks(len(x), len(known)):
            cross, basis = self._covariance(known, self.points(x[rows])), self.basis(x[rows])
            if variances:
                parts.append(given.predict(cross, basis, scale.expand(len(basis))))
            else:
                parts.append((given.mean(cross, basis), scale.new_zeros(len(basis))))
        mean, variance = (torch.cat(part) for part in zip(*parts, strict=True))
        return mean, variance.unsqueeze(-1).expand_as(mean)

    @torch.no_grad()
    def sample(self, x: Tensor, number: int, generator: torch.Generator) -> Tensor:  # (m, d) -> (m, k, number)
        """Functions from the posterior. Beyond ``DENSE`` observations, correlations are those that a sample of the
        observations leaves, means and variances those of :meth:`predict`."""
        if len(x) > DENSE:
            raise ValueError(f"Samples are made by dense algebra, at up to {DENSE:,} inputs at a time, got {len(x):,}.")
        mean, variance = self.predict(x)
        given = self._conditioned
        rows = torch.arange(len(self.x))
        if not isinstance(given, DenseGP):
            points = self.points(x)
            near = NeighborSearch(self.points(self.x), leading=self._leading).nearest(points, max(1, SAMPLE // len(x)))
            rows = near.unique()[:DENSE]
            given = self._dense(rows)
        known, points = self.points(self.x[rows]), self.points(x)
        covariance = given.predict(self._covariance(known, points), self.basis(x), self._covariance(points, points))[1]
        deviations = covariance.diagonal().clamp_min(1e-12 * float(self.kernel.outputscale)).sqrt()
        correlation = covariance / (deviations * deviations.unsqueeze(-1))
        values, vectors = torch.linalg.eigh(correlation)
        root = vectors * values.clamp_min(0).sqrt()
        normal = torch.randn(len(x), mean.shape[1] * number, generator=generator, dtype=torch.float64)
        draws = (root @ normal).reshape(len(x), mean.shape[1], number)
        return mean.unsqueeze(-1) + variance.sqrt().unsqueeze(-1) * draws

    # Values that are left out

    @torch.no_grad()
    def held_out(self, folds: list[tuple[Tensor, Tensor]]) -> list[Tensor]:  # of (h,), (n - h,) -> of (h, k)
        """What is missed of held-out values that the kept ones predict, with the hyper-parameters as they are. Beyond
        ``SAMPLE`` observations the nearest predict them, and ``neighbors`` is set to how many are enough."""
        if len(self.x) <= SAMPLE:
            given = self._dense(torch.arange(len(self.x)))
            return [given.left_out(held)[0] for held, _ in folds]
        missed: dict[int, list[Tensor]] = {number: [] for number in NEIGHBORS}
        for held, kept in folds:
            sample = kept[torch.randperm(len(kept), generator=torch.Generator().manual_seed(0))[:SAMPLE]]
            local, trend, x = self._local(kept, NEIGHBORS[0]), self._dense(sample).trend, self.x[held]
            for number, parts in missed.items():
                local.neighbors = number
                found = local.predict(self.points(x), progress=False).mean
                parts.append(self.y[held] - trend.predict(found, self.basis(x))[0])
        errors = {number: float(torch.cat(parts).square().mean().sqrt()) for number, parts in missed.items()}
        self.neighbors = next(number for number in NEIGHBORS if errors[number] <= ENOUGH * min(errors.values()))
        return missed[self.neighbors]

    # Files

    def content(self) -> dict[str, Any]:
        """What a file needs to make it again."""
        settings = {"nu": self.nu, "ard": self.kernel.base_kernel.ard_num_dims, "mean": self.mean, "neighbors": self.neighbors}
        return {"settings": settings, "state": dict(self.state_dict()), "x": self.x, "y": self.y}

    @classmethod
    def restored(cls, kernel: ScaleKernel, content: dict[str, Any]) -> MaternGP:
        """One of which :meth:`content` was written, given a kernel of its kind."""
        made = cls(kernel, content["x"], content["y"], mean=content["settings"]["mean"])
        made.load_state_dict(content["state"])
        made.neighbors = content["settings"]["neighbors"]
        return made.condition()


class _Matern(torch.autograd.Function):
    r"""The Matérn function of squared distances :math:`r^2`. With :math:`s = \sqrt{2 \nu}\, r` its derivative in them is
    :math:`-e^{-r} / (2 r)`, :math:`-\frac32 e^{-s}` and :math:`-\frac56 (1 + s) e^{-s}` for :math:`\nu` of 1/2, 3/2, 5/2."""

    @staticmethod
    def forward(ctx: Any, squares: Tensor, nu: float) -> Tensor:
        same = squares <= COINCIDENT * squares.max()
        s = squares.masked_fill(same, 0).mul_(2 * nu).sqrt_()
        decay = s.neg().exp_()
        if nu == 0.5:
            ctx.save_for_backward((decay / s.mul_(-2)).masked_fill_(same, 0))
            return decay
        slope = decay * -1.5 if nu == 1.5 else (s + 1).mul_(decay).mul_(-5 / 6)
        ctx.save_for_backward(slope)
        value = s + 1
        return (value if nu == 1.5 else value.addcmul_(s, s, value=1 / 3)).mul_(decay)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.saved_tensors[0], None


class _Solved:
    """Values and their neighbours, (s, m + 1), of which the last is the value.

    :ivar missed: what the neighbours miss of the value in each column, in units of its deviation, (s, q).
    """

    def __init__(self, covariance: Tensor, noise: Tensor, sides: Tensor) -> None:  # (s, m, m), (), (s, m, q)
        size = covariance.shape[-1]
        self.factor, self.sides = torch.linalg.cholesky(covariance + noise * torch.eye(size).to(covariance)), sides
        last = torch.zeros(size, 1).to(covariance)
        last[-1] = 1
        self.u = torch.cholesky_solve(last.expand(len(covariance), -1, -1), self.factor)  # (s, m + 1, 1)
        self.precision = self.u[:, -1]  # (s, 1)
        self.missed = (self.u * sides).sum(1) / self.precision.sqrt()

    def log_likelihood(self, combinations: Tensor, number: int) -> tuple[Tensor, Tensor]:  # (q, c) -> (), (s, m, m)
        """Of so many targets, with the quadratic form of combinations of the columns; and its derivative in the covariances."""
        values = self.missed @ combinations
        logs = number * (self.precision.log().sum() - len(values) * math.log(2 * math.pi))
        left = torch.cholesky_solve(self.sides @ combinations, self.factor)
        scaled = values / self.precision.sqrt()
        slope = self.u @ (left * scaled.unsqueeze(1)).sum(-1, keepdim=True).mT
        own = 0.5 * (scaled.square().sum(-1, keepdim=True) + number / self.precision)
        return 0.5 * (logs - values.square().sum()), slope - own.unsqueeze(-1) * (self.u @ self.u.mT)


def _with_slope(value: Tensor, slope: Tensor, covariance: Tensor, noise: Tensor) -> Tensor:
    """A value whose derivative in the covariance and the noise on its diagonal is known."""
    surrogate = (slope * covariance).sum() + slope.diagonal(dim1=-2, dim2=-1).sum() * noise
    return surrogate + (value - surrogate).detach()
