"""``features="auto"``: the cheapest route that meets the tolerance, by a cost model, and the reasons for it.

The costs are seconds of set-up and ten products on two cores, from constants fitted to measurements; only their ratios matter
for the choice, and ``python -m benchmarks.scaling`` shows how good it is. Nothing is built before it is chosen.
"""

from __future__ import annotations

import bisect
import math
import warnings
from dataclasses import dataclass, field

import torch
from torch import Tensor

from swing_gp.features.base import FeatureMap
from swing_gp.features.grid import FourierGrid, count_modes
from swing_gp.features.landmarks import AccuracyWarning, LandmarkFeatures, select_landmarks
from swing_gp.features.named import NUM_FEATURES, default_tol, make_features
from swing_gp.features.neighbors import MAX_NEIGHBORS, list_cutoff
from swing_gp.features.pairwise import ONE_BLOCK, PairwiseFeatures
from swing_gp.graphs.edges import Gaussian
from swing_gp.graphs.implicit import ImplicitGraph
from swing_gp.parallel.shards import SHARDABLE, refuse_shards
from swing_gp.series.families import Series

__all__ = ["Choice", "choose_features", "known_error", "pick_features", "predicted_error"]

# Seconds for one ...
WEIGHT = 1e-8  # weight of a dense block, made
WEIGHT_PRODUCT = 2.5e-10  # weight of a dense block, multiplied
PAIR = 1.5e-7  # pair of a list, found and weighed
PAIR_PRODUCT = 1.3e-9  # pair of a list, multiplied
TRANSFORM = {1: 1e-7, 2: 1.8e-7, 3: 5e-7}  # point of a W v on the grid, by dimension
MODE = 3e-6  # mode of a grid, laid out and checked
FFT_POINT = 1.3e-8  # point of the padded grid in a product with T
CALL = 4e-4  # product with T, whatever its size
PIVOT = 1e-4  # landmark, chosen
FEATURE = 2e-8  # entry of a feature matrix, made
FEATURE_PRODUCT = 6e-10  # entry of a feature matrix, multiplied
FLOP = 8e-11  # multiplication and addition of N x r by r x r
# A chosen route is used for about this many products.
PRODUCTS = 10
# Terms of a series on a graph whose spectrum is not known beforehand.
RAW_TERMS = 24
# Rows and columns of the sample that neighbours are counted on.
SAMPLE_ROWS, SAMPLE_COLUMNS = 256, 4096
# Landmarks are probed on this many nodes; more nodes than that leave the spectrum of the normalised graph unchanged.
PROBE = 2000


@dataclass(frozen=True)
class Choice:
    """How an operator was made.

    :ivar method: the feature map: ``"neighbors"``, ``"grid"``, ``"landmarks"`` or ``"pairwise"``.
    :ivar reason: why it was taken, in words.
    :ivar predicted_error: the relative error it was made for; for landmarks that leave more, what they leave.
    :ivar estimated_error: what is known of the error of W after it was made: for the grid that of an exact block, for
        landmarks the mean residual; None where nothing was measured.
    :ivar detail: the feature map in words, with its number of modes, pairs or features.
    :ivar costs: predicted seconds of set-up and ten products, for every route that was considered.
    """

    method: str
    reason: str
    predicted_error: float
    estimated_error: float | None = None
    detail: str = ""
    costs: dict[str, float] = field(default_factory=dict)


def pick_features(
    graph: ImplicitGraph,
    series: Series,
    name: str,
    *,
    walked: bool,
    tol: float | None,
    num_features: int | None,
    generator: torch.Generator,
    room: float = 1.0,
    outside: bool = False,
) -> tuple[FeatureMap, Choice]:
    """The feature map of a name, ``"auto"`` included, for a kernel that is walked or collapsed."""
    goal = default_tol(graph) if tol is None else tol
    if name == "auto":
        refuse_shards("The choice of features='auto'", SHARDABLE)
    if name == "auto" and not walked:
        return choose_features(graph, series, goal, num_features=num_features, generator=generator, room=room, outside=outside)
    reason = "asked for by name"
    if name == "auto":
        name = "positive" if isinstance(graph.edge, Gaussian) else "pairwise"
        reason = "the paper's features" if name == "positive" else "walks need weights that are positive"
    features = make_features(graph, name, tol=tol, num_features=num_features, generator=generator, room=room, outside=outside)
    return features, Choice(name, reason, predicted_error(features, goal), known_error(features), repr(features))


