"""The models of ``benchmarks.regression``: each is fitted to standardised data and gives means and variances of new targets."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import gpytorch
import numpy as np
import torch
from gpytorch.distributions import MultivariateNormal
from torch import Tensor

from benchmarks.regression_data import Problem
from swing_gp import GraphGPRegressor

__all__ = ["MODELS", "Prediction"]

STEPS = 60  # of Adam, for all but SVGP
EXACT = 2000  # points that an exact GP holds here within a minute of training
INDUCING, BATCH, EPOCHS = 500, 1024, 20

Prediction = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]  # inputs -> means and variances with noise


def mean_only(problem: Problem) -> tuple[Prediction, str]:
    """The trivial baseline."""
    return lambda x: (np.zeros(len(x)), np.ones(len(x))), ""


def ours(kernel: str, *, unlabeled: bool = False) -> Callable[[Problem], tuple[Prediction, str]]:
    def fit(problem: Problem) -> tuple[Prediction, str]:
        model = GraphGPRegressor(kernel, ard=True, max_steps=STEPS)
        model.fit(problem.x, problem.y, X_unlabeled=problem.x_test if unlabeled else None)

        def predict(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            mean, deviation = model.predict(x, return_std=True)
            return mean, deviation**2 + model.noise_**2

        return predict, "256 landmarks"

    return fit


class Exact(gpytorch.models.ExactGP):
    def __init__(self, x: Tensor, y: Tensor, kernel: Any) -> None:
        super().__init__(x, y, gpytorch.likelihoods.GaussianLikelihood())
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(kernel)

    def forward(self, x: Tensor) -> MultivariateNormal:
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))


def exact(make: Callable[[int], Any], most: int | None, dtype: torch.dtype) -> Callable[[Problem], tuple[Prediction, str]]:
    """An ExactGP of GPyTorch on a random subset of the data."""

    def fit(problem: Problem) -> tuple[Prediction, str]:
        torch.manual_seed(0)
        order = torch.randperm(len(problem.x))[:most]
        x, y = (torch.from_numpy(part)[order].to(dtype) for part in (problem.x, problem.y))
        model = Exact(x, y, make(x.shape[1])).to(dtype)
        objective = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        model.train()
        with gpytorch.settings.max_cholesky_size(EXACT + 1):  # faster here than its conjugate gradients
            for _ in range(STEPS):
                optimizer.zero_grad()
                loss = -objective(model(x), y)
                loss.backward()
                optimizer.step()
        return _predictor(model, model.likelihood, dtype), f"{len(x):,} points" if len(x) < len(problem.x) else ""

    return fit


class Variational(gpytorch.models.ApproximateGP):
    def __init__(self, inducing: Tensor, kernel: Any) -> None:
        distribution = gpytorch.variational.CholeskyVariationalDistribution(len(inducing))
        super().__init__(gpytorch.variational.VariationalStrategy(self, inducing, distribution))
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(kernel)

    def forward(self, x: Tensor) -> MultivariateNormal:
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))


def svgp(problem: Problem) -> tuple[Prediction, str]:
    torch.manual_seed(0)
    x, y = (torch.from_numpy(part).float() for part in (problem.x, problem.y))
    model = Variational(x[torch.randperm(len(x))[:INDUCING]].clone(), matern(x.shape[1]))
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    objective = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(x))
    optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.02)
    model.train()
    likelihood.train()
    for _ in range(EPOCHS * math.ceil(10_000 / len(x))):
        for index in torch.randperm(len(x)).split(BATCH):
            optimizer.zero_grad()
            (-objective(model(x[index]), y[index])).backward()
            optimizer.step()
    return _predictor(model, likelihood, torch.float32), f"{INDUCING} inducing points"


def _predictor(model: Any, likelihood: Any, dtype: torch.dtype) -> Prediction:
    model.eval()
    likelihood.eval()

    @torch.no_grad()
    def predict(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        with gpytorch.settings.max_cholesky_size(EXACT + 1):
            parts = [likelihood(model(chunk)) for chunk in torch.from_numpy(x).to(dtype).split(2000)]
            mean, variance = (torch.cat([getattr(part, what) for part in parts]) for what in ("mean", "variance"))
        return mean.double().numpy(), variance.double().numpy()

    return predict


def rbf(dim: int) -> Any:
    return gpytorch.kernels.RBFKernel(ard_num_dims=dim)


def matern(dim: int) -> Any:
    return gpytorch.kernels.MaternKernel(nu=1.5, ard_num_dims=dim)


def fourier(dim: int) -> Any:
    return gpytorch.kernels.RFFKernel(num_samples=128, num_dims=dim, ard_num_dims=dim)


MODELS: dict[str, Callable[[Problem], tuple[Prediction, str]]] = {
    "training mean": mean_only,
    "swing_gp diffusion": ours("diffusion"),
    "swing_gp diffusion, test inputs as nodes": ours("diffusion", unlabeled=True),
    "swing_gp Matern, test inputs as nodes": ours("matern", unlabeled=True),
    "swing_gp LogMatern, test inputs as nodes": ours("log_matern", unlabeled=True),
    "GPyTorch exact RBF": exact(rbf, EXACT, torch.float64),
    "GPyTorch exact Matern-3/2": exact(matern, EXACT, torch.float64),
    "GPyTorch RFFKernel, 256 features": exact(fourier, None, torch.float32),
    "GPyTorch SVGP Matern-3/2": svgp,
}
