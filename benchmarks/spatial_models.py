"""Methods that fill the gaps of a lattice: each gives means and variances of the hidden values, noise included."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.spatial
import torch
from torch import Tensor

from benchmarks.gps import svgp
from benchmarks.measuring import Row, clocked, scores
from benchmarks.spatial_data import Lattice
from swing_gp import Gaussian, ImplicitGraph, Matern, NeighborFeatures, graph_kernel
from swing_gp.graphs.inputs import nodes_of
from swing_gp.utils.memory import peak_gigabytes

__all__ = ["MODELS", "cg_steps", "measure"]

# Ours: a graph as short as the cells allow, its range from kappa; the noise on the scale of the kernel before its amplitude.
SPACINGS, CUTOFF, KAPPA, NOISE = 0.5, 1e-4, 87.0, 0.01
EPOCHS = 5  # passes of the variational GP over the data
NEIGHBORS = 20  # conditioning set of the Vecchia approximation

Prediction = tuple[np.ndarray, np.ndarray, dict[str, Any]]  # means, variances, remarks


def solver_of(problem: Lattice, nu: float) -> Any:
    """The posterior of all cells given the observed ones, in precision form."""
    points = torch.from_numpy(problem.cells)
    graph = ImplicitGraph(points, Gaussian(SPACINGS))
    features = NeighborFeatures(graph, cutoff=math.sqrt(-2 * math.log(CUTOFF)))
    kernel: Any = graph_kernel(graph, Matern(nu, KAPPA), features=features, tol=1e-3)
    seen = nodes_of(points, torch.arange(len(problem.observed)))
    noise = torch.tensor(NOISE, dtype=points.dtype)
    return kernel.covariance(seen, seen, None).add_diagonal(noise).solver()


def trend(solver: Any, values: Tensor) -> tuple[float, float, int]:
    """A constant mean by generalised least squares, the likeliest amplitude, and the steps of conjugate gradients."""
    found = solver.solve(torch.stack([values, torch.ones_like(values)], -1))
    weighted, one = found.solution.unbind(-1)
    mean = float(weighted.sum() / one.sum())
    return mean, float(((values - mean) * (weighted - mean * one)).mean()), found.report.steps


def ours(nu: float) -> Callable[[Lattice], Prediction]:
    def fill(problem: Lattice) -> Prediction:
        start = time.perf_counter()
        solver, values, number = solver_of(problem, nu), torch.from_numpy(problem.observed), len(problem.observed)
        mean, amplitude, steps = trend(solver, values)
        filled = solver.condition((values - mean).unsqueeze(-1))[0].squeeze(-1) + mean
        half = time.perf_counter() - start
        variance, _ = solver.variances()
        remarks = {"amplitude": amplitude, "steps": steps, "seconds_of_mean": half}
        return filled[number:].numpy(), amplitude * (variance[number:] + NOISE).numpy(), remarks

    return fill


def cg_steps(problem: Lattice, nu: float) -> Row:
    """Steps of conjugate gradients for the observed values and a constant, on a quarter of the lattice and on all of it."""
    parts = {"quarter": problem.quarter(), "whole": problem}
    return {name: trend(solver_of(part, nu), torch.from_numpy(part.observed))[2] for name, part in parts.items()}


def gpboost_vecchia(problem: Lattice) -> Prediction:
    """A Matern-3/2 field with a constant mean, all parameters by likelihood."""
    import gpboost

    number = len(problem.observed)
    model = gpboost.GPModel(
        gp_coords=problem.seen,
        cov_function="matern",
        cov_fct_shape=1.5,
        gp_approx="vecchia",
        num_neighbors=NEIGHBORS,
        likelihood="gaussian",
        seed=0,
    )
    model.fit(y=problem.observed, X=np.ones((number, 1)))
    hidden = np.ones((len(problem.hidden), 1))
    found = model.predict(gp_coords_pred=problem.unseen, X_pred=hidden, predict_var=True, predict_response=True)
    return found["mu"], found["var"], {}


def variational(problem: Lattice) -> Prediction:
    scale, centre, unit = problem.cells.max() / 2, problem.observed.mean(), problem.observed.std()
    seen, hidden = (part / scale - 1 for part in (problem.seen, problem.unseen))
    mean, variance = svgp(seen, (problem.observed - centre) / unit, hidden, EPOCHS, lengthscale=0.1)
    return mean * unit + centre, variance * unit**2, {}


def nearest(problem: Lattice) -> Prediction:
    """Predict the nearest observed value, with the variance of differences of observed values at that distance."""
    tree, rng = scipy.spatial.cKDTree(problem.seen), np.random.default_rng(0)
    distance, index = tree.query(problem.unseen)
    one, angle = rng.integers(len(problem.seen), size=len(distance)), rng.uniform(0, 2 * np.pi, len(distance))
    moved = problem.seen[one] + distance[:, None] * np.stack([np.cos(angle), np.sin(angle)], -1)
    squares = (problem.observed[one] - problem.observed[tree.query(moved)[1]]) ** 2
    return problem.observed[index], np.full(len(distance), squares.mean()), {}


def mean_only(problem: Lattice) -> Prediction:
    number = len(problem.hidden)
    return np.full(number, problem.observed.mean()), np.full(number, problem.observed.var()), {}


MODELS: dict[str, Callable[[Lattice], Prediction]] = {
    "swing_gp, nu = 1.5": ours(1.5),
    "swing_gp, nu = 1": ours(1.0),
    "swing_gp, nu = 2": ours(2.0),
    "GPBoost, Vecchia, Matern-3/2": gpboost_vecchia,
    "GPyTorch SVGP, Matern-3/2": variational,
    "nearest neighbour": nearest,
    "training mean": mean_only,
}


def measure(name: str, problem: Lattice) -> Row:
    (mean, variance, remarks), spent = clocked(lambda: MODELS[name](problem))
    return {**scores(problem.hidden, mean, variance), **spent, "peak_gb": peak_gigabytes(), **remarks}
