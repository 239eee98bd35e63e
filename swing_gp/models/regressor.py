"""Gaussian process regression on an implicit graph in one call, in scikit-learn's convention."""

from __future__ import annotations

import copy
import os
from typing import Any

import gpytorch
import numpy as np
import torch
from gpytorch.distributions import MultivariateNormal
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from swing_gp.gp import (
    DiffusionKernel,
    GraphKernel,
    InverseCosineKernel,
    LogMaternKernel,
    MaternGraphKernel,
    RandomWalkKernel,
    RegularizedLaplacianKernel,
)
from swing_gp.graphs.spacing import neighbor_distance
from swing_gp.parallel.shards import refuse_shards
from swing_gp.utils.files import whole_file
from swing_gp.utils.progress import progress_bar
from swing_gp.utils.validation import check_choice, check_count

__all__ = ["GraphGPRegressor"]

# Kernels, what they are made with, and where their parameters may start: the smoothest functions a priori a few hundred times
# as large as the roughest, or far more. With the defaults of the kernels, of order one, that ratio is below three and training
# begins at white noise.
KERNELS: dict[str, tuple[type[GraphKernel], dict[str, Any], list[dict[str, float]]]] = {
    "diffusion": (DiffusionKernel, {}, [{"time": 6.0}, {"time": 50.0}]),
    "matern": (MaternGraphKernel, {}, [{"kappa": 10.0}, {"kappa": 30.0}]),
    "log_matern": (LogMaternKernel, {}, [{"kappa": 3.0}]),
    "regularized_laplacian": (RegularizedLaplacianKernel, {}, [{"scale": 300.0}, {"scale": 3000.0}]),
    "random_walk": (RandomWalkKernel, {"steps": 8}, [{"laziness": 2.0}]),
    "inverse_cosine": (InverseCosineKernel, {}, [{}]),
}
# Starting lengthscales, in distances to the tenth neighbour: every node starts with a few links, or with many.
NEIGHBOR, MULTIPLES = 10, (1.0, 2.0, 4.0)
LANDMARKS = 256
CHUNK = 20_000


