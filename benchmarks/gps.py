"""GPyTorch models, their training and prediction, as every benchmark does them."""

from __future__ import annotations

import math
from typing import Any

import gpytorch
import torch
from gpytorch.distributions import MultivariateNormal
from torch import Tensor
from tqdm import trange

__all__ = ["Exact", "matern", "predict", "svgp", "train"]

INDUCING, BATCH = 500, 1024  # of a variational GP


class Exact(gpytorch.models.ExactGP):
    """An ExactGP with a constant mean and a scaled kernel."""

    def __init__(self, x: Tensor, y: Tensor, kernel: Any) -> None:
        super().__init__(x, y, gpytorch.likelihoods.GaussianLikelihood())
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(kernel)

    def forward(self, x: Tensor) -> MultivariateNormal:
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))


def matern(dim: int) -> Any:
    return gpytorch.kernels.MaternKernel(nu=1.5, ard_num_dims=dim)


def train(model: Any, steps: int, *, rate: float = 0.1, name: str | None = None) -> list[float]:
    """Maximise the marginal likelihood by Adam, and return the loss before every step.

    :param name: the name beside the progress bar.
    """
    (x,), y = model.train_inputs, model.train_targets
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    optimizer = torch.optim.Adam([each for each in model.parameters() if each.requires_grad], lr=rate)
    model.train()
    losses = []
    for _ in trange(steps, desc=name, unit="step", disable=name is None):
        optimizer.zero_grad()
        loss = -objective(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    model.eval()
    return losses


@torch.no_grad()
def predict(model: Any, likelihood: Any, x: Tensor, chunk: int = 2_000) -> tuple[Any, Any]:
    """Predict means and variances of new observations, in double precision."""
    model.eval()
    likelihood.eval()
    parts = [likelihood(model(part)) for part in x.split(chunk)]
    mean, variance = (torch.cat([getattr(part, what) for part in parts]) for what in ("mean", "variance"))
    return mean.double().numpy(), variance.double().numpy()


class _Variational(gpytorch.models.ApproximateGP):
    def __init__(self, inducing: Tensor, kernel: Any) -> None:
        distribution = gpytorch.variational.CholeskyVariationalDistribution(len(inducing))
        super().__init__(gpytorch.variational.VariationalStrategy(self, inducing, distribution))
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(kernel)

    def forward(self, x: Tensor) -> MultivariateNormal:
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))


def svgp(x: Any, y: Any, at: Any, epochs: int, lengthscale: float | None = None) -> tuple[Any, Any]:
    """Predict means and variances of new observations by a variational GP in single precision on standardised data.

    :param epochs: passes over 10,000 values or more; for fewer values as many steps.
    """
    torch.manual_seed(0)
    x, y, at = (torch.as_tensor(each).float() for each in (x, y, at))
    model = _Variational(x[torch.randperm(len(x))[:INDUCING]].clone(), matern(x.shape[1]))
    if lengthscale is not None:
        model.covar_module.base_kernel.lengthscale = lengthscale
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    objective = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(x))
    optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.02)
    model.train()
    likelihood.train()
    for _ in range(epochs * math.ceil(10_000 / len(x))):
        for index in torch.randperm(len(x)).split(BATCH):
            optimizer.zero_grad()
            (-objective(model(x[index]), y[index])).backward()
            optimizer.step()
    with gpytorch.settings.max_cholesky_size(2 * INDUCING):
        return predict(model, likelihood, at)