def choose_features(
    graph: ImplicitGraph,
    series: Series,
    tol: float,
    *,
    num_features: int | None,
    generator: torch.Generator,
    room: float = 1.0,
    outside: bool = False,
) -> tuple[FeatureMap, Choice]:
    """The cheapest feature map for a collapsed kernel at a relative error of ``tol``; the rest is as of ``make_features``."""
    if graph.normalization:
        series.check_spectrum(graph.spectrum, psd=graph.normalization != "random_walk")
    if series.steep:
        return _all_landmarks(graph, tol, num_features, generator)
    terms = len(series.chebyshev(graph.spectrum, 0.1 * tol)) if graph.normalization else RAW_TERMS
    most = NUM_FEATURES if num_features is None else num_features
    costs, notes = {}, []
    chosen: Tensor | None = None
    if graph.num_nodes <= ONE_BLOCK:
        costs["pairwise"] = graph.num_nodes**2 * (WEIGHT + PRODUCTS * terms * WEIGHT_PRODUCT)
    average, effective_rank = sample_pairs(graph, list_cutoff(graph, tol))
    if average <= MAX_NEIGHBORS:
        costs["neighbors"] = graph.num_nodes * average * (PAIR + PRODUCTS * terms * PAIR_PRODUCT)
    else:
        notes.append(f"a list would hold {average:.0f} neighbours a node")
    if (modes := count_modes(graph, tol)) is not None:
        costs["grid"] = _grid_cost(graph, modes, terms)
    if graph.edge.positive_definite:
        best = min(costs.values(), default=math.inf)
        affordable = bisect.bisect(range(1, most + 1), best, key=lambda number: _landmark_cost(graph.num_nodes, number))
        number, residual = 0, 1.0
        # No rank below the effective one leaves a small residual, and a spectrum that decays needs several times as many.
        if affordable > 4 * effective_rank:
            number, residual, chosen = _probe_landmarks(graph, tol, affordable, generator)
        if residual <= tol:
            costs["landmarks"] = _landmark_cost(graph.num_nodes, number)
        elif number:
            notes.append(f"{number} landmarks leave a residual of {residual:.1g}")
        else:
            notes.append(f"landmarks would have to be many: the effective rank is {effective_rank:.0f}")

    def make(method: str) -> FeatureMap:
        if method == "landmarks":
            return LandmarkFeatures(graph, most, generator=generator, residual_tol=tol, landmarks=chosen)
        return make_features(graph, method, tol=tol, generator=generator, room=room, outside=outside)

    for method in sorted(costs, key=lambda name: costs[name]):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", AccuracyWarning)
                features = make(method)
        except (ValueError, AccuracyWarning) as error:  # too many modes, a list that is not O(N), or not accurate after all
            notes.append(str(error).split(":")[0])
            continue
        notes.insert(0, f"the cheapest of {', '.join(f'{name} ({cost:.2g} s)' for name, cost in costs.items())}")
        return features, Choice(method, "; ".join(notes), tol, known_error(features), repr(features), costs)
    return _fallback(graph, tol, most, generator, notes)


def _all_landmarks(
    graph: ImplicitGraph, tol: float, num_features: int | None, generator: torch.Generator
) -> tuple[FeatureMap, Choice]:
    """For a steep series, which no polynomial follows: on a small graph every node may be a landmark, which leaves no
    residual."""
    most = num_features or (graph.num_nodes if graph.num_nodes <= ONE_BLOCK else NUM_FEATURES)
    features = LandmarkFeatures(graph, most, generator=generator)
    reason = "the series is steep near zero, where only eigenvalues follow it: landmarks to machine precision"
    if features.num_features >= most < graph.num_nodes:
        reason = f"{reason}, or {most}"
    return features, Choice("landmarks", reason, predicted_error(features, tol), known_error(features), repr(features))


