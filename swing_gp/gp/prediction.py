r"""Prediction with graph kernels: GPyTorch's strategies, in closed form or by conjugate gradients.

With dense features the prior at any inputs is :math:`F u + e`: features times weights :math:`u \sim N(0, C)` plus a part e
that every point has for itself. With noise R, :math:`L = R + S` on the training inputs and
:math:`M = (C^{-1} + F^\top L^{-1} F)^{-1}`,

.. math:: E f_* = F_* m + S_* L^{-1} (y - F m), \quad m = M F^\top L^{-1} y, \qquad
          \mathrm{Cov} f_* = H M H^\top + (S_{**} - S_* L^{-1} S_*^\top), \quad H = F_* - S_* L^{-1} F ,

where :math:`S_*` couples inputs that are the same point. Nothing larger than k x k is inverted, and K(test, train) never
exists.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from gpytorch import settings
from gpytorch.distributions import MultitaskMultivariateNormal
from gpytorch.models.exact_prediction_strategies import DefaultPredictionStrategy
from linear_operator.operators import AddedDiagLinearOperator, LinearOperator, ZeroLinearOperator
from torch import Tensor

from swing_gp.linalg.gram import cross_gram
from swing_gp.operators.broadcast import BroadcastLinearOperator
from swing_gp.operators.kernel_block import KernelBlock
from swing_gp.operators.low_rank_covariance import LowRankCross, LowRankPlusGroups, as_cross, per_group
from swing_gp.operators.low_rank_plus_diagonal import LowRankPlusDiagonal
from swing_gp.operators.noisy import NoisyKernelLinearOperator
from swing_gp.operators.posterior import PosteriorCovariance

__all__ = ["GraphPredictionStrategy"]


class GraphPredictionStrategy(DefaultPredictionStrategy):
    """Uses the structure of graph kernels where it is there, and GPyTorch's own strategy where sums or products of kernels
    have hidden it."""

    def exact_prediction(
        self,
        test_mean: Tensor,
        test_test_covar: Tensor | LinearOperator,
        test_train_covar: Tensor | LinearOperator,
    ) -> tuple[Tensor, Tensor | LinearOperator]:
        noisy, complete = self._noisy, self._complete
        if isinstance(test_train_covar, LowRankPlusDiagonal):  # the test inputs are the training inputs
            test_train_covar = as_cross(test_train_covar)
        if isinstance(test_train_covar, LowRankCross) and isinstance(noisy, LowRankPlusDiagonal) and complete:
            assert isinstance(test_test_covar, LowRankPlusDiagonal)
            return self._closed_form(test_mean, test_test_covar, test_train_covar)
        test, cross = _unwrapped(test_test_covar), _unwrapped(test_train_covar)
        if isinstance(cross, KernelBlock) and isinstance(noisy, NoisyKernelLinearOperator) and complete:
            assert isinstance(test, KernelBlock)
            mean = test_mean + (cross @ self.weights.unsqueeze(-1)).squeeze(-1)
            if settings.skip_posterior_variances.on():
                return mean, ZeroLinearOperator(*test_test_covar.shape)
            covariance = PosteriorCovariance(test, cross, noisy)
            return mean, covariance.expand(*mean.shape[:-1], *covariance.shape)
        return super().exact_prediction(test_mean, test_test_covar, test_train_covar)

    def get_fantasy_strategy(
        self, inputs: Any, targets: Any, full_inputs: Any, full_targets: Any, full_output: Any, **kwargs: Any
    ) -> DefaultPredictionStrategy:
        # Conditioning anew costs no more than updating: a k x k system, or one solve.
        if isinstance(full_output, MultitaskMultivariateNormal) or full_inputs[0].dim() <= full_targets.dim():
            return super().get_fantasy_strategy(inputs, targets, full_inputs, full_targets, full_output, **kwargs)
        likelihood = self.likelihood.get_fantasy_likelihood(**kwargs)
        return self.__class__(full_inputs, full_output, full_targets, likelihood)

    # Kept between predictions. GPyTorch's detach_test_caches (on by default) says whether with their graph: one that is kept is
    # freed by the first backward pass, and an optimiser of an acquisition function makes many.

    @cached_property
    def _noisy(self) -> LinearOperator:
        """K + noise on the training inputs."""
        noisy = _unwrapped(self.lik_train_train_covar.evaluate_kernel())
        if settings.detach_test_caches.off():
            return noisy
        return noisy.representation_tree()(*(part.detach() for part in noisy.representation()))

    @cached_property
    def _offset(self) -> Tensor:  # (*batch, n)
        offset = self.train_labels - self.train_prior_dist.mean
        return offset.detach() if settings.detach_test_caches.on() else offset

    @cached_property
    def weights(self) -> Tensor:  # (*batch, n)
        """(K + noise)^-1 (y - mean), for all targets in one solve."""
        if self._noisy.dim() > 2:
            return self._noisy.solve(self._offset.unsqueeze(-1)).squeeze(-1)
        columns = self._offset.reshape(-1, self._offset.shape[-1]).mT
        return self._noisy.solve(columns).mT.reshape(self._offset.shape)

    @cached_property
    def _posterior(self) -> tuple[Tensor, Tensor, Tensor]:  # (k, k), (*batch, k, 1), (*batch, n, 1)
        """M, m and what the features leave of the observations, L^-1 (y - F m)."""
        noisy, offset = self._noisy, self._offset.unsqueeze(-1)
        assert isinstance(noisy, LowRankPlusDiagonal)
        posterior = torch.linalg.solve(noisy._capacitance(), noisy._symmetric_core())
        posterior = 0.5 * (posterior + posterior.mT)
        weights = posterior @ cross_gram(noisy.factor, noisy._inverse_of_diagonal(offset))
        return posterior, weights, noisy._inverse_of_diagonal(offset - noisy.factor @ weights.to(noisy.dtype))

    @property
    def _complete(self) -> bool:
        """Without missing targets, which GPyTorch's own strategy masks or fills."""
        return settings.observation_nan_policy.value() == "ignore" or not bool(torch.isnan(self.train_labels).any())

    def _closed_form(self, test_mean: Tensor, test: LowRankPlusDiagonal, cross: LowRankCross) -> tuple[Tensor, LinearOperator]:
        noisy = self._noisy
        assert isinstance(noisy, LowRankPlusDiagonal)
        posterior, weights, left_over = self._posterior
        mean = cross.left @ weights.to(cross.left.dtype) + cross.matches(left_over)
        mean = test_mean + mean.squeeze(-1)
        if settings.skip_posterior_variances.on():
            return mean, ZeroLinearOperator(*test.shape)

        overlaps = self._overlaps(cross)
        factor = test.factor
        prior = test._member if isinstance(test, LowRankPlusGroups) else test._full_diag()
        if overlaps:
            factor = factor - cross.matches(noisy._inverse_of_diagonal(noisy.factor))
            # S_* L^-1 S_*^T couples equal points only; on one of them it is the value of the constant vector 1 there.
            information = noisy._inverse_of_diagonal(torch.ones_like(left_over))
            left = prior * (1 - cross.matches(information).squeeze(-1))
        else:
            left = prior
        batch = torch.broadcast_shapes(factor.shape[:-2], posterior.shape[:-2], left.shape[:-1])
        parts = factor.expand(*batch, *factor.shape[-2:]), posterior.expand(*batch, *posterior.shape[-2:])
        left = left.expand(*batch, left.shape[-1])
        if isinstance(test, LowRankPlusGroups):
            group = test.group.expand(left.shape)
            return mean, LowRankPlusGroups(*parts, torch.zeros_like(left), per_group(group, left), groups=(group,))
        return mean, LowRankPlusDiagonal(*parts, left)

    @staticmethod
    def _overlaps(cross: LowRankCross) -> bool:
        rows, columns = cross.groups
        return bool(torch.isin(rows, columns).any())


def _unwrapped(operator: Any) -> Any:
    """One matrix out of a batch of equal ones: several targets share their covariance."""
    if isinstance(operator, BroadcastLinearOperator):
        return operator.base
    if isinstance(operator, AddedDiagLinearOperator) and isinstance(operator._linear_op, BroadcastLinearOperator):
        noise = operator._diag_tensor._diagonal().reshape(-1, operator.shape[-1])
        if isinstance(operator._linear_op.base, KernelBlock) and bool((noise == noise[0]).all()):
            return operator._linear_op.base.add_diagonal(noise[0])
    return operator
