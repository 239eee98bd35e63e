"""Scores on held-out values: weighted means of a criterion, and how much one is better than another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from swing_gp.models.regions import FOLDS

# The deviation of a column, over its largest entry, up to which it varies by rounding alone.
CONSTANT = 1e-13


class Score:
    """The weighted mean of a criterion over held-out values, with the parts that folds have in it.

    :param criterion: ``"rmse"`` or ``"cosine"``.
    """

    def __init__(self, criterion: str) -> None:
        self.criterion = criterion
        self.totals, self.weights = np.zeros(FOLDS), np.zeros(FOLDS)
        self.parts: list[tuple[Tensor, Tensor]] = []

    def add(self, predicted: Tensor, values: Tensor, weights: Tensor, fold: int = 0) -> None:  # (h, k), (h, k), (h,)
        if self.criterion == "cosine":
            found = torch.nn.functional.cosine_similarity(predicted, values, dim=-1)
        else:
            found = (predicted - values).square().mean(-1)
        tested = weights > 0
        found, weights = found[tested].double(), weights[tested]
        self.parts.append((found, weights))
        self.totals[fold] += float(weights @ found)
        self.weights[fold] += float(weights.sum())

    @property
    def value(self) -> float:
        return float(_values(self.totals.sum(), self.weights.sum(), self.criterion))


def deviations_of(values: Tensor) -> Tensor:  # (n, k) -> (k,)
    """Standard deviations of columns; one for those that are constant, but for rounding."""
    deviations = values.double().std(0, correction=0)
    return torch.where(deviations > CONSTANT * values.double().abs().amax(0), deviations, 1.0)


def gain_over(mean: Score, chosen: Score) -> float:
    """By how many standard errors one score is better than another, on the same values."""
    (theirs, weights), (ours, _) = ([torch.cat(part) for part in zip(*score.parts, strict=True)] for score in (mean, chosen))
    gains = ours - theirs if chosen.criterion == "cosine" else theirs - ours
    weights = weights / weights.sum()
    average = weights @ gains
    error = (weights.square() @ (gains - average).square()).sqrt()
    return float(average / error.clamp_min(1e-300))


def _values(totals: Any, weights: Any, criterion: str) -> np.ndarray:
    """Means, or their roots; the worst where there is none."""
    with np.errstate(invalid="ignore", divide="ignore"):
        means = np.asarray(totals / weights)
    if criterion == "cosine":
        return np.where(np.isfinite(means), means, -np.inf)
    return np.sqrt(np.where(np.isfinite(means), means, np.inf))


def cross_fitted(scores: Sequence[Score]) -> tuple[int, float]:
    """The best of many candidates, and the score to expect of it on other values.

    On few values the best of hundreds is far better than on others. What is best in all folds but one was not chosen by its
    score in that one, and the mean of such scores is what a choice is worth. But what fails in a fold is best where that fold
    is left out: of candidates that fail in one fold each, each is chosen for its own, and the mean is worse than the score of
    any. A choice is expected to be no worse than a draw, so that the median of the candidates is the worst to expect.
    """
    criterion = scores[0].criterion
    choose = np.argmax if criterion == "cosine" else np.argmin
    totals, weights = (np.array([getattr(score, name) for score in scores]) for name in ("totals", "weights"))  # (c, FOLDS)
    values = _values(totals.sum(1), weights.sum(1), criterion)
    best = int(choose(values))
    used = np.flatnonzero(weights[0] > 0)
    if len(used) < 2:
        return best, scores[best].value
    chosen = [choose(_values(totals.sum(1) - totals[:, fold], weights.sum(1) - weights[:, fold], criterion)) for fold in used]
    mean = float(_values(totals[chosen, used].sum(), weights[chosen, used].sum(), criterion))
    drawn = float(np.sort(values)[len(values) // 2])
    return best, max(mean, drawn) if criterion == "cosine" else min(mean, drawn)
