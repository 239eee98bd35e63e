"""Gaussian process classification with coordinates that a graph extends, in scikit-learn's convention."""

from __future__ import annotations

import copy
import os
import time
import warnings
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from swing_gp.gp.lbfgs import minimize_lbfgs
from swing_gp.gp.manifold import EDGES, ManifoldMaternKernel, neighbor_graph
from swing_gp.graphs.nearest import TREE_DIM
from swing_gp.models.comparison import Comparison, ModelWarning, Row
from swing_gp.models.dirichlet import DirichletGP, dirichlet_targets, expected_softmax
from swing_gp.models.estimator import (
    ARRAYS,
    SCALINGS,
    checked_unlabeled,
    column_scales,
    in_order,
    load_content,
    plain,
    save_content,
    scalings_of,
    seed_of,
)
from swing_gp.models.local_gp import LocalGP
from swing_gp.models.manifold_priors import SMOOTHNESS, kernel_with_priors, starts
from swing_gp.operators.diffusion_coordinates import DiffusionCoordinates, diffusion_coordinates
from swing_gp.utils.validation import as_parameter, check_choice, check_count

# Parameters of the Dirichlet prior, and the place among them of the one that the search begins with, GPyTorch's.
ALPHAS, FIRST = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001), 4
# Fewer distinct inputs are no graph.
FEWEST = 8
# Labels that hyper-parameters are learnt from at most, labels up to which all are conditioned on, and beyond how many.
TRAINING, DENSE, NEIGHBORS = 500, 2000, 128
CHUNK = 5000


