"""What a kernel fixes for a range of lengthscales: the route, its landmarks, modes or neighbours."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from linear_operator.operators import LinearOperator
from torch import Tensor

from swing_gp.features import FeatureMap, FourierGrid, LandmarkFeatures, NeighborFeatures
from swing_gp.features.auto import Choice, known_error, pick_features, predicted_error
from swing_gp.features.named import NAMES, default_tol
from swing_gp.graphs.implicit import ImplicitGraph
from swing_gp.graphs.inputs import NodeTable
from swing_gp.operators.graph_kernel import check_request, kernel_of
from swing_gp.operators.preconditioning import LandmarkControl
from swing_gp.operators.walks import Walks
from swing_gp.series.families import Series
from swing_gp.utils.validation import as_generator, check_choice

__all__ = ["Recipe", "Structure", "Structures"]

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

    def __post_init__(self) -> None:
        check_choice("features", self.features, NAMES)
        check_request(self.walks, self.tol, self.num_features)
        if isinstance(self.seed, torch.Generator):
            raise TypeError("seed must be an int, from which a kernel can make its structure again.")
        as_generator(self.seed)


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
        if landmarks is not None:
            self.features: FeatureMap = LandmarkFeatures(self.graph, landmarks=landmarks)
            goal = predicted_error(self.features, default_tol(graph) if recipe.tol is None else recipe.tol)
            self.info = Choice("landmarks", "restored", goal, known_error(self.features), repr(self.features))
        else:
            self.features, self.info = pick_features(
                self.graph,
                series,
                method or recipe.features,
                walked=recipe.walks is not None,
                tol=recipe.tol,
                num_features=recipe.num_features,
                generator=as_generator(recipe.seed),
                room=self.room,
                outside=outside,
            )
        self._control: LandmarkControl | None = None
        self._frozen: tuple[FeatureMap, int] | None = None

    def about(self, graph: ImplicitGraph) -> bool:
        """Whether the structure was made for these very points."""
        return graph.points is self.graph.points

    def holds(self, graph: ImplicitGraph) -> bool:
        """Whether the structure is still right at the lengthscale of a graph."""
        moved = (graph.edge.lengthscale.detach().double() / self.graph.edge.lengthscale.double()).log().abs().max()
        room = ROOM if isinstance(self.features, LandmarkFeatures) else self.room
        if not isinstance(self.features, LandmarkFeatures | FourierGrid | NeighborFeatures):
            return True  # random features and exact weights hold at every lengthscale
        return float(moved) <= math.log(room) + 1e-6

    def widened(self, series: Series) -> Structure:
        """The same structure for inputs beyond the box of the nodes, which matters to a Fourier grid alone."""
        if not isinstance(self.features, FourierGrid):
            self.outside = True
            return self
        return Structure(self.recipe, self.graph, series, training=self.room > 1, outside=True, method=self.info.method)

    def operator(self, graph: ImplicitGraph, series: Series) -> LinearOperator:
        """The kernel on all nodes of a graph that this structure holds for."""
        return kernel_of(
            self._bound(graph),
            series,
            walks=self.recipe.walks,
            tol=self.recipe.tol,
            generator=as_generator(self.recipe.seed + 1),
        )

    def _bound(self, graph: ImplicitGraph) -> FeatureMap:
        """The features of a graph; what was made of them is kept for as long as training leaves the graph as it is."""
        if torch.is_inference_mode_enabled() or any(tensor.requires_grad for tensor in graph.tensors()):
            return self.features.bind(graph)
        points, *parameters = graph.tensors()
        if self._frozen is not None:
            features, version = self._frozen
            if version == points._version and all(map(torch.equal, parameters, features.graph.edge.parameters())):
                return features
        features = self.features.bind(graph)
        self._frozen = features, points._version
        return features

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


class Structures:
    """What a kernel has made and can make anew: a structure for every element of its batch, the table of its nodes, and the
    last operator. Copies and files keep only what fixes them, :meth:`Structure.state`."""

    def __init__(self, restored: dict[tuple[int, ...], dict] | None = None) -> None:
        self._restored = restored or {}
        self._made: dict[tuple[int, ...], Structure] = {}
        self._table: NodeTable | None = None
        self.operator: tuple[Any, LinearOperator] | None = None

    def __reduce__(self) -> tuple:
        return Structures, (self.states(),)

    def __getitem__(self, index: tuple[int, ...]) -> Structure:
        return self._made[index]

    @property
    def info(self) -> Choice | None:
        return next((structure.info for structure in self._made.values()), None)

    def states(self) -> dict[tuple[int, ...], dict]:
        return {**self._restored, **{index: structure.state() for index, structure in self._made.items()}}

    def table(self, points: Tensor) -> NodeTable:
        if self._table is None or self._table.points is not points:
            self._table = NodeTable(points)
        return self._table

    def hold(
        self, index: tuple[int, ...], graph: ImplicitGraph, series: Series, recipe: Recipe, *, training: bool, outside: bool
    ) -> Structure:
        """The structure that holds for a graph: the current one, a restored one, or a new one."""
        current = self._made.get(index)
        if current is not None and not current.about(graph):  # the points moved to another dtype or device
            self._restored = self.states()
            self._made, current = {}, None
        if current is None and index in self._restored:
            current = Structure.restore(recipe, graph, series, self._restored.pop(index))
        if current is None or not current.holds(graph):
            outside = outside or (current is not None and current.outside)
            current = Structure(recipe, graph, series, training=training, outside=outside)
        elif outside and not current.outside:
            current = current.widened(series)
        self._made[index] = current
        return current
