r"""The two verbs. A feature map linearises an edge function, :math:`f(x - y) \approx \phi_1(x)^\top \phi_2(y)`, and offers

- ``project(v)``: values at the nodes to coefficients, :math:`c = \Phi_2(p)^\top v`;
- ``evaluate(x, c)``: coefficients to values at any points, :math:`v = \Phi_1(x) c`;

so that :math:`(W v)(x) \approx` ``evaluate(x, project(v))`` for every x, on or off the graph. Operators use these two verbs
and their adjoints only, whatever the map. A map is bound to a graph, holds its random draws, and is otherwise a
differentiable function of the points and the edge parameters.
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
from swing_gp.graphs.implicit import ImplicitGraph
from swing_gp.linalg.gram import cross_gram, gram
from swing_gp.linalg.sparse import SparsePattern
from swing_gp.utils.copies import WithoutCaches

FeatureMapT = TypeVar("FeatureMapT", bound="FeatureMap")


class Unsuitable(ValueError):
    """The error of a map that would be too large on a graph.

    :param reason: the refusal in a few words, for :class:`~swing_gp.features.auto.Choice`.
    :param detail: the rest of the message.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}{detail}")
        self.reason = reason


class FeatureMap(WithoutCaches, ABC):
    """A linearised edge function on a graph.

    :param graph: the graph; an :class:`~swing_gp.ImplicitGraph`, or a sparse graph for
        :class:`~swing_gp.features.sparse.SparseFeatures`.
    :cvar shardable: the map needs no more of the nodes than sums and landmarks, which shards can give.
    :cvar room: the largest factor between the lengthscale of a graph it is bound to and the one it was made for, either way.
    :cvar bounded: the map must be made for the places off the graph that it will be evaluated at.
    :cvar weighs_any_pair: the weights between any two points are defined, not only those to nodes.
    :cvar sparse: W is a sparse matrix, :meth:`sparse_weights`.
    :cvar remedy: advice if the error of the map exceeds the degree of a node.
    """

    graph: Any  # subclasses have the type
    shardable = False
    room = math.inf
    bounded = False
    weighs_any_pair = True
    sparse = False
    remedy = "a smaller tol, or features='neighbors' or 'landmarks'"

    def __init__(self, graph: Graph) -> None:
        if not self.shardable:
            graph.shards.refuse(f"A map of {type(self).__name__}", "use features='landmarks' or 'fourier'")
        self.graph = graph
        self._reference_parameters = tuple(parameter.detach().clone() for parameter in graph.parameters())

    @abstractmethod
    def project(self, values: Tensor) -> Tensor:  # (N, k) -> (r, k)
        """Map values at the nodes to coefficients."""

    @abstractmethod
    def evaluate(self, x: Any, coefficients: Tensor) -> Tensor:  # (n, d), (r, k) -> (n, k)
        """Map coefficients to values at points.

        :param x: points, (n, d), or the result of :meth:`prepare` for them; None for the nodes.
        :param coefficients: coefficients, (r, k).
        """

    @abstractmethod
    def project_adjoint(self, coefficients: Tensor) -> Tensor:  # (r, k) -> (N, k)
        """Apply the transpose of :meth:`project`."""

    @abstractmethod
    def evaluate_adjoint(self, x: Any, values: Tensor) -> Tensor:  # (n, d), (n, k) -> (r, k)
        """Apply the transpose of :meth:`evaluate`."""

    @property
    def form(self) -> str:
        """Form of the collapsed kernel: ``"low rank"`` plus a diagonal, a ``"polynomial"`` of W, or ``"modes"`` of a grid."""
        return "polynomial"

    def simplified(self) -> FeatureMap:
        """Equal map in the form that is cheapest to compute with, possibly the map itself."""
        return self

    def node_matrix(self) -> tuple[SparsePattern, Tensor] | None:
        """Pattern and entries of W if products use a stored sparse matrix, else None."""
        return None

    def sparse_weights(self) -> tuple[SparsePattern, Tensor] | None:
        """Pattern and entries of W if it is a sparse matrix, else None."""
        return self.node_matrix()

    def prepare(self, x: Tensor) -> Any:
        """Precompute the shared part of evaluations at the same points; the verbs take the result in place of the points."""
        return x

    @abstractmethod
    def average(self, x: Tensor, log_noise: Tensor) -> Tensor:  # (B, n, d), (B, N) -> (B, n, d)
        r"""Move the walkers of B space walks one step (Eq. 5 of the paper): to the mean of the nodes p under the weights
        :math:`a_j f(x - p_j)`.

        :param x: positions of the walkers.
        :param log_noise: logarithms of the noise a of every walk.
        """

    @abstractmethod
    def redraw(self: FeatureMapT, edge: EdgeFunction, generator: torch.Generator) -> FeatureMapT:
        """Make a map with the same settings for another edge function, with new random draws."""

    def _sums(self, x: Tensor | None, loads: Tensor | None = None) -> Tensor:  # (n, d), (N,) -> (n,)
        r"""Sums :math:`\sum_j f(x - p_j) a_j` in the approximation of this map.

        :param x: points; None for the nodes.
        :param loads: the loads a of the nodes; one by default.
        """
        points = self.graph.points
        loads = torch.ones(self.graph.num_nodes, dtype=points.dtype, device=points.device) if loads is None else loads
        return self.evaluate(x, self.project(loads.unsqueeze(-1))).squeeze(-1)

    def _log_sums(self, x: Tensor | None, log_loads: Tensor | None = None) -> Tensor:  # (n, d), (N,) -> (n,)
        """Logarithms of :meth:`_sums`, from the logarithms of the loads."""
        sums = self._sums(x, None if log_loads is None else log_loads.exp())
        least = -self.graph.shards.max(-sums)
        if not least > 0:
            raise ValueError(
                f"{type(self).__name__} give a non-positive degree ({least:.3g}): their error exceeds the degree of some "
                f"node. Use {self.remedy}."
            )
        return sums.log()

    def log_degree(self, x: Tensor | None = None) -> Tensor:  # (n, d) -> (n,)
        r"""Logarithm of the degree in the approximation of this map, at points or, by default, the nodes.

        The degree is :math:`d(x) = \sum_j f(x - p_j)`; with a density a,
        :math:`\delta(x) = d(x)^a \sum_j f(x - p_j)\, d_j^{-a}`.
        """
        return self._log_degree_from(x, self._log_sums)

    def log_density(self) -> Tensor:  # (N,)
        r"""Logarithm of the density factor, :math:`a \log d`, at the nodes."""
        return self.graph.density * self._log_sums(None) if self.graph.density else torch.zeros_like(self.log_degree())

    def _log_degree_from(self, x: Tensor | None, log_sums: Callable[..., Tensor]) -> Tensor:
        """Logarithm of the degree from a function for the logarithms of sums."""
        if not self.graph.density:
            return log_sums(x)
        loads = -self.graph.density * self._log_sums(None)
        return self.graph.density * log_sums(x) + log_sums(x, loads)

    def extended_log_degree(self, x: Tensor) -> Tensor:  # (n, d) -> (n,)
        r"""Logarithm of :math:`\max(\delta(x), f(0))`, the degree of points off the graph.

        It is continuous and equal to the degree at the nodes, whose self-loop weighs f(0) = 1. Its lower bound lets a kernel
        fade to its identity part far from all nodes.
        """

        def log_sums(x: Tensor, log_loads: Tensor | None = None) -> Tensor:
            sums = self._sums(x, None if log_loads is None else log_loads.exp())
            return sums.clamp_min(torch.finfo(sums.dtype).tiny).log()

        return self._log_degree_from(x, log_sums).clamp_min(0)

    def node_residual(self) -> Tensor | None:  # (N,)
        """Residual of the diagonal of W under the map; None if unknown."""
        return None

    @property
    def known_error(self) -> float | None:
        """Relative error of W as far as it is known; None if nothing was measured."""
        return None

    @property
    def deficit(self) -> float:
        """Bound on the negative eigenvalues that the map gives a positive-definite W, relative to the largest eigenvalue."""
        return 0.0

    def valid_for(self, graph: Graph) -> bool:
        """Check if the map may be bound to a graph: its lengthscale differs by at most the factor ``room``."""
        pairs = zip(graph.parameters(), self._reference_parameters, strict=True)
        changes = [float((now.detach().double() / then.double()).log().abs().max()) for now, then in pairs]
        return max(changes, default=0.0) <= math.log(self.room) + 1e-6

    def bind(self: FeatureMapT, graph: Any) -> FeatureMapT:
        """Copy the map, with its draws, to a graph with other tensors of the same shapes."""
        if graph is self.graph:
            return self
        other = copy.copy(self)
        other.graph = graph
        return other


