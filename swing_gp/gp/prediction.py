"""Prediction with graph kernels in GPyTorch's exact GPs."""

from __future__ import annotations

from functools import cached_property
from numbers import Number
from typing import Any

from gpytorch import settings
from gpytorch.distributions import MultitaskMultivariateNormal
from gpytorch.models.exact_prediction_strategies import DefaultPredictionStrategy
from linear_operator.operators import LinearOperator, ZeroLinearOperator
from linear_operator.utils.memoize import clear_cache_hook
from torch import Tensor
from torch.nn import Module

from swing_gp.gp.cache import equal_values, snapshot
from swing_gp.operators.batch import Stack
from swing_gp.operators.posterior import Posterior, condition


class GraphPredictionStrategy(DefaultPredictionStrategy):
    """Uses the structure of graph kernels where it is there, and GPyTorch's own strategy where sums or products of kernels
    have hidden it.

    What a model keeps between predictions follows its kernel and its noise: weights of an old kernel mean nothing in the
    features of a new one. (GPyTorch's own strategy would multiply the two, until ``model.train()``.)
    """

    _posterior: Posterior | None = None
    _made_of: Any = None

    def exact_prediction(
        self, test_mean: Tensor, test_test_covar: Tensor | LinearOperator, test_train_covar: Tensor | LinearOperator
    ) -> tuple[Tensor, Tensor | LinearOperator]:
        self._follow_parameters()
        test, cross = _without_batch(test_test_covar), _without_batch(test_train_covar)
        if self._posterior is not None and not self._posterior.serves(cross):
            self._forget()  # inputs beyond the box have made a wider grid, which serves the training inputs too
        if self._posterior is None:  # kept between predictions, with its solves
            self._posterior = condition(*self._conditioned)
        # Missing targets are for GPyTorch to mask or fill.
        missing = settings.observation_nan_policy.value() != "ignore" and bool(self.train_labels.isnan().any())
        if self._posterior is None or missing or not self._posterior.serves(cross):
            return super().exact_prediction(test_mean, test_test_covar, test_train_covar)
        mean = test_mean + self._posterior.mean(cross)
        if settings.skip_posterior_variances.on():
            return mean, ZeroLinearOperator(*test_test_covar.shape)
        covariance = self._posterior.covariance(test, cross)
        return mean, covariance.expand(*mean.shape, mean.shape[-1])

    def get_fantasy_strategy(
        self, inputs: Any, targets: Any, full_inputs: Any, full_targets: Any, full_output: Any, **kwargs: Any
    ) -> DefaultPredictionStrategy:
        # Conditioning anew costs no more than updating: a k x k system, or one solve.
        if isinstance(full_output, MultitaskMultivariateNormal) or full_inputs[0].dim() <= full_targets.dim():
            return super().get_fantasy_strategy(inputs, targets, full_inputs, full_targets, full_output, **kwargs)
        likelihood = self.likelihood.get_fantasy_likelihood(**kwargs)
        return self.__class__(full_inputs, full_output, full_targets, likelihood)

    def _follow_parameters(self) -> None:
        """Forget what was made with other hyper-parameters."""
        prior = self.train_prior_dist.lazy_covariance_matrix
        made_of = [_values(module) for module in (getattr(prior, "kernel", None), self.likelihood) if module is not None]
        if self._made_of is not None and not equal_values(self._made_of, made_of):
            self._forget()
        if self._made_of is None:
            self._made_of = snapshot(made_of)

    def _forget(self) -> None:
        for kept in (self.train_prior_dist.lazy_covariance_matrix, self):
            clear_cache_hook(kept)
        self.lik_train_train_covar = self.likelihood(self.train_prior_dist, self.train_inputs).lazy_covariance_matrix
        self.__dict__.pop("_conditioned", None)
        self._posterior = self._made_of = None

    @cached_property
    def _conditioned(self) -> tuple[LinearOperator, Tensor]:
        """K + noise on the training inputs, and the targets without their prior mean."""
        noisy = _without_batch(self.lik_train_train_covar.evaluate_kernel())
        offset = self.train_labels - self.train_prior_dist.mean
        if settings.detach_test_caches.off():
            return noisy, offset
        # A graph that is kept is freed by the first backward pass, and an optimiser of an acquisition function makes many.
        return noisy.representation_tree()(*(part.detach() for part in noisy.representation())), offset.detach()


def _values(module: Module) -> list[Any]:
    """Everything a kernel or a likelihood is made of: parameters, buffers, and plain attributes such as a fixed smoothness."""
    plain = [v for part in module.modules() for v in vars(part).values() if isinstance(v, (Number, Tensor))]
    return [*module.parameters(), *module.buffers(), *plain]


def _without_batch(operator: Any) -> Any:
    """One matrix out of a batch of equal ones: several targets share their covariance."""
    return operator.operators[0] if isinstance(operator, Stack) and len(operator.operators) == 1 else operator
