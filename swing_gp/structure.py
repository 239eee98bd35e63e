"""What a kernel fixes for a range of lengthscales: the route, its landmarks, modes or neighbours."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from linear_operator.operators import LinearOperator
from torch import Tensor

from swing_gp.choice import Choice, choose_features, known_error
from swing_gp.features import FeatureMap, FourierGrid, LandmarkFeatures, NeighborFeatures
from swing_gp.features.grid import GridFeatures
from swing_gp.features.neighbors import list_cutoff
from swing_gp.front import default_tol, kernel_of, make_features
from swing_gp.graph import ImplicitGraph
from swing_gp.operators.preconditioning import LandmarkControl
from swing_gp.series import Series
from swing_gp.validation import as_generator
from swing_gp.walks import Walks

__all__ = ["Recipe", "Structure"]

# Modes and lists are made with room for lengthscales this many times shorter or longer; landmarks are chosen anew beyond it.
ROOM = 1.25


@dataclass(frozen=True)
class Recipe:
    """What the user asked for, in the words of :func:`~swing_gp.graph_kernel`."""

    features: str
    walks: Walks | None
    tol: float | None
    num_features: int | None
    seed: int


class Structure:
    """A feature map made at one lengthscale, to be bound to lengthscales near it."""

    def __init__(
        self,
        recipe: Recipe,
        graph: ImplicitGraph,
        series: Series,
        *,
        training: bool = False,
        outside: bool = False,
        landmarks: Tensor | None = None,
        method: str | None = None,
    ) -> None:
        self.recipe = recipe
        self.graph = graph.with_edge(graph.edge.with_parameters(*(p.detach().clone() for p in graph.edge.parameters())))
        self.room, self.outside = ROOM if training else 1.0, outside
        goal = default_tol(graph) if recipe.tol is None else recipe.tol
        self.features, self.info = self._make(series, goal, method or recipe.features, landmarks)
        self._control: LandmarkControl | None = None

    def _make(self, series: Series, goal: float, method: str, landmarks: Tensor | None) -> tuple[FeatureMap, Choice]:
        recipe, generator = self.recipe, as_generator(self.recipe.seed)
        if landmarks is not None:
            features: FeatureMap = LandmarkFeatures(self.graph, landmarks=landmarks)
            return features, Choice("landmarks", "restored", goal, known_error(features), repr(features))
        if method == "auto" and recipe.walks is not None:
            method = "positive"
        reason = "asked for by name"
        if method == "auto":
            features, choice = choose_features(self.graph, series, goal, num_features=recipe.num_features, generator=generator)
            method, reason = choice.method, choice.reason
            if method not in ("grid", "neighbors") or (self.room == 1.0 and not self.outside):
                return features, choice
        if method == "grid":
            margin = self.graph.edge.reach(goal) * self.room if self.outside else 0.0
            features = FourierGrid(self.graph, goal, room=self.room, margin=margin)
        elif method == "neighbors":
            features = NeighborFeatures(self.graph, goal, cutoff=self.room * list_cutoff(self.graph, goal))
        else:
            features = make_features(self.graph, method, tol=recipe.tol, num_features=recipe.num_features, generator=generator)
        return features, Choice(method, reason, goal, known_error(features), repr(features))

    def about(self, graph: ImplicitGraph) -> bool:
        """Whether the structure was made for these very points."""
        return graph.points is self.graph.points

    def holds(self, graph: ImplicitGraph) -> bool:
        """Whether the structure is still right at the lengthscale of a graph."""
        moved = (graph.edge.lengthscale.detach().double() / self.graph.edge.lengthscale.double()).log().abs().max()
        room = ROOM if isinstance(self.features, LandmarkFeatures) else self.room
        if not isinstance(self.features, LandmarkFeatures | FourierGrid | NeighborFeatures | GridFeatures):
            return True  # random features and exact weights hold at every lengthscale
        return float(moved) <= math.log(room) + 1e-6

    def widened(self, series: Series) -> Structure:
        """The same structure for inputs beyond the box of the nodes, which matters to a Fourier grid alone."""
        if not isinstance(self.features, FourierGrid | GridFeatures):
            self.outside = True
            return self
        return Structure(self.recipe, self.graph, series, training=self.room > 1, outside=True, method=self.info.method)

    def operator(self, graph: ImplicitGraph, series: Series) -> LinearOperator:
        """The kernel on all nodes of a graph that this structure holds for."""
        features = self.features.bind(graph)
        return kernel_of(
            features, series, walks=self.recipe.walks, tol=self.recipe.tol, generator=as_generator(self.recipe.seed + 1)
        )

    def control(self, operator: Any) -> LandmarkControl:
        """The landmark kernel beside an operator of this structure: same landmarks, the operator's hyper-parameters."""
        self._control = LandmarkControl(operator.graph, operator.series, self._control)
        return self._control

    # What has to be kept to make the same structure again

    def state(self) -> dict[str, Any]:
        """In numbers and words, for JSON."""
        landmarks = self.features.landmarks.tolist() if isinstance(self.features, LandmarkFeatures) else None
        return {
            "method": self.info.method,
            "lengthscale": self.graph.edge.lengthscale.tolist(),
            "room": self.room,
            "outside": self.outside,
            "landmarks": landmarks,
        }

    @classmethod
    def restore(cls, recipe: Recipe, graph: ImplicitGraph, series: Series, state: dict[str, Any]) -> Structure:
        points = graph.points
        lengthscale = torch.tensor(state["lengthscale"], dtype=points.dtype, device=points.device)
        landmarks = None if state["landmarks"] is None else torch.tensor(state["landmarks"], device=points.device)
        before = graph.with_edge(graph.edge.with_parameters(lengthscale))
        return cls(
            recipe,
            before,
            series,
            training=state["room"] > 1,
            outside=state["outside"],
            landmarks=landmarks,
            method=state["method"],
        )