class NodeFeatures(FeatureMap):
    r"""An asymmetric map whose coefficients are values at the nodes: :math:`\phi_1(x)` holds the weights between x and the
    nodes, and :math:`\phi_2(p_j) = e_j`."""

    def project(self, values: Tensor) -> Tensor:
        return values

    def project_adjoint(self, coefficients: Tensor) -> Tensor:
        return coefficients

    def redraw(self: FeatureMapT, edge: EdgeFunction, generator: torch.Generator) -> FeatureMapT:
        # There are no draws. The cut-off of a list stays: with noise, the chance of a node to win a move is the same at any
        # temperature.
        return self.bind(self.graph.with_edge(edge))

    def extended_log_degree(self, x: Tensor) -> Tensor:
        return self.log_degree(x).clamp_min(0)

    @abstractmethod
    def weights_between(self, x: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:  # (n, d), (m, d) -> ((m, k) -> (n, k))
        """Function that multiplies by the weights between two sets of points."""


class DenseFeatures(FeatureMap):
    r"""A symmetric map given by an explicit matrix of features, :math:`f(x - y) \approx \phi(x)^\top \phi(y)`."""

    graph: ImplicitGraph

    @property
    def form(self) -> str:
        return "polynomial" if self.graph.normalization == "random_walk" else "low rank"

    remedy = "more features (num_features), a larger lengthscale, or features='landmarks'"

    @property
    @abstractmethod
    def num_features(self) -> int: ...

    @abstractmethod
    def features(self, x: Tensor) -> Tensor:  # (n, d) -> (n, r)
        """Feature matrix of any points."""

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
        """Sum of the features of all nodes; every degree is a product with it."""
        return self.graph.shards.sum(self.node_features.sum(-2), "degrees")

    def _load_sums(self, loads: Tensor | None) -> Tensor:  # (N,) -> (r,)
        """Sum of the features of all nodes, times loads."""
        return self.feature_sums if loads is None else self.graph.shards.sum(self.node_features.mT @ loads, "degrees")

    def _sums(self, x: Tensor | None, loads: Tensor | None = None) -> Tensor:
        return self._features(x) @ self._load_sums(loads)

    def residual(self, features: Tensor) -> Tensor | None:  # (n, r) -> (n,)
        """Residual of :math:`f(0) = 1` at points with the given features; None if unknown."""
        return None

    def normalized_gram(self, log_degree: Tensor) -> Tensor:  # (r, r), float64
        r"""Normalised Gram matrix :math:`\Phi^\top D^{-1} \Phi`."""
        return self.graph.shards.sum(gram(self.node_features, (-log_degree).exp()), "Gram matrix")

    @cached_property
    def node_gram(self) -> Tensor:  # (r, r), float64
        r"""Gram matrix with the non-zero eigenvalues of A: :math:`\Phi^\top D^{-1} \Phi`; for raw W, :math:`\Phi^\top \Phi`."""
        if self.graph.normalization is None:
            return self.graph.shards.sum(gram(self.node_features), "Gram matrix")
        return self.normalized_gram(self.log_degree())

    @cached_property
    def node_eigenpairs(self) -> tuple[Tensor, Tensor]:  # (r,), (r, r)
        """Eigenvalues and eigenvectors of :attr:`node_gram`, without gradients."""
        return torch.linalg.eigh(self.node_gram.detach())

    def normalized_features(self, log_degree: Tensor) -> Tensor:  # (N, r)
        r"""Normalised features of the nodes, :math:`D^{-1/2} \Phi`."""
        return self.node_features * (-0.5 * log_degree).exp().unsqueeze(-1)

    def average(self, x: Tensor, log_noise: Tensor) -> Tensor:
        # The ratio is independent of the scale of the noise, which spans e^100 at low temperature: hence the shift and float64.
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
