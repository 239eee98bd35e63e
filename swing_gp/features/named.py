"""The names that feature maps go by at the front door."""

from __future__ import annotations

import torch

from swing_gp.features.base import FeatureMap
from swing_gp.features.fourier import FourierFeatures
from swing_gp.features.grid import FourierGrid
from swing_gp.features.landmarks import LandmarkFeatures
from swing_gp.features.neighbors import NeighborFeatures, list_cutoff
from swing_gp.features.pairwise import PairwiseFeatures
from swing_gp.features.positive import PositiveFeatures
from swing_gp.graphs.implicit import ImplicitGraph
from swing_gp.utils.validation import check_choice

__all__ = ["NAMES", "NUM_FEATURES", "default_tol", "make_features"]

NAMES = ("auto", "neighbors", "grid", "landmarks", "positive", "fourier", "pairwise")
NUM_FEATURES = 512


def default_tol(graph: ImplicitGraph) -> float:
    return 1e-6 if graph.points.dtype == torch.float64 else 1e-4


def make_features(
    graph: ImplicitGraph,
    name: str,
    *,
    tol: float | None = None,
    num_features: int | None = None,
    generator: torch.Generator,
    room: float = 1.0,
    outside: bool = False,
) -> FeatureMap:
    """The feature map that a name stands for.

    :param room: grids and lists also hold for lengthscales this many times shorter or longer.
    :param outside: a grid also holds beyond the box of the nodes.
    """
    check_choice("features", name, NAMES)
    if name in ("grid", "neighbors", "pairwise") and num_features is not None:
        why = "is exact" if name == "pairwise" else "follows tol"
        raise ValueError(f"num_features has no meaning for features={name!r}, which {why}; leave it out.")
    goal = default_tol(graph) if tol is None else tol
    if name == "pairwise":
        return PairwiseFeatures(graph)
    if name == "neighbors":
        return NeighborFeatures(graph, goal, cutoff=room * list_cutoff(graph, goal))
    if name == "grid":
        return FourierGrid(graph, goal, room=room, margin=graph.edge.reach(goal) * room if outside else 0.0)
    number = NUM_FEATURES if num_features is None else num_features
    if name == "positive":
        return PositiveFeatures(graph, number, generator=generator)
    if name == "fourier":
        return FourierFeatures(graph, number, generator=generator)
    return LandmarkFeatures(graph, number, generator=generator, residual_tol=0.0 if tol is None else tol)
