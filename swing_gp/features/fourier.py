r"""Random Fourier features (paper, section 2.3; Rahimi & Recht, 2007).

With frequencies :math:`\omega_k` from the spectral density of the edge function,

.. math:: f(x - y) = E[\cos(\omega^\top (x - y))] \approx \frac{2}{r} \sum_k
          \cos \omega_k^\top x \cos \omega_k^\top y + \sin \omega_k^\top x \sin \omega_k^\top y .

The error is bounded everywhere but does not fall with distance. The features have both signs, so degrees are checked.
"""

from __future__ import annotations

import math
from functools import cached_property

import torch
from torch import Tensor

from swing_gp.features.base import DenseFeatures
from swing_gp.graphs.edges import EdgeFunction
from swing_gp.graphs.implicit import ImplicitGraph
from swing_gp.utils.validation import check_count


class FourierFeatures(DenseFeatures):
    """Random Fourier features of any edge function that can sample its spectral density.

    :param graph: the graph.
    :param num_features: the number r of real features, two for every frequency (an odd number is rounded up).
    :param generator: the source of the draws.
    """

    shardable = True

    def __init__(self, graph: ImplicitGraph, num_features: int, *, generator: torch.Generator) -> None:
        super().__init__(graph)
        number = (check_count("num_features", num_features) + 1) // 2
        draws = graph.edge.sample_frequencies(number, graph.dim, generator=generator)
        self._frequencies = draws.to(graph.points)

    @property
    def num_features(self) -> int:
        return 2 * self._frequencies.shape[0]

    def redraw(self, edge: EdgeFunction, generator: torch.Generator) -> FourierFeatures:
        graph = self.graph.with_edge(edge)
        return FourierFeatures(graph, self.num_features, generator=generator)

    @cached_property
    def _center(self) -> Tensor:  # (d,)
        points, shards = self.graph.points.detach(), self.graph.shards
        return shards.sum(points.sum(0), "center") / shards.count(len(points))

    def features(self, x: Tensor) -> Tensor:
        # Centred points lose fewer digits of the phase in float32; f does not change under translations.
        phase = self.graph.edge.scaled(x - self._center) @ self._frequencies.mT
        return torch.cat([phase.cos(), phase.sin()], dim=-1) * math.sqrt(2 / self.num_features)
