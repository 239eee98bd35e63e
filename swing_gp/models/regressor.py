"""Gaussian process regression on an implicit graph in one call, in scikit-learn's convention."""

from __future__ import annotations

import os
import warnings
from typing import Any

import gpytorch
import numpy as np
import torch
from gpytorch.distributions import MultivariateNormal
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import Tags, check_array, check_random_state
from sklearn.utils.validation import assert_all_finite, check_consistent_length, check_is_fitted, validate_data
from torch import Tensor

from swing_gp.gp import GraphKernel, families
from swing_gp.gp.training import minimize
from swing_gp.gp.trend import MEANS, Trend
from swing_gp.graphs.nearest import knn_graph
from swing_gp.graphs.spacing import neighbor_distance
from swing_gp.models.estimator import ARRAYS, load_content, plain, save_content
from swing_gp.utils.validation import as_parameter, check_choice, check_count

# Kernels, what they are made with, and where their parameters may start: the smoothest functions a priori a few hundred times
# as large as the roughest, or far more. With the defaults of the kernels, of order one, that ratio is below three and training
# begins at white noise.
KERNELS: dict[str, tuple[type[GraphKernel], dict[str, Any], list[dict[str, float]]]] = {
    "diffusion": (families.DiffusionKernel, {}, [{"time": 6.0}, {"time": 50.0}]),
    "matern": (families.MaternGraphKernel, {}, [{"kappa": 10.0}, {"kappa": 30.0}]),
    "log_matern": (families.LogMaternKernel, {}, [{"kappa": 3.0}]),
    "regularized_laplacian": (families.RegularizedLaplacianKernel, {}, [{"scale": 300.0}, {"scale": 3000.0}]),
    "random_walk": (families.RandomWalkKernel, {"steps": 8}, [{"laziness": 2.0}]),
    "inverse_cosine": (families.InverseCosineKernel, {}, [{}]),
}
# Starting lengthscales, in distances to the tenth neighbour: every node starts with a few links, or with many.
NEIGHBOR, MULTIPLES = 10, (1.0, 2.0, 4.0)
LANDMARKS = 256
CHUNK = 20_000
# The largest entry of a column, other than zero: beyond, predictions would overflow or lose digits.
SMALLEST, LARGEST = 1e-304, 1e304
# A column is constant if its standard deviation is no more than so many roundings of its largest entry.
ROUNDINGS = 4
# Squares of standardised coordinates must not overflow.
FARTHEST = 1e150


