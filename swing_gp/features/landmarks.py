r"""Landmark features: the Nystrom form of W on nodes chosen by randomly pivoted Cholesky (Chen et al., 2023).

With landmarks Z among the nodes and :math:`f(Z - Z) = L L^\top`,

.. math:: \phi(x) = L^{-1} f(Z - x), \qquad W \approx Q = \Phi \Phi^\top, \qquad \delta = 1 - \mathrm{diag}\, Q \ge 0 .

The error is deterministic given the landmarks, and the residual diagonal :math:`\delta` bounds it. Degrees are
:math:`Q 1 + \delta`, so that an outlier far from all landmarks keeps its self-loop.
"""

from __future__ import annotations

import warnings
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from swing_gp.features.base import DenseFeatures
from swing_gp.graphs.edges import EdgeFunction
from swing_gp.graphs.implicit import ImplicitGraph
from swing_gp.linalg.chunks import cached_rows
from swing_gp.linalg.gram import blocked_product, row_sums
from swing_gp.linalg.pivoted_cholesky import pivoted_cholesky
from swing_gp.linalg.second_order import gradients, wanted
from swing_gp.utils.validation import check_count


class AccuracyWarning(UserWarning):
    """An approximation does not reach the accuracy that was asked for."""


class LandmarkFeatures(DenseFeatures):
    """Nystrom features with a known residual.

    :param graph: the graph; its edge function is positive definite.
    :param num_features: the largest number of landmarks.
    :param generator: the source of the draws that select landmarks; not needed with ``landmarks``.
    :param residual_tol: stop the selection once the mean of the residual diagonal is below this bound; it stops at machine
        precision in any case.
    :param landmarks: node ids, (r,), to use instead of a selection. On shards, every process gives all landmarks in the same
        order: their ids among its nodes, and -1 for nodes of other processes.
    """

    shardable = True
    room = 1.25
    stored = True
    remedy = "more landmarks (num_features), a larger lengthscale, or features='pairwise'"

    def __init__(
        self,
        graph: ImplicitGraph,
        num_features: int = 512,
        *,
        generator: torch.Generator | None = None,
        residual_tol: float = 0.0,
        landmarks: Tensor | None = None,
    ) -> None:
        if not graph.edge.positive_definite:
            raise ValueError(f"LandmarkFeatures need a positive-definite edge, got {graph.edge!r}; use features='pairwise'.")
        if graph.density and not self.stored:
            raise ValueError(
                "Streamed landmarks know no density, which takes one more pass: use density=0 or LandmarkFeatures."
            )
        super().__init__(graph)
        self._max_features = check_count("num_features", num_features)
        self.residual_tol = residual_tol
        if landmarks is None:
            if generator is None:
                raise ValueError("generator is needed to choose landmarks; give one, or give landmarks.")
            landmarks = select_landmarks(
                graph, self._max_features, generator=generator, residual_tol=residual_tol, stored=self.stored
            )
        elif not torch.is_tensor(landmarks) or landmarks.is_floating_point():
            raise TypeError(f"landmarks must be a LongTensor of node ids, got {landmarks!r}.")
        else:
            _check_landmarks(landmarks, graph)
        self.landmarks = landmarks
        if residual_tol > 0 and (residual := self.mean_residual) > residual_tol and len(landmarks) >= self._max_features:
            warnings.warn(
                f"{len(landmarks)} landmarks leave a mean residual of {residual:.2g}, above {residual_tol:.2g}: raise "
                "num_features, or the lengthscale is too short for landmarks on these points.",
                AccuracyWarning,
                stacklevel=3,
            )

    @property
    def num_features(self) -> int:
        return self.landmarks.numel()

    @property
    def known_error(self) -> float:
        return self.mean_residual

    def redraw(self, edge: EdgeFunction, generator: torch.Generator) -> LandmarkFeatures:
        graph = self.graph.with_edge(edge)
        return LandmarkFeatures(graph, self._max_features, generator=generator, residual_tol=self.residual_tol)

    @cached_property
    def _sites(self) -> Tensor:  # (r, d)
        return self.graph.shards.take(self.graph.points, self.landmarks, "landmarks")

    @cached_property
    def _cholesky(self) -> Tensor:  # (r, r), float64
        sites = self._sites.double()
        gram = self.graph.edge.weights(sites, sites)
        return torch.linalg.cholesky(gram + self._jitter * torch.eye(len(sites), dtype=gram.dtype, device=gram.device))

    @property
    def _jitter(self) -> float:
        """Diagonal term, a few roundings, that keeps the factor finite if a new lengthscale makes landmarks dependent."""
        return 1e-13 if self.graph.points.dtype == torch.float64 else 1e-8

    def _residual_from(self, squares: Tensor) -> Tensor:  # (n,), |phi|^2 -> (n,)
        # The residual of a landmark is zero but for the jitter. It is subtracted: a steep series would take it for a self-loop.
        return (1 - self._jitter - squares).clamp_min(0)

    def features(self, x: Tensor) -> Tensor:
        return _Nystrom.apply(self.graph.edge, self._cholesky, x, self._sites, *self.graph.edge.parameters())

    @cached_property
    def _node_sums(self) -> tuple[Tensor, Tensor]:
        return row_sums(self.node_features, self.feature_sums)

    @cached_property
    def residual_diagonal(self) -> Tensor:  # (N,)
        """Residual of the diagonal of W at the nodes."""
        return self._residual_from(self._node_sums[1])

    @property
    def mean_residual(self) -> float:
        """Mean residual of the diagonal of W: near zero if the landmarks resolve the weights, near one if they are far from
        most nodes."""
        total = self.graph.shards.sum(self.residual_diagonal.detach().sum(), "residual")
        return float(total) / self.graph.shards.count(self.graph.num_nodes)

    @cached_property
    def largest_residual(self) -> Tensor | float:
        """Largest residual of the diagonal of W at a node."""
        return self.residual_diagonal.max() if self.graph.shards.local else self.graph.shards.max(self.residual_diagonal)

    def residual(self, features: Tensor) -> Tensor:
        return self._residual_from(features.square().sum(-1))

    def node_residual(self) -> Tensor:
        return self.residual_diagonal

    def _sums(self, x: Tensor | None, loads: Tensor | None = None) -> Tensor:
        if x is not None:
            return self.degrees(self.features(x), loads)
        # Q has negative entries if landmarks are few; the degree of a node is at least its self-loop.
        if loads is None:
            return (self._node_sums[0] + self.residual_diagonal).clamp_min(1)
        return torch.maximum(self.node_features @ self._load_sums(loads) + self.residual_diagonal * loads, loads)

    def degrees(self, features: Tensor, loads: Tensor | None = None) -> Tensor:  # (n, r), (N,) -> (n,)
        """Degrees of points with the given features.

        The residual of a node is a part of its self-loop. A point off the graph has no self-loop: its residual counts up to the
        largest residual of a node. So degrees are continuous, and right if the landmarks resolve the graph.

        :param loads: loads of the nodes, for the weighted sums that a density needs; one by default.
        """
        rest = self.residual(features).clamp_max(self.largest_residual)
        if loads is not None:  # the residual of a point has the load of that point
            rest = rest * self.degrees(features).clamp_min(1).pow(-self.graph.density)
        return features @ self._load_sums(loads) + rest


