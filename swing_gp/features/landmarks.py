r"""Landmark features: the Nystrom form of W on nodes chosen by randomly pivoted Cholesky (Chen et al., 2023).

With landmarks Z among the nodes and :math:`f(Z - Z) = L L^\top`,

.. math:: \phi(x) = L^{-1} f(Z - x), \qquad W \approx Q = \Phi \Phi^\top, \qquad \delta = 1 - \mathrm{diag}\, Q \ge 0 .

The error is deterministic given the landmarks and certified by the residual diagonal :math:`\delta`, which is kept: degrees
are :math:`Q 1 + \delta`, so that an outlier which no landmark sees keeps its self-loop.
"""

from __future__ import annotations

import warnings
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from swing_gp.features.base import DenseFeatures
from swing_gp.graphs.edges import EdgeFunction
from swing_gp.graphs.implicit import ImplicitGraph, row_chunks
from swing_gp.linalg.gram import blocked_product, cached_rows, row_sums
from swing_gp.parallel.shards import count, everywhere, is_sharded, pick, take, total
from swing_gp.utils.validation import check_count

__all__ = ["AccuracyWarning", "LandmarkFeatures"]

# Pivots are proposed this many at a time; rejection keeps the law of one-by-one sampling.
BLOCK = 64


class AccuracyWarning(UserWarning):
    """An approximation does not reach the accuracy that was asked for."""


class LandmarkFeatures(DenseFeatures):
    """Nystrom features with a certified residual.

    :param num_features: the most landmarks to take.
    :param residual_tol: stop as soon as the mean of the residual diagonal is below this. At machine precision the
        selection stops in any case.
    :param landmarks: node ids, to fix the choice instead of making one. For shards, every process gives all landmarks, by the
        id among its own nodes, or -1 for those of others.
    """

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
        self.graph = graph
        self._most = check_count("num_features", num_features)
        self.residual_tol = residual_tol
        if landmarks is None:
            if generator is None:
                raise ValueError("generator is needed to choose landmarks; give one, or give landmarks.")
            landmarks = select_landmarks(graph, self._most, generator=generator, residual_tol=residual_tol)
        elif not torch.is_tensor(landmarks) or landmarks.is_floating_point():
            raise TypeError(f"landmarks must be a LongTensor of node ids, got {landmarks!r}.")
        else:
            _check_landmarks(landmarks, graph)
        self.landmarks = landmarks
        if residual_tol > 0:
            residual = float(total(self.residual_diagonal.detach().sum(), "residual")) / count(graph.num_nodes)
            if residual > residual_tol and len(landmarks) >= self._most:
                warnings.warn(
                    f"{len(landmarks)} landmarks leave a mean residual of {residual:.2g}, above {residual_tol:.2g}: raise "
                    "num_features, or the lengthscale is too short for landmarks on these points.",
                    AccuracyWarning,
                    stacklevel=3,
                )

    @property
    def num_features(self) -> int:
        return self.landmarks.numel()

    def redraw(self, edge: EdgeFunction, generator: torch.Generator) -> LandmarkFeatures:
        graph = self.graph.with_edge(edge)
        return LandmarkFeatures(graph, self._most, generator=generator, residual_tol=self.residual_tol)

    @cached_property
    def _sites(self) -> Tensor:  # (r, d)
        return take(self.graph.points, self.landmarks, "landmarks")

    @cached_property
    def _cholesky(self) -> Tensor:  # (r, r), float64
        sites = self._sites.double()
        gram = self.graph.edge.weights(sites, sites)
        floor = factor_floor(self.graph.points.dtype)
        return torch.linalg.cholesky(gram + floor * torch.eye(len(sites), dtype=gram.dtype, device=gram.device))

    def features(self, x: Tensor) -> Tensor:
        edge = self.graph.edge
        return _Nystrom.apply(edge, x, self._sites, self._cholesky, *edge.parameters())

    @cached_property
    def _node_sums(self) -> tuple[Tensor, Tensor]:
        return row_sums(self.node_features)

    @cached_property
    def residual_diagonal(self) -> Tensor:  # (N,)
        return (1 - self._node_sums[1]).clamp_min(0)

    def residual(self, features: Tensor) -> Tensor:
        return (1 - features.square().sum(-1)).clamp_min(0)

    def node_residual(self) -> Tensor:
        return self.residual_diagonal

    def _degree(self, x: Tensor | None) -> Tensor:
        if x is None:
            # Q has negative entries where landmarks are few; the degree of a node is never less than its self-loop.
            return (self._node_sums[0] + self.residual_diagonal).clamp_min(1)
        return self.degrees(self.features(x))

    def degrees(self, features: Tensor) -> Tensor:  # (n, r) -> (n,)
        """The degrees of points with these features."""
        return features @ self.feature_sums + self.residual(features)


