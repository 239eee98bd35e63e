"""Landmark features that are never stored: of a cloud whose N x r matrix of features is too large, made anew in chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from swing_gp.features.landmarks import BLOCK, LandmarkFeatures, factor_floor, pivot_floor, thin
from swing_gp.graphs.implicit import ImplicitGraph, row_chunks
from swing_gp.parallel.shards import count, pick, take, total

__all__ = ["StreamedLandmarks", "streamed_sum"]


def streamed_sum(features: StreamedLandmarks, function: Callable[[slice], Tensor]) -> Tensor:
    """The sum over chunks of nodes of a function of a slice of them, in float64. The backward pass makes every chunk anew."""
    result: Tensor | float = 0.0
    for rows in features.chunks(features.graph.num_nodes):
        result = result + checkpoint(function, rows, use_reentrant=False, preserve_rng_state=False).double()
    return result  # type: ignore[return-value]


class StreamedLandmarks(LandmarkFeatures):
    """:class:`LandmarkFeatures` in O(N + r^2) memory. Sums over the nodes are streamed, and there is nothing else of them."""

    def __init__(
        self,
        graph: ImplicitGraph,
        num_features: int = 512,
        *,
        generator: torch.Generator | None = None,
        landmarks: Tensor | None = None,
    ) -> None:
        if landmarks is None and generator is not None:
            landmarks = select_streamed(graph, num_features, generator=generator)
        super().__init__(graph, num_features, generator=generator, landmarks=landmarks)

    @property
    def node_features(self) -> Tensor:
        raise RuntimeError("StreamedLandmarks do not store the features of the nodes; use LandmarkFeatures where they fit.")

    def node_degrees(self, features: Tensor) -> Tensor:  # (n, r) -> (n,)
        """The degrees of nodes with these features, never less than a self-loop."""
        return self.degrees(features).clamp_min(1)

    def chunks(self, number: int) -> Iterator[slice]:
        """Slices of as many rows as have features of one block of memory."""
        return row_chunks(number, self.num_features, self.graph.points.dtype)

    def _chunk(self, rows: slice) -> Tensor:
        return self.features(self.graph.points[rows])

    @cached_property
    def feature_sums(self) -> Tensor:
        self._cholesky  # noqa: B018 - made before the chunks, which share it
        sums = streamed_sum(self, lambda rows: self._chunk(rows).sum(0))
        return total(sums, "degrees").to(self.graph.points.dtype)

    @cached_property
    def node_gram(self) -> Tensor:
        def part(rows: slice) -> Tensor:
            features = self._chunk(rows)
            if self.graph.normalization is None:
                return features.mT @ features
            return (features / self.node_degrees(features).unsqueeze(-1)).mT @ features

        self.feature_sums  # noqa: B018 - made before the chunks, which share it
        product = total(streamed_sum(self, part), "Gram matrix")
        return 0.5 * (product + product.mT)


@torch.no_grad()
def select_streamed(graph: ImplicitGraph, number: int, *, generator: torch.Generator) -> Tensor:
    """Randomly pivoted Cholesky as in :func:`~swing_gp.features.landmarks.select_landmarks`, with the same draws, in O(N)
    memory: residuals are computed from the weights to all landmarks after every block of them."""
    points, edge = graph.points.detach(), graph.edge
    number = min(number, count(len(points)))
    floor = pivot_floor(points.dtype)
    residual = torch.ones(len(points), dtype=torch.float64, device=points.device)
    sites = points[:0].double()
    chosen: list[Tensor] = []
    taken = 0
    inverse = edge.weights(sites, sites)  # of the Cholesky factor

    def features(x: Tensor) -> Tensor:  # (n, d) -> (n, taken)
        return edge.weights(x.double(), sites) @ inverse.mT

    while taken < number:
        live = torch.where(residual > floor, residual, torch.zeros_like(residual))
        if not float(total(live.sum(), "landmarks")) > 0:
            break
        uniform = torch.rand(2, BLOCK, dtype=torch.float64, generator=generator, device=generator.device).to(points.device)
        proposals = pick(live, uniform[0])
        proposed = take(points, proposals, "landmarks").double()
        seen = features(proposed)
        remaining = edge.weights(proposed, proposed) - seen @ seen.mT
        kept = thin(remaining, take(residual, proposals, "landmarks"), uniform[1], floor)[: number - taken]
        if not kept:
            break
        pivots = proposals[kept]
        chosen.append(pivots)
        taken += len(kept)
        sites = torch.cat([sites, proposed[kept]])
        eye = torch.eye(taken, dtype=torch.float64, device=points.device)
        cholesky = torch.linalg.cholesky(edge.weights(sites, sites) + factor_floor(points.dtype) * eye)
        inverse = torch.linalg.solve_triangular(cholesky, eye, upper=False)
        for rows in row_chunks(len(points), taken):
            residual[rows] = (1 - features(points[rows]).square().sum(-1)).clamp_min(0)
        residual[pivots[pivots >= 0]] = 0
    return torch.cat(chosen)
