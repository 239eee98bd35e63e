"""GPs on the Fourier grid: training, means and standard deviations, in 3-D and 2-D; the plain GP beside published figures.

    python -m benchmarks.grid_gp [--quick] [--out results/grid_gp]

Seconds are those of the processor (all threads), so that they compare on a machine that is shared. Four parts:

- 100,000 nodes in 3-D: the mean is held against a solve to 1e-10, the standard deviations against such solves at 50 of the
  nodes, and the stochastic log-determinant is printed with its standard error;
- the unit square with lengthscale 0.05: 1,000,000 nodes trained, 10,000,000 with given hyper-parameters;
- one step of conjugate gradients among the modes, whose cost should not depend on the number of nodes;
- a plain GP, one step of a raw Gaussian graph, as EFGP solves it (Greengard, Rachh and Barnett, 2025, who report 0.3 s for
  10^6 points in the plane with 841 modes, on a machine of their own), its error against a grid to 1e-12 and a solve to 1e-11.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gpytorch
import torch
from linear_operator import settings
from torch import Tensor

from benchmarks.gps import Exact, train
from benchmarks.measuring import Row
from benchmarks.reporting import table
from benchmarks.runner import Job, Run
from swing_gp import Diffusion, DiffusionKernel, FourierGrid, Gaussian, ImplicitGraph, PowerSeries
from swing_gp.linalg.conjugate_gradients import conjugate_gradients
from swing_gp.operators.grid_kernel import grid_kernel
from swing_gp.solvers.iterative import ConjugateGradients
from swing_gp.utils.memory import peak_gigabytes

seconds = time.process_time
NOISE = 0.2


def problem(number: int, dim: int, train: int) -> tuple[Tensor, Tensor, Tensor]:
    """Points in the unit cube, a function of them, and noisy values at the first."""
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(number, dim, generator=generator, dtype=torch.float64)
    f = torch.sin(8 * points[:, 0]) * torch.cos(5 * points[:, 1]) + points[:, -1]
    return points, f, f[:train] + NOISE * torch.randn(train, generator=generator, dtype=torch.float64)


def fitted(points: Tensor, y: Tensor, lengthscale: float, noise: float, steps: int) -> tuple[Any, Row]:
    """A GP of the first nodes, after some steps of Adam."""
    ids = torch.arange(len(y)).unsqueeze(-1)
    model = Exact(ids, y, DiffusionKernel(points, lengthscale=lengthscale, time=3.0, features="grid", tol=1e-4)).double()
    model.mean_module = gpytorch.means.ZeroMean()
    model.likelihood.noise, model.covar_module.outputscale = noise, 10.0
    start = seconds()
    losses = train(model, steps, rate=0.05)
    row = {"fit": seconds() - start, "lengthscale": float(model.covar_module.base_kernel.lengthscale.detach())}
    return model.eval(), row | ({"first_loss": losses[0], "last_loss": losses[-1]} if losses else {})


@torch.no_grad()
def predicted(model: Any, f: Tensor, nodes: Tensor) -> tuple[Tensor, Tensor, Row]:
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
def preconditioner(noisy: Any) -> Callable[[Tensor], Tensor] | None:
    """Solves with the matrix close to this one, where it is preconditioned."""
    close = ConjugateGradients(noisy.structure(), noisy.noise).close
    return None if close is None else lambda v: close.solve(v).solution


def checked(model: Any, y: Tensor, nodes: Tensor, mean: Tensor, deviation: Tensor) -> Row:
    """Compare with tight solves among the nodes."""
    ids = torch.arange(len(y)).unsqueeze(-1)
    noisy = model.likelihood(model.forward(ids)).lazy_covariance_matrix.evaluate_kernel()
    row = dict(zip(("logdet", "logdet_error"), noisy.logdet_with_error(), strict=True))
    precondition = preconditioner(noisy)
    cross = model.covar_module(nodes, ids).evaluate_kernel()
    tight = conjugate_gradients(noisy._matmul, y.unsqueeze(-1), tol=1e-10, precondition=precondition).solution
    row["mean_error"] = float(((cross @ tight).squeeze(-1) - mean).norm() / mean.norm())
    some = torch.arange(0, len(nodes), len(nodes) // 50)[:50]
    columns = model.covar_module(ids, nodes[some]).evaluate_kernel().to_dense()
    solved = conjugate_gradients(noisy._matmul, columns, tol=1e-10, precondition=precondition).solution
    prior = model.covar_module(nodes[some]).evaluate_kernel().to_dense().diagonal()
    ratio = deviation[some] / (prior - (columns * solved).sum(0)).sqrt()
    return {**row, "deviation_ratio_least": float(ratio.min()), "deviation_ratio_most": float(ratio.max())}


def cube(number: int, test: int, steps: int) -> Row:
    """Measure the 3-D problem; a fifth of the nodes is hidden."""
    points, f, y = problem(number, 3, number - test)
    model, row = fitted(points, y, 0.15, 0.1, steps)
    nodes = torch.arange(number - test, number)
    mean, deviation, found = predicted(model, f, nodes)
    return {**row, **found, **checked(model, y, nodes, mean, deviation), "peak_gb": peak_gigabytes()}


def plane(number: int, test: int, steps: int) -> Row:
    """Measure the 2-D problem with lengthscale 0.05; all but the test nodes are observed."""
    points, f, y = problem(number, 2, number - test)
    model, row = fitted(points, y, 0.05, 0.04, steps)
    _, _, found = predicted(model, f, torch.arange(number - test, number))
    return {**row, **found, "peak_gb": peak_gigabytes()}


@torch.no_grad()
def mode_step(number: int) -> Row:
    """Measure one product of the system among the modes with ten columns."""
    graph = ImplicitGraph(problem(number, 2, 0)[0], Gaussian(0.02))
    solver = grid_kernel(FourierGrid(graph, 1e-4), Diffusion(3.0)).add_diagonal(torch.tensor(0.1, dtype=torch.float64)).solver()
    system = solver.weights_posterior
    x = torch.randn(len(system.modes), 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = []
    for _ in range(20):
        start = seconds()
        system.preconditioner.solve(system._system(x))
        found.append(seconds() - start)
    return {"seconds": min(found)}


@torch.no_grad()
def plain(number: int) -> Row:
    """Measure the plain GP: set-up, solve and mean at all observations."""
    points, f, y = problem(number, 2, number)
    graph = ImplicitGraph(points, Gaussian(0.1), normalization=None)
    start = seconds()
    kernel = grid_kernel(FourierGrid(graph, 1e-5), PowerSeries([0.0, 1.0]))
    noisy = kernel.add_diagonal(torch.tensor(NOISE**2, dtype=torch.float64))
    solver = noisy.solver()
    weights = solver.condition(y.unsqueeze(-1))[0]
    mean = solver.evaluate(solver.points, solver.scale, weights).squeeze(-1)
    row = {"modes": float(len(solver.modes)), "seconds": seconds() - start, "rmse": float((mean - f).square().mean().sqrt())}
    precise = grid_kernel(FourierGrid(graph, 1e-12), PowerSeries([0.0, 1.0]))
    tight = precise.add_diagonal(torch.tensor(NOISE**2, dtype=torch.float64)).solver()
    with settings.cg_tolerance(1e-11):
        truth = tight.evaluate(tight.points, tight.scale, tight.condition(y.unsqueeze(-1))[0]).squeeze(-1)
    return {**row, "error": float((mean - truth).norm() / truth.norm())}


def main() -> None:
    with Run(__doc__, "grid_gp", quick="some 10,000 nodes and 3 steps") as run:
        cases: list[tuple[str, Any, tuple[int, ...]]]
        if run.quick:
            cases = [("3-D", cube, (10_000, 2_000, 3)), ("plane", plane, (20_000, 2_000, 3))]
            cases += [("a step among the modes", mode_step, (number,)) for number in (10_000, 20_000)]
            cases += [("plain GP", plain, (10_000,))]
        else:
            cases = [("plane", plane, (1_000_000, 20_000, 20)), ("plane", plane, (10_000_000, 20_000, 0))]
            cases += [("3-D", cube, (100_000, 20_000, 20))]
            cases += [(name, part, (number,)) for name, part in (("a step among the modes", mode_step), ("plain GP", plain))
                      for number in (100_000, 1_000_000)]  # fmt: skip
        run.measure([Job("rows", {"part": name, "nodes": sizes[0]}, part, *sizes) for name, part, sizes in cases])
        lines = [
            {"part": f"{row['part']}, {row['nodes']:,}", "quantity": name, "value": value}
            for row in run.rows("rows")
            for name, value in row.items()
            if name not in ("part", "nodes")
        ]
        run.report(table(lines, {"part": "part", "quantity": "quantity", "value": lambda row: f"{row['value']:.6g}"}))


if __name__ == "__main__":
    main()
