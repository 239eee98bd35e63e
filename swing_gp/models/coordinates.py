r"""Matérn Gaussian processes on coordinates, plain or extended by a graph, for values at nodes.

The kernel is that of :class:`~swing_gp.ManifoldMaternKernel` (without a graph a plain Matérn kernel) with one lengthscale.
Few values are conditioned on all at once, many one by one on their nearest (:class:`~swing_gp.LocalGP`), and so are
hyper-parameters learnt: from the marginal likelihood of all values, or from the density of held-out values given the nearest
kept ones, which is the task itself. Both come from one Cholesky factor a block: with a held-out value last in its block, the
last entry of the whitened block is its residual in deviations. The amplitude is known in closed form.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from swing_gp.gp.lbfgs import minimize_lbfgs
from swing_gp.gp.manifold import EDGES
from swing_gp.graphs.nearest import TREE_DIM
from swing_gp.models.local_gp import LocalGP, LocalPrediction
from swing_gp.models.manifold_priors import BETAS, TAU, WIDTH, WIDTH_OF_GRAPH
from swing_gp.models.neighbors import NeighborSearch
from swing_gp.models.regions import Region
from swing_gp.operators.diffusion_coordinates import DiffusionCoordinates

# Up to so many values are learnt from all at once, and up to so many conditioned on all at once.
LEARNT, EXACT = 512, 1000
# Above these, values that are held out to learn from, and the nearest that they are given.
HELD, GIVEN = 256, 48
# Neighbours of a prediction, and how many under a noise that single neighbours cannot average out.
NEIGHBORS, MORE_NEIGHBORS, MUCH_NOISE = 64, 256, 0.1
# Where a search begins. Lengthscales are in units of the deviation of extended points.
LENGTHSCALES, NOISES = (0.03, 0.1, 0.3, 1.0), (1e-3, 1e-1)
# Mean and deviation of the logarithm of the noise over the amplitude, and of the lengthscale's.
NOISE, WIDTH_OF_NOISE = 1e-2, 3.0
STEPS = 40


@dataclass(frozen=True)
class CoordinateGP:
    """A Matérn GP with fixed hyper-parameters on nodes.

    :ivar points: coordinates of the nodes, (N, d), centred, with a total variance of one.
    :ivar coordinates: the graph's part of the extended coordinates, or None.
    :ivar noise: the noise variance over the variance of the GP.
    :ivar centered: whether a constant mean is estimated among the values that a prediction is given.
    """

    points: Tensor
    coordinates: DiffusionCoordinates | None
    nu: float
    centered: bool
    lengthscale: float = 1.0
    noise: float = NOISE
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
        scaled = self.points / self.lengthscale
        if self.coordinates is None:
            return scaled
        weights = self.coordinates.weights(torch.tensor([self.tau], dtype=torch.float64)).to(scaled)
        return torch.cat([scaled, self.beta / self.lengthscale * weights * self.coordinates.functions.to(scaled)], -1)

    def local(self, extended: Tensor, values: Tensor) -> LocalGP:  # (n, d + K), (n, k)
        """Conditioned on values at some extended points."""
        number = MORE_NEIGHBORS if self.noise > MUCH_NOISE else NEIGHBORS
        dim = self.points.shape[1]
        return LocalGP(
            EDGES[self.nu](1.0),
            extended,
            values,
            noise=self.noise,
            neighbors=len(values) if len(values) <= EXACT else number,
            mean="local" if self.centered else 0.0,
            leading=dim if self.coordinates is not None and dim <= TREE_DIM else None,
        )

    def amplitude(self, regions: Sequence[Region], values: Tensor) -> Tensor:  # (k,)
        """The deviation of the GP with which squares of held-out residuals are, in the mean, their variances."""
        total, weight = torch.zeros_like(values[0]), 0.0
        for prediction, rows, weights in self.held_out(regions, values):
            ratios = (prediction.mean - values[rows]).square() / prediction.variance.unsqueeze(-1)
            total, weight = total + weights @ ratios, weight + float(weights.sum())
        return (total / weight).sqrt()

    def held_out(self, regions: Sequence[Region], values: Tensor) -> Iterator[tuple[LocalPrediction, Tensor, Tensor]]:
        """For every split of every region the prediction of held-out values, with noise, their rows and their weights."""
        extended = self.extended()
        for region in regions:
            ids = region.nodes[region.known]
            for held, weights in region.splits:
                kept, tested = region.kept(held), weights > 0
                model = self.local(extended[ids[kept]], values[region.rows[kept]])
                yield model.predict(extended[ids[held[tested]]], with_noise=True), region.rows[held[tested]], weights[tested]


class CoordinatePosterior:
    """A :class:`CoordinateGP` conditioned on known values: means and deviations at all nodes.

    :param known: ids of the known nodes, (n,).
    :param values: their values, (n, k).
    :param trend: what is taken off before and added after, (N, k).
    :param amplitude: the deviation of the GP, for every column, (k,).
    """

    scale = 1.0  # the prior variance, which the noise is measured by

    def __init__(self, model: CoordinateGP, known: Tensor, values: Tensor, trend: Tensor, amplitude: Tensor) -> None:
        extended = model.extended()
        rest = values.double() - trend[known]
        largest = rest.abs().amax(0)
        unit = torch.where(largest > 0, largest, 1.0)  # squares neither overflow nor vanish
        prediction = model.local(extended[known], rest / unit).predict(extended)
        self.mean, self.variance, self.amplitude = prediction.mean * unit + trend, prediction.variance, amplitude

    def std(self, shape: torch.Size) -> Tensor:
        return (self.variance.sqrt().unsqueeze(-1) * self.amplitude).reshape(shape)


def fit_coordinates(
    points: Tensor,
    coordinates: DiffusionCoordinates | None,
    nu: float,
    known: Tensor,
    values: Tensor,
    regions: Sequence[Region],
    *,
    centered: bool = True,
) -> CoordinateGP:
    """The likeliest hyper-parameters, under wide priors.

    :param points: as of :class:`CoordinateGP`, (N, d), and so are ``coordinates``, ``nu`` and ``centered``.
    :param known: ids of the known nodes, (n,).
    :param values: their values, (n, k).
    :param regions: whose splits hyper-parameters of many values are learnt from.
    """
    blocks, weights, rows = _blocks(points, known, regions)
    likelihood = _Likelihood(points, coordinates, nu, known[blocks], values[blocks], weights, rows, centered)
    betas = (0.0,) if coordinates is None else BETAS
    with torch.no_grad():
        starts = list(itertools.product(LENGTHSCALES, NOISES, betas))
        losses = [float(likelihood.start(*start)()) for start in starts]
    likelihood.start(*starts[int(np.argmin(losses))])
    minimize_lbfgs(likelihood, likelihood, max_steps=STEPS)
    found = CoordinateGP(points, coordinates, nu, centered)
    names = ("lengthscale", "noise", "beta", "tau")
    return found.with_settings(dict(zip(names, likelihood.log_parameters.detach().exp().tolist(), strict=False)))


def _blocks(points: Tensor, known: Tensor, regions: Sequence[Region]) -> tuple[Tensor, Tensor, bool]:
    """Blocks of known values, (c, m), their weights, (c,), and whether all values of a block count or its last alone."""
    if len(known) <= LEARNT:
        return torch.arange(len(known)).unsqueeze(0), torch.ones(1, dtype=torch.float64), True
    splits = [(region, held, weights) for region in regions for held, weights in region.splits]
    chances = torch.cat([weights for _, _, weights in splits])
    drawn = torch.multinomial(chances, min(HELD, int((chances > 0).sum())), generator=torch.Generator().manual_seed(0))
    taken = torch.zeros(len(chances), dtype=torch.bool)
    taken[drawn] = True
    lists = []
    for (region, held, _), chosen in zip(splits, taken.split([len(held) for _, held, _ in splits]), strict=True):
        kept = region.rows[region.kept(held)]
        target = region.rows[held[chosen]]
        if len(target) and len(kept) >= GIVEN:
            near = NeighborSearch(points[known[kept]]).nearest(points[known[target]], GIVEN)
            lists.append(torch.cat([kept[near], target.unsqueeze(-1)], -1))
    if not lists:  # regions with too few values: any value, given its neighbours
        ids = torch.randperm(len(known), generator=torch.Generator().manual_seed(0))[:HELD]
        near = NeighborSearch(points[known]).nearest(points[known[ids]], GIVEN + 1)
        lists.append(near.flip(-1))
    blocks = torch.cat(lists)
    return blocks, torch.full((len(blocks),), 1 / len(blocks), dtype=torch.float64), False


class _Likelihood(nn.Module):
    """Minus the logarithm of the density of blocks of values, and of the priors, as a function of log-parameters."""

    def __init__(
        self,
        points: Tensor,
        coordinates: DiffusionCoordinates | None,
        nu: float,
        blocks: Tensor,
        values: Tensor,
        weights: Tensor,
        whole: bool,
        centered: bool,
    ) -> None:
        # (N, d), (c, m), (c, m, k), (c,)
        super().__init__()
        near = points[blocks].double()
        self.squares = torch.cdist(near, near, compute_mode="donot_use_mm_for_euclid_dist").square()
        self.functions = None if coordinates is None else coordinates.functions[blocks].double()
        self.coordinates, self.edge = coordinates, EDGES[nu](1.0)
        self.values, self.weights, self.whole, self.centered = values.double(), weights, whole, centered
        self.log_parameters = nn.Parameter(torch.zeros(2 if coordinates is None else 4, dtype=torch.float64))

    def start(self, lengthscale: float, noise: float, beta: float) -> _Likelihood:
        wide = math.sqrt(1 + beta**2)
        with torch.no_grad():
            values = [lengthscale * wide, noise] + ([] if self.coordinates is None else [beta, TAU])
            self.log_parameters.copy_(torch.tensor(values, dtype=torch.float64).log())
        return self

    def forward(self) -> Tensor:
        lengthscale, noise, *graph = self.log_parameters.exp()
        squares = self.squares
        if self.functions is not None and self.coordinates is not None:
            beta, tau = graph
            psi = beta * self.coordinates.weights(tau.unsqueeze(-1)) * self.functions
            norms = psi.square().sum(-1, keepdim=True)
            squares = squares + (norms + norms.mT - 2 * psi @ psi.mT).clamp_min(0)
        distances = (squares / lengthscale.square() + 1e-20).sqrt()
        identity = torch.eye(distances.shape[-1], dtype=torch.float64)
        matrix = self.edge.log_profile(distances).exp() + (noise + 1e-8) * identity
        factor = torch.linalg.cholesky(matrix)
        columns = torch.cat([self.values, torch.ones_like(self.values[..., :1])], -1)
        white = torch.linalg.solve_triangular(factor, columns, upper=False)
        scale = factor.diagonal(dim1=-2, dim2=-1)
        fitted, inflation = white[..., :-1], torch.ones_like(scale)
        if self.centered:
            ones = white[..., -1:]
            given = ones if self.whole else ones[..., :-1, :]
            total = given.square().sum(-2, keepdim=True)
            constant = given.mT @ fitted[..., : given.shape[-2], :] / total
            fitted = fitted - ones * constant
            if not self.whole:
                inflation = 1 + (ones.square() / total).squeeze(-1)
        if not self.whole:
            fitted, scale, inflation = fitted[..., -1:, :], scale[..., -1:], inflation[..., -1:]
        # Weights sum to one: means over values, and the amplitude under which each column is likeliest.
        amplitude = self.weights @ (fitted.square() / inflation.unsqueeze(-1)).mean(-2)
        logs = self.weights @ (2 * scale.log() + inflation.log()).mean(-1)
        number = fitted.shape[0] * fitted.shape[1] * fitted.shape[2]
        return number * 0.5 * (amplitude.clamp_min(1e-30).log().mean() + logs) + self._prior()

    def _prior(self) -> Tensor:
        lengthscale, noise, *graph = self.log_parameters
        penalty = ((noise - math.log(NOISE)) / WIDTH_OF_NOISE).square()
        if graph:
            lengthscale = lengthscale - 0.5 * (1 + (2 * graph[0]).exp()).log()
            penalty = penalty + (graph[0] / WIDTH_OF_GRAPH).square() + ((graph[1] - math.log(TAU)) / WIDTH_OF_GRAPH).square()
        return 0.5 * (penalty + (lengthscale / WIDTH).square())