class GraphGPRegressor(RegressorMixin, BaseEstimator):
    r"""A GP with a graph kernel; the nodes are the training inputs and, if given, inputs without a target.

    Inputs and targets are standardised; columns that vary by rounding alone count as constant. Lengthscale, series, output
    scale and noise are learnt by maximising the marginal likelihood with Adam; several targets share them. Give the inputs you
    will predict at as ``X_unlabeled`` where you know them: the graph then has nodes there. Off the graph predictions fade,
    within a lengthscale or two of the last node, to the mean and to the variance that a point has for itself: the largest that
    a node can have for ``"log_matern"`` with landmarks, a small one for the other kernels, whatever the data are.

    :param kernel: ``"diffusion"``, ``"matern"``, ``"log_matern"``, ``"regularized_laplacian"``, ``"random_walk"`` or
        ``"inverse_cosine"``. None is ``"log_matern"`` with landmarks, ``"diffusion"`` with other features, which cannot follow
        a logarithm, and ``"matern"`` on nearest neighbours.
    :param graph: ``"implicit"`` for Gaussian weights, whose lengthscale is learnt; ``"knn"`` for a
        :func:`~swing_gp.knn_graph` of ``neighbors`` neighbours, which has none: for many dimensions and uneven densities.
        ``features``, ``num_features`` and ``ard`` belong to the implicit one.
    :param neighbors: k of the nearest-neighbour graph.
    :param features: ``"landmarks"`` (the default, 256 of them unless ``num_features`` says otherwise) has closed forms and so a
        training time known beforehand. All others are as of :func:`~swing_gp.graph_kernel`: ``"auto"`` takes the cheapest
        that resolves the graph to ``tol`` (1e-4 by default), which may train by conjugate gradients.
    :param num_features: as of :func:`~swing_gp.graph_kernel`, and so are ``tol`` and ``seed``.
    :param ard: one lengthscale a dimension.
    :param mean: the mean function: ``"constant"``, ``"linear"`` in the inputs, or None for the mean of the targets. It is
        estimated with the GP by generalised least squares once the hyper-parameters are there, and the coefficients are
        ``trend_``; deviations do not know how uncertain they are.
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
        graph: str = "implicit",
        neighbors: int = 10,
        features: str = "landmarks",
        tol: float | None = None,
        num_features: int | None = None,
        ard: bool = False,
        mean: str | None = "constant",
        max_steps: int = 100,
        learning_rate: float = 0.1,
        patience: int = 15,
        seed: int = 0,
        progress: bool = False,
    ) -> None:
        self.kernel, self.graph, self.neighbors = kernel, graph, neighbors
        self.features, self.tol, self.num_features, self.ard, self.mean = features, tol, num_features, ard, mean
        self.max_steps, self.learning_rate, self.patience = max_steps, learning_rate, patience
        self.seed, self.progress = seed, progress

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any, X_unlabeled: Any = None) -> GraphGPRegressor:
        """Learn from inputs (n, d) and targets (n,) or (n, k); inputs without a target widen the graph."""
        check_choice("graph", self.graph, ("implicit", "knn"))
        if self.graph == "knn" and (self.ard or self.num_features is not None or self.features not in ("landmarks", "auto")):
            raise ValueError(
                "features, num_features and ard belong to graph='implicit': nearest neighbours are exact and have no "
                "lengthscale. Leave them out."
            )
        check_choice("kernel", self._kernel_name, tuple(KERNELS))
        check_choice("mean", self.mean, MEANS)
        check_count("max_steps", self.max_steps, minimum=0)
        check_count("patience", self.patience)
        as_parameter("learning_rate", self.learning_rate)
        self.__dict__.pop("model_", None)  # a fit that is refused below would leave it with the scales of other data
        x, targets = self._checked(X, y)
        self.x_mean_, self.x_scale_ = _standards("X", x)
        self.y_mean_, self.y_scale_ = _standards("y", targets)
        nodes = self._standardized("X", x)
        if X_unlabeled is not None:
            nodes = torch.cat([nodes, self._standardized("X_unlabeled", self._checked_unlabeled(X_unlabeled))])
        values = (torch.from_numpy(targets) - self.y_mean_) / self.y_scale_
        basis = self._basis(nodes[: len(values)])
        # Before the covariance is known, by ordinary least squares.
        self.trend_ = torch.linalg.lstsq(basis, values).solution if basis.shape[1] else values.new_zeros(0, values.shape[1])
        self._build(nodes, values - basis @ self.trend_)
        self._start(neighbor_distance(nodes.numpy(), NEIGHBOR))
        model = self.model_.train()
        self.losses_ = minimize(
            model.loss, model, steps=self.max_steps, lr=self.learning_rate, patience=self.patience, progress=self.progress
        )
        model.eval()
        if basis.shape[1]:
            with torch.no_grad():
                left = Trend.of(basis, model.noisy().solve(basis), model.train_targets.mT).coefficients
            self.trend_ = self.trend_ + left
            model.set_train_data(targets=(values - basis @ self.trend_).mT.contiguous(), strict=False)
        return self

    def _basis(self, x: Tensor) -> Tensor:  # (n, d) -> (n, p)
        """Of the trend, at standardised inputs."""
        one = x.new_ones(len(x), 1)
        return {None: one[:, :0], "constant": one, "linear": torch.cat([one, x], -1)}[self.mean]

    def _checked(self, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:  # (n, d), (n, k)
        of_y = {"ensure_2d": False, "allow_nd": True, "ensure_min_features": 0, "ensure_all_finite": False}
        x, targets = validate_data(self, X, y, validate_separately=(ARRAYS, ARRAYS | of_y))
        check_consistent_length(x, targets)
        if targets.ndim > 2 or 0 in targets.shape:
            raise ValueError(f"y must have shape ({len(x)},) or ({len(x)}, k), k at least 1, got {targets.shape}.")
        try:
            assert_all_finite(targets, input_name="y")
        except ValueError as error:
            raise ValueError(f"{str(error).rstrip('.')}; move rows without a target to X_unlabeled.") from None
        return x, targets.reshape(len(x), -1)

    def _checked_unlabeled(self, X_unlabeled: Any) -> np.ndarray:  # (m, d)
        more = check_array(X_unlabeled, input_name="X_unlabeled", estimator=self, **ARRAYS)
        if more.shape[1] != self.n_features_in_:
            raise ValueError(f"X_unlabeled must have {self.n_features_in_} columns like X, got {more.shape[1]}.")
        validate_data(self, X_unlabeled, reset=False, skip_check_array=True)  # the names of its columns
        return more

    def _standardized(self, name: str, x: np.ndarray) -> Tensor:  # (n, d)
        result = (torch.from_numpy(x) - self.x_mean_) / self.x_scale_
        if not bool((result.abs() < FARTHEST).all()):
            raise ValueError(f"{name} has rows {FARTHEST:g} standard deviations or more from the mean of X in fit; drop them.")
        return result

    def _build(self, nodes: Tensor, targets: Tensor) -> None:
        kind, settings, _ = KERNELS[self._kernel_name]
        landmarks = self.features == "landmarks" and self.graph == "implicit"
        options: dict[str, Any] = {"tol": 1e-4 if self.tol is None and not landmarks else self.tol, "normalize": True}
        if self.graph == "knn":
            number = min(check_count("neighbors", self.neighbors), len(nodes) - 2)
            kernel = kind(knn_graph(nodes, number), **settings, **options)
        else:
            kernel = kind(
                nodes,
                **settings,
                **options,
                features=self.features,
                num_features=LANDMARKS if self.num_features is None and landmarks else self.num_features,
                seed=plain(self.seed),
                ard_num_dims=nodes.shape[1] if self.ard else None,
            )
        likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=gpytorch.constraints.GreaterThan(1e-6)).double()
        likelihood.noise = 0.1
        scale = gpytorch.kernels.ScaleKernel(kernel).double()
        scale.outputscale = 1.0  # the variance of the targets
        self.model_ = _Model(nodes[: len(targets)], targets.mT.contiguous(), likelihood, scale)

    @torch.no_grad()
    def _start(self, spacing: float) -> None:
        """Set lengthscale and parameters of the series to the likeliest of a few; training moves them by small factors."""
        kernel, series = self.model_.graph_kernel, KERNELS[self._kernel_name][2]

        def loss(start: dict[str, float]) -> float:
            kernel.initialize(**start)
            return float(self.model_.loss())

        lengths = [{"lengthscale": multiple * spacing} for multiple in MULTIPLES] if kernel.has_lengthscale else [{}]
        starts = [{**length, **values} for length in lengths for values in series]
        kernel.initialize(**min(starts, key=loss))

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Means, and with ``return_std`` the standard deviations of the noise-free function, at inputs on or off the graph.

        Both are (n,) for one target, (n, k) for several.
        """
        x = self._inputs(X)
        means, deviations = [], []
        with torch.no_grad(), gpytorch.settings.skip_posterior_variances(not return_std):
            for part in x.split(CHUNK):
                posterior = self.model_(part)
                means.append(posterior.mean.mT + self._basis(part) @ self.trend_)
                if return_std:
                    deviations.append(posterior.variance.clamp_min(0).sqrt().mT)
        mean = _shaped(torch.cat(means) * self.y_scale_ + self.y_mean_)
        return (mean, _shaped(torch.cat(deviations) * self.y_scale_)) if return_std else mean

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> np.ndarray:
        """Samples of the function from the posterior, (n, n_samples) or (n, k, n_samples).

        :param random_state: a seed or a ``RandomState``; with None others each time, and NumPy's global state stays as it is.
        """
        check_count("n_samples", n_samples)
        x = self._inputs(X)
        random = check_random_state(np.random.RandomState() if random_state is None else random_state)
        generator = torch.Generator().manual_seed(int(random.randint(2**31)))
        with torch.no_grad():
            posterior = self.model_(x)
            covariance = posterior.lazy_covariance_matrix
            noise = [covariance[i].samples(n_samples, generator).mT for i in range(len(posterior.mean))]
        mean = posterior.mean + (self._basis(x) @ self.trend_).mT
        samples = mean.unsqueeze(1) + torch.stack(noise)  # (k, n_samples, n)
        samples = samples * self.y_scale_[:, None, None] + self.y_mean_[:, None, None]
        array = samples.permute(2, 0, 1).numpy()
        return array[:, 0] if array.shape[1] == 1 else array

    @property
    def _kernel_name(self) -> str:
        if self.kernel is None:
            if self.graph == "knn":
                return "matern"
            return "log_matern" if self.features == "landmarks" else "diffusion"
        return self.kernel

    @property
    def noise_(self) -> np.ndarray:
        """The standard deviation of the noise, in the units of the targets."""
        check_is_fitted(self, "model_")
        return (self.model_.likelihood.noise.detach().sqrt() * self.y_scale_).numpy()

    def _inputs(self, X: Any) -> Tensor:
        check_is_fitted(self, "model_")
        return self._standardized("X", validate_data(self, X, reset=False, **ARRAYS))

    def save(self, path: str | os.PathLike) -> None:
        """Write the fitted model to a file, whole or not at all."""
        check_is_fitted(self, "model_")
        names = getattr(self, "feature_names_in_", None)
        content = {
            "parameters": {name: plain(value) for name, value in self.get_params().items()},
            "state": self.model_.state_dict(),
            "nodes": self.model_.graph_kernel.nodes.points,
            "targets": self.model_.train_targets,
            "losses": self.losses_,
            "trend": self.trend_,
            "scales": [self.x_mean_, self.x_scale_, self.y_mean_, self.y_scale_],
            "feature_names": None if names is None else names.tolist(),
        }
        save_content(path, content)

    @classmethod
    def load(cls, path: str | os.PathLike) -> GraphGPRegressor:
        """A model that :meth:`save` wrote."""
        return load_content(path, cls._restored, "GraphGPRegressor")

    @classmethod
    def _restored(cls, content: dict[str, Any]) -> GraphGPRegressor:
        model = cls(**content["parameters"])
        model.x_mean_, model.x_scale_, model.y_mean_, model.y_scale_ = content["scales"]
        model.losses_, model.n_features_in_, model.trend_ = content["losses"], content["nodes"].shape[1], content["trend"]
        if names := content.get("feature_names"):
            model.feature_names_in_ = np.array(names, dtype=object)
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

    def noisy(self) -> Any:
        """The covariance of the observations."""
        return self.covar_module(*self.train_inputs).evaluate_kernel().add_diagonal(self.likelihood.noise)

    def loss(self) -> Tensor:
        """The negative log marginal likelihood per target and observation: one solve for all targets."""
        targets = self.train_targets
        quadratic, logdet = self.noisy().inv_quad_logdet(targets.mT, logdet=True)
        number, size = targets.shape
        return 0.5 * (quadratic + number * (logdet + size * np.log(2 * np.pi))) / targets.numel()