def _check_landmarks(landmarks: Tensor, graph: ImplicitGraph) -> None:
    own = landmarks[landmarks >= 0] if is_sharded() else landmarks
    if not everywhere(landmarks.dim() == 1 and landmarks.numel() > 0 and own.unique().numel() == own.numel()):
        raise ValueError("landmarks must be a vector of distinct node ids.")
    if not everywhere(own.numel() == 0 or (int(own.min()) >= 0 and int(own.max()) < graph.num_nodes)):
        raise ValueError(f"landmarks must be node ids in 0..{graph.num_nodes - 1}.")
    if not bool((take(torch.ones(graph.num_nodes, device=own.device), landmarks, "landmarks") == 1).all()):
        raise ValueError("landmarks must each be a node of one process, and -1 on all others.")


class _Nystrom(torch.autograd.Function):
    r""":math:`\Phi = f(X, S) L^{-\top}` for landmarks S with :math:`f(S, S) = L L^\top`.

    The inverse amplifies rounding, so it meets weights in float64 whatever the points are. In the backward pass, with G the
    gradient of :math:`\Phi`, the weights get :math:`G L^{-1}` and L gets :math:`-L^{-\top} G^\top \Phi`; there the precision
    of the points is enough, because nothing subtracts what was amplified. Weights are made anew in the backward pass, a block
    that stays in the cache at a time.
    """

    @staticmethod
    def forward(ctx: Any, edge: EdgeFunction, x: Tensor, sites: Tensor, cholesky: Tensor, *parameters: Tensor) -> Tensor:
        eye = torch.eye(len(sites), dtype=cholesky.dtype, device=cholesky.device)
        inverse = torch.linalg.solve_triangular(cholesky, eye, upper=False)
        features = torch.empty(len(x), len(sites), dtype=x.dtype, device=x.device)
        for rows in cached_rows(features):
            features[rows] = edge.smooth_weights(x[rows].double(), sites.double()) @ inverse.mT
        ctx.edge = edge
        ctx.save_for_backward(features, inverse, x, sites, *parameters)
        return features

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        features, inverse, x, sites, *parameters = ctx.saved_tensors
        _, for_x, for_sites, for_cholesky, *for_parameters = ctx.needs_input_grad
        result: list[Tensor | None] = [None] * len(ctx.needs_input_grad)
        if for_cholesky:
            result[3] = -(inverse.mT @ blocked_product(grad, features)).tril()
        inputs = [x, sites, *parameters]
        wanted = [number for number, needed in enumerate([for_x, for_sites, *for_parameters]) if needed]
        if not wanted:
            return tuple(result)
        totals = [torch.zeros_like(inputs[number], dtype=torch.float64) for number in wanted]
        inverse = inverse.to(x.dtype)
        for rows in cached_rows(features):
            with torch.enable_grad():
                live = [
                    tensor.detach().requires_grad_(number in wanted) for number, tensor in enumerate([x[rows], *inputs[1:]])
                ]
                weights = ctx.edge.with_parameters(*live[2:]).smooth_weights(*live[:2])
            parts = torch.autograd.grad(weights, [live[number] for number in wanted], grad[rows] @ inverse)
            for number, summed, part in zip(wanted, totals, parts, strict=True):
                (summed[rows] if number == 0 else summed).add_(part)
        for number, summed in zip(wanted, totals, strict=True):
            result[number + 1 if number < 2 else number + 2] = summed.to(inputs[number].dtype)
        return tuple(result)


