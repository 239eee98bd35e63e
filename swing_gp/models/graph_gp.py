"""A Gaussian process with a graph kernel, learnt by Adam: what :class:`~swing_gp.GraphGPRegressor` makes of its name."""

from __future__ import annotations

from typing import Any

import gpytorch
import numpy as np
import torch
from gpytorch.distributions import MultivariateNormal
from torch import Tensor

from swing_gp.gp import GraphKernel, families
from swing_gp.gp.training import minimize
from swing_gp.gp.trend import Trend
from swing_gp.graphs.nearest import knn_graph
from swing_gp.graphs.spacing import neighbor_distance
from swing_gp.models.dense_gp import DenseGP
from swing_gp.models.matern_gp import trend_basis
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
    :param mean: the trend: ``"constant"``, ``"linear"`` or None. It is estimated by generalised least squares; deviations do
        not know how uncertain it is.
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
        basis = trend_basis(mean, nodes[: len(y)])
        # Before the covariance is known, by ordinary least squares.
        self.trend = torch.linalg.lstsq(basis, y).solution if basis.shape[1] else y.new_zeros(0, y.shape[1])
        self.model = _Model(nodes[: len(y)], (y - basis @ self.trend).mT.contiguous(), likelihood, scale)

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
        basis = trend_basis(self.mean, self.nodes[: len(self.y)])
        if basis.shape[1]:
            with torch.no_grad():
                left = Trend.of(basis, model.noisy().solve(basis), model.train_targets.mT).coefficients
            self.trend = self.trend + left
            model.set_train_data(targets=(self.y - basis @ self.trend).mT.contiguous(), strict=False)
        return self

    def predict(
        self, x: Tensor, *, variances: bool = True, progress: bool | None = False
    ) -> tuple[Tensor, Tensor]:  # (m, d) -> (m, k), (m, k)
        """Means and variances of the function."""
        means, spreads = [], []
        with torch.no_grad(), gpytorch.settings.skip_posterior_variances(not variances):
            for part in progress_bar(x.split(CHUNK), "predict", progress):
                posterior = self.model(part)
                means.append(posterior.mean.mT + trend_basis(self.mean, part) @ self.trend)
                spreads.append(posterior.variance.clamp_min(0).mT if variances else torch.zeros_like(means[-1]))
        return torch.cat(means), torch.cat(spreads)

    def sample(self, x: Tensor, number: int, generator: torch.Generator) -> Tensor:  # (m, d) -> (m, k, number)
        """Functions from the posterior."""
        with torch.no_grad():
            posterior = self.model(x)
            covariance = posterior.lazy_covariance_matrix
            draws = [covariance[i].samples(number, generator) for i in range(len(posterior.mean))]  # of (m, number)
        mean = posterior.mean.mT + trend_basis(self.mean, x) @ self.trend
        return mean.unsqueeze(-1) + torch.stack(draws, 1)

    @torch.no_grad()
    def held_out(self, folds: list[tuple[Tensor, Tensor]]) -> list[Tensor] | None:  # of (h,), (n - h,) -> of (h, k)
        """What is missed of held-out values that the kept ones predict, with the hyper-parameters as they are; None where there
        are too many observations for dense algebra."""
        if len(self.y) > DENSE:
            return None
        x = self.nodes[: len(self.y)]
        dense = DenseGP(self.model.noisy().to_dense(), trend_basis(self.mean, x), self.y)
        return [dense.left_out(held)[0] for held, _ in folds]

    def content(self) -> dict[str, Any]:
        """What a file needs to make it again."""
        settings = {"options": self.options, "mean": self.mean}
        state = {"model": self.model.state_dict(), "trend": self.trend, "targets": self.model.train_targets}
        return {"settings": settings, "state": state, "nodes": self.nodes, "y": self.y, "losses": self.losses}

    @classmethod
    def restored(cls, content: dict[str, Any]) -> GraphGP:
        """One of which :meth:`content` was written."""
        made = cls(content["nodes"], content["y"], **content["settings"])
        made.losses, made.trend = content["losses"], content["state"]["trend"]
        made.model.set_train_data(targets=content["state"]["targets"], strict=False)
        made.model.load_state_dict(content["state"]["model"])
        made.model.eval()
        return made


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
