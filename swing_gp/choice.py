"""``features="auto"``: the cheapest route that meets the tolerance, by a cost model, and the reasons for it.

The costs are seconds of set-up and ten products on two cores, from constants that ``python -m benchmarks.scaling`` measures;
only their ratios matter for the choice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import scipy.spatial
import torch

from swing_gp.features.grid import FourierGrid
from swing_gp.features.landmarks import LandmarkFeatures, select_landmarks
from swing_gp.features.neighbors import MAX_NEIGHBORS, NeighborFeatures, expected_neighbors
from swing_gp.features.pairwise import PairwiseFeatures
from swing_gp.features.protocol import FeatureMap
from swing_gp.graph import ImplicitGraph

__all__ = ["Choice", "choose_features"]

# Seconds: a pair of a list to find and weigh, and to multiply; a point of a non-uniform transform, by dimension; a point of
# a padded FFT; a multiplication and addition; the fixed cost of a transform.
PAIR, PAIR_PRODUCT = 3e-7, 3e-9
TRANSFORM = {1: 6e-8, 2: 1e-7, 3: 3e-7}
FFT_POINT, FLOP, CALL = 2e-8, 4e-11, 1e-3
# A chosen route is used for about this many products, each of about this many terms.
PRODUCTS, TERMS = 10, 12
# Landmarks are probed on this many nodes; more nodes than that leave the spectrum of the normalised graph unchanged.
PROBE = 2000
LANDMARKS = 512


@dataclass(frozen=True)
class Choice:
    """How an operator was made.

    :ivar method: the feature map: ``"neighbors"``, ``"grid"``, ``"landmarks"`` or ``"pairwise"``.
    :ivar reason: why it was taken, in words.
    :ivar predicted_error: the relative error it was made for.
    :ivar costs: predicted seconds of set-up and ten products, for every route that was considered.
    """

    method: str
    reason: str
    predicted_error: float
    costs: dict[str, float] = field(default_factory=dict)


def choose_features(
    graph: ImplicitGraph, tol: float, *, num_features: int | None, generator: torch.Generator
) -> tuple[FeatureMap, Choice]:
    """The cheapest feature map for a collapsed kernel at a relative error of ``tol``."""
    costs, notes = {}, []
    if (neighbors := _neighbors(graph, tol)) is not None:
        costs["neighbors"] = neighbors
    else:
        notes.append(f"a list would hold more than {MAX_NEIGHBORS} neighbours a node")
    grid = _grid(graph, tol)
    if isinstance(grid, str):
        notes.append(grid)
    else:
        costs["grid"] = _grid_cost(grid)
    if graph.edge.positive_definite:
        number, residual = _probe_landmarks(graph, tol, num_features, generator)
        if residual <= tol:
            costs["landmarks"] = _landmark_cost(graph, number)
        else:
            notes.append(f"{number} landmarks leave a residual of {residual:.1g}")
    if not costs:
        return _fallback(graph, tol, num_features, generator, notes)
    method = min(costs, key=lambda name: costs[name])
    notes.insert(0, f"the cheapest of {', '.join(f'{name} ({cost:.2g} s)' for name, cost in costs.items())}")
    choice = Choice(method, "; ".join(notes), tol, costs)
    if method == "neighbors":
        return NeighborFeatures(graph, 0.3 * tol), choice
    if method == "grid":
        assert isinstance(grid, FourierGrid)
        return grid, choice
    most = LANDMARKS if num_features is None else num_features
    return LandmarkFeatures(graph, most, generator=generator, residual_tol=tol), choice


def _fallback(
    graph: ImplicitGraph, tol: float, num_features: int | None, generator: torch.Generator, notes: list[str]
) -> tuple[FeatureMap, Choice]:
    reason = "no route meets the tolerance: " + "; ".join(notes)
    if not graph.edge.positive_definite:
        return PairwiseFeatures(graph), Choice("pairwise", reason, 0.0)
    features = LandmarkFeatures(graph, num_features or LANDMARKS, generator=generator, residual_tol=tol)
    return features, Choice("landmarks", reason, float(features.residual_diagonal.detach().mean()))


def _neighbors(graph: ImplicitGraph, tol: float) -> float | None:
    scaled = graph.edge.scaled(graph.points).detach().double().cpu().numpy()
    average = expected_neighbors(scipy.spatial.cKDTree(scaled), graph.edge.cutoff(0.3 * tol, graph.dim), graph.edge.norm)
    if average > MAX_NEIGHBORS:
        return None
    return graph.num_nodes * average * (PAIR + PRODUCTS * TERMS * PAIR_PRODUCT)


def _grid(graph: ImplicitGraph, tol: float) -> FourierGrid | str:
    """The grid (cheap to lay out: its transforms are made when used), or why there is none."""
    try:
        return FourierGrid(graph, tol)
    except ValueError as error:
        return str(error).split(":")[0].lower()


def _grid_cost(grid: FourierGrid) -> float:
    dim = grid.graph.dim
    points = grid.graph.num_nodes * TRANSFORM[dim] * (4 + 2 * PRODUCTS)
    return points + PRODUCTS * TERMS * (grid.num_modes * 2**dim * FFT_POINT + CALL)


def _probe_landmarks(
    graph: ImplicitGraph, tol: float, num_features: int | None, generator: torch.Generator
) -> tuple[int, float]:
    """How many landmarks a sample of the nodes asks for, and the residual they leave on it."""
    most = LANDMARKS if num_features is None else num_features
    probe = torch.Generator().manual_seed(0)
    nodes = torch.randperm(graph.num_nodes, generator=probe)[:PROBE].to(graph.points.device)
    sample = ImplicitGraph(graph.points[nodes].detach(), graph.edge, graph.normalization)
    chosen = select_landmarks(sample, most, generator=probe, residual_tol=tol)
    with torch.no_grad():
        residual = float(LandmarkFeatures(sample, landmarks=chosen).residual_diagonal.mean())
    return len(chosen), residual


def _landmark_cost(graph: ImplicitGraph, number: int) -> float:
    return graph.num_nodes * number * FLOP * (4 * number + 4 * PRODUCTS) + 30 * math.pow(number, 3) * FLOP
