"""Models on every route, and dense Gaussian processes with the same covariance."""

from __future__ import annotations

from collections.abc import Callable

import gpytorch
import torch
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from oracles import cloud
from torch import Tensor

from swing_gp import DiffusionKernel

POINTS = cloud(80, 2)
TRAIN = torch.cat([POINTS[:40], cloud(10, 2, seed=1)])
NOISE = 0.01
ROUTES = {
    "landmarks": {"features": "landmarks"},
    "small grid": {"features": "grid", "lengthscale": 0.6, "tol": 1e-5},
    "large grid": {"features": "grid", "lengthscale": 0.1, "tol": 1e-10},
    "pairwise": {"features": "pairwise"},
    "neighbors": {"features": "neighbors", "tol": 1e-10},
    "auto": {},
}
DIFFERENTIABLE = [route for route in ROUTES if route != "large grid"]


def targets(x: Tensor) -> Tensor:
    return torch.sin(5 * x[..., 0]) + x[..., 1]


def route_kernel(route: str, **options) -> DiffusionKernel:
    return DiffusionKernel(POINTS, **{"lengthscale": 0.3, "time": 2.0, **ROUTES[route], **options})


def _noise() -> GaussianLikelihood:
    likelihood = GaussianLikelihood().double()
    likelihood.noise = NOISE
    return likelihood


class Model(gpytorch.models.ExactGP):
    num_outputs = 1  # for BoTorch

    def __init__(self, kernel, x=TRAIN, y=None, likelihood=None):
        super().__init__(x, targets(x) if y is None else y, _noise() if likelihood is None else likelihood)
        self.mean_module, self.covar_module = gpytorch.means.ConstantMean().double(), kernel
        self.mean_module.constant.data.fill_(0.3)

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def _scaled(route: str) -> Model:
    scaled = gpytorch.kernels.ScaleKernel(route_kernel(route)).double()
    scaled.outputscale = 1.7
    return Model(scaled)


def _sum(route: str) -> Model:
    return Model(route_kernel(route) + gpytorch.kernels.RBFKernel().double())


def _fixed(route: str) -> Model:
    return Model(route_kernel(route), likelihood=FixedNoiseGaussianLikelihood(torch.linspace(0.01, 0.1, len(TRAIN)).double()))


def _repeated(route: str) -> Model:
    return Model(route_kernel(route), torch.cat([TRAIN, TRAIN[30:45], TRAIN[30:35]]))


MODELS: dict[str, Callable[[str], Model]] = {
    "plain": lambda route: Model(route_kernel(route)),
    "scaled": _scaled,
    "sum": _sum,
    "fixed noise": _fixed,
    "repeated": _repeated,
}


@torch.no_grad()
def dense_posterior(model: Model, x: Tensor, train: Tensor | None = None, y: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Mean and covariance at one list of inputs, by dense algebra with the covariance of all inputs at once."""
    train = model.train_inputs[0] if train is None else train
    y, size = model.train_targets if y is None else y, len(train)
    joint = model.covar_module(torch.cat([train, x])).to_dense()
    noise = model.likelihood.noise.expand(size) if model.likelihood.noise.numel() == 1 else model.likelihood.noise
    cross = joint[size:, :size]
    solved = torch.linalg.solve(joint[:size, :size] + noise.diag(), torch.cat([(y - 0.3).unsqueeze(-1), cross.mT], -1))
    return 0.3 + cross @ solved[:, 0], joint[size:, size:] - cross @ solved[:, 1:]
