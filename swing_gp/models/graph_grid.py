r"""Scores of graph kernels on held-out known values.

On parts of up to 2,000 nodes kernels come from eigenvalues, so that one decomposition serves all series of a graph, and one of
the covariance of the known nodes all noises: with :math:`A = K + \sigma^2 I`, the basis H of a trend and
:math:`P = A^{-1} - A^{-1} H (H^\top A^{-1} H)^{-1} H^\top A^{-1}` the prediction of held-out nodes B from all others, trend and
all, is :math:`y_B - (P_{BB})^{-1} [P y]_B`, and the rules of the paper leave terms out of their sums. On larger parts, which
wide gaps ask for, every setting is a solve in precision form, and a search goes from setting to neighbour.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from swing_gp.gp.trend import Trend, independent, left_by_line
from swing_gp.graphs.edges import EdgeFunction
from swing_gp.graphs.graph import Graph
from swing_gp.graphs.implicit import ImplicitGraph
from swing_gp.models.graph_posterior import GraphPosterior
from swing_gp.models.regions import WHOLE, Region, part_of
from swing_gp.models.scores import Score, cross_fitted
from swing_gp.operators.exact import ExactSpectrum
from swing_gp.operators.graph_kernel import graph_kernel
from swing_gp.series.base import Series

# An edge function, or None for a graph that has its weights already.
Setting = tuple[EdgeFunction | None, Series]

# The error of kernels that are only compared.
TOL = 1e-3
# Held-out values from which on scores tell settings apart, not chance.
ENOUGH = 100
# Regions on which all settings of a grid are tried, and how many settings go on to the others.
FIRST, FINAL = 3, 10
# A sum of weights below this share of the largest is that of a node which no known one reaches.
UNREACHED = 1e-12
# Splits of a region that deviations are calibrated by: so many, and more up to so many until held-out values are enough.
LEAST_CALIBRATED, CALIBRATED = 2, 10


def best_of_grid(
    nodes: Tensor | Graph,
    regions: Sequence[Region],
    values: Tensor,
    settings: Sequence[Setting],
    noises: Sequence[float | None],
    *,
    rule: str,
    criterion: str,
    basis: Tensor,
    normalization: str | None = "symmetric",
    wrap: Callable[[list], Iterable] = iter,
) -> tuple[int, int, float, Score | None]:
    """The places of the best setting and noise, the score to expect of them on other values, and their own with its parts.

    :param values: known values, (n, k), float64.
    :param basis: of the trend of the GP at the known nodes, (n, p).
    :param wrap: around the list of work, for a progress bar.
    """
    scores = [[Score(criterion) for _ in noises] for _ in settings]
    likelihoods = np.zeros((len(settings), len(noises)))

    def run(regions: Sequence[Region], positions: Sequence[int]) -> None:
        by_edge: dict[EdgeFunction | None, list[int]] = {}  # one decomposition serves all series
        for position in positions:
            by_edge.setdefault(settings[position][0], []).append(position)
        for region, edge in wrap([(region, edge) for region in regions for edge in by_edge]):
            part = part_of(nodes, region.nodes)
            if not isinstance(part, Graph):
                if edge is None:
                    raise ValueError("settings for points must name an edge function; give a graph to keep its weights.")
                part = ImplicitGraph(part.double(), edge, normalization)
            spectrum, seen = ExactSpectrum.of(part), values[region.rows]
            trend = independent(basis[region.rows])
            for position in by_edge[edge]:
                covariance = spectrum.kernel(settings[position][1], region.known)
                if criterion == "likelihood":
                    likelihoods[position] += _likelihoods(covariance, seen, trend, noises).numpy()
                elif rule == "gp":
                    _held_out_by_gp(covariance, seen, trend, region, noises, scores[position])
                else:
                    _held_out_by_sums(covariance, seen, region, rule == "normalized", scores[position][0])

    if criterion == "likelihood":
        run(regions, range(len(settings)))
        found = np.where(np.isfinite(likelihoods), likelihoods, -np.inf)
        number = sum(len(region.known) - independent(basis[region.rows]).shape[1] for region in regions)
        best, score = int(found.argmax()), float(found.max()) / max(1, number)
        return best // len(noises), best % len(noises), score, None
    # All settings on the first few regions, and only the best of them on the others.
    halving = len(regions) > FIRST and len(settings) > FINAL
    run(regions[:FIRST] if halving else regions, range(len(settings)))
    final = list(range(len(settings)))
    if halving:
        sign = -1 if criterion == "cosine" else 1
        final = sorted(final, key=lambda position: min(sign * score.value for score in scores[position]))[:FINAL]
        run(regions[FIRST:], final)
    best, score = cross_fitted([score for position in final for score in scores[position]])
    position, option = final[best // len(noises)], best % len(noises)
    parts = scores[position][option]
    if sum(int((weights > 0).sum()) for region in regions for _, weights in region.splits) >= ENOUGH:
        score = parts.value
    return position, option, score, parts


def _spectrum(covariance: Tensor) -> tuple[Tensor, Tensor]:
    eigenvalues, vectors = torch.linalg.eigh(covariance / covariance.diagonal().mean())
    return eigenvalues.clamp_min(0), vectors


class _Whitened:
    """Values with a trend, whitened under several noises by one spectrum: what is :math:`P` in the eigenvectors.

    :ivar inverse: of the noisy covariances, (s, n).
    :ivar weights: :math:`P y`, (s, n, k).
    :ivar of_trend: a root of what the trend takes off the inverse, (s, n, r).
    """

    def __init__(self, covariance: Tensor, values: Tensor, basis: Tensor, noises: Sequence[Any]) -> None:
        eigenvalues, self.vectors = _spectrum(covariance)
        self.inverse = 1 / (eigenvalues + torch.tensor(noises, dtype=eigenvalues.dtype).unsqueeze(-1))
        scale = self.inverse.sqrt().unsqueeze(-1)
        white, of_basis = scale * (self.vectors.mT @ left_by_line(basis, values)), scale * (self.vectors.mT @ basis)
        self.trend = Trend.whitened(of_basis, white)
        orthogonal = of_basis @ self.trend.root
        self.left = white - orthogonal @ (orthogonal.mT @ white)
        self.weights, self.of_trend = scale * self.left, scale * orthogonal


def _held_out_by_gp(
    covariance: Tensor, values: Tensor, basis: Tensor, region: Region, noises: Sequence[Any], scores: list[Score]
) -> None:
    white = _Whitened(covariance, values, basis, noises)
    for fold, (held, weights) in enumerate(region.splits):
        rows = white.vectors[held]
        of_trend = rows @ white.of_trend  # (s, h, r)
        own = (rows * white.inverse.unsqueeze(-2)) @ rows.mT - of_trend @ of_trend.mT
        left = torch.linalg.solve(own, rows @ white.weights)
        for score, missed in zip(scores, left, strict=True):
            score.add(values[held] - missed, values[held], weights, fold)


def _held_out_by_sums(covariance: Tensor, values: Tensor, region: Region, normalized: bool, score: Score) -> None:
    for fold, (held, weights) in enumerate(region.splits):
        kept = region.kept(held)
        block = covariance[held][:, kept]
        predicted = block @ values[kept]
        if normalized:
            predicted = weighted_means(predicted, block.sum(-1, keepdim=True), values[kept])[0]
        score.add(predicted, values[held], weights, fold)


def weighted_means(sums: Tensor, weight: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:  # (m, k), (m, 1), (n, k)
    """Sums over known values divided by those of their weights, and where these do not vanish, (m, 1).

    Where they do, the mean is that of all values. Means lie among the values; weights that are off by an approximation's error
    may lead out of these, and back to the edge is nearer to the truth.
    """
    reached = weight > UNREACHED * weight.abs().max()
    means = torch.where(reached, sums / torch.where(reached, weight, 1.0), values.mean(0))
    return means.clamp(values.amin(0), values.amax(0)), reached


def _likelihoods(covariance: Tensor, values: Tensor, basis: Tensor, noises: Sequence[Any]) -> Tensor:  # (s,)
    """Log restricted likelihoods, with the amplitude that makes each largest; the basis is orthonormal."""
    white, number = _Whitened(covariance, values, basis, noises), len(values) - basis.shape[1]
    amplitude = white.left.square().sum(1).mean(-1) / number
    logs = white.trend.logdet - white.inverse.log().sum(-1)
    return -0.5 * (number * (amplitude.log() + 1 + math.log(2 * math.pi)) + logs)


def descend(
    score: Callable[..., float],
    ladders: Mapping[str, Sequence[float]],
    start: Mapping[str, float],
    *,
    higher: bool,
    budget: int,
) -> tuple[dict[str, float], float]:
    """From setting to neighbouring setting, one ladder after the other, while scores get better.

    :param score: called with one value from each ladder; every setting once.
    :param ladders: values to choose from, in order. Earlier ones are searched first.
    :param higher: whether more is better.
    :param budget: settings to score at most.
    :return: the best setting and its score.

    >>> descend(lambda x, y: (x - 3) ** 2 + (y - 1) ** 2, {"x": range(5), "y": range(5)}, {"x": 0, "y": 0},
    ...         higher=False, budget=50)
    ({'x': 3, 'y': 1}, 0)
    """
    seen: dict[tuple[float, ...], float] = {}

    def of(setting: dict[str, float]) -> float:
        key = tuple(setting.values())
        if key not in seen:
            seen[key] = score(**setting)
        return -seen[key] if higher else seen[key]

    best = {name: start[name] for name in ladders}
    least, moved = of(best), True
    while moved and len(seen) < budget:
        moved = False
        for name, ladder in ladders.items():
            for step in (1, -1):
                went = False
                while 0 <= (place := ladder.index(best[name]) + step) < len(ladder) and len(seen) < budget:
                    other = {**best, name: ladder[place]}
                    if not of(other) < least:
                        break
                    best, least, moved, went = other, of(other), True, True
                if went:
                    break
    return best, seen[tuple(best.values())]


def solved_score(
    graph: Graph, regions: Sequence[Region], values: Tensor, basis: Tensor, series: Series, noise: float, criterion: str
) -> Score:
    """The score of one kernel, by a solve in every split of every region.

    :param values: known values, (n, k).
    :param basis: of the trend, at all nodes, (N, p).
    """
    score = Score(criterion)
    for region in regions:
        operator = graph_kernel(part_of_graph(graph, region), series, tol=TOL)
        for held, weights in region.splits:
            kept = region.kept(held)
            posterior = GraphPosterior(operator, region.known[kept], values[region.rows[kept]], basis[region.nodes], noise)
            score.add(posterior.mean[region.known[held]], values[region.rows[held]], weights)
    return score


def held_out_amplitude(
    graph: Graph, series: Series, noise: float, regions: Sequence[Region], values: Tensor, basis: Tensor
) -> Tensor:  # (k,)
    """What functions are to be multiplied by for squares of held-out residuals to be their variances in the mean."""
    total, weight, number = torch.zeros_like(values[0]), 0.0, 0
    for region in regions:
        operator = graph_kernel(part_of_graph(graph, region), series, tol=TOL if graph.num_nodes > WHOLE else None)
        for place, (held, weights) in enumerate(region.splits[:CALIBRATED]):
            if place >= LEAST_CALIBRATED and number >= ENOUGH:
                break
            number += len(held)
            kept, rows = region.kept(held), region.rows
            posterior = GraphPosterior(operator, region.known[kept], values[rows[kept]], basis[region.nodes], noise)
            left = posterior.mean[region.known[held]] - values[rows[held]]
            variance = posterior.variance[region.known[held]] + noise * posterior.scale
            total, weight = total + weights @ (left.square() / variance.unsqueeze(-1)), weight + float(weights.sum())
    return (total / weight).sqrt()


def part_of_graph(graph: Graph, region: Region) -> Graph:
    """The graph between the nodes of a region, in float64 like the values that are compared."""
    part = part_of(graph, region.nodes)
    assert isinstance(part, Graph)
    return part.with_tensors(*(tensor.double() for tensor in part.tensors()))
