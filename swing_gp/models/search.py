"""The search of :func:`~swing_gp.models.selection.select`: families one after the other, on the same held-out values."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from swing_gp.gp.manifold import EDGES, neighbor_graph
from swing_gp.gp.trend import independent, trend_basis, untold
from swing_gp.graphs.graph import Graph
from swing_gp.graphs.implicit import ImplicitGraph
from swing_gp.graphs.order import position_order
from swing_gp.models.alternatives import alternatives_on_coordinates, alternatives_on_graph, equally_likely
from swing_gp.models.candidates import KAPPAS, LARGE, NEIGHBORS, candidates, series_candidates
from swing_gp.models.chooser import Chooser, Split
from swing_gp.models.comparison import CRITERIA, Comparison, Row
from swing_gp.models.coordinates import CoordinateGP, fit_coordinates
from swing_gp.models.graph_grid import (
    ENOUGH,
    Setting,
    best_of_grid,
    descend,
    held_out_amplitude,
    solved_score,
)
from swing_gp.models.regions import LARGEST_PART, WIDE, Region, regions_of
from swing_gp.models.scores import Score, deviations_of
from swing_gp.models.settings_posterior import Alternative
from swing_gp.operators.diffusion_coordinates import DiffusionCoordinates, diffusion_coordinates
from swing_gp.series.base import Series
from swing_gp.series.families import Matern, OneStep
from swing_gp.utils.progress import progress_bar

# As the noise grows the GP's directions become those of the paper's rule, which is best where normals jump.
NOISES = (1e-6, 1e-4, 1e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)
# Conjugate gradients take hundreds of steps at less noise, for the same score.
NOISES_IF_LARGE = (1e-2, 3e-2, 1e-1, 3e-1, 1.0)
# Of kernels of nearest neighbours.
NOISES_OF_MATERN = (1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)
# Eigenpairs, and beyond how many nodes they take longer than all else.
EIGENPAIRS, MOST_EXTENDED = 60, 20_000
# Settings that a search in wide gaps may try for one smoothness, and one that refines.
SOLVES, REFINED = 10, 16
# Known values of a part for each coefficient of a linear trend: with fewer, estimating it anew makes scores far worse.
PER_COEFFICIENT = 5
# How level the powers on both sides must be for the one between to be tried.
CLOSE = 1.03


@dataclass(frozen=True)
class Selection:
    """What predicts held-out values best.

    :ivar graph: the graph; for the families on coordinates, raw weights between (extended) points, whose one step is the plain
        covariance.
    :ivar series: the series.
    :ivar noise: the noise variance over the mean prior variance of the known nodes; None where the rule has none.
    :ivar table: everything that was tried, with the mean, the nearest known value and the plain Matérn GP beside it.
    :ivar model: for the families on coordinates, the GP.
    :ivar amplitude: what functions are multiplied by, for every column, (k,), so that squares of held-out residuals are their
        variances in the mean; None where there is no noise, and for the criterion ``"likelihood"``.
    :ivar alternatives: kernels of all families that were tried, which deviations are integrated over; none where the chosen
        family is of graphs and the graph is too large for eigenvalues.
    """

    graph: Graph
    series: Series
    noise: float | None
    table: Comparison
    model: CoordinateGP | None = None
    amplitude: Tensor | None = None
    alternatives: Sequence[Alternative] = ()

    @property
    def score(self) -> float:
        """The RMSE or mean cosine of held-out values, or the log marginal likelihood per value, of what was chosen."""
        return self.table.chosen.score

    @property
    def criterion(self) -> str:
        return self.table.criterion

    @property
    def tried(self) -> int:
        return len(self.table.rows)


class Search:
    """The candidates so far, and what all of them are tried on."""

    def __init__(
        self,
        nodes: Tensor | Graph,
        known: Tensor,
        values: Tensor,
        rule: str,
        criterion: str,
        mean: str | None,
        dense: bool,
        noises: Sequence[float] | None,
        seed: int,
        progress: bool | None,
    ) -> None:
        self.nodes, self.rule, self.criterion = nodes, rule, criterion
        self.noises = None if noises is None else sorted(noises)
        self.points = nodes.points if isinstance(nodes, Graph) else nodes
        self.number, self.progress = len(self.points), progress
        # Samples of known values are drawn by row.
        order = position_order(self.points[known] if self.points.shape[1] else known, values)
        self.known, values = known[order], values[order]
        # In units in which squares neither overflow nor vanish, and columns count alike.
        size = values.abs().max().double()
        self.unit = torch.where(size > 0, size, 1.0)
        if criterion == "rmse" and values.shape[1] > 1:
            self.unit = self.unit * deviations_of(values.double() / self.unit)
        self.values = values.double() / self.unit
        self.mean = mean if rule == "gp" else None
        if len(known) < 2:
            raise ValueError("One known node is too few to choose settings by: give a graph, a series and noise.")
        # Grids of settings want eigenvalues: their regions stay small, however wide gaps are.
        self.basis = trend_basis(self.mean, self.points, self.known)  # (N, p)
        fewest = PER_COEFFICIENT * self.basis.shape[1] if self.mean == "linear" else 0
        regions = regions_of(nodes, self.known, largest=WIDE if dense else LARGEST_PART, fewest=fewest, seed=seed)
        self.regions = [region for region in (_told(region, self.basis[self.known]) for region in regions) if region.splits]
        if not self.regions:
            raise ValueError(
                f"mean={mean!r} has {self.basis.shape[1]} coefficients, and where known values are held out the others do not "
                "tell them: use mean='constant', or give a graph, a series and noise."
            )
        self.wide = any(len(region.nodes) > WIDE for region in self.regions)
        splits = [
            Split(region.rows[region.kept(held)], region.rows[held], weights)
            for region in self.regions
            for held, weights in region.splits
        ]
        self.chooser: Chooser[Callable[[Comparison], Selection]]
        self.chooser = Chooser(self.points[self.known], self.values, splits, criterion, self._in_units)
        self.smoothness: dict[float, float] = {}
        self.alternatives: dict[str, list[Alternative]] = {}

    def add(
        self,
        family: str,
        settings: dict[str, Any],
        score: float,
        parts: Score | None,
        began: float,
        make: Callable[[Comparison], Selection],
        expected: float = math.nan,
    ) -> None:
        row = Row(family, settings, self._in_units(score), time.perf_counter() - began, self._in_units(expected))
        self.chooser.add(row, parts, make)

    def _in_units(self, score: float) -> float:
        if self.criterion == "cosine":
            return score
        unit = float(self.unit) if self.unit.dim() == 0 else 1.0
        return score - math.log(unit) if self.criterion == "likelihood" else score * unit

    def best(self) -> Selection:
        make, table = self.chooser.best()
        return replace(make(table), alternatives=equally_likely(self.alternatives, table.chosen.family))

    # Matérn GPs on coordinates

    def coordinates(self) -> None:
        self._on_coordinates("coordinates", None)

    def extended(self) -> None:
        if not 8 <= self.number <= MOST_EXTENDED:
            return
        if len(self.points.unique(dim=0)) == self.number:
            graph = _graph_or_none(self.scaled)
            if graph is not None:
                self._on_coordinates("extended", diffusion_coordinates(graph, EIGENPAIRS))

    @cached_property
    def scaled(self) -> Tensor:  # (N, d)
        """The points, centred and with a total variance of one."""
        points = self.points.detach().double()
        points = points - points.mean(0)
        spread = points.var(0, correction=0).sum().sqrt()
        return points / torch.where(spread > 0, spread, 1.0)

    def _on_coordinates(self, family: str, coordinates: DiffusionCoordinates | None) -> None:
        tried = list(EDGES)
        if coordinates is not None and self.smoothness:  # what is best on coordinates alone, and what comes second
            tried = sorted(self.smoothness, key=self.smoothness.__getitem__)[:2]
        for nu in self._wrapped(tried, family):
            began = time.perf_counter()
            with torch.enable_grad():
                model = fit_coordinates(self.scaled, coordinates, nu, self.known, self.values, self.regions, mean=self.mean)
            if self.noises is not None:
                model = model.with_settings({"noise": _nearest(self.noises, model.noise)})
            model, score = self._refined(model)
            if coordinates is None:
                self.smoothness[nu] = -score.value if CRITERIA[self.criterion] else score.value
            self.add(family, model.settings, score.value, score, began, partial(self._selection, model))
        self.alternatives[family] = alternatives_on_coordinates(model)

    def _refined(self, model: CoordinateGP) -> tuple[CoordinateGP, Score]:
        """Likelihoods know noise that is Gaussian, and one scale for all values. Where values jump, scores know better."""

        def score(**changes: float) -> Score:
            found, other = Score(self.criterion), model.with_settings(changes)
            for prediction, rows, weights in other.held_out(self.regions, self.values):
                found.add(prediction.mean, self.values[rows], weights)
            return found

        tested = sum(int((weights > 0).sum()) for region in self.regions for _, weights in region.splits)
        if tested < ENOUGH:
            return model, score()
        ladders = {"noise": self.noises or [model.noise * 10**step for step in range(-2, 5)],
                   "lengthscale": [model.lengthscale * 2**step for step in range(-3, 4)]}  # fmt: skip
        if model.coordinates is not None:
            ladders["beta"] = [model.beta * 2**step for step in range(-3, 4)]
        start = {name: getattr(model, name) for name in ladders}
        best, found = self._descended(score, ladders, start, REFINED)
        return model.with_settings(best), found

    def _descended(
        self, score: Callable[..., Score], ladders: dict[str, Any], start: dict[str, float], budget: int
    ) -> tuple[dict[str, float], Score]:
        """The best setting of a search, and its score."""
        parts: dict[tuple, Score] = {}

        def value(**setting: float) -> float:
            parts[tuple(setting.values())] = found = score(**setting)
            return found.value

        best, _ = descend(value, ladders, start, higher=CRITERIA[self.criterion], budget=budget)
        return best, parts[tuple(best.values())]

    def _selection(self, model: CoordinateGP, table: Comparison) -> Selection:
        graph = ImplicitGraph(model.extended().to(self.points), EDGES[model.nu](1.0), None)
        amplitude = model.amplitude(self.regions, self.values) * self.unit
        return Selection(graph, OneStep(), model.noise, table, model, amplitude)

    # Kernels of graphs

    def neighbors(self) -> None:
        graph = None if self.number < 8 else _graph_or_none(self.points)
        if graph is None:
            return
        if not self.wide:
            settings = [pair for pair in series_candidates(self.number) if isinstance(pair[1], Matern)]
            self.grid("neighbors", settings, NOISES_OF_MATERN, graph=graph)
            return
        noises = self.noises or NOISES_OF_MATERN
        best, scores = {"kappa": 30.0, "noise": _nearest(noises, 1e-2)}, dict[float, float]()

        def descended(nu: float, budget: int) -> None:
            nonlocal best
            began = time.perf_counter()

            def score(kappa: float, noise: float) -> Score:
                return solved_score(graph, self.regions, self.values, self.basis, Matern(nu, kappa), noise, self.criterion)

            found, parts = self._descended(score, {"kappa": KAPPAS, "noise": noises}, best, budget)
            series, noise = Matern(nu, found["kappa"]), found["noise"]
            settings, make = {"series": repr(series), "noise": noise}, partial(self._on_graph, graph, series, noise)
            self.add("neighbors", settings, parts.value, parts, began, make)
            scores[nu] = 1 - parts.value if CRITERIA[self.criterion] else parts.value
            best = found if scores[nu] <= min(scores.values()) else best

        for nu in self._wrapped([2.0, 1.0, 3.0], "neighbors"):
            descended(nu, SOLVES if nu == 2.0 else SOLVES // 2 if nu == 1.0 else SOLVES // 3)
        if scores[1.0] < CLOSE * scores[2.0]:  # a solve with half a power more costs ten of these
            descended(1.5, SOLVES // 3)

    def _on_graph(self, graph: Graph, series: Series, noise: float | None, table: Comparison) -> Selection:
        if noise is None or self.criterion == "likelihood":
            return Selection(graph, series, noise, table)
        amplitude = held_out_amplitude(graph, series, noise, self.regions, self.values, self.basis)
        return Selection(graph, series, noise, table, amplitude=amplitude * self.unit)

    def implicit(self) -> None:
        if not self.wide:
            self.grid("implicit", candidates(self.points))

    def grid(
        self,
        family: str,
        settings: Sequence[Setting],
        noises: Sequence[float] | None = None,
        normalization: str | None = "symmetric",
        *,
        graph: Graph | None = None,
    ) -> None:
        """The best of settings and noises, in one row."""
        began = time.perf_counter()
        noises = self.noises or noises or (NOISES if self.number <= LARGE else NOISES_IF_LARGE)
        options: Sequence[float | None] = noises if self.rule == "gp" else (None,)
        nodes = self.nodes if graph is None else graph
        position, option, expected, parts = best_of_grid(
            nodes, self.regions, self.values, settings, options, rule=self.rule, criterion=self.criterion,
            basis=self.basis[self.known], normalization=normalization, wrap=lambda work: self._wrapped(work, family),
        )  # fmt: skip
        (edge, series), noise = settings[position], options[option]
        if isinstance(nodes, Graph):
            chosen: Graph = nodes
        else:
            assert edge is not None
            chosen = ImplicitGraph(nodes, edge, normalization)
        described: dict[str, Any] = {"series": repr(series)} | ({} if edge is None else {"edge": repr(edge)})
        described |= {} if noise is None else {"noise": noise}
        self.alternatives[family] = alternatives_on_graph(nodes, settings, normalization)
        score, make = expected if parts is None else parts.value, partial(self._on_graph, chosen, series, noise)
        self.add(family, described, score, parts, began, make, expected)

    def _wrapped(self, work: list, description: str) -> Iterable:
        return progress_bar(work, f"choose: {description}", self.progress)


def _told(region: Region, basis: Tensor) -> Region:  # (n, p)
    """A region with those of its splits in which kept values tell the whole trend."""
    orthonormal = independent(basis[region.rows])
    whole = orthonormal.shape[1] == basis.shape[1]
    splits = [split for split in region.splits if whole and not untold(orthonormal, split[0]).numel()]
    return replace(region, splits=tuple(splits))


def _nearest(noises: Sequence[float], noise: float) -> float:
    return min(noises, key=lambda each: abs(math.log(each / noise)))


def _graph_or_none(points: Tensor) -> Graph | None:
    """Of nearest neighbours; None where points repeat, or lie so regularly, that the nearest are not told apart."""
    try:
        return neighbor_graph(points, NEIGHBORS)
    except ValueError:
        return None
