"""The landmark kernel beside a matrix-free one of the same graph: a control variate and a preconditioner."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from swing_gp.features.auto import sample_pairs
from swing_gp.features.landmarks import LandmarkFeatures
from swing_gp.graphs.implicit import ImplicitGraph
from swing_gp.linalg.gram import frozen_signs
from swing_gp.operators.low_rank_kernel import FeatureKernelLinearOperator, collapsed_kernel
from swing_gp.operators.low_rank_plus_diagonal import LowRankPlusDiagonal
from swing_gp.parallel.shards import is_sharded, largest_of, refuse_shards, total
from swing_gp.series.families import Series

__all__ = ["LandmarkControl", "estimated_variances"]

LANDMARKS = 512
# Probes of the diagonal estimator; they are drawn once from a seed, so that the diagonal is one fixed vector.
PROBES = 32
POWER_STEPS = 8


class LandmarkControl:
    """The landmark kernel of a graph, made when first needed.

    :param before: the control of the same graph at hyper-parameters nearby.
    """

    _distance: float | None

    def __init__(self, graph: ImplicitGraph, series: Series, before: LandmarkControl | None = None) -> None:
        self.graph, self.series = graph, series
        # At hyper-parameters nearby the landmarks, and what was learnt of their distance, stay as they are.
        self._landmarks = None if before is None else before.landmarks
        self._distance = None if before is None else before._distance

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
            kernel = collapsed_kernel(features, self.series)
        assert isinstance(kernel, FeatureKernelLinearOperator)
        return kernel

    def diagonal(self, operator: Any) -> tuple[Tensor, Tensor]:  # (N,), (N,)
        r"""An unbiased estimate of a diagonal and its standard error.

        :math:`\mathrm{diag} K_L + E[z \circ (K - K_L) z]` over random signs z: the variance is that of the off-diagonal part
        of what the landmarks leave, not of K.
        """
        refuse_shards("An estimate of the diagonal", "use features='landmarks', where it is a closed form")
        signs = frozen_signs(self.graph.num_nodes, PROBES, operator.dtype, operator.device)
        close = self.kernel if self.exists else None
        drawn = self.graph.normalization != "random_walk"
        sample = (lambda number: operator.zero_mean_mvn_samples(number).mT) if drawn else None
        estimate, error = estimated_variances(signs, operator._apply(signs), close, sample)
        return estimate, error.detach()

    def distance(self, operator: Any) -> float:
        """The spectral norm of K - K_L, by a few steps of the power method (from below, within some percent)."""
        if self._distance is None:
            with torch.no_grad():
                generator = torch.Generator().manual_seed(0)
                v = torch.randn(self.graph.num_nodes, 1, generator=generator, dtype=torch.float64)
                v = v.to(operator.device, operator.dtype)
                norm = 0.0
                for _ in range(POWER_STEPS):
                    v = v / _norm(v)
                    v = operator._apply(v) - self.kernel @ v
                    norm = float(_norm(v))
            self._distance = norm
        return self._distance

    def precondition(self, operator: Any, noise: Tensor) -> LowRankPlusDiagonal | None:
        """The landmark kernel plus the noise, where it is close enough to help."""
        if not self.helps(operator, -largest_of(-noise)):
            return None
        close = self.kernel.add_diagonal(noise)
        assert isinstance(close, LowRankPlusDiagonal)
        return close

    @property
    def exists(self) -> bool:
        """Whether there is a landmark kernel in closed form: not of a ball, nor of a matrix that is not symmetric."""
        return self.graph.edge.positive_definite and self.graph.normalization != "random_walk"

    @cached_property
    def _hopeless(self) -> bool:
        """Whether there are no landmarks, or fewer than the effective rank of the weights: making them would be a waste."""
        if not self.exists or is_sharded():  # a shard does not know the pairs of all nodes
            return not self.exists
        return sample_pairs(self.graph, 0.0)[1] > LANDMARKS

    def helps(self, operator: Any, noise: float) -> bool:
        """Whether the preconditioned system is at least four times better conditioned, for half the steps."""
        if self._distance is None and self._hopeless:
            return False
        least, most = (float(value) for value in self.series(torch.tensor([0.0, 1.0], dtype=torch.float64)))
        floor = least + noise
        plain = (most + noise) / floor
        preconditioned = 1 + self.distance(operator) / floor
        return 4 * preconditioned < plain


def _norm(v: Tensor) -> Tensor:
    return total(v.square().sum(), "inner products").sqrt()


def estimated_variances(
    signs: Tensor, product: Tensor, close: LowRankPlusDiagonal | None, sample: Callable[[int], Tensor] | None
) -> tuple[Tensor, Tensor]:  # (n, m), (n, m) -> (n,), (n,)
    r"""Variances and their standard errors from m probes of a covariance C.

    :math:`z \circ C z` over signs z has a matrix close to C for a control variate. Where landmarks resolve the graph that is
    accurate; where they do not, and above all for long diffusion times, it is useless. The mean square of m samples has a
    relative error of :math:`\sqrt{2/m}`, whatever the covariance, and takes over there.

    :param signs: the signs z, as columns.
    :param product: C z.
    :param close: the matrix close to C, if there is one.
    :param sample: draws that many samples as columns; None where they are not to be had.
    """
    number = signs.shape[-1]
    plain = signs * product
    terms = plain
    if close is not None:
        with torch.no_grad():
            diagonal, rest = close.diagonal().unsqueeze(-1), signs * (close @ signs)
        terms = diagonal + (plain - rest)
    estimate, error = terms.mean(-1), terms.std(-1) / number**0.5
    if bool(error.detach().norm() <= (2 / number) ** 0.5 * estimate.detach().norm()):  # not where they are NaN
        return estimate, error
    if sample is None:
        return plain.mean(-1), plain.std(-1) / number**0.5
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # the same at every call, like the signs
        squares = sample(number).square()
    return squares.mean(-1), squares.std(-1) / number**0.5
