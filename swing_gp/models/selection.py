r"""Choosing lengthscale, series and noise from the known values alone.

Every known node is left out in turn and predicted from the others: with the covariance A = K + noise of the known nodes the
GP's prediction without node i is :math:`y_i - [A^{-1} y]_i / [A^{-1}]_{ii}`, and the rule of the paper leaves out one term of
its sum. So a whole grid of settings is scored without a single refit. Kernels are local: on large graphs the scores come from
a few patches, boxes with all their known and unknown nodes, so that densities are the true ones. Nothing larger than a patch is
ever dense.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse.csgraph
import torch
from torch import Tensor

from swing_gp.graphs.edges import EdgeFunction, Gaussian
from swing_gp.graphs.graph import Graph
from swing_gp.graphs.implicit import ImplicitGraph
from swing_gp.graphs.spacing import neighbor_distance
from swing_gp.operators.exact import ExactSpectrum
from swing_gp.series.base import Series
from swing_gp.series.families import Diffusion, Matern
from swing_gp.series.log_matern import LogMatern
from swing_gp.utils.progress import progress_bar
from swing_gp.utils.validation import check_choice

CRITERIA = ("rmse", "cosine", "likelihood")
RULES = ("gp", "paper", "normalized")
# Graphs of up to this many nodes are seen whole, larger ones through this many patches of at most so many nodes.
WHOLE, PATCHES, PATCH = 1000, 12, 600
# Lengthscales are in units of the distance to the sixth neighbour, about the spacing of a surface.
NEIGHBOR = 6
SHORT, LONG = (0.35, 0.5, 0.7, 1.0, 1.5), (1.0, 2.0, 4.0, 6.0, 9.0)
# As the noise grows the GP's directions become those of the paper's rule, which is best where normals jump.
NOISES = (1e-6, 1e-4, 1e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)
# Conjugate gradients take hundreds of steps at less noise, for the same score.
NOISES_IF_LARGE = (1e-2, 3e-2, 1e-1, 3e-1, 1.0)
# From here on a graph is too large for eigenvalues, and lists want short lengthscales.
LARGE = 2000

# An edge function, or None for a graph that has its weights already.
Setting = tuple[EdgeFunction | None, Series]


@dataclass(frozen=True)
class Selection:
    """The best of a grid of settings.

    :ivar graph: the points with the chosen lengthscale.
    :ivar noise: the noise variance over the mean prior variance of the known nodes; None where the rule has none.
    :ivar score: of the best setting: mean cosine, or minus the RMSE, of left-out nodes, or the log marginal likelihood per
        value.
    :ivar criterion: which of these it is.
    :ivar tried: the number of settings.
    """

    graph: Graph
    series: Series
    noise: float | None
    score: float
    criterion: str
    tried: int


def candidates(points: Tensor) -> list[Setting]:
    """Edges and series worth trying: short lengthscales with diffusion, for lists, and on small graphs long ones with the
    logarithmic Laplacian, for which eigenvalues are affordable."""
    unit = neighbor_distance(points.detach().cpu().numpy(), NEIGHBOR)
    short, long = ([Gaussian(multiple * unit) for multiple in multiples] for multiples in (SHORT, LONG))
    found: list[Setting] = list(itertools.product(short, [Diffusion(time) for time in (1.0, 3.0, 6.0, 12.0, 25.0, 50.0)]))
    if len(points) <= LARGE:
        shapes = itertools.product((1.5, 2.5, 4.0), (0.1, 0.3, 1.0, 3.0))
        found += itertools.product(long, [LogMatern(nu, math.sqrt(2 * nu / shift)) for nu, shift in shapes])
    return found


def series_candidates() -> list[Setting]:
    """Series worth trying on a graph that has its weights: diffusion, and Matern kernels from a few nodes to far."""
    shapes = itertools.product((1.0, 1.5, 2.0), (1.0, 3.0, 10.0, 30.0))
    return [(None, Diffusion(time)) for time in (1.0, 3.0, 10.0, 30.0)] + [(None, Matern(*shape)) for shape in shapes]


@torch.no_grad()
def select(
    points: Tensor | Graph,
    known: Tensor,
    values: Tensor,
    *,
    rule: str = "gp",
    criterion: str = "rmse",
    centered: bool = True,
    settings: Sequence[Setting] | None = None,
    normalization: str | None = "symmetric",
    noises: Sequence[float] | None = None,
    progress: bool = False,
) -> Selection:
    """The setting under which left-out known values are predicted best, or are likeliest.

    :param points: the nodes, (N, d), or a graph.
    :param known: ids of the known nodes, (n,).
    :param values: their values, (n, k). Nothing else is looked at.
    :param rule: which rule will be used: ``"gp"``, ``"paper"`` or ``"normalized"``.
    :param criterion: ``"rmse"``, or ``"cosine"`` where values are directions; for the GP also ``"likelihood"``, with the
        amplitude that makes it largest.
    :param centered: for the GP, whether the mean of the known values is its mean; no for directions.
    :param settings: pairs of an edge function and a series; :func:`candidates` by default. For a graph that is to stay as it
        is, pairs of None and a series; :func:`series_candidates` by default.
    :param normalization: as of :class:`~swing_gp.ImplicitGraph`, for points.
    :param noises: noise variances to try, over the mean prior variance.
    :param progress: show a progress bar.

    >>> import torch
    >>> from swing_gp.models.selection import select
    >>> x = torch.linspace(0, 1, 200, dtype=torch.float64).unsqueeze(-1)
    >>> best = select(x, torch.arange(0, 200, 5), torch.sin(9 * x[::5]))
    >>> best.score > -0.01
    True
    """
    check_choice("rule", rule, RULES)
    check_choice("criterion", criterion, CRITERIA if rule == "gp" else CRITERIA[:2])
    graph, nodes = (points, points.points) if isinstance(points, Graph) else (None, points)
    if settings is None:
        settings = candidates(nodes) if graph is None else series_candidates()
    tried = list(settings)
    if not tried:
        raise ValueError("settings must hold at least one pair of an edge function and a series.")
    unit = float(values.abs().max()) or 1.0  # in which squares neither overflow nor vanish
    values = values.double() / unit
    patches = list(_patches(graph, nodes.double(), known, values))
    if noises is None:
        noises = NOISES if len(nodes) <= LARGE else NOISES_IF_LARGE
    options: Sequence[float | None] = noises if rule == "gp" else (None,)
    totals = np.zeros((len(tried), len(options)))
    by_edge: dict[EdgeFunction | None, list[int]] = {}  # one decomposition serves all series
    for position, (edge, _) in enumerate(tried):
        by_edge.setdefault(edge, []).append(position)
    offset = values.mean(0) if rule == "gp" and centered else torch.zeros_like(values[0])
    work = [(patch, edge) for patch in patches for edge in by_edge]
    for (part, inside, seen), edge in progress_bar(work, "choose") if progress else work:
        spectrum = ExactSpectrum.of(part if isinstance(part, Graph) else ImplicitGraph(part, _edge(edge), normalization))
        for position in by_edge[edge]:
            covariance = spectrum.kernel(tried[position][1], inside)
            totals[position] += len(inside) * np.array(_scores(covariance, seen, offset, rule, criterion, options))
    totals /= sum(len(inside) for _, inside, _ in patches)
    totals = np.where(np.isfinite(totals), totals, -np.inf)
    best = float(totals.max())
    position, option = (int(i) for i in np.unravel_index(int(totals.argmax()), totals.shape))
    edge, series = tried[position]
    graph = ImplicitGraph(nodes, _edge(edge), normalization) if graph is None else graph
    score = {"rmse": best * unit, "likelihood": best - math.log(unit)}.get(criterion, best)
    return Selection(graph, series, options[option], score, criterion, totals.size)


def _patches(
    graph: Graph | None, points: Tensor, known: Tensor, values: Tensor
) -> Iterator[tuple[Tensor | Graph, Tensor, Tensor]]:
    """Points or graphs, and which of their nodes are known with which values: all, or a few neighbourhoods."""
    place = torch.full((len(points),), -1, dtype=torch.long)
    place[known] = torch.arange(len(known))
    everything = torch.arange(len(points))
    boxes = [everything]
    if len(points) > WHOLE:
        boxes = list(_boxes(points, everything) if points.shape[1] else _balls(graph, known))
    order = torch.randperm(len(boxes), generator=torch.Generator().manual_seed(0)).tolist()
    # Two known nodes at least: one is left out, the other predicts it.
    useful = [boxes[i] for i in order if int((place[boxes[i]] >= 0).sum()) > 1][:PATCHES]
    if not useful:
        raise ValueError(
            f"{len(known)} known of {len(points):,} nodes are too few to choose settings by: give a graph, a series and noise."
        )
    for nodes in useful:
        inside = place[nodes] >= 0
        part = points[nodes] if graph is None else graph if len(nodes) == len(points) else graph.subgraph(nodes)
        yield part, inside.nonzero().squeeze(-1), values[place[nodes][inside]]


def _edge(edge: EdgeFunction | None) -> EdgeFunction:
    if edge is None:
        raise ValueError("settings for points must name an edge function; give a graph to keep its weights.")
    return edge


def _balls(graph: Any, known: Tensor) -> Iterator[Tensor]:
    """The nodes that are the fewest steps from a few known ones: what a box is on a graph without coordinates."""
    matrix = graph.to_scipy()
    starts = known[torch.randperm(len(known), generator=torch.Generator().manual_seed(0))[:PATCHES]]
    for start in starts.tolist():
        order = scipy.sparse.csgraph.breadth_first_order(matrix, start, directed=False, return_predecessors=False)
        yield torch.from_numpy(np.sort(order[:PATCH]).astype(np.int64))


def _boxes(points: Tensor, nodes: Tensor) -> Iterator[Tensor]:
    """Halve the longest side until a box holds no more than a patch; together the boxes hold every node once."""
    if len(nodes) <= PATCH:
        yield nodes
        return
    inside = points[nodes]
    axis = int((inside.amax(0) - inside.amin(0)).argmax())
    for half in nodes[inside[:, axis].argsort()].tensor_split(2):
        yield from _boxes(points, half)


def _scores(
    covariance: Tensor, values: Tensor, offset: Tensor, rule: str, criterion: str, noises: Sequence[float | None]
) -> list[float]:
    """Of one setting, for every noise."""
    if rule != "gp":
        others = covariance - covariance.diagonal().diag()
        predicted = others @ values
        if rule == "normalized":
            predicted = predicted / others.sum(-1, keepdim=True)
        return [_score(predicted, values, criterion)]
    eigenvalues, vectors = torch.linalg.eigh(covariance / covariance.diagonal().mean())
    rotated = vectors.mT @ (values - offset)
    scores = []
    for noise in noises:
        spectrum = eigenvalues.clamp_min(0) + noise
        if criterion == "likelihood":
            amplitude = (rotated.square() / spectrum.unsqueeze(-1)).mean()
            scores.append(-0.5 * float(amplitude.log() + spectrum.log().mean() + 1 + math.log(2 * math.pi)))
        else:
            inverse = (vectors.square() / spectrum).sum(-1, keepdim=True)
            left_out = values - vectors @ (rotated / spectrum.unsqueeze(-1)) / inverse
            scores.append(_score(left_out, values, criterion))
    return scores


def _score(predicted: Tensor, values: Tensor, criterion: str) -> float:
    if criterion == "cosine":
        return float(torch.nn.functional.cosine_similarity(predicted, values, dim=-1).mean())
    return -float((predicted - values).square().mean().sqrt())
