"""Measurements of :mod:`benchmarks.spatial` beside the lattice: growth with the nodes, and training."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.gps import Exact, train
from benchmarks.measuring import Clock, Row
from benchmarks.spatial_data import shape
from swing_gp import Matern, MaternGraphKernel, graph_kernel, knn_graph
from swing_gp.graphs.inputs import nodes_of
from swing_gp.utils.memory import peak_gigabytes

__all__ = ["scaling", "training"]

NEIGHBORS, OBSERVED, NOISE, SAMPLES = 10, 0.1, 0.01, 32
# The range stays the same part of the shape: kappa, in steps along the graph, grows as the spacing shrinks.
KAPPA, AT = {"sphere": 30.0, "plane": 30.0, "volume": 10.0}, 10_000
DIMENSION = {"sphere": 2, "plane": 2, "volume": 3}
STEPS = 30


@torch.no_grad()
def scaling(name: str, number: int, nu: float) -> Row:
    """Measure the posterior of a random field of the prior, observed at a tenth of the nodes with noise."""
    points, clock = shape(name, number), Clock()
    graph = clock.time("graph", lambda: knn_graph(points, NEIGHBORS))
    kappa = KAPPA[name] * (number / AT) ** (1 / DIMENSION[name])
    generator = torch.Generator().manual_seed(0)
    observed = torch.randperm(number, generator=generator)[: int(OBSERVED * number)]
    kernel: Any = graph_kernel(graph, Matern(nu, kappa))
    truth = kernel.samples(1, generator).squeeze(-1)
    noise = NOISE * truth.var()
    values = truth[observed] + noise.sqrt() * torch.randn(len(observed), generator=generator, dtype=torch.float64)
    del kernel  # and what it has computed for the sample

    def set_up() -> Any:
        seen = nodes_of(points, observed)
        kernel: Any = graph_kernel(graph, Matern(nu, kappa))
        solver = kernel.covariance(seen, seen, None).add_diagonal(noise).solver()
        solver._precondition  # noqa: B018, made on first use
        return solver

    solver = clock.time("setup", set_up)
    weighted = solver.observations.inputs.to_nodes(solver.observations.solve(values.unsqueeze(-1)))
    found, residuals = clock.time("mean", lambda: solver._solve(solver.precision.renumbered(weighted), 1e-9))
    mean = solver.precision.numbered(found).squeeze(-1)
    variance, error = clock.time("deviations", lambda: solver.variances(SAMPLES))
    hidden = torch.ones(number, dtype=torch.bool).index_fill(0, observed, False)
    z = ((truth - mean) / variance.sqrt())[hidden]
    return {
        **clock.row,
        "steps": len(residuals),
        "kappa": kappa,
        "peak_gb": peak_gigabytes(),
        "rmse": float(((truth - mean)[hidden].square().mean() / truth.var()).sqrt()),
        "coverage": float((z.abs() < 1.96).double().mean()),
        "stated_error": float((0.5 * error / variance)[hidden].mean()),
    }


def training(name: str, number: int, nu: float) -> Row:
    """Measure steps of Adam on kappa, output scale, noise and mean; all nodes are observed."""
    points, clock = shape(name, number), Clock()
    values = torch.sin(4 * points[:, 0]) * torch.cos(3 * points[:, 1])
    values = values + 0.1 * torch.randn(number, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kernel = MaternGraphKernel(knn_graph(points, NEIGHBORS), nu=nu, kappa=10.0, normalize=True)
    model = Exact(torch.arange(number), values, kernel).double()
    losses = clock.time("training", lambda: train(model, STEPS))
    found = {"kappa": float(kernel.kappa), "noise": float(model.likelihood.noise)}
    return {**clock.row, "losses": losses, **found, "peak_gb": peak_gigabytes()}