def _fallback(
    graph: ImplicitGraph, tol: float, most: int, generator: torch.Generator, notes: list[str]
) -> tuple[FeatureMap, Choice]:
    reason = "no route meets the tolerance: " + "; ".join(notes)
    if not graph.edge.positive_definite:
        return PairwiseFeatures(graph), Choice("pairwise", reason, 0.0, 0.0)
    features = LandmarkFeatures(graph, most, generator=generator, residual_tol=tol)
    residual = known_error(features)
    assert residual is not None
    return features, Choice("landmarks", reason, residual, residual, repr(features))


def predicted_error(features: FeatureMap, goal: float) -> float:
    """The error a map was made for, unless it knows better: landmarks end at their number, whatever they leave."""
    residual = known_error(features) if isinstance(features, LandmarkFeatures) else None
    return goal if residual is None else max(goal, residual)


def known_error(features: FeatureMap) -> float | None:
    """What a feature map knows of its own error."""
    if isinstance(features, FourierGrid):
        return features.row_error
    if isinstance(features, LandmarkFeatures):
        return float(features.residual_diagonal.detach().mean())
    return 0.0 if isinstance(features, PairwiseFeatures) else None


@torch.no_grad()
def sample_pairs(graph: ImplicitGraph, cutoff: float) -> tuple[float, float]:
    r"""From a sample of pairs: the mean number of nodes within a distance (in lengthscales) of a node, and the effective rank
    :math:`(\mathrm{tr} W)^2 / |W|_F^2`, which is the least number of features that can carry the trace."""
    order = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(0)).to(graph.points.device)
    sample = graph.points[order[:SAMPLE_COLUMNS]]
    scaled = graph.edge.scaled(sample)
    near = torch.cdist(scaled[:SAMPLE_ROWS], scaled, p=graph.edge.norm) <= cutoff
    squares = graph.edge.weights(sample[:SAMPLE_ROWS], sample).square()
    # Without the node itself, which is in every sample, then scaled to all others.
    others = max(1, graph.num_nodes - 1) / max(1, len(sample) - 1)
    neighbors = 1 + others * (float(near.double().sum(-1).mean()) - 1)
    row = 1 + others * (float(squares.double().sum(-1).mean()) - 1)
    return neighbors, graph.num_nodes / row


def _grid_cost(graph: ImplicitGraph, modes: int, terms: int) -> float:
    padded = modes * 2**graph.dim
    product = graph.num_nodes * TRANSFORM[graph.dim] + (4 + terms) * padded * FFT_POINT + terms * CALL
    setup = modes * MODE + 3 * graph.num_nodes * TRANSFORM[graph.dim]
    return setup + PRODUCTS * product


def _probe_landmarks(
    graph: ImplicitGraph, tol: float, most: int, generator: torch.Generator
) -> tuple[int, float, Tensor | None]:
    """How many landmarks a sample of the nodes asks for, the residual they leave on it, and, if the sample is all, which."""
    nodes = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(0))[:PROBE].to(graph.points.device)
    sample = ImplicitGraph(graph.points[nodes].detach(), graph.edge, graph.normalization)
    chosen = select_landmarks(sample, most, generator=generator, residual_tol=tol)
    with torch.no_grad():
        residual = float(LandmarkFeatures(sample, landmarks=chosen).residual_diagonal.mean())
    return len(chosen), residual, nodes[chosen] if graph.num_nodes <= PROBE else None


def _landmark_cost(nodes: int, number: int) -> float:
    setup = number * PIVOT + nodes * number * (FEATURE + number * FLOP)
    return setup + PRODUCTS * nodes * number * FEATURE_PRODUCT
