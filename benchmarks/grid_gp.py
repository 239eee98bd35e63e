"""GPs on the Fourier grid: training, means and standard deviations, in 3-D and 2-D; the plain GP beside published figures.

    python -m benchmarks.grid_gp [--quick] [--out results/grid_gp]

Seconds are those of the processor (all threads), so that they compare on a machine that is shared. Four parts:

- 100,000 nodes in 3-D: the mean is held against a solve to 1e-10, the standard deviations against such solves at 50 of the
  nodes, and the stochastic log-determinant is printed with its standard error;
- the unit square with lengthscale 0.05: 1,000,000 nodes trained, 10,000,000 with given hyper-parameters;
- one step of conjugate gradients among the modes, whose cost should not know the number of nodes;
- a plain GP, one step of a raw Gaussian graph, as EFGP solves it (Greengard, Rachh and Barnett, 2025, who report 0.3 s for
  10^6 points in the plane with 841 modes, on a machine of their own), its error against a grid to 1e-12 and a solve to 1e-11.
"""

from __future__ import annotations

import time
from typing import Any

import gpytorch
import torch
from gpytorch.distributions import MultivariateNormal
from linear_operator import settings
from torch import Tensor
from tqdm import tqdm

from benchmarks.reporting import options, write_report
from swing_gp import Diffusion, DiffusionKernel, FourierGrid, Gaussian, ImplicitGraph, PowerSeries
from swing_gp.linalg.conjugate_gradients import conjugate_gradients
from swing_gp.operators.grid_kernel import grid_kernel
from swing_gp.utils.memory import peak_gigabytes

seconds = time.process_time
NOISE = 0.2


class Model(gpytorch.models.ExactGP):
    def __init__(self, x: Any, y: Any, likelihood: Any, kernel: Any) -> None:
        super().__init__(x, y, likelihood)
        self.covar_module = gpytorch.kernels.ScaleKernel(kernel).double()

    def forward(self, x: Any) -> MultivariateNormal:
        return MultivariateNormal(torch.zeros(x.shape[:-1], dtype=torch.float64), self.covar_module(x))


def problem(number: int, dim: int, train: int) -> tuple[Tensor, Tensor, Tensor]:
    """Points in the unit cube, a function of them, and noisy values at the first."""
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(number, dim, generator=generator, dtype=torch.float64)
    f = torch.sin(8 * points[:, 0]) * torch.cos(5 * points[:, 1]) + points[:, -1]
    return points, f, f[:train] + NOISE * torch.randn(train, generator=generator, dtype=torch.float64)


