"""The picture at the top of the README: forty values on a ribbon, continued along the graph and through the plane.

    python -m benchmarks.picture [--out docs/images]

The ribbon is shown rolled up, as the models see it, and along its length. The data and both models are those of
notebooks/03_gp_regression.ipynb.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import gpytorch
import matplotlib.pyplot as plt
import torch
from torch import Tensor

from benchmarks.gps import train
from benchmarks.plotting import save_figure
from benchmarks.regression_models import Exact
from swing_gp import DiffusionKernel

NODES, VALUES, STEPS = 2_000, 40, 100


def ribbon() -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Nodes, where they lie along the ribbon, the quantity at each, which are observed, and what was observed there."""
    generator = torch.Generator().manual_seed(3)
    angle = 5.5 * torch.pi * torch.rand(NODES, generator=generator, dtype=torch.float64).sqrt() + 1.5
    radius = angle / 30 + 0.03 * torch.rand(NODES, generator=generator, dtype=torch.float64)
    points = torch.stack([radius * angle.cos(), radius * angle.sin()], -1)
    truth = torch.sin(1.3 * angle)
    observed = torch.randperm(NODES, generator=generator)[:VALUES]
    return points, angle, truth, observed, truth[observed] + 0.1 * torch.randn(VALUES, generator=generator, dtype=torch.float64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/images"), help="where the picture goes (%(default)s)")
    arguments = parser.parse_args()
    points, angle, truth, observed, y = ribbon()
    hidden = torch.ones(NODES, dtype=torch.bool).index_fill(0, observed, False)
    kernels = {
        "a GP on the graph": DiffusionKernel(
            points, lengthscale=0.04, time=50.0, features="landmarks", num_features=256, normalize=True
        ),
        "a GP in the plane (RBF)": gpytorch.kernels.RBFKernel(),
    }
    figure, axes = plt.subplots(1, 3, figsize=(13, 3.6), width_ratios=(1, 1.5, 1.5), layout="constrained")
    left = axes[0]
    left.scatter(*points.T, s=1, color="0.8")
    dots = left.scatter(*points[observed].T, c=y, s=28, cmap="coolwarm", vmin=-1.2, vmax=1.2, edgecolors="0.3", linewidths=0.5)
    left.set(title="40 noisy values on 2,000 points", aspect="equal")
    left.axis("off")
    figure.colorbar(dots, ax=left, shrink=0.75, ticks=(-1, 0, 1))
    order = angle.argsort()
    along = angle[order]
    for axis, (name, kernel) in zip(axes[1:], kernels.items(), strict=True):
        model = Exact(points[observed], y, kernel).double()
        model.likelihood.noise = 0.05
        train(model, STEPS, name=name)
        with torch.no_grad():
            posterior = model(points)
            mean, deviation = posterior.mean, posterior.stddev
        error = float((mean - truth)[hidden].square().mean().sqrt())
        low, high = (mean - 2 * deviation)[order], (mean + 2 * deviation)[order]
        axis.fill_between(along, low, high, color="#1f77b4", alpha=0.2, linewidth=0, label="two standard deviations")
        axis.plot(along, mean[order], color="#1f77b4", linewidth=1.3, label="posterior mean")
        axis.plot(along, truth[order], color="0.2", linewidth=1, linestyle="--", label="truth")
        axis.scatter(
            angle[observed], y, c=y, s=22, cmap="coolwarm", vmin=-1.2, vmax=1.2, edgecolors="0.3", linewidths=0.5, zorder=3
        )
        axis.set(title=f"{name}: RMSE {error:.2f}", xlabel="along the ribbon", ylim=(-2.3, 2.3), yticks=(-1, 0, 1))
        axis.spines[["top", "right"]].set_visible(False)
    axes[1].legend(loc="lower left", ncols=3, frameon=False, fontsize=8, columnspacing=1)
    save_figure(figure, arguments.out / "ribbon.png", dpi=90)


if __name__ == "__main__":
    main()