def _standards(name: str, array: np.ndarray) -> tuple[Tensor, Tensor]:  # (n, d) -> (d,), (d,)
    """Means and standard deviations, in units of the largest entry of a column: squares neither overflow nor vanish.

    The largest entry is also what constant columns are scaled by: what is left of them, rounding, then stays rounding.
    """
    values = torch.from_numpy(array).double()
    size = values.abs().amax(0)
    if bool(((size > LARGEST) | (size > 0) & (size < SMALLEST)).any()):
        raise ValueError(f"{name} has a column whose largest entry is not within {SMALLEST:g} to {LARGEST:g}; change its unit.")
    unit = torch.where(size > 0, size, 1.0)
    deviation, mean = torch.std_mean(values / unit, 0, correction=0)
    constant = deviation <= ROUNDINGS * np.finfo(array.dtype).eps
    if columns := (constant & (values != values[0]).any(0)).nonzero().flatten().tolist():
        warnings.warn(f"{name} varies by rounding alone in columns {columns}, which count as constant.", stacklevel=3)
    return mean * unit, torch.where(constant, 1.0, deviation) * unit


def _shaped(values: Tensor) -> np.ndarray:  # (n, k) -> (n,) or (n, k)
    return (values.squeeze(-1) if values.shape[-1] == 1 else values).numpy()
