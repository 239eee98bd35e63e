r"""The two verbs. A feature map linearises an edge function, :math:`f(x - y) \approx \phi_1(x)^\top \phi_2(y)`, and offers

- ``project(v)``: values at the nodes to coefficients, :math:`c = \Phi_2(p)^\top v`;
- ``evaluate(x, c)``: coefficients to values at any points, :math:`v = \Phi_1(x) c`;

so that :math:`(W v)(x) \approx` ``evaluate(x, project(v))`` for every x, on or off the graph. All else in this package is
written with these two and their adjoints, and nothing above them knows which map it has. A map is bound to a graph, holds
its random draws, and is otherwise a differentiable function of the points and the edge parameters.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from swing_gp.graphs.edges import EdgeFunction
from swing_gp.graphs.graph import Graph
from swing_gp.linalg.gram import cross_gram, gram
from swing_gp.linalg.sparse import SparsePattern
from swing_gp.utils.copies import WithoutCaches

Map = TypeVar("Map", bound="FeatureMap")


class Unsuitable(ValueError):
    """A map would be too large on this graph.

    :ivar reason: the refusal in a few words, for :class:`~swing_gp.features.auto.Choice`.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}{detail}")
        self.reason = reason


class FeatureMap(WithoutCaches, ABC):
    """A linearised edge function on a graph.

    :ivar graph: the graph; an :class:`~swing_gp.ImplicitGraph` for all maps but that of a sparse graph.
    :ivar room: how many times shorter or longer than the lengthscale that the map was made for one may be that it is bound to.
    """

    # Whether all that it takes from the nodes are sums and landmarks, which shards can give.
    shardable = False
    room = math.inf
    # Whether a map must know beforehand that it will be evaluated beyond the box of the nodes.
    bounded = False
    # Whether weights are known between any two points, or only between points and nodes.
    weighs_any_pair = True
    # Whether W is a sparse matrix to it, :meth:`sparse_weights`.
    sparse = False
    # What helps where the error of the map exceeds the degree of a node.
    remedy = "a smaller tol, or features='neighbors' or 'landmarks'"

    def __init__(self, graph: Any) -> None:
        if not self.shardable:
            graph.shards.refuse(f"A map of {type(self).__name__}", "use features='landmarks' or 'fourier'")
        self.graph = graph
        self._made_for = tuple(parameter.detach().clone() for parameter in graph.parameters())

    @abstractmethod
    def project(self, values: Tensor) -> Tensor:  # (N, k) -> (r, k)
        """Values at the nodes to coefficients."""

    @abstractmethod
    def evaluate(self, x: Any, coefficients: Tensor) -> Tensor:  # (n, d), (r, k) -> (n, k)
        """Coefficients to values at points, as they are or prepared; None stands for the nodes."""

    @abstractmethod
    def project_adjoint(self, coefficients: Tensor) -> Tensor:  # (r, k) -> (N, k)
        """The transpose of :meth:`project`."""

    @abstractmethod
    def evaluate_adjoint(self, x: Any, values: Tensor) -> Tensor:  # (n, d), (n, k) -> (r, k)
        """The transpose of :meth:`evaluate`."""

    @property
    def form(self) -> str:
        """What its collapsed kernel is: ``"low rank"`` plus a diagonal, a ``"polynomial"`` of W, or in the space of
        ``"modes"``."""
        return "polynomial"

    def simplified(self) -> FeatureMap:
        """The same map in a form that is easier to compute with, if there is one."""
        return self

    def node_matrix(self) -> tuple[SparsePattern, Tensor] | None:
        """W as a sparse matrix, where the map keeps one for products: its pattern and its entries."""
        return None

    def sparse_weights(self) -> tuple[SparsePattern, Tensor] | None:
        """W as a sparse matrix, where it is one."""
        return self.node_matrix()

    def prepare(self, x: Tensor) -> Any:
        """What evaluations at the same points share, to be given to the verbs in place of the points."""
        return x

    @abstractmethod
    def average(self, x: Tensor, log_noise: Tensor) -> Tensor:  # (B, n, d), (B, N) -> (B, n, d)
        r"""One move of B space walks (Eq. 5 of the paper): the mean of the nodes under weights
        :math:`a_j f(x - p_j)` for every walker x, with the noise a of its walk given by its logarithm."""

    @abstractmethod
    def redraw(self: Map, edge: EdgeFunction, generator: torch.Generator) -> Map:
        """A map of the same recipe for another edge function, with fresh randomness."""

    def _sums(self, x: Tensor | None, loads: Tensor | None = None) -> Tensor:  # (n, d), (N,) -> (n,)
        r""":math:`\sum_j f(x - p_j) a_j` as this map sees it, with loads a of the nodes, one by default."""
        points = self.graph.points
        loads = torch.ones(self.graph.num_nodes, dtype=points.dtype, device=points.device) if loads is None else loads
        return self.evaluate(x, self.project(loads.unsqueeze(-1))).squeeze(-1)

    def _log_sums(self, x: Tensor | None, log_loads: Tensor | None = None) -> Tensor:  # (n, d), (N,) -> (n,)
        """Their logarithm, with loads by their logarithms."""
        sums = self._sums(x, None if log_loads is None else log_loads.exp())
        least = -self.graph.shards.max(-sums)
        if not least > 0:
            raise ValueError(
                f"{type(self).__name__} give a non-positive degree ({least:.3g}): their error exceeds the degree of some "
                f"node. Use {self.remedy}."
            )
        return sums.log()

    def log_degree(self, x: Tensor | None = None) -> Tensor:  # (n, d) -> (n,)
        r"""Logarithm of the degree as this map sees it: :math:`d(x) = \sum_j f(x - p_j)`, and with a density a
        :math:`\delta(x) = d(x)^a \sum_j f(x - p_j)\, d_j^{-a}`, by which W is normalised then."""
        return self._degree_of(x, self._log_sums)

    def log_density(self) -> Tensor:  # (N,)
        r""":math:`a \log d` at the nodes."""
        return self.graph.density * self._log_sums(None) if self.graph.density else torch.zeros_like(self.log_degree())

    def _degree_of(self, x: Tensor | None, log_sums: Callable[..., Tensor]) -> Tensor:
        if not self.graph.density:
            return log_sums(x)
        loads = -self.graph.density * self._log_sums(None)
        return self.graph.density * log_sums(x) + log_sums(x, loads)

    def extended_log_degree(self, x: Tensor) -> Tensor:  # (n, d) -> (n,)
        r"""Logarithm of :math:`\max(\delta(x), f(0))`, the degree of points off the graph: continuous, equal to the degree at
        the nodes (whose self-loop weighs f(0) = 1), and bounded below, so that far from all nodes a kernel fades to its prior.
        """

        def log_sums(x: Tensor, log_loads: Tensor | None = None) -> Tensor:
            sums = self._sums(x, None if log_loads is None else log_loads.exp())
            return sums.clamp_min(torch.finfo(sums.dtype).tiny).log()

        return self._degree_of(x, log_sums).clamp_min(0)

    def node_residual(self) -> Tensor | None:  # (N,)
        """What the map leaves out of the diagonal of W, where it knows."""
        return None

    @property
    def known_error(self) -> float | None:
        """What the map knows of its relative error in W; None where nothing was measured."""
        return None

    @property
    def deficit(self) -> float:
        """How far below zero the map may put eigenvalues of a positive-definite W, as a share of the largest."""
        return 0.0

    def valid_for(self, graph: Graph) -> bool:
        """Whether the map is right at the lengthscale of a graph, too; a new one has to be made otherwise."""
        pairs = zip(graph.parameters(), self._made_for, strict=True)
        moved = [float((now.detach().double() / then.double()).log().abs().max()) for now, then in pairs]
        return max(moved, default=0.0) <= math.log(self.room) + 1e-6

    def bind(self: Map, graph: Any) -> Map:
        """The same map, with the same draws, on other tensors of the same shapes."""
        if graph is self.graph:
            return self
        other = copy.copy(self)
        other.graph = graph
        return other


