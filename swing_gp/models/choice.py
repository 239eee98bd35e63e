"""Which of several families of Gaussian processes predicts held-out values best.

Hyper-parameters within a family are the likeliest ones; between families decide values that are held out in folds shaped like
the task, with the hyper-parameters of the fit. The same folds score the mean, the nearest known value, and a plain Matérn GP.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from swing_gp.gp.manifold import LOW_DIM
from swing_gp.graphs.nearest import knn_graph
from swing_gp.models.comparison import Comparison, ModelWarning, Row
from swing_gp.models.estimator import Inputs, column_scales, scalings_of, standards
from swing_gp.models.folds import Fold, task_folds
from swing_gp.models.graph_gp import DENSE, GraphGP
from swing_gp.models.manifold_priors import SMOOTHNESS
from swing_gp.models.matern_gp import MaternGP
from swing_gp.models.matern_search import Fit, Places, Search
from swing_gp.models.neighbors import NeighborSearch
from swing_gp.operators.diffusion_coordinates import DiffusionCoordinates, diffusion_coordinates

# Fewer distinct inputs are no graph; more nodes than so many take minutes.
FEWEST, MOST_NODES = 8, 50_000
# Nodes up to which a graph kernel is tried beside the extended one, and the steps of Adam that it gets.
GRAPH_NODES, GRAPH_STEPS = 3000, 30
# Folds with few and with many observations, and values of one that are scored.
FOLDS, MANY, HELD = (10, 5), 200, 400
# A linear trend is tried with so many observations for each coefficient.
PER_COEFFICIENT = 10
# The share of the variance from which on a fit is mostly noise.
NOISY = 0.5


@dataclass
class Candidate:
    """A fitted GP, the scaling of its inputs, the row of the table that it has, and what it missed of held-out values."""

    row: Row
    model: MaternGP | GraphGP
    inputs: Inputs
    scaling: str | None
    fit: Fit | None = None
    missed: list[Tensor] | None = None


@dataclass
class Task:
    """What there is to learn from and how.

    :ivar x: inputs in their units, (n, d).
    :ivar more: inputs without a target, (m, d), or None.
    :ivar y: standardised targets, (n, k).
    """

    x: np.ndarray
    more: np.ndarray | None
    y: Tensor
    scaling: str | None = "auto"
    nu: float | None = None
    ard: bool | None = None
    mean: str | None = "auto"
    neighbors: int = 10
    max_steps: int = 100
    seed: int = 0
    scales: dict[str | None, Inputs] = field(default_factory=dict)

    def __post_init__(self) -> None:
        center = standards("X", self.x)[0]
        names = scalings_of(self.x, self.scaling)
        self.scales = {name: Inputs(center, column_scales(self.x, name)) for name in names}
        nus = SMOOTHNESS if self.nu is None else (self.nu,)
        self.search = Search(self.y, smoothness=nus, ard=self.ard, max_steps=self.max_steps, seed=self.seed)

    @property
    def first_mean(self) -> str | None:
        return "constant" if self.mean == "auto" else self.mean

    def nodes(self, scaling: str | None) -> Tensor:
        """All inputs, those with a target first."""
        parts = [self.scales[scaling]("X", self.x)]
        return torch.cat(parts if self.more is None else [*parts, self.scales[scaling]("X_unlabeled", self.more)])

    # Families

    def coordinates(self) -> list[Candidate]:
        """A Matérn GP on the coordinates: the likeliest, the plain one if that is another, and one with a linear trend."""
        places = [Places(name, scaled("X", self.x)) for name, scaled in self.scales.items()]
        best, plain = self.search.fit(places, self.first_mean)
        found = [best] if plain is best or self.ard else [best, plain]
        if self.mean == "auto" and len(self.x) >= PER_COEFFICIENT * (self.x.shape[1] + 1):
            found.insert(1, self.search.with_mean(best, "linear"))
        return [self._candidate("coordinates", fit) for fit in found]

    def extended(self, near: Candidate | None = None) -> list[Candidate]:
        """A Matérn GP on coordinates that a graph of all inputs extends.

        :param near: one on the coordinates: its lengthscales are a start, and its scaling that of large graphs.
        """
        began, names = time.perf_counter(), list(self.scales)
        if near is not None and len(self.x) + len(self.x if self.more is None else self.more) > GRAPH_NODES:
            names = [near.scaling]
        places = []
        for name in names:
            coordinates = diffusion(self.nodes(name), self.neighbors)
            if coordinates is not None:
                places.append(Places(name, self.scales[name]("X", self.x), coordinates))
        if not places:
            return []
        fit = self.search.fit(places, self.first_mean, None if near is None else near.fit)[0]
        fit.seconds = time.perf_counter() - began  # with the eigenfunctions
        return [self._candidate("extended", fit)]

    def named(self, options: dict[str, Any], scalings: Iterable[str | None], **training: Any) -> Candidate:
        """A GP with a graph kernel, in the likeliest of some scalings."""
        began = time.perf_counter()
        found = []
        for name in scalings:
            model = GraphGP(self.nodes(name), self.y, options, self.first_mean)
            found.append((model.start(), name, model))
        _, name, model = min(found, key=lambda each: each[0])
        model.train(**training)
        settings = {"graph": options["graph"], "mean": self.first_mean, "scaling": name}
        row = Row(options["kernel"], settings, seconds=time.perf_counter() - began)
        return Candidate(row, model, self.scales[name], name)

    def _candidate(self, family: str, fit: Fit) -> Candidate:
        row = Row(family, fit.settings, seconds=fit.seconds)
        return Candidate(row, fit.gp, self.scales[fit.scaling], fit.scaling, fit)

    # Scores

    def folds(self, points: Callable[[Tensor], Tensor], scaling: str | None) -> list[Fold]:
        """Rows to hold out: like the inputs without a target where there are any, at random otherwise.

        :param points: in the distances of which the task is seen.
        """
        size = len(self.x)
        number = min(size, FOLDS[size > MANY])
        if size < 4:
            return []
        if self.more is None:
            order = torch.randperm(size, generator=torch.Generator().manual_seed(self.seed))
            held = [order[start::number].sort().values for start in range(number)]
            every = torch.arange(size)
            return [Fold(part, every[~torch.isin(every, part)], part.new_ones(len(part), dtype=torch.float64)) for part in held]
        with torch.no_grad():
            nodes = points(self.nodes(scaling))
        return task_folds(nodes, torch.arange(size), num_folds=number, share=min(0.4, 1 / number), seed=self.seed)

    def scored(self, candidates: list[Candidate], folds: list[Fold]) -> list[Candidate]:
        """The same with their scores."""
        few = [_few(fold, self.seed) for fold in folds]
        for candidate in candidates:
            began = time.perf_counter()
            missed = candidate.model.held_out([(held, fold.kept) for fold, (held, _) in zip(folds, few, strict=True)])
            score = math.nan if missed is None or not folds else _rmse(missed, [weights for _, weights in few])
            seconds = candidate.row.seconds + time.perf_counter() - began
            candidate.missed = missed
            candidate.row = replace(candidate.row, score=score, seconds=seconds)
        return candidates

    def gain(self, best: Candidate, folds: list[Fold]) -> float | None:
        """By how many standard errors held-out values are predicted better than by the mean; None where nothing is known."""
        if not folds or best.missed is None:
            return None
        few = [_few(fold, self.seed) for fold in folds]
        gains = []
        for fold, (held, _), missed in zip(folds, few, best.missed, strict=True):
            mean = self.y[held] - self.y[fold.kept].mean(0)
            gains.append((mean.square() - missed.square()).mean(-1))
        gain, weights = torch.cat(gains), torch.cat([weights for _, weights in few]) / len(few)
        average = weights @ gain
        error = (weights.square() @ (gain - average).square()).sqrt()
        return float(average / error.clamp_min(1e-300))

    def trivial(self, folds: list[Fold], scaling: str | None) -> list[Row]:
        """The scores of the mean and of the nearest known value."""
        if not folds:
            return []
        few, x = [_few(fold, self.seed) for fold in folds], self.scales[scaling]("X", self.x)
        weights = [weight for _, weight in few]
        pairs = [(held, fold.kept) for fold, (held, _) in zip(folds, few, strict=True)]
        mean = [self.y[held] - self.y[kept].mean(0) for held, kept in pairs]
        near = [self.y[held] - self.y[kept[NeighborSearch(x[kept]).nearest(x[held], 1)[:, 0]]] for held, kept in pairs]
        return [Row("mean", score=_rmse(mean, weights)), Row("nearest", score=_rmse(near, weights))]


def choose(task: Task, kernel: str, options: dict[str, Any], **training: Any) -> tuple[Candidate, Comparison]:
    """The best candidate on held-out values, and the table.

    :param kernel: ``"auto"`` for all families, or the name of one.
    :param options: of a graph kernel.
    :param training: of a graph kernel: ``steps``, ``learning_rate``, ``patience`` and ``progress``.
    """
    if kernel not in ("auto", "coordinates", "extended"):
        first = task.named(options, task.scales, **training)
        candidates = [first]
    elif kernel == "extended":
        candidates = task.extended() or task.coordinates()[:1]
        first = candidates[0]
    else:
        candidates = task.coordinates()
        first = candidates[0]
    metric = first.model.points if isinstance(first.model, MaternGP) else lambda nodes: nodes
    folds = task.folds(metric, first.scaling)
    task.scored(candidates, folds)
    if kernel == "auto" and task.more is not None and len(task.x) + len(task.more) <= MOST_NODES:
        more = task.scored(task.extended(first), folds)
        candidates += more
        # Where the graph does not help the coordinates, a kernel on the graph alone will not.
        helps = bool(more) and folds and more[0].row.score < first.row.score
        # More observations than this it could not be scored on.
        if helps and len(task.x) + len(task.more) <= GRAPH_NODES and len(task.x) <= DENSE:
            training["steps"] = min(GRAPH_STEPS, training["steps"])
            candidates += task.scored([task.named(options, [more[0].scaling], **training)], folds)
    best = min(candidates, key=lambda each: each.row.score if math.isfinite(each.row.score) else math.inf)
    rows = [each.row for each in candidates] + task.trivial(folds, first.scaling)
    return best, Comparison(tuple(rows), "rmse", best.row, task.gain(best, folds))


def warn_if_useless(best: Candidate, comparison: Comparison, stacklevel: int) -> None:
    """Say so where held-out values are predicted no better than by something trivial, or hardly better."""
    mean = comparison.best("mean")
    if mean is None:
        warnings.warn(
            "Three observations or fewer are too few to learn from, or to tell whether a model is any good.",
            ModelWarning,
            stacklevel=stacklevel,
        )
    else:
        share = min(1.0, float(best.model.noise.detach()))
        note = f", and the fit is mostly noise, {share:.0%} of the variance" if share > NOISY else ""
        comparison.warn_if_useless(stacklevel + 1, note=note)


def diffusion(nodes: Tensor, neighbors: int) -> DiffusionCoordinates | None:
    """Diffusion coordinates of distinct inputs; None where there are too few."""
    points = torch.unique(nodes, dim=0)
    if len(points) < FEWEST:
        return None
    density = 1.0 if points.shape[1] > LOW_DIM else 0.0
    return diffusion_coordinates(knn_graph(points, min(neighbors, len(points) - 2), density=density))


def _few(fold: Fold, seed: int) -> tuple[Tensor, Tensor]:
    """Up to so many held-out rows, and their weights."""
    keep = torch.randperm(len(fold.held), generator=torch.Generator().manual_seed(seed))[:HELD].sort().values
    weights = fold.weights[keep]
    total = weights.sum()
    return fold.held[keep], weights / total if total > 0 else torch.full_like(weights, 1 / len(weights))


def _rmse(missed: list[Tensor], weights: list[Tensor]) -> float:
    """Of (h, k) values in every fold, with the weights of their rows."""
    squares = [(weight @ part.square().mean(-1)) for part, weight in zip(missed, weights, strict=True)]
    return float(torch.stack(squares).mean().sqrt())
