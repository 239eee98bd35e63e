"""The picture at the top of the README: forty values on a ribbon, continued along the graph and through the plane.

    python -m benchmarks.picture [--out docs/images]

The data and both models are those of notebooks/03_gp_regression.ipynb.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import gpytorch
import matplotlib.pyplot as plt
import torch
from torch import Tensor
from tqdm import trange

from benchmarks.regression_models import Exact
from benchmarks.reporting import save_figure
from swing_gp import DiffusionKernel

NODES, VALUES, STEPS = 2_000, 40, 100


def ribbon() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Nodes, the quantity at each, which are observed, and what was observed there."""
    generator = torch.Generator().manual_seed(3)
    angle = 5.5 * torch.pi * torch.rand(NODES, generator=generator, dtype=torch.float64).sqrt() + 1.5
    radius = angle / 30 + 0.03 * torch.rand(NODES, generator=generator, dtype=torch.float64)
    points = torch.stack([radius * angle.cos(), radius * angle.sin()], -1)
    truth = torch.sin(1.3 * angle)
    observed = torch.randperm(NODES, generator=generator)[:VALUES]
    return points, truth, observed, truth[observed] + 0.1 * torch.randn(VALUES, generator=generator, dtype=torch.float64)


def fit(kernel: gpytorch.kernels.Kernel, x: Tensor, y: Tensor, name: str) -> Exact:
    model = Exact(x, y, kernel).double()
    model.likelihood.noise = 0.05
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in trange(STEPS, desc=name, unit="step"):
        optimizer.zero_grad()
        (-objective(model(x), y)).backward()
        optimizer.step()
    return model.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/images"), help="where the picture goes (%(default)s)")
    arguments = parser.parse_args()
    points, truth, observed, y = ribbon()
    hidden = torch.ones(NODES, dtype=torch.bool).index_fill(0, observed, False)
    kernels = {
        "a GP on the graph": DiffusionKernel(
            points, lengthscale=0.04, time=50.0, features="landmarks", num_features=256, normalize=True
        ),
        "a GP in the plane (RBF)": gpytorch.kernels.RBFKernel(),
    }
    style = dict(cmap="coolwarm", vmin=-1.2, vmax=1.2)
    figure, axes = plt.subplots(1, 4, figsize=(12.5, 3.5), layout="constrained")
    axes[0].scatter(*points.T, c=truth, s=4, **style)
    axes[0].set_title("a quantity on 2,000 points")
    axes[1].scatter(*points.T, s=1, color="0.85")
    axes[1].scatter(*points[observed].T, c=y, s=30, edgecolors="0.3", linewidths=0.5, **style)
    axes[1].set_title("40 noisy values of it")
    for axis, (name, kernel) in zip(axes[2:], kernels.items(), strict=True):
        model = fit(kernel, points[observed], y, name)
        with torch.no_grad():
            mean = model(points).mean
        error = float((mean - truth)[hidden].square().mean().sqrt())
        axis.scatter(*points.T, c=mean, s=4, **style)
        axis.set_title(f"{name}\nRMSE {error:.2f}")
    for axis in axes:
        axis.set_aspect("equal")
        axis.axis("off")
    save_figure(figure, arguments.out / "ribbon.png", dpi=90)


if __name__ == "__main__":
    main()
