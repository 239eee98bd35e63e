r"""Matérn Gaussian processes on coordinates, plain or extended by a graph, for values at nodes.

The kernel is that of :class:`~swing_gp.ManifoldMaternKernel` (without a graph a plain Matérn kernel) with one lengthscale.
Few values are conditioned on all at once, many one by one on their nearest (:class:`~swing_gp.LocalGP`), and so are
hyper-parameters learnt (:class:`~swing_gp.models.matern_gp.MaternGP`): from the likelihood of all values, or from the density
of held-out values given the nearest kept ones, which is the task itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from swing_gp.gp.manifold import EDGES
from swing_gp.gp.trend import left_by_line, line_through, trend_basis
from swing_gp.graphs.nearest import TREE_DIM
from swing_gp.linalg.chunks import row_chunks
from swing_gp.models.dense_gp import DenseGP
from swing_gp.models.local_gp import LocalGP, LocalPrediction
from swing_gp.models.manifold_priors import TAU, kernel_with_priors
from swing_gp.models.matern_gp import MaternGP
from swing_gp.models.matern_search import VALUES, learn, starts
from swing_gp.models.neighbors import NeighborSearch
from swing_gp.models.regions import Region
from swing_gp.operators.diffusion_coordinates import DiffusionCoordinates

# Up to so many values are learnt from all at once, and up to so many conditioned on all at once.
LEARNT, EXACT = 512, 1000
# Above these, values that the slopes of a trend are estimated from, by dense algebra.
SAMPLE = 1000
# Above these, values that are held out to learn from, and the nearest that they are given.
HELD, GIVEN = 256, 48
# Neighbours of a prediction, and how many under a noise that single neighbours cannot average out.
NEIGHBORS, MORE_NEIGHBORS, MUCH_NOISE = 64, 256, 0.1
# Where a search begins. Lengthscales are in units of the deviation of extended points.
LENGTHSCALES, NOISES = (0.03, 0.1, 0.3, 1.0), (1e-3, 1e-1)
STEPS = 40


@dataclass(frozen=True)
class CoordinateGP:
    """A Matérn GP with fixed hyper-parameters on nodes.

    :ivar points: coordinates of the nodes, (N, d), centred, with a total variance of one.
    :ivar coordinates: the graph's part of the extended coordinates, or None.
    :ivar noise: the noise variance over the variance of the GP.
    :ivar mean: the trend, one of ``MEANS``. Where values are many its constant is estimated among those
        that a prediction is given, and its slopes from a sample.
    """

    points: Tensor
    coordinates: DiffusionCoordinates | None
    nu: float
    mean: str | None
    lengthscale: float = 1.0
    noise: float = 0.01
    beta: float = 0.0
    tau: float = TAU

    @property
    def settings(self) -> dict[str, float]:
        found = {"nu": self.nu, "lengthscale": self.lengthscale, "noise": self.noise}
        return found if self.coordinates is None else found | {"beta": self.beta, "tau": self.tau}

    def with_settings(self, settings: Mapping[str, float]) -> CoordinateGP:
        """The same with other hyper-parameters."""
        return replace(self, **settings)  # type: ignore[arg-type]

    def extended(self) -> Tensor:  # (N, d + K)
        """The points among which the kernel is a Matérn function of distances in units of one."""
        return self._extended

    @cached_property
    def _extended(self) -> Tensor:
        scaled = self.points / self.lengthscale
        if self.coordinates is None:
            return scaled
        weights = self.coordinates.weights(torch.tensor([self.tau], dtype=torch.float64)).to(scaled)
        return torch.cat([scaled, self.beta / self.lengthscale * weights * self.coordinates.functions.to(scaled)], -1)

    @cached_property
    def basis(self) -> Tensor:  # (N, p)
        """Of the trend."""
        return trend_basis(self.mean, self.points)

    def predict(
        self, known: Tensor, values: Tensor, at: Tensor, *, progress: bool | None = False
    ) -> LocalPrediction:  # (n,), (n, k), (m,)
        """The function at some nodes, given values at others: from all of these, or from the nearest where they are many."""
        extended = self._extended
        if len(known) <= EXACT:
            gp, parts = self._dense(known, values), []
            for rows in row_chunks(len(at), len(known)):
                cross, basis = self._covariance(extended[known], extended[at[rows]]), self.basis[at[rows]]
                parts.append(gp.predict(cross, basis, torch.ones_like(cross[0])))
            return LocalPrediction(*map(torch.cat, zip(*parts, strict=True)))
        sample = torch.randperm(len(known), generator=torch.Generator().manual_seed(0))[:SAMPLE]
        trend, dim = self._dense(known[sample], values[sample]).trend, self.points.shape[1]
        local = LocalGP(
            EDGES[self.nu](1.0),
            extended[known],
            torch.cat([values, self.basis[known]], -1),
            noise=self.noise,
            neighbors=MORE_NEIGHBORS if self.noise > MUCH_NOISE else NEIGHBORS,
            mean="local" if self.mean else 0.0,  # what a constant leaves of the basis has the trend of the sample
            leading=dim if self.coordinates is not None and dim <= TREE_DIM else None,
        )
        found = local.predict(extended[at], progress=progress)
        mean, rest = trend.predict(found.mean, self.basis[at])
        return LocalPrediction(mean, found.variance + trend.variance(rest))

    def _covariance(self, one: Tensor, two: Tensor) -> Tensor:  # (n, d + K), (m, d + K) -> (n, m)
        return EDGES[self.nu](1.0).weights(one, two)

    def _dense(self, known: Tensor, values: Tensor) -> DenseGP:  # (n,), (n, k)
        covariance = self._covariance(self._extended[known], self._extended[known])
        covariance.diagonal().add_(self.noise)
        return DenseGP(covariance, self.basis[known], values)

    def amplitude(self, regions: Sequence[Region], values: Tensor) -> Tensor:  # (k,)
        """The deviation of the GP with which squares of held-out residuals are, in the mean, their variances."""
        total, weight = torch.zeros_like(values[0]), 0.0
        for prediction, rows, weights in self.held_out(regions, values):
            ratios = (prediction.mean - values[rows]).square() / prediction.variance.unsqueeze(-1)
            total, weight = total + weights @ ratios, weight + float(weights.sum())
        return (total / weight).sqrt()

    def held_out(self, regions: Sequence[Region], values: Tensor) -> Iterator[tuple[LocalPrediction, Tensor, Tensor]]:
        """For every split of every region the prediction of held-out values from the kept ones, trend and all, with noise;
        their rows and their weights."""
        for region in regions:
            known, seen = region.nodes[region.known], values[region.rows]
            gp = self._dense(known, seen) if len(seen) <= EXACT else None  # its splits share one factor
            for held, weights in region.splits:
                tested = weights > 0
                if gp is not None:
                    missed, variance = (part[tested] for part in gp.left_out(held))
                    found = LocalPrediction(seen[held[tested]] - missed, variance)
                else:
                    kept = region.kept(held)
                    found = self.predict(known[kept], seen[kept], known[held[tested]])
                    found = LocalPrediction(found.mean, found.variance + self.noise)
                yield found, region.rows[held[tested]], weights[tested]


class CoordinatePosterior:
    """A :class:`CoordinateGP` conditioned on known values: means and deviations at all nodes.

    :param known: ids of the known nodes, (n,).
    :param values: their values, (n, k).
    :param amplitude: the deviation of the GP, for every column, (k,).
    :param progress: as of :meth:`~swing_gp.LocalGP.predict`.
    """

    def __init__(
        self, model: CoordinateGP, known: Tensor, values: Tensor, amplitude: Tensor, progress: bool | None = False
    ) -> None:
        told, values = model.basis[known], values.double()
        line, left = model.basis @ line_through(told, values), left_by_line(told, values)
        largest = left.abs().amax(0)
        unit = torch.where(largest > 0, largest, 1.0)  # squares neither overflow nor vanish
        prediction = model.predict(known, left / unit, torch.arange(len(model.points)), progress=progress)
        self.mean, self.variance = prediction.mean * unit + line, prediction.variance
        self.std = self.variance.sqrt().unsqueeze(-1) * amplitude  # (N, k)
        self.noise_std = model.noise**0.5 * amplitude  # (k,)


def fit_coordinates(
    points: Tensor,
    coordinates: DiffusionCoordinates | None,
    nu: float,
    known: Tensor,
    values: Tensor,
    regions: Sequence[Region],
    *,
    mean: str | None = "constant",
) -> CoordinateGP:
    """The likeliest hyper-parameters, under wide priors.

    :param points: as of :class:`CoordinateGP`, (N, d), and so are ``coordinates``, whose graph has these points for nodes,
        ``nu`` and ``mean``.
    :param known: ids of the known nodes, (n,).
    :param values: their values, (n, k).
    :param regions: whose splits hyper-parameters of many values are learnt from.
    """
    left = left_by_line(trend_basis(mean, points)[known], values)
    gp = MaternGP(kernel_with_priors(coordinates, nu, 1.0), points[known], left, mean=mean)
    size = (left.square().sum(0) / max(1, len(left) - gp.basis.number)).sqrt()
    gp.y, kernel = left / torch.where(size > 0, size, 1.0), gp.kernel
    rows, near = _held_out(gp.x, regions, VALUES * gp.basis.number)
    learn(gp, starts(LENGTHSCALES, NOISES, extended=gp.extended), rows, near, max_steps=STEPS)
    with torch.no_grad():
        found = {"lengthscale": kernel.base_kernel.lengthscale, "noise": gp.noise / kernel.outputscale}
        if gp.extended:
            found |= {name: getattr(kernel.base_kernel, name) for name in ("beta", "tau")}
        settings = {name: float(value) for name, value in found.items()}
    return CoordinateGP(points, coordinates, nu, mean).with_settings(settings)


def _held_out(x: Tensor, regions: Sequence[Region], fewest: int = 0) -> tuple[Tensor, Tensor | None]:  # (n, d) -> (s,), (s, m)
    """Held-out values, and the nearest kept ones that each is given; all values together where they are few.

    :param fewest: values to take where there are so many.
    """
    if len(x) <= LEARNT:
        return torch.arange(len(x)), None
    splits = [(region, held, weights) for region in regions for held, weights in region.splits]
    chances = torch.cat([weights for _, _, weights in splits])
    number = min(max(HELD, fewest), int((chances > 0).sum()))
    drawn = torch.multinomial(chances, number, generator=torch.Generator().manual_seed(0))
    taken = torch.zeros(len(chances), dtype=torch.bool)
    taken[drawn] = True
    rows, near = [], []
    for (region, held, _), chosen in zip(splits, taken.split([len(held) for _, held, _ in splits]), strict=True):
        kept, target = region.rows[region.kept(held)], region.rows[held[chosen]]
        if len(target) and len(kept) >= GIVEN:
            rows.append(target)
            near.append(kept[NeighborSearch(x[kept]).nearest(x[target], GIVEN)])
    if rows:
        return torch.cat(rows), torch.cat(near)
    # Regions with too few values: any value, given its neighbours.
    some = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[: max(HELD, fewest)]
    return some, NeighborSearch(x).nearest_others(some, GIVEN)
