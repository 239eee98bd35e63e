"""Training and prediction of GPyTorch models, as every benchmark does them."""

from __future__ import annotations

from typing import Any

import gpytorch
import torch
from torch import Tensor
from tqdm import trange

__all__ = ["predict", "train"]


def train(model: Any, steps: int, *, rate: float = 0.1, name: str | None = None) -> list[float]:
    """Adam on the marginal likelihood of the model's own data; the loss before every step.

    :param name: shows progress under this name.
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
    """Means and variances of new observations, in double precision."""
    model.eval()
    likelihood.eval()
    parts = [likelihood(model(part)) for part in x.split(chunk)]
    mean, variance = (torch.cat([getattr(part, what) for part in parts]) for what in ("mean", "variance"))
    return mean.double().numpy(), variance.double().numpy()
