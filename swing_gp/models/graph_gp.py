"""A Gaussian process with a graph kernel, learnt by Adam: what :class:`~swing_gp.GraphGPRegressor` makes of its name."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import gpytorch
import numpy as np
import torch
from gpytorch.distributions import MultivariateNormal
from torch import Tensor

from swing_gp.gp import GraphKernel, families
from swing_gp.gp.training import minimize
from swing_gp.gp.trend import Trend, TrendBasis
from swing_gp.graphs.nearest import knn_graph
from swing_gp.graphs.spacing import neighbor_distance
from swing_gp.models.dense_gp import DenseGP
from swing_gp.utils.progress import progress_bar

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
# Observations up to which values are held out by dense algebra.
DENSE = 2000


class GraphGP:
    """A GP on standardised inputs and targets; k targets share the hyper-parameters.

    :param nodes: of the graph, (N, d); the first n are the inputs of the observations.
    :param y: targets, (n, k).
    :param options: of the kernel: ``kernel``, ``graph``, ``neighbors``, ``features``, ``num_features``, ``tol``, ``seed`` and
        ``ard``.
    :param mean: the trend: ``"constant"``, ``"linear"`` or None. It is estimated by generalised least squares.
    """

    def __init__(self, nodes: Tensor, y: Tensor, options: dict[str, Any], mean: str | None = "constant") -> None:
        self.y, self.mean, self.options = y, mean, options
        self.nodes, self.losses = nodes, [0.0][:0]
        kind, settings, _ = KERNELS[options["kernel"]]
        landmarks = options["features"] == "landmarks" and options["graph"] == "implicit"
        tol = 1e-4 if options["tol"] is None and not landmarks else options["tol"]
        shared: dict[str, Any] = {"tol": tol, "normalize": True}
        if options["graph"] == "knn":
            kernel = kind(knn_graph(nodes, min(options["neighbors"], len(nodes) - 2)), **settings, **shared)
        else:
            kernel = kind(
                nodes,
                **settings,
                **shared,
                features=options["features"],
                num_features=LANDMARKS if options["num_features"] is None and landmarks else options["num_features"],
                seed=options["seed"],
                ard_num_dims=nodes.shape[1] if options["ard"] else None,
            )
        likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=gpytorch.constraints.GreaterThan(1e-6)).double()
        likelihood.noise = 0.1
        scale = gpytorch.kernels.ScaleKernel(kernel).double()
        scale.outputscale = 1.0  # the variance of the targets
        x = nodes[: len(y)]
        self.basis = TrendBasis(mean, x)
        self.model = _Model(x, y, self.basis(x), likelihood, scale)

    @property
    def kernel(self) -> Any:
        return self.model.covar_module

    @property
    def noise(self) -> Tensor:
        """The variance of the noise."""
        return self.model.likelihood.noise.squeeze()

    @torch.no_grad()
    def start(self) -> float:
        """Set lengthscale and parameters of the series to the likeliest of a few; training moves them by small factors. The
        loss is returned."""
        kernel, series = self.model.graph_kernel, KERNELS[self.options["kernel"]][2]
        spacing = neighbor_distance(self.nodes.numpy(), NEIGHBOR)

        def loss(start: dict[str, float]) -> float:
            kernel.initialize(**start)
            return float(self.model.loss())

        lengths = [{"lengthscale": multiple * spacing} for multiple in MULTIPLES] if kernel.has_lengthscale else [{}]
        losses = [(loss(start), start) for start in ({**length, **values} for length in lengths for values in series)]
        least, start = min(losses, key=lambda each: each[0])
        kernel.initialize(**start)
        return least

    def train(self, *, steps: int, learning_rate: float, patience: int, progress: bool | None = False) -> GraphGP:
        """From where it is."""
        model = self.model.train()
        self.losses = minimize(model.loss, model, steps=steps, lr=learning_rate, patience=patience, progress=progress)
        model.eval()
        self.__dict__.pop("trend", None)
        return self

    @cached_property
    def trend(self) -> Trend:
        """With the hyper-parameters as they are."""
        with torch.no_grad():
            return self.model.trend(self.model.noisy())

    def predict(
        self, x: Tensor, *, variances: bool = True, progress: bool | None = False
    ) -> tuple[Tensor, Tensor]:  # (m, d) -> (m, k), (m, k)
        """Means and variances of the function."""
        means, spreads = [], []
        with torch.no_grad(), gpytorch.settings.skip_posterior_variances(not variances):
            for part in progress_bar(x.split(CHUNK), "predict", progress):
                posterior = self.model(part)
                mean, rest = self.trend.predict(posterior.mean.mT, self.basis(part))
                means.append(mean)
                spreads.append(posterior.variance[0].clamp_min(0) + self.trend.variance(rest) if variances else 0 * mean[:, 0])
        mean = torch.cat(means)
        return mean, torch.cat(spreads).unsqueeze(-1).expand_as(mean)

    def sample(self, x: Tensor, number: int, generator: torch.Generator) -> Tensor:  # (m, d) -> (m, k, number)
        """Functions from the posterior."""
        with torch.no_grad():
            posterior = self.model(x)
            covariance = posterior.lazy_covariance_matrix[0]  # all columns share it
            draws = [covariance.samples(number, generator) for _ in range(self.y.shape[1])]  # of (m, number)
            mean, rest = self.trend.predict(posterior.mean.mT, self.basis(x))
        return mean.unsqueeze(-1) + torch.stack(draws, 1) + self.trend.draws(rest, number, generator)

    @torch.no_grad()
    def held_out(self, folds: list[tuple[Tensor, Tensor]]) -> list[Tensor] | None:  # of (h,), (n - h,) -> of (h, k)
        """What is missed of held-out values that the kept ones predict, with the hyper-parameters as they are; None where there
        are too many observations for dense algebra."""
        if len(self.y) > DENSE:
            return None
        dense = DenseGP(self.model.noisy().to_dense(), self.basis(self.nodes[: len(self.y)]), self.y)
        return [dense.left_out(held)[0] for held, _ in folds]

    def content(self) -> dict[str, Any]:
        """What a file needs to make it again."""
        settings = {"options": self.options, "mean": self.mean}
        state = {"model": self.model.state_dict()}
        return {"settings": settings, "state": state, "nodes": self.nodes, "y": self.y, "losses": self.losses}

    @classmethod
    def restored(cls, content: dict[str, Any]) -> GraphGP:
        """One of which :meth:`content` was written."""
        made = cls(content["nodes"], content["y"], **content["settings"])
        made.losses = content["losses"]
        made.model.load_state_dict(content["state"]["model"])
        made.model.eval()
        return made


class _Model(gpytorch.models.ExactGP):
    """A zero-mean GP on standardised targets and the basis of their trend, (k + p, n), which have one covariance."""

    def __init__(self, x: Tensor, y: Tensor, basis: Tensor, likelihood: Any, kernel: Any) -> None:
        super().__init__(x, torch.cat([y, basis], -1).mT.contiguous(), likelihood)
        self.covar_module, self.number = kernel, y.shape[1]

    @property
    def graph_kernel(self) -> GraphKernel:
        return self.covar_module.base_kernel

    def forward(self, x: Tensor) -> MultivariateNormal:
        zero = torch.zeros(*x.shape[:-1], dtype=torch.float64)
        return MultivariateNormal(zero.expand(self.train_targets.shape[0], x.shape[-2]), self.covar_module(x))

    def noisy(self) -> Any:
        """The covariance of the observations."""
        return self.covar_module(*self.train_inputs).evaluate_kernel().add_diagonal(self.likelihood.noise)

    @torch.no_grad()
    def trend(self, noisy: Any) -> Trend:
        """By generalised least squares.

        :param noisy: the covariance of the observations.
        """
        y, basis = self.train_targets.mT.tensor_split([self.number], -1)
        return Trend.solved(basis, noisy.solve(basis.contiguous()) if basis.shape[1] else basis, y)

    def loss(self) -> Tensor:
        """The negative log restricted likelihood per target and observation: one solve for all targets."""
        noisy, both, number = self.noisy(), self.train_targets.mT, self.number
        trend = self.trend(noisy)
        quadratic, logdet = noisy.inv_quad_logdet(both @ trend.restriction, logdet=True)
        logs = logdet + trend.logdet - trend.number + (len(both) - trend.number) * np.log(2 * np.pi)
        return 0.5 * (quadratic + number * logs) / (number * len(both))
