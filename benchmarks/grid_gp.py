"""A GP on the Fourier grid: 100,000 nodes in 3-D, 20 training steps, means and standard deviations at 20,000 nodes.

    python -m benchmarks.grid_gp [--quick] [--out results/grid_gp]

The mean is held against a solve to 1e-10, the standard deviations against such solves at 50 of the nodes, and the stochastic
log-determinant is printed with its standard error.
"""

from __future__ import annotations

import time
from typing import Any

import gpytorch
import torch
from gpytorch.distributions import MultivariateNormal
from tqdm import tqdm

from benchmarks.reporting import options, write_report
from swing_gp import DiffusionKernel
from swing_gp.linalg.conjugate_gradients import conjugate_gradients
from swing_gp.utils.memory import peak_gigabytes


class Model(gpytorch.models.ExactGP):
    def __init__(self, x: Any, y: Any, likelihood: Any, kernel: Any) -> None:
        super().__init__(x, y, likelihood)
        self.covar_module = gpytorch.kernels.ScaleKernel(kernel).double()

    def forward(self, x: Any) -> MultivariateNormal:
        return MultivariateNormal(torch.zeros(x.shape[:-1], dtype=torch.float64), self.covar_module(x))


def run(number: int, train: int, test: int, steps: int) -> dict[str, float]:
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(number, 3, generator=generator, dtype=torch.float64)
    f = torch.sin(8 * points[:, 0]) * torch.cos(5 * points[:, 1]) + points[:, 2]
    y = f[:train] + 0.2 * torch.randn(train, generator=generator, dtype=torch.float64)
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = 0.1
    kernel = DiffusionKernel(points, lengthscale=0.15, time=3.0, features="grid", tol=1e-4)
    ids = torch.arange(train).unsqueeze(-1)
    model = Model(ids, y, likelihood, kernel)
    model.covar_module.outputscale = 10.0
    mll = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    model.train()
    row: dict[str, float] = {}
    start = time.perf_counter()
    losses = []
    for _ in tqdm(range(steps), unit="step"):
        optimizer.zero_grad()
        loss = -mll(model(ids), y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    row["fit"] = time.perf_counter() - start
    row["first_loss"], row["last_loss"] = losses[0], losses[-1]
    row["lengthscale"] = float(kernel.lengthscale.detach())

    model.eval()
    likelihood.eval()
    nodes = torch.arange(number - test, number)
    with torch.no_grad():
        start = time.perf_counter()
        posterior = model(nodes)
        mean = posterior.mean
        row["mean"] = time.perf_counter() - start
        start = time.perf_counter()
        deviation = posterior.stddev
        row["deviations"] = time.perf_counter() - start
        row["rmse"] = float((mean - f[nodes]).square().mean().sqrt())
        row["standard_deviation_of_f"] = float(f[nodes].std())
        row["covered"] = float(((mean - f[nodes]).abs() < 1.96 * deviation).double().mean())

        noisy = likelihood(model.forward(ids)).lazy_covariance_matrix.evaluate_kernel()
        row["logdet"], row["logdet_error"] = noisy.logdet_with_error()
        precondition = noisy._preconditioner()[0]
        cross = model.covar_module(nodes, ids).evaluate_kernel()
        tight = conjugate_gradients(noisy._matmul, y.unsqueeze(-1), tol=1e-10, precondition=precondition).solution
        row["mean_error"] = float(((cross @ tight).squeeze(-1) - mean).norm() / mean.norm())
        some = torch.arange(0, test, test // 50)[:50]
        columns = model.covar_module(ids, nodes[some]).evaluate_kernel().to_dense()
        solved = conjugate_gradients(noisy._matmul, columns, tol=1e-10, precondition=precondition).solution
        prior = model.covar_module(nodes[some]).evaluate_kernel().to_dense().diagonal()
        exact = (prior - (columns * solved).sum(0)).sqrt()
        ratio = deviation[some] / exact
        row["deviation_ratio_least"], row["deviation_ratio_most"] = float(ratio.min()), float(ratio.max())
    row["peak_gb"] = peak_gigabytes()
    return row


def main() -> None:
    arguments = options(__doc__, "grid_gp", quick="10,000 nodes and 3 steps")
    row = run(10_000, 8_000, 2_000, 3) if arguments.quick else run(100_000, 80_000, 20_000, 20)
    write_report(arguments.out, row, ["quantity", "value"], [[name, f"{value:.6g}"] for name, value in row.items()])


if __name__ == "__main__":
    main()
