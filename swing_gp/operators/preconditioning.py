"""The landmark kernel beside a matrix-free one of the same graph: a control variate and a preconditioner."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from swing_gp.features.auto import sample_pairs
from swing_gp.features.landmarks import LandmarkFeatures
from swing_gp.linalg.gram import white_noise
from swing_gp.operators.low_rank_kernel import FeatureKernelLinearOperator, low_rank_kernel
from swing_gp.series.base import Series

LANDMARKS = 512
POWER_STEPS = 8


class LandmarkApproximation:
    """The landmark kernel of a graph, made when first needed.

    :param before: that of the same graph at hyper-parameters nearby.
    """

    def __init__(self, graph: Any, series: Series, before: LandmarkApproximation | None = None) -> None:
        self.graph, self.series = graph, series
        # At hyper-parameters nearby the landmarks, and what was learnt of their distance, stay as they are.
        self._landmarks = None if before is None else before.landmarks
        self._distance: float | None = None if before is None else before._distance

    @property
    def landmarks(self) -> Tensor | None:
        """The node ids, once they were chosen."""
        kernel = self.__dict__.get("kernel")
        return self._landmarks if kernel is None else kernel.features.landmarks

    @cached_property
    def kernel(self) -> FeatureKernelLinearOperator:
        with torch.no_grad():
            generator = torch.Generator().manual_seed(0)
            features = LandmarkFeatures(self.graph, LANDMARKS, generator=generator, landmarks=self._landmarks)
            return low_rank_kernel(features, self.series)

    def distance(self, operator: Any) -> float:
        """The spectral norm of K - K_L, by a few steps of the power method (from below, within some percent)."""
        if self._distance is None:
            with torch.no_grad():
                v = white_noise(operator, self.graph.num_nodes, 1, generator=torch.Generator().manual_seed(0))
                for _ in range(POWER_STEPS):
                    v = v / v.norm()
                    v = operator._apply(v) - self.kernel @ v
                self._distance = float(v.norm())
        return self._distance

    @property
    def exists(self) -> bool:
        """Whether there is a landmark kernel in closed form: not of a ball, nor of a matrix that is not symmetric."""
        return self.graph.positive_definite and self.graph.normalization != "random_walk"

    @cached_property
    def hopeless(self) -> bool:
        """Whether there are no landmarks, or fewer than the effective rank of the weights: making them would be a waste."""
        return not self.exists or sample_pairs(self.graph, 0.0)[1] > LANDMARKS

    def helps(self, operator: Any, noise: float) -> bool:
        """Whether the preconditioned system is at least four times better conditioned, for half the steps."""
        if self._distance is None and self.hopeless:
            return False
        least, most = (noise + float(value) for value in self.series(torch.tensor([0.0, 1.0], dtype=torch.float64)))
        return 4 * (1 + self.distance(operator) / least) < most / least
