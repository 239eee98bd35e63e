"""One training step of a GP with 256 features: loss and gradient in all hyper-parameters, lengthscale included.

    python -m benchmarks.training [--quick] [--out results/training]

Beside it, in the same run: the product of an N x 256 with a 256 x 256 matrix, the yardstick of what such a step must cost, and
GPyTorch's RFFKernel with as many features. Single precision, unit cube in 3-D, lengthscale 0.3. Each kernel's error is that of
the covariance it approximates (diffusion of the graph, RBF) on 2,000 nodes, relative to that covariance off its diagonal.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import gpytorch
import torch
from gpytorch.distributions import MultivariateNormal

from benchmarks.reporting import isolated, options, write_report
from swing_gp import Diffusion, DiffusionKernel, Gaussian, ImplicitGraph, PairwiseFeatures, graph_kernel
from swing_gp.utils.memory import peak_gigabytes

FEATURES = 256


class Model(gpytorch.models.ExactGP):
    def __init__(self, x: Any, y: Any, likelihood: Any, kernel: Any) -> None:
        super().__init__(x, y, likelihood)
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(kernel)

    def forward(self, x: Any) -> MultivariateNormal:
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))


def best(function: Callable[[], Any], repeats: int = 4) -> float:
    """The best time after a first call that loads what it loads."""
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def kernel_of(name: str, points: torch.Tensor) -> Any:
    if name == "ours":
        return DiffusionKernel(points, lengthscale=0.3, time=3.0, features="landmarks", num_features=FEATURES)
    kernel = gpytorch.kernels.RFFKernel(num_samples=FEATURES // 2, num_dims=3)
    kernel.lengthscale = 0.3
    return kernel


def data(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(number, 3, generator=generator)
    return points, torch.sin(6 * points[:, 0]) + 0.1 * torch.randn(number, generator=generator)


def step_time(name: str, number: int) -> dict[str, float]:
    """Seconds of a training step and of predicting 10,000 points, the yardstick, the kernel's error, peak memory."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    points, y = data(number)
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    model = Model(points, y, likelihood, kernel_of(name, points))
    mll = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)

    def step() -> None:
        model.zero_grad()
        (-mll(model(points), y)).backward()

    repeats = 1 if number > 200_000 else 4
    row = {"step": best(step, repeats)}
    row["yardstick"] = yardstick(number)
    model.eval()
    start = time.perf_counter()
    with torch.no_grad():
        posterior = model(torch.rand(10_000, 3, generator=torch.Generator().manual_seed(1)))
        assert torch.isfinite(torch.stack([posterior.mean, posterior.variance])).all()
    row["predict"] = time.perf_counter() - start
    row["peak_gb"] = peak_gigabytes()
    row["error"] = kernel_error(name, points[:2000])
    return row


def yardstick(number: int) -> float:
    wide, square = torch.randn(number, FEATURES), torch.randn(FEATURES, FEATURES)
    return best(lambda: wide @ square)


@torch.no_grad()
def kernel_error(name: str, points: torch.Tensor) -> float:
    points = points.double()
    ours = kernel_of(name, points).double()(points).to_dense()
    if name == "ours":
        graph = ImplicitGraph(points, Gaussian(0.3))
        truth = graph_kernel(graph, Diffusion(3.0), features=PairwiseFeatures(graph)).to_dense()
    else:
        truth = Gaussian(0.3).weights(points, points)
    off = ~torch.eye(len(points), dtype=torch.bool)
    return float((ours - truth)[off].norm() / truth[off].norm())


def main() -> None:
    arguments = options(__doc__, "training", quick="20,000 nodes only")
    sizes = [("ours", 20_000), ("RFFKernel", 20_000)]
    if not arguments.quick:
        sizes += [("ours", 100_000), ("ours", 1_000_000)]
    rows = {f"{name}, N = {number:,}": isolated(step_time, name, number) for name, number in sizes}
    header = ["kernel", "step s", "over N x 256 x 256", "predict 10,000 s", "peak GB", "error of the kernel"]
    lines = [
        [
            name,
            f"{row['step']:.3f}",
            f"{row['step'] / row['yardstick']:.1f}",
            f"{row['predict']:.2f}",
            f"{row['peak_gb']:.2f}",
            f"{row['error']:.1e}",
        ]
        for name, row in rows.items()
    ]
    write_report(arguments.out, rows, header, lines)


if __name__ == "__main__":
    main()
