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

from swing_gp.gp.manifold import neighbor_graph
from swing_gp.models.chooser import Chooser, Split
from swing_gp.models.comparison import Comparison, ModelWarning, Row
from swing_gp.models.estimator import Inputs, column_scales, scalings_of, standards
from swing_gp.models.folds import Fold, task_folds
from swing_gp.models.graph_gp import DENSE, GraphGP
from swing_gp.models.manifold_priors import SMOOTHNESS
from swing_gp.models.matern_gp import MaternGP
from swing_gp.models.matern_search import Fit, MaternSearch, Places
from swing_gp.models.scores import Score
from swing_gp.operators.diffusion_coordinates import DiffusionCoordinates, diffusion_coordinates
from swing_gp.utils.progress import progress_bar

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
    """A fitted GP, the scaling of its inputs, and the row of the table that it has."""

    row: Row
    model: MaternGP | GraphGP
    inputs: Inputs
    scaling: str | None
    fit: Fit | None = None


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
    progress: bool | None = False
    scales: dict[str | None, Inputs] = field(default_factory=dict)

    def __post_init__(self) -> None:
        center = standards("X", self.x)[0]
        names = scalings_of(self.x, self.scaling)
        self.scales = {name: Inputs(center, column_scales(self.x, name)) for name in names}
        nus = SMOOTHNESS if self.nu is None else (self.nu,)
        self.search = MaternSearch(
            self.y, smoothness=nus, ard=self.ard, max_steps=self.max_steps, seed=self.seed, progress=self.progress
        )

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

    def splits(self, points: Callable[[Tensor], Tensor], scaling: str | None) -> list[Split]:
        """Rows to hold out: like the inputs without a target where there are any, at random otherwise.

        :param points: in the distances of which the task is seen.
        """
        size = len(self.x)
        number = min(size, FOLDS[size > MANY])
        if size < 4:
            return []
        if self.more is None:
            order = torch.randperm(size, generator=torch.Generator().manual_seed(self.seed))
            held, every = [order[start::number].sort().values for start in range(number)], torch.arange(size)
            folds = [
                Fold(part, every[~torch.isin(every, part)], part.new_ones(len(part), dtype=torch.float64)) for part in held
            ]
        else:
            with torch.no_grad():
                nodes = points(self.nodes(scaling))
            folds = task_folds(nodes, torch.arange(size), num_folds=number, share=min(0.4, 1 / number), seed=self.seed)
        return [_split(fold, self.seed) for fold in folds]

    def scored(self, candidates: list[Candidate], chooser: Chooser[Candidate], splits: list[Split]) -> list[Candidate]:
        """The same with their scores, and in the chooser."""
        for candidate in progress_bar(candidates, "score", self.progress):
            began, score = time.perf_counter(), None
            missed = candidate.model.held_out([(split.held, split.kept) for split in splits])
            if missed is not None and splits:
                score = Score("rmse")
                for split, left in zip(splits, missed, strict=True):
                    score.add(self.y[split.held] - left, self.y[split.held], split.weights)
            seconds = candidate.row.seconds + time.perf_counter() - began
            candidate.row = replace(candidate.row, score=math.nan if score is None else score.value, seconds=seconds)
            chooser.add(candidate.row, score, candidate)
        return candidates


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
    splits = task.splits(metric, first.scaling)
    chooser: Chooser[Candidate] = Chooser(task.scales[first.scaling]("X", task.x), task.y, splits)
    task.scored(candidates, chooser, splits)
    if kernel == "auto" and task.more is not None and len(task.x) + len(task.more) <= MOST_NODES:
        more = task.scored(task.extended(first), chooser, splits)
        # Where the graph does not help the coordinates, a kernel on the graph alone will not.
        helps = bool(more) and more[0].row.score < first.row.score
        # More observations than this it could not be scored on.
        if helps and len(task.x) + len(task.more) <= GRAPH_NODES and len(task.x) <= DENSE:
            training["steps"] = min(GRAPH_STEPS, training["steps"])
            task.scored([task.named(options, [more[0].scaling], **training)], chooser, splits)
    return chooser.best()


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
    return diffusion_coordinates(neighbor_graph(points, neighbors))


def _split(fold: Fold, seed: int) -> Split:
    """With up to so many held-out rows, whose weights sum to one."""
    few = torch.randperm(len(fold.held), generator=torch.Generator().manual_seed(seed))[:HELD].sort().values
    weights = fold.weights[few]
    total = weights.sum()
    return Split(fold.kept, fold.held[few], weights / total if total > 0 else torch.full_like(weights, 1 / len(weights)))
