"""The one cache of a GPyTorch kernel: feature maps, the operator on all nodes, and its mean variance.

**One rule: by value.** What was made is used again only where everything that it was made of has the same values now: points,
edge function, series, what the user asked for. Tensors are compared with copies of their own, so a write through NumPy or
``.data``, a plain attribute, or a move to another dtype or device is seen.

Landmarks, modes and neighbours are made for a lengthscale and hold for a range around it (``FeatureMap.valid_for``). Within it
training binds the same map to the current lengthscale, so that the marginal likelihood is one smooth function of it; beyond it
a new map is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from swing_gp.features import FeatureMap, LandmarkFeatures
from swing_gp.features.auto import NAMES, Choice, choose_features, default_tol, margin
from swing_gp.graphs.graph import Graph
from swing_gp.operators.graph_kernel import check_request, graph_kernel
from swing_gp.operators.preconditioning import LandmarkApproximation
from swing_gp.operators.variance import mean_variance
from swing_gp.operators.walks import Walks
from swing_gp.series.base import Series
from swing_gp.utils.validation import as_generator, check_choice

Index = tuple[int, ...]


@dataclass(frozen=True)
class FeatureRequest:
    """What the user asked for, in the words of :func:`~swing_gp.graph_kernel`."""

    features: str
    walks: Walks | None
    tol: float | None
    num_features: int | None
    seed: int

    @property
    def tolerant(self) -> bool:
        """Whether maps are made without a look at a tolerance."""
        return self.features not in ("auto", "grid", "neighbors") and self.tol is None

    def __post_init__(self) -> None:
        check_choice("features", self.features, NAMES)
        check_request(self.walks, self.tol, self.num_features)
        if isinstance(self.seed, torch.Generator):
            raise TypeError("seed must be an int, from which a kernel can make its features again.")
        as_generator(self.seed)


@dataclass(frozen=True)
class KernelOnNodes:
    """A kernel on all nodes at given hyper-parameters.

    :ivar landmarks: the landmark kernel of the same graph, for preconditioners and estimated diagonals.
    """

    operator: Any
    landmarks: LandmarkApproximation

    @cached_property
    def mean_variance(self) -> Tensor:
        return mean_variance(self.operator, self.landmarks)


class KernelCache:
    """What a kernel has made, for every element of its batch. Copies and files keep only what the maps are made from."""

    def __init__(self, restored: dict[Index, dict] | None = None) -> None:
        self._restored = restored or {}
        self._entries: dict[Index, _Entry] = {}

    def __reduce__(self) -> tuple:
        return KernelCache, (self.states(),)

    @property
    def info(self) -> Choice | None:
        return next((entry.info for entry in self._entries.values()), None)

    def states(self) -> dict[Index, dict]:
        """What the maps are made from, in numbers and words, for JSON."""
        return {**self._restored, **{index: entry.state() for index, entry in self._entries.items()}}

    def entry(
        self, index: Index, graph: Graph, series: Series, request: FeatureRequest, *, training: bool, outside: bool
    ) -> _Entry:
        """Features for a graph and a series: those at hand where they hold, new ones elsewhere.

        :param training: the lengthscale is about to change, so make maps with room for shorter and longer ones.
        :param outside: it will be evaluated beyond the box of the nodes, for which a Fourier grid needs a margin.
        """
        entry, made_of = self._entries.get(index), _made_of(graph, request)
        if entry is not None and not equal_values(entry.made_of, made_of):
            pairs = zip(entry.graph.fixed_tensors(), graph.fixed_tensors(), strict=True)
            same = all(torch.equal(old.float().cpu(), new.float().cpu()) for old, new in pairs)
            if same and equal_values(entry.made_of[1:], made_of[1:]):  # they moved to another dtype or device
                self._restored[index] = entry.state()
            entry = None
        if entry is None and index in self._restored:
            entry = _Entry.restored(request, graph, series, **self._restored.pop(index))
        if entry is None or not entry.serves(graph, series):
            outside = outside or (entry is not None and entry.outside)
            entry = _Entry(request, graph, series, room=LandmarkFeatures.room if training else 1.0, outside=outside)
        elif outside and not entry.outside:
            entry = entry.widened(series)
        self._entries[index] = entry
        return entry


class _Entry:
    """A feature map made at one lengthscale, and the last kernel that was made with it."""

    def __init__(
        self,
        request: FeatureRequest,
        graph: Graph,
        series: Series,
        *,
        room: float,
        outside: bool,
        method: str | None = None,
        landmarks: list[int] | None = None,
    ) -> None:
        self.request, self.room, self.outside, self.margin = request, room, outside, margin(graph, series)
        self.made_of = snapshot(_made_of(graph, request))
        self.graph = graph.with_tensors(*self.made_of[0], *(tensor.detach().clone() for tensor in graph.parameters()))
        if landmarks is None:
            self.features, self.info = choose_features(
                self.graph,
                series,
                method or request.features,
                walked=request.walks is not None,
                tol=request.tol,
                num_features=request.num_features,
                generator=as_generator(request.seed),
                room=room,
                outside=outside,
            )
        else:
            ids: Any = torch.tensor(landmarks, device=graph.points.device)
            self.features = LandmarkFeatures(self.graph, landmarks=ids)  # type: ignore[arg-type]
            self.info = Choice.of(self.features, "landmarks", "restored", request.tol or default_tol(graph), series)
        self._landmarks: LandmarkApproximation | None = None
        self._bound: tuple[Any, FeatureMap] | None = None
        self._kept: tuple[FeatureMap, Any, KernelOnNodes] | None = None

    def serves(self, graph: Graph, series: Series) -> bool:
        """Whether the map holds for a lengthscale, and within a factor of four for a series that amplifies its errors more."""
        return self.features.valid_for(graph) and (self.request.tolerant or margin(graph, series) <= 4 * self.margin)

    def widened(self, series: Series) -> _Entry:
        """The same for inputs beyond the box of the nodes, where a map needs to know of them beforehand."""
        if not self.features.bounded:
            self.outside = True
            return self
        return _Entry(self.request, self.graph, series, room=self.room, outside=True, method=self.info.method)

    def kernel(self, graph: Graph, series: Series, differentiable: bool) -> KernelOnNodes:
        """The kernel of a graph and a series. Where gradients are wanted, what is made cannot be used twice."""
        if differentiable and any(tensor.requires_grad for tensor in graph.tensors()):
            return self._make(self.features.bind(graph), series)
        parameters = graph.parameters()
        if self._bound is None or not equal_values(self._bound[0], parameters):
            copies = snapshot(parameters)
            self._bound = copies, self.features.bind(self.graph.with_tensors(*self.graph.fixed_tensors(), *copies))
        features = self._bound[1]  # with all that was computed of them
        if differentiable:
            return self._make(features, series)
        description = type(series), vars(series)
        if self._kept is None or self._kept[0] is not features or not equal_values(self._kept[1], description):
            self._kept = features, snapshot(description), self._make(features, series)
        return self._kept[2]

    def _make(self, features: FeatureMap, series: Series) -> KernelOnNodes:
        graph, walks, tol = features.graph, self.request.walks, self.request.tol
        operator = graph_kernel(graph, series, features=features, walks=walks, tol=tol, seed=self.request.seed + 1)
        # Nearby the same landmarks, and what was learnt of their distance, will do.
        self._landmarks = LandmarkApproximation(graph, series, self._landmarks)
        return KernelOnNodes(operator, self._landmarks)

    def state(self) -> dict[str, Any]:
        landmarks = self.features.landmarks.tolist() if isinstance(self.features, LandmarkFeatures) else None
        parameters = [parameter.tolist() for parameter in self.graph.parameters()]
        how = {"method": self.info.method, "room": self.room, "outside": self.outside, "landmarks": landmarks}
        return {"parameters": parameters, **how}

    @classmethod
    def restored(cls, request: FeatureRequest, graph: Graph, series: Series, *, parameters: Any, **how: Any) -> _Entry:
        """The entry of a :meth:`state`, on a graph whose lengthscale may have moved since."""
        then = (graph.points.new_tensor(value) for value in parameters)
        return cls(request, graph.with_tensors(*graph.fixed_tensors(), *then), series, **how)


def _made_of(graph: Graph, request: FeatureRequest) -> Any:
    """What a feature map depends on besides the parameters of the graph, for which it holds in a range."""
    return graph.fixed_tensors(), graph.settings(), request


def snapshot(value: Any) -> Any:
    """A copy whose tensors and arrays nobody else can write to."""
    if torch.is_tensor(value):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, dict):
        return {name: snapshot(item) for name, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [snapshot(item) for item in value]
    return value


def equal_values(kept: Any, value: Any) -> bool:
    """Whether a value is what it was when :func:`snapshot` was taken."""
    if torch.is_tensor(value):
        alike = torch.is_tensor(kept) and kept.dtype == value.dtype and kept.device == value.device
        return alike and torch.equal(kept, value.detach())
    if isinstance(value, np.ndarray):
        return isinstance(kept, np.ndarray) and np.array_equal(kept, value, equal_nan=value.dtype.kind == "f")
    if isinstance(value, dict):
        return isinstance(kept, dict) and kept.keys() == value.keys() and all(equal_values(kept[k], value[k]) for k in value)
    if isinstance(value, (tuple, list)):
        return isinstance(kept, list) and len(kept) == len(value) and all(map(equal_values, kept, value))
    return bool(kept is value or kept == value)
