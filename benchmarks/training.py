"""One training step of a GP with 256 features: loss and gradient in all hyper-parameters, lengthscale included.

    python -m benchmarks.training [--quick] [--out results/training]

Beside it, in the same run: the product of an N x 256 with a 256 x 256 matrix, the least cost of such a step, and
GPyTorch's RFFKernel with as many features. Single precision, unit cube in 3-D, lengthscale 0.3. Each kernel's error is that of
the covariance it approximates (diffusion of the graph, RBF) on 2,000 nodes, relative to that covariance off its diagonal.
"""

from __future__ import annotations

import warnings
from typing import Any

import gpytorch
import torch

from benchmarks.gps import Exact
from benchmarks.measuring import Clock, Row, least
from benchmarks.reporting import table
from benchmarks.runner import Job, Run
from swing_gp import Diffusion, DiffusionKernel, Gaussian, ImplicitGraph, PairwiseFeatures, graph_kernel
from swing_gp.utils.memory import peak_gigabytes

FEATURES = 256


def kernel_of(name: str, points: torch.Tensor) -> Any:
    if name == "ours":
        return DiffusionKernel(points, lengthscale=0.3, time=3.0, features="landmarks", num_features=FEATURES)
    kernel = gpytorch.kernels.RFFKernel(num_samples=FEATURES // 2, num_dims=3)
    kernel.lengthscale = 0.3
    return kernel


def measure(name: str, number: int) -> Row:
    """Measure seconds of a training step, of predicting 10,000 points and of the matrix product; the error; peak memory."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(number, 3, generator=generator)
    y = torch.sin(6 * points[:, 0]) + 0.1 * torch.randn(number, generator=generator)
    model = Exact(points, y, kernel_of(name, points))
    mll = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    clock = Clock()

    def step() -> None:
        model.zero_grad()
        (-mll(model(points), y)).backward()

    @torch.no_grad()
    def predict() -> None:
        posterior = model(torch.rand(10_000, 3, generator=torch.Generator().manual_seed(1)))
        assert torch.isfinite(torch.stack([posterior.mean, posterior.variance])).all()

    step()  # selects landmarks, and loads libraries
    seconds, _ = least(step, budget=8)
    model.eval()
    clock.time("predict", predict)
    row = {**clock.row, "step": seconds, "peak_gb": peak_gigabytes(), "error": kernel_error(name, points[:2000])}
    wide, square = torch.randn(number, FEATURES), torch.randn(FEATURES, FEATURES)
    return {**row, "yardstick": least(lambda: wide @ square)[0]}


@torch.no_grad()
def kernel_error(name: str, points: torch.Tensor) -> float:
    points = points.double()
    ours = kernel_of(name, points).double()(points).to_dense()
    truth = Gaussian(0.3).weights(points, points)
    if name == "ours":
        graph = ImplicitGraph(points, Gaussian(0.3))
        truth = graph_kernel(graph, Diffusion(3.0), features=PairwiseFeatures(graph)).to_dense()
    off = ~torch.eye(len(points), dtype=torch.bool)
    return float((ours - truth)[off].norm() / truth[off].norm())


def main() -> None:
    with Run(__doc__, "training", quick="20,000 nodes only") as run:
        sizes = [("ours", 20_000), ("RFFKernel", 20_000)]
        sizes += [] if run.quick else [("ours", 100_000), ("ours", 1_000_000)]
        run.measure([Job("rows", {"kernel": name, "nodes": number}, measure, name, number) for name, number in sizes])
        columns: dict[str, Any] = {
            "kernel": "kernel",
            "nodes": ("nodes", ","),
            "step s": ("step", ".3f"),
            "over N x 256 x 256": lambda row: f"{row['step'] / row['yardstick']:.1f}",
            "predict 10,000 s": ("predict", ".2f"),
            "peak GB": ("peak_gb", ".2f"),
            "error of the kernel": ("error", ".1e"),
        }
        run.report(table(run.rows("rows"), columns))


if __name__ == "__main__":
    main()