@torch.no_grad()
def select_landmarks(graph: ImplicitGraph, number: int, *, generator: torch.Generator, residual_tol: float = 0.0) -> Tensor:
    r"""Node ids chosen by randomly pivoted Cholesky: each with probability proportional to what is left of its diagonal.

    Pivots are proposed in blocks and thinned by rejection, which leaves the law of the one-by-one algorithm unchanged
    (Epperly, Tropp & Webber, 2024). O(N r^2) time, O(N r) memory.
    """
    points, edge = graph.points.detach(), graph.edge
    num_nodes = count(graph.num_nodes)
    number = min(number, num_nodes)
    floor = pivot_floor(points.dtype)
    residual = torch.ones(len(points), dtype=torch.float64, device=points.device)
    blocks: list[Tensor] = []
    chosen: list[Tensor] = []
    taken = 0
    while taken < number:
        live = torch.where(residual > floor, residual, torch.zeros_like(residual))
        if not float(total(live.sum(), "landmarks")) > max(residual_tol, 0.0) * num_nodes:
            break
        uniform = torch.rand(2, BLOCK, dtype=torch.float64, generator=generator, device=generator.device).to(points.device)
        proposals = pick(live, uniform[0])
        sites = take(points, proposals, "landmarks")
        remaining = edge.weights(sites.double(), sites.double())
        before = [take(block, proposals, "landmarks") for block in blocks]
        for proposed in before:
            remaining = remaining - proposed.double() @ proposed.double().mT
        kept = thin(remaining, take(residual, proposals, "landmarks"), uniform[1], floor)[: number - taken]
        if not kept:  # nothing but rounding error is left
            break
        pivots = proposals[kept]
        factor = torch.linalg.cholesky(remaining[kept][:, kept])
        block = torch.empty(len(points), len(pivots), dtype=points.dtype, device=points.device)
        for rows in row_chunks(len(points), len(pivots)):
            columns = edge.weights(points[rows].double(), sites[kept].double())
            for previous, chosen_rows in zip(blocks, before, strict=True):
                columns -= (previous[rows] @ chosen_rows[kept].mT).double()
            block[rows] = torch.linalg.solve_triangular(factor, columns.mT, upper=False).mT.to(points.dtype)
        blocks.append(block)
        chosen.append(pivots)
        taken += len(pivots)
        residual = (residual - block.double().square().sum(-1)).clamp_min(0)
        residual[pivots[pivots >= 0]] = 0
    return torch.cat(chosen)


def pivot_floor(dtype: torch.dtype) -> float:
    """Below this a pivot is rounding error; it also bounds how much the triangular solve amplifies."""
    return 1e-12 if dtype == torch.float64 else 1e-6


def factor_floor(dtype: torch.dtype) -> float:
    """A few ulps that keep the factor finite when a changed lengthscale makes landmarks dependent."""
    return 1e-13 if dtype == torch.float64 else 1e-8


def thin(remaining: Tensor, diagonal: Tensor, uniform: Tensor, floor: float) -> list[int]:
    """Accept each proposal with the share of its diagonal that the accepted ones before it have left."""
    matrix = remaining.cpu().numpy().copy()
    start, coin = diagonal.cpu().numpy(), uniform.cpu().numpy()
    kept: list[int] = []
    for i in range(len(matrix)):
        pivot = matrix[i, i]
        if pivot <= floor or coin[i] * start[i] >= pivot:
            continue
        kept.append(i)
        matrix -= matrix[:, i : i + 1] * (matrix[i] / pivot)
    return kept
