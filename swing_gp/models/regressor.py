"""Gaussian process regression in one call, in scikit-learn's convention."""

from __future__ import annotations

import math
import os
import warnings
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import Tags
from sklearn.utils.validation import assert_all_finite, check_consistent_length, check_is_fitted, validate_data
from torch import Tensor

from swing_gp.gp.trend import MEANS, TrendBasis, too_few
from swing_gp.models.choice import Task, choose, diffusion, warn_if_useless
from swing_gp.models.comparison import Comparison, ModelWarning
from swing_gp.models.estimator import (
    ARRAYS,
    SCALINGS,
    Inputs,
    checked_unlabeled,
    in_order,
    load_content,
    plain,
    save_content,
    seed_of,
    standards,
    warn_of_rounding,
)
from swing_gp.models.graph_gp import KERNELS, GraphGP
from swing_gp.models.manifold_priors import SMOOTHNESS, kernel_with_priors
from swing_gp.models.matern_gp import MaternGP
from swing_gp.utils.validation import as_parameter, check_choice, check_count

FAMILIES = ("auto", "coordinates", "extended")
# Lengthscales in a summary, at most.
MOST_WORDS = 12


class GraphGPRegressor(RegressorMixin, BaseEstimator):
    r"""A GP that chooses its kernel by held-out values, and says what it chose and against what.

    Families of ``"auto"``:

    - ``"coordinates"``: a Matérn kernel on the inputs, with one lengthscale or one for each column, and a constant or linear
      trend.
    - ``"extended"``: a Matérn kernel on coordinates that a graph of all inputs extends
      (:class:`~swing_gp.ManifoldMaternKernel`), if there are inputs without a target. Give the inputs you will predict at, or
      others of the same kind, as ``X_unlabeled``: where data lie along a curve or a surface, their graph is what tells
      its parts apart. Without them every new input would lie off the graph, where the likelihood knows nothing of it.
    - ``"log_matern"``: a kernel on the graph alone, if the extended one is better than the coordinates, on up to 3,000 nodes.

    Within a family lengthscales, smoothness, scaling, output scale and noise are the likeliest, from several starts, with wide
    priors; between families decide values held out in folds shaped like the task: like ``X_unlabeled``, or at random. Several
    targets share a family, and their hyper-parameters unless they are clearly likelier with their own (up to eight targets).
    Beyond 1,000 observations the likelihood is that of 1,000 of them, together and each given its 48 nearest others, and beyond
    4,000 predictions are conditioned on the nearest 128 or 256 (:class:`~swing_gp.LocalGP`). A
    :class:`~swing_gp.ModelWarning` names a model that is no better than the mean or the nearest known value.

    :param kernel: ``"auto"``, one of its families, or a graph kernel on the inputs: ``"diffusion"``, ``"matern"``,
        ``"log_matern"``, ``"regularized_laplacian"``, ``"random_walk"`` or ``"inverse_cosine"``. Off the graph these fade,
        within a lengthscale or two of the last node, to the mean and to the variance that a point has for itself: the largest
        that a node can have for ``"log_matern"`` with landmarks, a small one for the others, whatever the data are. They are
        learnt by Adam.
    :param nu: the smoothness of Matérn kernels on coordinates: 0.5, 1.5 or 2.5; None for the likeliest.
    :param scaling: of the inputs: ``"global"`` divides all columns by one number, ``"columns"`` each by its own standard
        deviation, None leaves them as they are, and ``"auto"`` takes the likelier of the first two. Columns that vary by
        rounding alone count as constant.
    :param ard: one lengthscale for each column: True, False, or None for what the likelihood wants in up to 30 columns (a
        graph kernel then has one).
    :param mean: the trend: ``"constant"``, ``"linear"`` in the inputs, None for the mean of the targets, or ``"auto"`` for what
        predicts held-out values better (a graph kernel then has a constant). It is estimated by generalised least squares,
        wherever values are held out from the others; what is not known of it is part of the deviations. A linear one takes
        three observations for two coefficients (with fewer a constant is taken, and a warning says so), and ``"auto"`` tries
        it with ten for each.
    :param neighbors: k of nearest-neighbour graphs.
    :param graph: of a graph kernel: ``"implicit"`` for Gaussian weights, whose lengthscale is learnt; ``"knn"`` for a
        :func:`~swing_gp.knn_graph`, which has none: for many dimensions and uneven densities. ``features``, ``num_features``
        and ``ard`` belong to the implicit one.
    :param features: of a graph kernel: ``"landmarks"`` (the default, 256 of them unless ``num_features`` says otherwise) has
        closed forms and so a training time known beforehand. All others are as of :func:`~swing_gp.graph_kernel`: ``"auto"``
        takes the cheapest that resolves the graph to ``tol`` (1e-4 by default), which may train by conjugate gradients.
    :param num_features: as of :func:`~swing_gp.graph_kernel`, and so is ``tol``.
    :param max_steps: of L-BFGS from each start, or of Adam; 0 keeps the starting values.
    :param learning_rate: of Adam.
    :param patience: stop Adam after this many steps without progress.
    :param random_state: a seed or a ``RandomState``, for samples of rows, folds and landmarks.
    :param progress: show progress bars; None for a terminal alone, and for what takes more than a few seconds.

    :ivar selection\_: what was tried, a :class:`~swing_gp.models.comparison.Comparison`: family, settings, seconds, and the
        root-mean-square error on held-out values in units of the standard deviation of the targets.
    :ivar model\_: the chosen :class:`~swing_gp.models.matern_gp.MaternGP` or :class:`~swing_gp.models.graph_gp.GraphGP`, in
        standardised units; a list of them where targets have their own hyper-parameters.
    :ivar kernel\_: its GPyTorch kernel, on scaled inputs; likewise.
    :ivar losses\_: of the steps of Adam, if there were any.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(size=(200, 2)); y = np.sin(6 * X[:, 0])
    >>> model = GraphGPRegressor().fit(X[:150], y[:150])
    >>> bool(model.score(X[150:], y[150:]) > 0.99), model.selection_.chosen.family
    (True, 'coordinates')
    >>> mean, std = model.predict(X[150:], return_std=True)
    >>> mean.shape, std.shape
    ((50,), (50,))
    """

    selection_: Comparison

    def __init__(
        self,
        kernel: str = "auto",
        *,
        nu: float | None = None,
        scaling: str | None = "auto",
        ard: bool | None = None,
        mean: str | None = "auto",
        neighbors: int = 10,
        graph: str = "implicit",
        features: str = "landmarks",
        tol: float | None = None,
        num_features: int | None = None,
        max_steps: int = 100,
        learning_rate: float = 0.1,
        patience: int = 15,
        random_state: Any = 0,
        progress: bool | None = None,
    ) -> None:
        self.kernel, self.nu, self.scaling, self.ard, self.mean = kernel, nu, scaling, ard, mean
        self.neighbors, self.graph, self.features, self.tol, self.num_features = neighbors, graph, features, tol, num_features
        self.max_steps, self.learning_rate, self.patience = max_steps, learning_rate, patience
        self.random_state, self.progress = random_state, progress

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any, X_unlabeled: Any = None) -> GraphGPRegressor:
        """Learn from inputs (n, d) and targets (n,) or (n, k); inputs without a target are nodes of graphs, and what held-out
        values are chosen like."""
        self._check_settings()
        self.__dict__.pop("model_", None)  # a fit that is refused below would leave it with the scales of other data
        x, targets = in_order(*self._checked(X, y))
        more = None if X_unlabeled is None else in_order(checked_unlabeled(self, X_unlabeled))[0]
        warn_of_rounding("X", x, standards("X", x)[1])
        self.y_mean_, deviation, size = standards("y", targets)
        warn_of_rounding("y", targets, deviation)
        self.y_scale_ = np.where(deviation > 0, deviation, np.where(size > 0, size, 1.0))
        values = torch.from_numpy((targets - self.y_mean_) / self.y_scale_)
        self.seed_, steps = seed_of(self.random_state), plain(self.max_steps)
        settings = {name: plain(getattr(self, name)) for name in ("scaling", "nu", "ard", "mean", "neighbors")}
        if settings["mean"] == "linear" and (shortage := too_few(TrendBasis("linear", torch.from_numpy(x)).number, len(x))):
            warnings.warn(
                f"{shortage} A constant is taken, under which a process follows slopes too.", ModelWarning, stacklevel=2
            )
            settings["mean"] = "constant"
        task = Task(x, more, values, **settings, max_steps=steps, seed=self.seed_, progress=self.progress)
        training = {"steps": steps, "learning_rate": self.learning_rate, "patience": self.patience, "progress": self.progress}
        best, self.selection_ = choose(task, str(self.kernel), self._options(), **training)
        models: list[Any] = [best.model]
        if best.fit is not None:
            models = [fit.gp.condition() for fit in task.search.target_by_target(best.fit)]
        self._set(models, best.inputs)
        if deviation.any():  # of constant targets everything is known
            warn_if_useless(best, self.selection_, 3)
        return self

    def _check_settings(self) -> None:
        check_choice("kernel", self.kernel, (*FAMILIES, *KERNELS))
        check_choice("graph", self.graph, ("implicit", "knn"))
        check_choice("scaling", self.scaling, SCALINGS)
        check_choice("nu", self.nu, (None, *SMOOTHNESS))
        check_choice("mean", self.mean, ("auto", *MEANS))
        for name, minimum in (("max_steps", 0), ("patience", 1), ("neighbors", 1)):
            check_count(name, getattr(self, name), minimum=minimum)
        as_parameter("learning_rate", self.learning_rate)
        own = self.features not in ("landmarks", "auto") or self.num_features is not None
        if self.graph == "knn" and (self.ard or own):
            raise ValueError(
                "features, num_features and ard belong to graph='implicit': nearest neighbours are exact and have no "
                "lengthscale. Leave them out."
            )
        own = own or self.graph != "implicit" or self.features != "landmarks" or self.tol is not None
        if self.kernel in FAMILIES and own:
            raise ValueError(
                f"graph, features, num_features and tol belong to a graph kernel, and kernel is {str(self.kernel)!r}; leave "
                f"them out, or name one of {', '.join(KERNELS)}."
            )

    def _options(self) -> dict[str, Any]:
        names = ("graph", "neighbors", "features", "tol", "num_features")
        kernel = "log_matern" if self.kernel in FAMILIES else str(self.kernel)
        ard = bool(self.ard) and self.kernel not in FAMILIES
        return {name: plain(getattr(self, name)) for name in names} | {"kernel": kernel, "ard": ard, "seed": self.seed_}

    def _set(self, models: list[Any], inputs: Inputs) -> None:
        self._models, self._scaled = models, inputs
        self.model_ = models[0] if len(models) == 1 else models
        self.kernel_ = models[0].kernel if len(models) == 1 else [model.kernel for model in models]
        self.x_mean_, self.x_scale_ = inputs.mean, inputs.scale
        if isinstance(models[0], GraphGP):
            self.losses_ = models[0].losses
        else:
            self.__dict__.pop("losses_", None)

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

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Means, and with ``return_std`` the standard deviations of the noise-free function; ``np.hypot(std, model.noise_)``
        are those of new observations. Both are (n,) for one target, (n, k) for several."""
        x = self._inputs(X)
        found = [model.predict(x, variances=return_std, progress=self.progress) for model in self._models]
        mean, variance = (torch.cat(parts, -1).numpy() for parts in zip(*found, strict=True))
        mean = _shaped(mean * self.y_scale_ + self.y_mean_)
        return (mean, _shaped(np.sqrt(variance) * self.y_scale_)) if return_std else mean

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> np.ndarray:
        """Samples of the function from the posterior, (n, n_samples) or (n, k, n_samples).

        :param random_state: a seed or a ``RandomState``; with None others each time, and NumPy's global state stays as it is.
        """
        check_count("n_samples", n_samples)
        x = self._inputs(X)
        generator = torch.Generator().manual_seed(seed_of(random_state))
        draws = torch.cat([model.sample(x, n_samples, generator) for model in self._models], 1).numpy()  # (n, k, n_samples)
        array = draws * self.y_scale_[:, None] + self.y_mean_[:, None]
        return array[:, 0] if array.shape[1] == 1 else array

    @property
    def noise_(self) -> np.ndarray:
        """The standard deviation of the noise, in the units of the targets, (k,)."""
        check_is_fitted(self, "model_")
        deviations = np.array([math.sqrt(float(model.noise.detach())) for model in self._models])
        return deviations * self.y_scale_

    @property
    def lengthscale_(self) -> np.ndarray | None:
        """The lengthscale of every column, in its units, (d,); (k, d) where targets have their own. None for a graph of nearest
        neighbours, which has none."""
        check_is_fitted(self, "model_")
        found = []
        for model in self._models:
            if not model.kernel.base_kernel.has_lengthscale:
                return None
            found.append(model.kernel.base_kernel.lengthscale.detach().reshape(-1).numpy() * self.x_scale_)
        return found[0] if len(found) == 1 else np.stack(found)

    def summary(self) -> str:
        """What was tried, as a table with the best first, and what was learnt."""
        check_is_fitted(self, "model_")
        lines = ["Held-out values, in standard deviations of the targets:", str(self.selection_), ""]
        names = getattr(self, "feature_names_in_", [f"x{i}" for i in range(self.n_features_in_)])
        for number, model in enumerate(self._models):
            target = "" if len(self._models) == 1 else f" of target {number}"
            lines.append(f"kernel{target}: {_described(model)}")
        if self.lengthscale_ is not None:
            for row in np.atleast_2d(self.lengthscale_):
                values = np.broadcast_to(row, len(names))
                words = [f"{name} {value:.4g}" for name, value in zip(names, values, strict=True)]
                lines.append("lengthscales: " + ", ".join(words[:MOST_WORDS] + ["..."] * (len(words) > MOST_WORDS)))
        shares = np.broadcast_to([float(model.noise.detach()) for model in self._models], len(self.y_scale_))
        noises = zip(self.noise_, shares, strict=True)
        lines.append("noise: " + ", ".join(f"{value:.4g} ({share:.1%} of the variance)" for value, share in noises))
        return "\n".join(lines)

    def _inputs(self, X: Any) -> Tensor:
        check_is_fitted(self, "model_")
        return self._scaled("X", validate_data(self, X, reset=False, **ARRAYS))

    def save(self, path: str | os.PathLike) -> None:
        """Write the fitted model to a file, whole or not at all."""
        check_is_fitted(self, "model_")
        names = getattr(self, "feature_names_in_", None)
        settings = {name: plain(value) for name, value in self.get_params().items()}
        if not isinstance(settings["random_state"], (int, type(None))):
            settings["random_state"] = self.seed_  # a RandomState is no setting of a file
        nodes = None
        if isinstance(self._models[0], MaternGP) and self._models[0].extended:
            nodes = self._models[0].kernel.base_kernel.coordinates.graph.points
        content = {
            "parameters": settings,
            "seed": self.seed_,
            "kind": type(self._models[0]).__name__,
            "models": [model.content() for model in self._models],
            "nodes": nodes,
            "selection": self.selection_.content(),
            "scales": [torch.from_numpy(np.asarray(a)) for a in (self.x_mean_, self.x_scale_, self.y_mean_, self.y_scale_)],
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
        x_mean, x_scale, model.y_mean_, model.y_scale_ = (scale.numpy() for scale in content["scales"])
        model.seed_, model.n_features_in_ = content["seed"], len(x_mean)
        model.selection_ = Comparison.restored(content["selection"])
        if names := content["feature_names"]:
            model.feature_names_in_ = np.array(names, dtype=object)
        if content["kind"] == "GraphGP":
            models: list[Any] = [GraphGP.restored(each) for each in content["models"]]
        else:
            nodes, neighbors = content["nodes"], content["parameters"]["neighbors"]
            coordinates = None if nodes is None else diffusion(nodes, neighbors)
            models = []
            for each in content["models"]:
                kernel = kernel_with_priors(coordinates, each["settings"]["nu"], 1.0, each["settings"]["ard"])
                models.append(MaternGP.restored(kernel, each))
        model._set(models, Inputs(x_mean, x_scale))
        return model


def _described(model: MaternGP | GraphGP) -> str:
    """A kernel and its parameters, in standardised units."""
    base = model.kernel.base_kernel
    words = [f"{type(base).__name__}, output scale {float(model.kernel.outputscale.detach()):.4g}"]
    words += [f"nu {base.nu:g}"] if isinstance(model, MaternGP) else []
    for name in ("beta", "tau", "kappa", "time", "scale", "laziness"):
        value = getattr(base, name, None)
        if torch.is_tensor(value) and value.numel() == 1:
            words.append(f"{name} {float(value.detach()):.4g}")
    return ", ".join(words)


def _shaped(values: np.ndarray) -> np.ndarray:  # (n, k) -> (n,) or (n, k)
    return values[:, 0] if values.shape[-1] == 1 else values