class GraphGPRegressor(RegressorMixin, BaseEstimator):
    r"""A GP with a graph kernel; the nodes are the training inputs and, if given, inputs without a target.

    Inputs and targets are standardised. Lengthscale, series, output scale and noise are learnt by maximising the marginal
    likelihood with Adam; several targets share them. Give the inputs you will predict at as ``X_unlabeled`` where you know
    them: the graph then has nodes there. Off the graph predictions fade, within a lengthscale or two of the last node, to
    the mean and to the variance that a point has for itself: the largest that a node can have for ``"log_matern"`` with
    landmarks, a small one for the other kernels, whatever the data are.

    :param kernel: ``"diffusion"``, ``"matern"``, ``"log_matern"``, ``"regularized_laplacian"``, ``"random_walk"`` or
        ``"inverse_cosine"``. None is ``"log_matern"`` with landmarks and ``"diffusion"`` with other features, which cannot
        follow a logarithm.
    :param features: ``"landmarks"`` (the default, 256 of them unless ``num_features`` says otherwise) has closed forms and so a
        training time known beforehand. All others are as of :func:`~swing_gp.graph_kernel`: ``"auto"`` takes the cheapest
        that resolves the graph to ``tol`` (1e-4 by default), which may train by conjugate gradients.
    :param num_features: as of :func:`~swing_gp.graph_kernel`, and so are ``tol`` and ``seed``.
    :param ard: one lengthscale a dimension.
    :param max_steps: of Adam; 0 keeps the starting values.
    :param learning_rate: of Adam.
    :param patience: stop after this many steps without progress.
    :param progress: show a progress bar.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(size=(200, 2)); y = np.sin(6 * X[:, 0])
    >>> model = GraphGPRegressor(max_steps=30).fit(X[:150], y[:150], X_unlabeled=X[150:])
    >>> bool(model.score(X[150:], y[150:]) > 0.9)
    True
    >>> mean, std = model.predict(X[150:], return_std=True)
    >>> mean.shape, std.shape
    ((50,), (50,))
    """

    def __init__(
        self,
        kernel: str | None = None,
        *,
        features: str = "landmarks",
        tol: float | None = None,
        num_features: int | None = None,
        ard: bool = False,
        max_steps: int = 100,
        learning_rate: float = 0.1,
        patience: int = 15,
        seed: int = 0,
        progress: bool = False,
    ) -> None:
        self.kernel, self.features, self.tol, self.num_features, self.ard = kernel, features, tol, num_features, ard
        self.max_steps, self.learning_rate, self.patience = max_steps, learning_rate, patience
        self.seed, self.progress = seed, progress

    def fit(self, X: Any, y: Any, X_unlabeled: Any = None) -> GraphGPRegressor:
        """Learn from inputs (n, d) and targets (n,) or (n, k); inputs without a target widen the graph."""
        check_choice("kernel", self._kernel_name, tuple(KERNELS))
        check_count("max_steps", self.max_steps, minimum=0)
        refuse_shards("GraphGPRegressor", "use StreamedGP")
        x = _matrix("X", X)
        targets = _targets(y, len(x))
        self.n_features_in_, self.single_target_ = x.shape[1], np.ndim(y) == 1
        self.x_mean_, self.x_scale_ = x.mean(0), _scale(x)
        self.y_mean_, self.y_scale_ = targets.mean(0), _scale(targets)
        nodes = x
        if X_unlabeled is not None:
            more = _matrix("X_unlabeled", X_unlabeled)
            if more.shape[1] != x.shape[1]:
                raise ValueError(f"X_unlabeled must have {x.shape[1]} columns like X, got {more.shape[1]}.")
            nodes = torch.cat([x, more])
        nodes = (nodes - self.x_mean_) / self.x_scale_
        self._build(nodes, (targets - self.y_mean_) / self.y_scale_)
        self._start(neighbor_distance(nodes.numpy(), NEIGHBOR))
        self.losses_ = self._train()
        return self

    def _build(self, nodes: Tensor, targets: Tensor) -> None:
        kind, settings, _ = KERNELS[self._kernel_name]
        landmarks = self.features == "landmarks"
        kernel = kind(
            nodes,
            **settings,
            features=self.features,
            tol=1e-4 if self.tol is None and not landmarks else self.tol,
            num_features=LANDMARKS if self.num_features is None and landmarks else self.num_features,
            seed=self.seed,
            ard_num_dims=nodes.shape[1] if self.ard else None,
            normalize=True,
        )
        likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=gpytorch.constraints.GreaterThan(1e-6)).double()
        likelihood.noise = 0.1
        scale = gpytorch.kernels.ScaleKernel(kernel).double()
        scale.outputscale = 1.0  # the variance of the targets
        self.model_ = _Model(nodes[: len(targets)], targets.mT.contiguous(), likelihood, scale)

    @torch.no_grad()
    def _start(self, spacing: float) -> None:
        """Set lengthscale and parameters of the series to the likeliest of a few; training moves them by small factors."""
        kernel, losses = self.model_.graph_kernel, {}
        starts = [
            {"lengthscale": multiple * spacing, **values} for multiple in MULTIPLES for values in KERNELS[self._kernel_name][2]
        ]
        for number, start in enumerate(starts):
            kernel.initialize(**start)
            losses[number] = float(self.model_.loss())
        kernel.initialize(**starts[min(losses, key=losses.__getitem__)])

    def _train(self) -> list[float]:
        model, losses = self.model_, []
        best, best_state, waited = float("inf"), None, 0
        optimizer = torch.optim.Adam(model.parameters(), lr=self.learning_rate)
        model.train()
        steps = range(self.max_steps)
        for _ in progress_bar(steps, "fit") if self.progress else steps:
            optimizer.zero_grad()
            loss = model.loss()
            losses.append(float(loss.detach()))
            # What the loss was measured at is what is kept, not what the next step makes of it.
            if losses[-1] < best - 1e-4 * max(1.0, abs(best)) or best_state is None:
                best, best_state, waited = losses[-1], copy.deepcopy(model.state_dict()), 0
            else:
                waited += 1
            if waited >= self.patience:
                break
            loss.backward()
            optimizer.step()
        if best_state is not None:
            model.load_state_dict(best_state)
        model.eval()
        return losses

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Means, and with ``return_std`` the standard deviations of the noise-free function, at inputs on or off the graph."""
        x = self._inputs(X)
        means, deviations = [], []
        with torch.no_grad(), gpytorch.settings.skip_posterior_variances(not return_std):
            for start in range(0, len(x), CHUNK):
                posterior = self.model_(x[start : start + CHUNK])
                means.append(posterior.mean.mT)
                if return_std:
                    deviations.append(posterior.variance.clamp_min(0).sqrt().mT)
        mean = self._shaped(torch.cat(means) * self.y_scale_ + self.y_mean_)
        return (mean, self._shaped(torch.cat(deviations) * self.y_scale_)) if return_std else mean

    def sample_y(self, X: Any, n_samples: int = 1, random_state: int = 0) -> np.ndarray:
        """Samples of the function from the posterior, (n, n_samples) or (n, k, n_samples)."""
        x = self._inputs(X)
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(random_state)
            posterior = self.model_(x)
            noise = [posterior.lazy_covariance_matrix[i].zero_mean_mvn_samples(n_samples) for i in range(len(posterior.mean))]
        samples = posterior.mean.unsqueeze(1) + torch.stack(noise)  # (k, n_samples, n)
        samples = samples * self.y_scale_[:, None, None] + self.y_mean_[:, None, None]
        array = samples.permute(2, 0, 1).numpy()
        return array[:, 0] if self.single_target_ else array

    @property
    def _kernel_name(self) -> str:
        if self.kernel is None:
            return "log_matern" if self.features == "landmarks" else "diffusion"
        return self.kernel

    @property
    def noise_(self) -> np.ndarray:
        """The standard deviation of the noise, in the units of the targets."""
        check_is_fitted(self, "model_")
        return (self.model_.likelihood.noise.detach().sqrt() * self.y_scale_).numpy()

    def _inputs(self, X: Any) -> Tensor:
        check_is_fitted(self, "model_")
        x = _matrix("X", X)
        if x.shape[1] != self.n_features_in_:
            raise ValueError(f"X must have {self.n_features_in_} columns as in fit, got {x.shape[1]}.")
        return (x - self.x_mean_) / self.x_scale_

    def _shaped(self, values: Tensor) -> np.ndarray:
        return values.squeeze(-1).numpy() if self.single_target_ else values.numpy()

    # Files

    def save(self, path: str | os.PathLike) -> None:
        """Write the fitted model to a file, whole or not at all."""
        check_is_fitted(self, "model_")
        content = {
            "parameters": self.get_params(),
            "state": self.model_.state_dict(),
            "nodes": self.model_.graph_kernel.nodes.points,
            "targets": self.model_.train_targets,
            "single_target": self.single_target_,
            "losses": self.losses_,
            "scales": [self.x_mean_, self.x_scale_, self.y_mean_, self.y_scale_],
        }
        with whole_file(path) as temporary:
            torch.save(content, temporary)

    @classmethod
    def load(cls, path: str | os.PathLike) -> GraphGPRegressor:
        """A model that :meth:`save` wrote."""
        content = torch.load(path, weights_only=True)
        model = cls(**content["parameters"])
        model.x_mean_, model.x_scale_, model.y_mean_, model.y_scale_ = content["scales"]
        model.single_target_, model.losses_ = content["single_target"], content["losses"]
        model.n_features_in_ = content["nodes"].shape[1]
        model._build(content["nodes"], content["targets"].mT)
        model.model_.load_state_dict(content["state"])
        model.model_.eval()
        return model


class _Model(gpytorch.models.ExactGP):
    """A zero-mean GP on standardised targets, (k, n)."""

    def __init__(self, x: Tensor, targets: Tensor, likelihood: Any, kernel: Any) -> None:
        super().__init__(x, targets, likelihood)
        self.covar_module = kernel

    @property
    def graph_kernel(self) -> GraphKernel:
        return self.covar_module.base_kernel

    def forward(self, x: Tensor) -> MultivariateNormal:
        zero = torch.zeros(*x.shape[:-1], dtype=torch.float64)
        return MultivariateNormal(zero.expand(self.train_targets.shape[0], x.shape[-2]), self.covar_module(x))

    def loss(self) -> Tensor:
        """The negative log marginal likelihood per target and observation: one solve for all targets."""
        targets = self.train_targets
        covariance = self.covar_module(*self.train_inputs).evaluate_kernel()
        noisy = covariance.add_diagonal(self.likelihood.noise)
        quadratic, logdet = noisy.inv_quad_logdet(targets.mT, logdet=True)
        number, size = targets.shape
        return 0.5 * (quadratic + number * (logdet + size * np.log(2 * np.pi))) / targets.numel()


def _matrix(name: str, values: Any) -> Tensor:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 2 or 0 in array.shape:
        raise ValueError(f"{name} must have shape (n, d) with at least one row and column, got {array.shape}.")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite: it contains NaN or infinity; drop or impute those rows.")
    return torch.from_numpy(np.ascontiguousarray(array))


def _targets(y: Any, rows: int) -> Tensor:
    array = np.asarray(y, dtype=np.float64)
    if array.ndim not in (1, 2) or array.shape[0] != rows:
        raise ValueError(f"y must have shape ({rows},) or ({rows}, k) like X, got {array.shape}.")
    if not np.isfinite(array).all():
        raise ValueError("y must be finite: it contains NaN or infinity; move rows without a target to X_unlabeled.")
    return torch.from_numpy(np.ascontiguousarray(array.reshape(rows, -1)))


def _scale(values: Tensor) -> Tensor:
    scale = values.std(0, unbiased=False)
    return torch.where(scale > 0, scale, torch.ones_like(scale))