def _check_landmarks(landmarks: Tensor, graph: ImplicitGraph) -> None:
    """Refuse landmarks that are no distinct nodes, or on shards not each a node of one process."""
    shards = graph.shards
    local = landmarks if shards.local else landmarks[landmarks >= 0]
    if not shards.all(landmarks.dim() == 1 and landmarks.numel() > 0 and local.unique().numel() == local.numel()):
        raise ValueError("landmarks must be a vector of distinct node ids.")
    if not shards.all(local.numel() == 0 or (int(local.min()) >= 0 and int(local.max()) < graph.num_nodes)):
        raise ValueError(f"landmarks must be node ids in 0..{graph.num_nodes - 1}.")
    if not bool((shards.take(torch.ones(graph.num_nodes, device=local.device), landmarks, "landmarks") == 1).all()):
        raise ValueError("landmarks must each be a node of one process, and -1 on all others.")


class _Nystrom(torch.autograd.Function):
    r""":math:`\Phi = f(X, S) L^{-\top}` for landmarks S with :math:`f(S, S) = L L^\top`.

    The inverse amplifies rounding, so products with it are in float64, whatever the dtype of the points. In the backward pass,
    with G the gradient of :math:`\Phi`, the weights get :math:`G L^{-1}` and L gets :math:`-L^{-\top} G^\top \Phi`. The dtype
    of the points is enough there: no amplified terms cancel. The backward pass recomputes the weights, in blocks that fit the
    processor cache.
    """

    @staticmethod
    def forward(ctx: Any, edge: EdgeFunction, cholesky: Tensor, x: Tensor, sites: Tensor, *parameters: Tensor) -> Tensor:
        eye = torch.eye(len(sites), dtype=cholesky.dtype, device=cholesky.device)
        inverse = torch.linalg.solve_triangular(cholesky, eye, upper=False)
        features = torch.empty(len(x), len(sites), dtype=x.dtype, device=x.device)
        for rows in cached_rows(features):
            features[rows] = edge.smooth_weights(x[rows].double(), sites.double()) @ inverse.mT
        ctx.edge = edge
        ctx.save_for_backward(features, inverse, cholesky, x, sites, *parameters)
        return features

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        features, inverse, cholesky, *inputs = ctx.saved_tensors
        if wanted():
            return None, *gradients(partial(_nystrom, ctx.edge), (cholesky, *inputs), grad)
        _, needs_cholesky, *needs = ctx.needs_input_grad
        cholesky_grad = -(inverse.mT @ blocked_product(grad, features)).tril() if needs_cholesky else None
        totals = {i: torch.zeros_like(inputs[i], dtype=torch.float64) for i, needs_grad in enumerate(needs) if needs_grad}
        inverse = inverse.to(features.dtype)
        for rows in cached_rows(features) if totals else ():
            with torch.enable_grad():
                live = [tensor.detach().requires_grad_(i in totals) for i, tensor in enumerate([inputs[0][rows], *inputs[1:]])]
                weights = ctx.edge.with_parameters(*live[2:]).smooth_weights(*live[:2])
            parts = torch.autograd.grad(weights, [live[i] for i in totals], grad[rows] @ inverse)
            for (i, total), part in zip(totals.items(), parts, strict=True):
                (total[rows] if i == 0 else total).add_(part)
        return None, cholesky_grad, *(totals[i].to(tensor.dtype) if i in totals else None for i, tensor in enumerate(inputs))


def _nystrom(edge: EdgeFunction, cholesky: Tensor, x: Tensor, sites: Tensor, *parameters: Tensor) -> Tensor:
    """The features in plain torch, which autograd differentiates as often as it is asked to."""
    weights = edge.with_parameters(*parameters).smooth_weights(x.double(), sites.double())
    return torch.linalg.solve_triangular(cholesky, weights.mT, upper=False).mT.to(x.dtype)


def select_landmarks(
    graph: ImplicitGraph, number: int, *, generator: torch.Generator, residual_tol: float = 0.0, stored: bool = True
) -> Tensor:
    """Select landmarks among the nodes by :func:`~swing_gp.linalg.pivoted_cholesky.pivoted_cholesky`.

    :param graph: the graph.
    :param number: the largest number of landmarks.
    :param generator: the source of the draws.
    :param residual_tol: stop once the mean residual is below this bound.
    :param stored: store the factor, (N, r), instead of recomputing its rows.
    :return: node ids, (r,), int64.
    """
    points, shards = graph.points.detach(), graph.shards
    return pivoted_cholesky(
        graph.edge.weights, points, number, generator=generator, tol=residual_tol, stored=stored, shards=shards
    )