def fitted(
    points: Tensor, y: Tensor, lengthscale: float, outputscale: float, noise: float, steps: int
) -> tuple[Model, dict[str, float]]:
    """A GP of the first nodes, after some steps of Adam."""
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = noise
    ids = torch.arange(len(y)).unsqueeze(-1)
    model = Model(ids, y, likelihood, DiffusionKernel(points, lengthscale=lengthscale, time=3.0, features="grid", tol=1e-4))
    model.covar_module.outputscale = outputscale
    mll = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    model.train()
    losses, start = [], seconds()
    for _ in tqdm(range(steps), unit="step"):
        optimizer.zero_grad()
        loss = -mll(model(ids), y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    row = {"fit": seconds() - start}
    if losses:
        row.update(first_loss=losses[0], last_loss=losses[-1])
    row["lengthscale"] = float(model.covar_module.base_kernel.lengthscale.detach())
    return model.eval(), row


@torch.no_grad()
def predicted(model: Model, f: Tensor, nodes: Tensor) -> tuple[Tensor, Tensor, dict[str, float]]:
    """Means and standard deviations at nodes."""
    start = seconds()
    posterior = model(nodes)
    mean = posterior.mean
    row = {"mean": seconds() - start}
    start = seconds()
    deviation = posterior.stddev
    row["deviations"] = seconds() - start
    row["rmse"] = float((mean - f[nodes]).square().mean().sqrt())
    row["standard_deviation_of_f"] = float(f[nodes].std())
    row["covered"] = float(((mean - f[nodes]).abs() < 1.96 * deviation).double().mean())
    return mean, deviation, row


@torch.no_grad()
def checked(model: Model, y: Tensor, nodes: Tensor, mean: Tensor, deviation: Tensor) -> dict[str, float]:
    """Against tight solves among the nodes."""
    ids = torch.arange(len(y)).unsqueeze(-1)
    noisy = model.likelihood(model.forward(ids)).lazy_covariance_matrix.evaluate_kernel()
    row = dict(zip(("logdet", "logdet_error"), noisy.logdet_with_error(), strict=True))
    precondition = noisy._preconditioner()[0]
    cross = model.covar_module(nodes, ids).evaluate_kernel()
    tight = conjugate_gradients(noisy._matmul, y.unsqueeze(-1), tol=1e-10, precondition=precondition).solution
    row["mean_error"] = float(((cross @ tight).squeeze(-1) - mean).norm() / mean.norm())
    some = torch.arange(0, len(nodes), len(nodes) // 50)[:50]
    columns = model.covar_module(ids, nodes[some]).evaluate_kernel().to_dense()
    solved = conjugate_gradients(noisy._matmul, columns, tol=1e-10, precondition=precondition).solution
    prior = model.covar_module(nodes[some]).evaluate_kernel().to_dense().diagonal()
    ratio = deviation[some] / (prior - (columns * solved).sum(0)).sqrt()
    return {**row, "deviation_ratio_least": float(ratio.min()), "deviation_ratio_most": float(ratio.max())}


def run(number: int, train: int, test: int, steps: int) -> dict[str, float]:
    """3-D."""
    points, f, y = problem(number, 3, train)
    model, row = fitted(points, y, 0.15, 10.0, 0.1, steps)
    nodes = torch.arange(number - test, number)
    mean, deviation, found = predicted(model, f, nodes)
    return {**row, **found, **checked(model, y, nodes, mean, deviation), "peak_gb": peak_gigabytes()}


def run_plane(number: int, test: int, steps: int) -> dict[str, float]:
    """2-D, lengthscale 0.05; all but the test nodes are observed."""
    points, f, y = problem(number, 2, number - test)
    model, row = fitted(points, y, 0.05, 10.0, 0.04, steps)
    _, _, found = predicted(model, f, torch.arange(number - test, number))
    return {**row, **found, "peak_gb": peak_gigabytes()}


@torch.no_grad()
def step_seconds(number: int) -> float:
    """Of one product of the system among the modes with ten columns."""
    graph = ImplicitGraph(problem(number, 2, 0)[0], Gaussian(0.02))
    solver = grid_kernel(FourierGrid(graph, 1e-4), Diffusion(3.0)).add_diagonal(torch.tensor(0.1, dtype=torch.float64)).solver()
    system = solver.posterior
    x = torch.randn(len(system.modes), 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = []
    for _ in range(20):
        start = seconds()
        system.preconditioner.solve(system._system(x))
        found.append(seconds() - start)
    return min(found)


@torch.no_grad()
def run_plain(number: int) -> dict[str, float]:
    """The plain GP: set-up, solve and mean at all observations."""
    points, f, y = problem(number, 2, number)
    graph = ImplicitGraph(points, Gaussian(0.1), normalization=None)
    start = seconds()
    kernel = grid_kernel(FourierGrid(graph, 1e-5), PowerSeries([0.0, 1.0]))
    noisy = kernel.add_diagonal(torch.tensor(NOISE**2, dtype=torch.float64))
    solver = noisy.solver()
    weights, _ = solver._solve(y.unsqueeze(-1))
    mean = solver.evaluate(solver.points, solver.scale, weights).squeeze(-1)
    row = {"modes": float(len(solver.modes)), "seconds": seconds() - start, "rmse": float((mean - f).square().mean().sqrt())}
    precise = grid_kernel(FourierGrid(graph, 1e-12), PowerSeries([0.0, 1.0]))
    tight = precise.add_diagonal(torch.tensor(NOISE**2, dtype=torch.float64)).solver()
    with settings.cg_tolerance(1e-11):
        truth = tight.evaluate(tight.points, tight.scale, tight._solve(y.unsqueeze(-1))[0]).squeeze(-1)
    return {**row, "error": float((mean - truth).norm() / truth.norm())}


def main() -> None:
    arguments = options(__doc__, "grid_gp", quick="some 10,000 nodes and 3 steps")
    parts: dict[str, dict[str, float]] = {}
    if arguments.quick:
        parts["3-D, 10,000"] = run(10_000, 8_000, 2_000, 3)
        parts["2-D, 20,000"] = run_plane(20_000, 2_000, 3)
        sizes, plain = (10_000, 20_000), (10_000,)
    else:
        parts["plane, 1,000,000"] = run_plane(1_000_000, 20_000, 20)
        parts["plane, 10,000,000"] = run_plane(10_000_000, 20_000, 0)
        parts["3-D, 100,000"] = run(100_000, 80_000, 20_000, 20)
        sizes, plain = (100_000, 1_000_000), (100_000, 1_000_000)
    parts["a step among the modes"] = {f"{number:,}": step_seconds(number) for number in sizes}
    parts.update({f"plain GP, {number:,}": run_plain(number) for number in plain})
    lines = [[part, name, f"{value:.6g}"] for part, row in parts.items() for name, value in row.items()]
    write_report(arguments.out, parts, ["part", "quantity", "value"], lines)


if __name__ == "__main__":
    main()