class NodeFeatures(FeatureMap):
    r"""An asymmetric map whose coefficients are values at the nodes: :math:`\phi_1(x)` holds the weights of x to them,
    :math:`\phi_2(p_j) = e_j`."""

    def project(self, values: Tensor) -> Tensor:
        return values

    def project_adjoint(self, coefficients: Tensor) -> Tensor:
        return coefficients

    def redraw(self: Map, edge: EdgeFunction, generator: torch.Generator) -> Map:
        # Nothing is drawn. The cut-off of a list stays: with noise, a node is as likely to win a move at any temperature.
        return self.bind(self.graph.with_edge(edge))

    def extended_log_degree(self, x: Tensor) -> Tensor:
        return self.log_degree(x).clamp_min(0)

    @abstractmethod
    def weights_between(self, x: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:  # (n, d), (m, d) -> ((m, k) -> (n, k))
        """Products with the weights between any two sets of points."""


class DenseFeatures(FeatureMap):
    r"""A symmetric map given by an explicit matrix of features, :math:`f(x - y) \approx \phi(x)^\top \phi(y)`."""

    @property
    def form(self) -> str:
        return "polynomial" if self.graph.normalization == "random_walk" else "low rank"

    remedy = "more features (num_features), a larger lengthscale, or features='landmarks'"

    @property
    @abstractmethod
    def num_features(self) -> int: ...

    @abstractmethod
    def features(self, x: Tensor) -> Tensor:  # (n, d) -> (n, r)
        """The feature matrix of any points."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(num_features={self.num_features})"

    @cached_property
    def node_features(self) -> Tensor:  # (N, r)
        return self.features(self.graph.points)

    def _features(self, x: Tensor | None) -> Tensor:
        return self.node_features if x is None else self.features(x)

    def project(self, values: Tensor) -> Tensor:
        return self.graph.shards.sum(self.node_features.mT @ values, "projection")

    def evaluate(self, x: Tensor | None, coefficients: Tensor) -> Tensor:
        return self._features(x) @ coefficients

    def project_adjoint(self, coefficients: Tensor) -> Tensor:
        return self.node_features @ coefficients

    def evaluate_adjoint(self, x: Tensor | None, values: Tensor) -> Tensor:
        return self.graph.shards.sum(self._features(x).mT @ values, "projection")

    @cached_property
    def feature_sums(self) -> Tensor:  # (r,)
        """The sum of the features of all nodes, which gives every degree."""
        return self.graph.shards.sum(self.node_features.sum(-2), "degrees")

    def _load_sums(self, loads: Tensor | None) -> Tensor:  # (N,) -> (r,)
        """The sum of the features of all nodes, times loads."""
        return self.feature_sums if loads is None else self.graph.shards.sum(self.node_features.mT @ loads, "degrees")

    def _sums(self, x: Tensor | None, loads: Tensor | None = None) -> Tensor:
        return self._features(x) @ self._load_sums(loads)

    def residual(self, features: Tensor) -> Tensor | None:  # (n, r) -> (n,)
        """What the map leaves out of :math:`f(0) = 1` at points with these features, where it knows."""
        return None

    def normalized_gram(self, log_degree: Tensor) -> Tensor:  # (r, r), float64
        r""":math:`\Phi^\top D^{-1} \Phi`."""
        return self.graph.shards.sum(gram(self.node_features, (-log_degree).exp()), "Gram matrix")

    @cached_property
    def node_gram(self) -> Tensor:  # (r, r), float64
        r"""The small matrix with the non-zero eigenvalues of the normalised one: :math:`\Phi^\top D^{-1} \Phi`, or
        :math:`\Phi^\top \Phi` for the raw W."""
        if self.graph.normalization is None:
            return self.graph.shards.sum(gram(self.node_features), "Gram matrix")
        return self.normalized_gram(self.log_degree())

    @cached_property
    def node_eigenpairs(self) -> tuple[Tensor, Tensor]:  # (r,), (r, r)
        """Eigenvalues and vectors of :attr:`node_gram`, without a gradient."""
        return torch.linalg.eigh(self.node_gram.detach())

    def normalized_features(self, log_degree: Tensor) -> Tensor:  # (N, r)
        r"""The rows of :math:`D^{-1/2} \Phi`."""
        return self.node_features * (-0.5 * log_degree).exp().unsqueeze(-1)

    def average(self, x: Tensor, log_noise: Tensor) -> Tensor:
        # The ratio is free of scale, so the noise is shifted; in float64, because at low temperature it spans e^100.
        noise = (log_noise - log_noise.amax(-1, keepdim=True)).double().exp().unsqueeze(-1)
        weighted = cross_gram(self.node_features, torch.cat([noise * self.graph.points, noise], dim=-1))
        result = self.features(x.flatten(0, 1)).double().unflatten(0, x.shape[:2]) @ weighted
        denominator = result[..., -1:]
        if not bool((denominator.detach() > 0).all()):
            raise ValueError(
                f"A walk met a non-positive denominator: {type(self).__name__} have an absolute error, and a move is a "
                "ratio of numbers far below it. Raise the temperature, or use features='positive' or 'pairwise'."
            )
        return (result[..., :-1] / denominator).to(x.dtype)
