"""Candidates of one task, tried on the same held-out values: their table, trivial models beside them, and the best."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor

from swing_gp.models.comparison import CRITERIA, Comparison, Row
from swing_gp.models.neighbors import NeighborSearch
from swing_gp.models.scores import Score, gain_over

T = TypeVar("T")


@dataclass(frozen=True)
class Split:
    """Rows of known values.

    :ivar kept: what predictions are made from, (m,).
    :ivar held: what is predicted, (h,).
    :ivar weights: of its scores, (h,).
    """

    kept: Tensor
    held: Tensor
    weights: Tensor


class Chooser(Generic[T]):
    """What was tried so far, with the mean and the nearest known value first.

    :param points: where values are known, (n, d); without coordinates nothing is nearest.
    :param values: the known values, (n, k).
    :param splits: of their rows. Without any there are no trivial rows.
    :param criterion: as of :class:`~swing_gp.models.comparison.Comparison`; ``"likelihood"`` is known of no trivial row.
    :param unit: from a score to that of the table.

    >>> import torch
    >>> x = torch.arange(4.0).double().unsqueeze(-1)
    >>> chooser = Chooser(x, x**2, [Split(torch.tensor([0, 1, 3]), torch.tensor([2]), torch.ones(1).double())])
    >>> chooser.add(Row("line", score=0.5), None, "what is made of it")
    >>> made, table = chooser.best()
    >>> print(table)
       family   settings  rmse  seconds
    *  line                0.5      0.0
       mean             0.6667      0.0
       nearest               3      0.0
    """

    def __init__(
        self,
        points: Tensor,
        values: Tensor,
        splits: Sequence[Split],
        criterion: str = "rmse",
        unit: Callable[[float], float] = float,
    ) -> None:
        self.criterion, self.rows = criterion, list[Row]()
        self._found: list[tuple[Row, Score | None, T]] = []
        self._mean: Score | None = None
        if criterion == "likelihood" or not splits:
            return
        self._mean, nearest = Score(criterion), Score(criterion)
        for split in splits:
            seen, truth = values[split.kept], values[split.held]
            self._mean.add(seen.mean(0).expand_as(truth), truth, split.weights)
            if points.shape[1]:
                near = NeighborSearch(points[split.kept]).nearest(points[split.held], 1)[:, 0]
                nearest.add(seen[near], truth, split.weights)
        self.rows.append(Row("mean", score=unit(self._mean.value)))
        if points.shape[1]:
            self.rows.append(Row("nearest", score=unit(nearest.value)))

    def add(self, row: Row, score: Score | None, made: T) -> None:
        """A candidate.

        :param row: of the table; an expected score that is no number loses against all others.
        :param score: on the splits, if it has one.
        :param made: what is returned if it is the best.
        """
        self.rows.append(row)
        self._found.append((row, score, made))

    def __bool__(self) -> bool:
        return bool(self._found)

    def best(self) -> tuple[T, Comparison]:
        """What the best candidate made, and the table."""
        sign = -1 if CRITERIA[self.criterion] else 1
        values = [row.expected for row, _, _ in self._found]
        place = min(range(len(values)), key=lambda i: sign * values[i] if math.isfinite(values[i]) else math.inf)
        row, score, made = self._found[place]
        gain = None if score is None or self._mean is None else gain_over(self._mean, score)
        return made, Comparison(tuple(self.rows), self.criterion, row, gain)
