"""Landmark features in chunks, for point sets whose N x r matrix of features is too large to store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from swing_gp.features.landmarks import LandmarkFeatures
from swing_gp.linalg.chunks import row_chunks


class StreamedLandmarks(LandmarkFeatures):
    """:class:`~swing_gp.LandmarkFeatures` in O(N + r^2) memory: the features of the nodes are only available in streamed sums.

    The parameters are those of :class:`~swing_gp.LandmarkFeatures`.
    """

    stored = False

    @property
    def node_features(self) -> Tensor:
        raise RuntimeError("StreamedLandmarks do not store the features of the nodes; use LandmarkFeatures where they fit.")

    def chunks(self, number: int) -> Iterator[slice]:
        """Slice ``number`` rows into chunks, each with the features of one block of memory."""
        return row_chunks(number, self.num_features, self.graph.points.dtype)

    def node_degrees(self, features: Tensor) -> Tensor:  # (n, r) -> (n,)
        """Degrees of nodes with the given features, at least that of a self-loop."""
        return (features @ self.feature_sums + self.residual(features)).clamp_min(1)

    @cached_property
    def largest_residual(self) -> float:
        with torch.no_grad():
            chunks = [self.residual(self._chunk(rows)) for rows in self.chunks(self.graph.num_nodes)]
        return self.graph.shards.max(torch.cat(chunks) if chunks else self.graph.points[:0, 0])

    def sum_over_nodes(self, function: Callable[[slice], Tensor], step: str) -> Tensor:
        """Sum a function of slices of nodes over all nodes, in float64. The backward pass recomputes every chunk.

        :param function: from a slice of the nodes of this process to a tensor.
        :param step: the name of the collective, for the counts and errors of shards.
        """
        result = torch.zeros((), dtype=torch.float64, device=self.graph.points.device)
        for rows in self.chunks(self.graph.num_nodes):
            result = result + checkpoint(function, rows, use_reentrant=False, preserve_rng_state=False).double()
        return self.graph.shards.sum(result, step)

    def _chunk(self, rows: slice) -> Tensor:
        return self.features(self.graph.points[rows])

    @cached_property
    def feature_sums(self) -> Tensor:
        self._cholesky  # noqa: B018 - computed before the chunks, which share it
        return self.sum_over_nodes(lambda rows: self._chunk(rows).sum(0), "degrees").to(self.graph.points.dtype)

    @cached_property
    def node_gram(self) -> Tensor:
        def part(rows: slice) -> Tensor:
            features = self._chunk(rows)
            scaled = features if self.graph.normalization is None else features / self.node_degrees(features).unsqueeze(-1)
            return scaled.mT @ features

        self.feature_sums  # noqa: B018 - computed before the chunks, which share it
        product = self.sum_over_nodes(part, "Gram matrix")
        return 0.5 * (product + product.mT)

    @property
    def mean_residual(self) -> float:
        with torch.no_grad():
            total = self.sum_over_nodes(lambda rows: self.residual(self._chunk(rows)).sum(), "residual")
        return float(total) / self.graph.shards.count(self.graph.num_nodes)