class GraphGPClassifier(ClassifierMixin, BaseEstimator):
    r"""A GP classifier whose kernel sees the coordinates and a graph of nearest neighbours.

    The kernel is a :class:`~swing_gp.ManifoldMaternKernel` on the distinct inputs, with a label and without, and the labels
    are regressed on as Dirichlet observations, in closed form (:class:`~swing_gp.models.dirichlet.DirichletGP`). Lengthscale,
    smoothness, the weight of the graph, the damping of its short waves and the output scale maximise the marginal likelihood,
    from the likeliest of several starts, with wide priors. A warning names a fit whose left-out labels are predicted no better
    than by the shares of the classes. Give the inputs you will predict at, or any others of the same kind, as
    ``X_unlabeled``: with few labels the graph of all of them is what tells classes apart. Without them there is no graph, and
    the kernel is a plain Matérn kernel.

    :param nu: the smoothness: 0.5, 1.5 or 2.5; None for the likeliest.
    :param scaling: of the inputs: ``"global"`` divides all columns by one number, ``"columns"`` each by its own standard
        deviation, None leaves them as they are, and ``"auto"`` takes the likelier of the first two.
    :param neighbors: k of the graph.
    :param num: eigenpairs of the graph.
    :param alpha: the parameter :math:`\alpha_0` of the Dirichlet prior: less is surer of labels. None for the one of a grid at
        which left-out labels are likeliest, with hyper-parameters of its own.
    :param starts: how many starts are followed to their optimum.
    :param max_steps: of L-BFGS, for each of them; 0 keeps the likeliest start.
    :param random_state: a seed or a ``RandomState``, for draws of labels and of latent functions.

    :ivar classes\_: the labels.
    :ivar kernel\_: the GPyTorch kernel with its learnt hyper-parameters, on scaled inputs.
    :ivar nu\_: the smoothness.
    :ivar alpha\_: the parameter of the Dirichlet prior.
    :ivar log_likelihood\_: the log marginal likelihood of the labels that it was trained on.
    :ivar selection\_: what was tried, a :class:`~swing_gp.models.comparison.Comparison`: kernel, scaling, nu and start, with
        the log posterior density of the hyper-parameters per label.

    >>> import numpy as np
    >>> from sklearn.datasets import make_moons
    >>> X, y = make_moons(300, noise=0.08, random_state=0)
    >>> model = GraphGPClassifier().fit(X[:12], y[:12], X_unlabeled=X[12:])
    >>> bool(model.score(X[12:], y[12:]) > 0.95)
    True
    >>> model.predict_proba(X[12:14]).shape
    (2, 2)
    """

    model_: DirichletGP | None
    selection_: Comparison | None

    def __init__(
        self,
        *,
        nu: float | None = None,
        scaling: str | None = "auto",
        neighbors: int = 10,
        num: int = 60,
        alpha: float | None = None,
        starts: int = 3,
        max_steps: int = 100,
        random_state: Any = 0,
    ) -> None:
        self.nu, self.scaling, self.neighbors, self.num, self.alpha = nu, scaling, neighbors, num, alpha
        self.starts, self.max_steps, self.random_state = starts, max_steps, random_state

    def fit(self, X: Any, y: Any, X_unlabeled: Any = None) -> GraphGPClassifier:
        """Learn from inputs (n, d) and labels (n,); inputs without a label widen the graph."""
        check_choice("scaling", self.scaling, SCALINGS)
        check_choice("nu", self.nu, (None, *SMOOTHNESS))
        for name, minimum in (("neighbors", 1), ("num", 2), ("starts", 1), ("max_steps", 0)):
            check_count(name, getattr(self, name), minimum=minimum)
        if self.alpha is not None:
            as_parameter("alpha", self.alpha)
        self.__dict__.pop("model_", None)  # a fit that is refused below would leave it with the classes of other data
        x, y = validate_data(self, X, y, validate_separately=(ARRAYS, {"ensure_2d": False, "dtype": None}))
        if len(x) != len(y):
            raise ValueError(f"Found input variables with inconsistent numbers of samples: {[len(x), len(y)]}")
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        more = x[:0] if X_unlabeled is None else checked_unlabeled(self, X_unlabeled)
        self.seed_ = seed_of(self.random_state)
        self.mean_ = x.mean(0, dtype=np.float64)
        if len(self.classes_) == 1:
            warnings.warn(f"y has one class, {self.classes_[0]}, and so has every prediction.", ModelWarning, stacklevel=2)
            self.model_, self.selection_, self.log_likelihood_ = None, None, 0.0  # nothing to learn
            return self
        (x, labels), (more,) = in_order(x, labels), in_order(more)
        self._train(x, torch.from_numpy(labels.astype(np.int64)), np.concatenate([x, more]))
        return self

    def _train(self, x: np.ndarray, labels: Tensor, nodes: np.ndarray) -> None:
        few = _stratified(labels, TRAINING, self.seed_)
        models = []
        for scaling in scalings_of(nodes, self.scaling):
            scale = column_scales(nodes, scaling)
            inputs, points = self._scaled(x, scale), torch.unique(self._scaled(nodes, scale), dim=0)
            # Without other inputs all that will be predicted lies off the graph, and the likelihood knows its nodes alone.
            points = points if len(nodes) > len(x) else points[:0]
            coordinates = self._coordinates(points)
            for nu in (self.nu,) if self.nu is not None else SMOOTHNESS:
                model = self._model(coordinates, nu, inputs[few], labels[few])
                models.append((scaling, scale, nu, model, inputs, points))
        tried = [(*each, start, _loss(each[3], start)) for each in models for start in starts(each[3].kernel)]
        tried.sort(key=lambda each: each[-1])
        rows: list[Row] = []
        best = None
        for scaling, scale, nu, model, inputs, points, start, _ in tried[: plain(self.starts)]:
            began = time.perf_counter()
            model.kernel.base_kernel.initialize(**start)
            loss = self._minimized(model)
            settings = {"nu": nu, "scaling": scaling, "alpha": model.alpha, **{f"from {k}": v for k, v in start.items()}}
            family = "extended" if isinstance(model.kernel.base_kernel, ManifoldMaternKernel) else "coordinates"
            rows.append(Row(family, settings, -loss, time.perf_counter() - began))
            if best is None or loss < best[0]:
                best = loss, scale, nu, copy.deepcopy(model), inputs, points
        assert best is not None
        _, self.scale_, nu, model, inputs, points = best
        self.selection_ = Comparison(tuple(rows), "likelihood", max(rows, key=lambda row: row.score))
        model = model if self.alpha is not None else self._with_best_alpha(model)
        with torch.no_grad():
            self.log_likelihood_ = float(model.log_likelihood())
        self._warn_if_useless(model)
        self._set_model(model.kernel, nu, model.alpha, inputs, labels, points, model.constants())

    def _minimized(self, model: DirichletGP) -> float:
        return minimize_lbfgs(model.loss, model, max_steps=plain(self.max_steps))

    def _warn_if_useless(self, model: DirichletGP) -> None:
        """Left-out labels should be likelier than by the shares of the classes."""
        labels, number = model.labels, len(self.classes_)
        others = torch.bincount(labels, minlength=number)[labels] - 1
        shares = (others + 1 / number) / len(labels)
        gains = -shares.log() - model.left_out_losses(self.seed_)
        if float(gains.mean()) < float(gains.std()) / len(gains) ** 0.5:
            warnings.warn(
                "Left-out labels are predicted no better than by the shares of the classes: the inputs say little of them, or "
                "there are too few to tell.",
                ModelWarning,
                stacklevel=4,
            )

    def _with_best_alpha(self, model: DirichletGP) -> DirichletGP:
        """From neighbour to neighbour among the parameters of the Dirichlet prior, while left-out labels get likelier."""
        best, least = model, float(model.left_out_losses(self.seed_).mean())
        for step in (-1, 1):
            place = FIRST + step
            while 0 <= place < len(ALPHAS):
                last = copy.deepcopy(best)
                other = DirichletGP(last.kernel, last.x, last.labels, len(self.classes_), ALPHAS[place])
                self._minimized(other)
                loss = float(other.left_out_losses(self.seed_).mean())
                if loss >= least:
                    break
                best, least, place = other, loss, place + step
            if best is not model:
                break
        return best

    def _scaled(self, x: np.ndarray, scale: np.ndarray) -> Tensor:
        return torch.from_numpy((x - self.mean_) / scale)

    def _coordinates(self, points: Tensor) -> DiffusionCoordinates | None:
        if len(points) < FEWEST:
            return None
        return diffusion_coordinates(neighbor_graph(points, plain(self.neighbors)), plain(self.num))

    def _model(self, coordinates: DiffusionCoordinates | None, nu: float, x: Tensor, labels: Tensor) -> DirichletGP:
        alpha = ALPHAS[FIRST] if self.alpha is None else float(self.alpha)
        targets, _ = dirichlet_targets(labels, len(self.classes_), alpha)
        kernel = kernel_with_priors(coordinates, nu, float(targets.var(1, correction=0).mean()))
        return DirichletGP(kernel, x, labels, len(self.classes_), alpha)

    def _set_model(
        self, kernel: Any, nu: float, alpha: float, x: Tensor, labels: Tensor, points: Tensor, constants: Tensor
    ) -> None:
        self.kernel_, self.nu_, self.alpha_, self._points, self._constants = kernel, nu, alpha, points, constants
        self.model_ = DirichletGP(kernel, x, labels, len(self.classes_), alpha)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of the classes, (n, len(classes\\_)), in the order of ``classes_``."""
        x = self._inputs(X)
        if self.model_ is None:
            return np.ones((len(x), 1))
        scaled = self._scaled(x, self.scale_)
        latent = self._near if len(self.model_.x) > DENSE else self.model_.latent
        parts = [expected_softmax(*latent(part), seed=self.seed_) for part in scaled.split(CHUNK)]
        return torch.cat(parts).numpy()

    def _near(self, x: Tensor) -> tuple[Tensor, Tensor]:  # (m, d) -> (m, C), (m, C)
        """The latent functions from the nearest labels."""
        model, kernel = self.model_, self.kernel_.base_kernel
        assert model is not None
        known, at, leading, scale = model.x, x, None, float(self.kernel_.outputscale.detach())
        edge = EDGES[self.nu_](kernel.lengthscale.detach().squeeze())
        if isinstance(kernel, ManifoldMaternKernel):
            with torch.no_grad():
                known, at, edge = kernel.extended_points(model.x), kernel.extended_points(x), kernel.edge
            leading = x.shape[1] if x.shape[1] <= TREE_DIM else None
        results = []
        for targets, noise, constant, uncertain in zip(model.targets, model.noise, *self._constants, strict=True):
            # The edge function has variance one, so that all is in units of the output scale.
            local = LocalGP(
                edge, known, targets / scale**0.5, noise=noise / scale, neighbors=NEIGHBORS, mean=constant / scale**0.5,
                mean_variance=float(uncertain) / scale, leading=leading,
            )  # fmt: skip
            results.append(local.predict(at))
        means, variances = ([getattr(each, name) for each in results] for name in ("mean", "variance"))
        return torch.stack(means, -1) * scale**0.5, torch.stack(variances, -1) * scale

    def predict(self, X: Any) -> np.ndarray:
        """The likeliest classes, (n,)."""
        best = self.predict_proba(X).argmax(1)
        return self.classes_[best]

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> np.ndarray:
        """Labels from the posterior, (n, n_samples): each column is one draw of the latent functions at all inputs together,
        and of a label at each from the probabilities that they give. Beyond 2,000 labels draws at two inputs are independent.

        :param random_state: a seed or a ``RandomState``; with None others each time, and NumPy's global state stays as it is.
        """
        check_count("n_samples", n_samples)
        x = self._inputs(X)
        if self.model_ is None:
            return np.full((len(x), n_samples), self.classes_[0])
        generator, scaled = torch.Generator().manual_seed(seed_of(random_state)), self._scaled(x, self.scale_)
        if len(self.model_.x) > DENSE:
            mean, variance = self._near(scaled)
            normal = torch.randn(*mean.shape, n_samples, generator=generator, dtype=torch.float64)
            draws = mean.unsqueeze(-1) + variance.sqrt().unsqueeze(-1) * normal
        else:
            draws = self.model_.sample(scaled, n_samples, generator)  # (n, C, n_samples)
        # The largest of logits with Gumbel noise is a draw from their softmax.
        uniform = torch.rand(draws.shape, generator=generator, dtype=torch.float64).clamp_min(1e-300)
        return self.classes_[(draws - (-uniform.log()).log()).argmax(1).numpy()]

    def summary(self) -> str:
        """What was tried, as a table with the best first, and what was learnt."""
        check_is_fitted(self, "model_")
        if self.selection_ is None:
            return f"One class, {self.classes_[0]}: nothing was learnt."
        base = self.kernel_.base_kernel
        graph = [f"{name} {float(getattr(base, name).detach()):.4g}" for name in ("beta", "tau") if hasattr(base, name)]
        words = [f"{type(base).__name__}, output scale {float(self.kernel_.outputscale.detach()):.4g}", f"nu {self.nu_:g}"]
        return "\n".join([
            "Log posterior density of the hyper-parameters, per label:", str(self.selection_), "",
            f"kernel: {', '.join(words + graph)}",
            "lengthscales: " + ", ".join(f"{value:.4g}" for value in self.lengthscale_),
            f"Dirichlet prior: alpha {self.alpha_:g}",
        ])  # fmt: skip

    @property
    def lengthscale_(self) -> np.ndarray:
        """The lengthscale of every column, in its units, (d,)."""
        check_is_fitted(self, "kernel_")
        return self.kernel_.base_kernel.lengthscale.detach().reshape(-1).numpy() * self.scale_

    def _inputs(self, X: Any) -> np.ndarray:
        check_is_fitted(self, "model_")
        return validate_data(self, X, reset=False, **ARRAYS)

    def save(self, path: str | os.PathLike) -> None:
        """Write the fitted model to a file, whole or not at all."""
        check_is_fitted(self, "model_")
        names, model = getattr(self, "feature_names_in_", None), self.model_
        settings = {name: plain(value) for name, value in self.get_params().items()}
        if not isinstance(settings["random_state"], (int, type(None))):
            settings["random_state"] = self.seed_  # a RandomState is no setting of a file
        content = {
            "parameters": settings,
            "classes": [self.classes_.tolist(), self.classes_.dtype.str],
            "feature_names": None if names is None else names.tolist(),
            "scales": torch.from_numpy(self.mean_),
            "seed": self.seed_,
            "selection": None if self.selection_ is None else self.selection_.content(),
            "log_likelihood": self.log_likelihood_,
            "features": self.n_features_in_,
        }
        if model is not None:
            content |= {
                "scale": torch.from_numpy(np.asarray(self.scale_)),
                "nodes": self._points,
                "inputs": model.x,
                "labels": model.labels,
                "constants": self._constants,
                "nu": self.nu_,
                "alpha": self.alpha_,
                "state": self.kernel_.state_dict(),
            }
        save_content(path, content)

    @classmethod
    def load(cls, path: str | os.PathLike) -> GraphGPClassifier:
        """A model that :meth:`save` wrote."""
        return load_content(path, cls._restored, "GraphGPClassifier")

    @classmethod
    def _restored(cls, content: dict[str, Any]) -> GraphGPClassifier:
        model = cls(**content["parameters"])
        labels, dtype = content["classes"]
        model.classes_ = np.array(labels, dtype=dtype)
        model.mean_, model.seed_ = content["scales"].numpy(), content["seed"]
        model.selection_ = None if content["selection"] is None else Comparison.restored(content["selection"])
        model.log_likelihood_ = content["log_likelihood"]
        model.n_features_in_, model.model_ = content["features"], None
        if content["feature_names"]:
            model.feature_names_in_ = np.array(content["feature_names"], dtype=object)
        if "nodes" in content:
            model.scale_, points = content["scale"].numpy(), content["nodes"]
            kernel = model._model(model._coordinates(points), content["nu"], content["inputs"], content["labels"]).kernel
            kernel.load_state_dict(content["state"])
            nu, alpha, inputs, labels = (content[name] for name in ("nu", "alpha", "inputs", "labels"))
            constants = content["constants"]
            if constants.dim() == 1:  # of a version that knew no variances of them
                constants = torch.stack([constants, torch.zeros_like(constants)])
            model._set_model(kernel, nu, alpha, inputs, labels, points, constants)
        return model


@torch.no_grad()
def _loss(model: DirichletGP, start: dict[str, float]) -> float:
    model.kernel.base_kernel.initialize(**start)
    return float(model.loss())


def _stratified(labels: Tensor, most: int, seed: int) -> Tensor:
    """Rows of up to so many labels, with the shares of the classes and at least one of each."""
    if len(labels) <= most:
        return torch.arange(len(labels))
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    counts = torch.bincount(labels)
    wanted = (most * counts.double() / len(labels)).floor().long().clamp_min(1)
    parts = [order[labels[order] == number][: int(take)] for number, take in enumerate(wanted)]
    return torch.cat(parts).sort().values
