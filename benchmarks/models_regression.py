"""The regressor with its defaults beside its peers, on every problem of :mod:`benchmarks.models_data`."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable
from typing import Any

import gpytorch
import numpy as np
import torch
from scipy.interpolate import RBFInterpolator
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
from sklearn.neighbors import KNeighborsRegressor

from benchmarks.gps import Exact, matern, predict, svgp, train
from benchmarks.measuring import Row
from benchmarks.models_data import REGRESSIONS, Problem
from benchmarks.peers_packages import heat_kernel_of, installed
from benchmarks.reporting import table
from benchmarks.runner import Job, Run
from swing_gp import Gaussian, GraphGPRegressor
from swing_gp.graphs.spacing import neighbor_distance
from swing_gp.utils.memory import peak_gigabytes

__all__ = ["jobs", "report"]

Outcome = tuple[np.ndarray, np.ndarray | None]  # means, and deviations of observations
# Rows that an exact GP is given at most; steps of Adam, and epochs.
SKLEARN, EXACT, STEPS, EPOCHS = 1000, 4000, 100, 20
# Neighbours of SciPy's radial functions, and of the graph for GeometricKernels; its steps, and its initial time.
RADIAL, NEIGHBORS, HEAT_STEPS, TIME = 64, 10, 60, 100.0


def ours(problem: Problem, transductive: bool) -> Outcome:
    model = GraphGPRegressor().fit(problem.x, problem.y, X_unlabeled=problem.x_test if transductive else None)
    mean, deviation = model.predict(problem.x_test, return_std=True)
    return mean, np.hypot(deviation, model.noise_)


def scikit_learn(problem: Problem, transductive: bool) -> Outcome:
    rows = np.random.default_rng(0).permutation(len(problem.x))[:SKLEARN]
    kernel = ConstantKernel() * Matern(np.ones(problem.x.shape[1]), (1e-3, 1e3), nu=1.5) + WhiteKernel(0.1, (1e-6, 10))
    model = GaussianProcessRegressor(kernel, normalize_y=True).fit(problem.x[rows], problem.y[rows])
    return model.predict(problem.x_test, return_std=True)


def exact(problem: Problem, transductive: bool) -> Outcome:
    """Predict by GPyTorch's exact GP with Cholesky factors: Adam on up to 1,000 rows, then conditioned on up to 4,000."""
    torch.manual_seed(0)
    order = torch.randperm(len(problem.x))[:EXACT]
    x, y, at = (torch.from_numpy(part) for part in (problem.x[order], problem.y[order], problem.x_test))
    with gpytorch.settings.max_cholesky_size(EXACT + 1):
        model = Exact(x[:SKLEARN], y[:SKLEARN], matern(x.shape[1])).double()
        train(model, STEPS)
        model.set_train_data(x, y, strict=False)
        mean, variance = predict(model, model.likelihood, at)
    return mean, np.sqrt(variance)


def variational(problem: Problem, transductive: bool) -> Outcome:
    mean, variance = svgp(problem.x, problem.y, problem.x_test, EPOCHS)
    return mean, np.sqrt(variance)


def radial(problem: Problem, transductive: bool) -> Outcome:
    """Predict by SciPy's thin plates through the nearest values, with the smoothing that predicts a tenth of them best."""
    order, number = np.random.default_rng(0).permutation(len(problem.x)), max(1, len(problem.x) // 10)
    held, kept, dim = order[:number][:2000], order[number:], problem.x.shape[1]
    # With a linear trend, which wants more neighbours than coefficients; without one in many dimensions.
    words = {"kernel": "thin_plate_spline", "degree": 1} if 2 * (dim + 1) < len(kept) else {"kernel": "linear", "degree": 0}

    def made(rows: np.ndarray, smoothing: float) -> RBFInterpolator:
        near = min(len(rows), RADIAL)
        return RBFInterpolator(problem.x[rows], problem.y[rows], neighbors=near, smoothing=smoothing, **words)

    def missed(smoothing: float) -> float:
        try:
            return float(np.mean((made(kept, smoothing)(problem.x[held]) - problem.y[held]) ** 2))
        except np.linalg.LinAlgError:  # the same place twice, without smoothing
            return np.inf

    return made(np.arange(len(problem.x)), min((0.0, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0), key=missed))(problem.x_test), None


def geometric(problem: Problem, transductive: bool) -> Outcome:
    """Predict by GeometricKernels' heat kernel on a graph of Gaussian weights between all inputs. The graph is not learnt: its
    lengthscale is the median distance to the tenth neighbour, or one that half a percent of all pairs are closer than."""
    torch.manual_seed(0)
    points = torch.from_numpy(np.concatenate([problem.x, problem.x_test]))
    lengthscale = neighbor_distance(points.numpy(), max(NEIGHBORS, int(0.005 * len(points))))
    heat = heat_kernel_of(Gaussian(lengthscale).weights(points, points), None, normalize=True)
    from geometric_kernels.frontends.gpytorch import GPyTorchGeometricKernel

    logarithmic = gpytorch.constraints.Positive(transform=torch.exp, inv_transform=torch.log)  # times of any size
    kernel = GPyTorchGeometricKernel(heat, lengthscale=(2 * TIME) ** 0.5, nu=float("inf"), lengthscale_constraint=logarithmic)
    ids, seen = torch.arange(len(points), dtype=torch.float64).unsqueeze(-1), len(problem.x)
    model = Exact(ids[:seen], torch.from_numpy(problem.y), kernel).double()
    model.likelihood.noise = 0.1
    with gpytorch.settings.max_cholesky_size(EXACT + 1):
        train(model, HEAT_STEPS)
        mean, variance = predict(model, model.likelihood, ids[seen:])
    return mean, np.sqrt(variance)


def nearest(problem: Problem, transductive: bool) -> Outcome:
    return KNeighborsRegressor(1).fit(problem.x, problem.y).predict(problem.x_test), None


def mean(problem: Problem, transductive: bool) -> Outcome:
    return np.full(len(problem.x_test), problem.y.mean()), np.full(len(problem.x_test), problem.y.std())


OURS, GEOMETRIC = "GraphGPRegressor", "GeometricKernels heat, given graph"
# Models, and True if they use the inputs of the test set when allowed.
MODELS: dict[str, tuple[Callable[[Problem, bool], Outcome], bool]] = {
    OURS: (ours, True),
    f"scikit-learn GP, {SKLEARN:,} rows": (scikit_learn, False),
    f"GPyTorch exact, {EXACT:,} rows": (exact, False),
    "GPyTorch SVGP": (variational, False),
    "SciPy RBFInterpolator": (radial, False),
    GEOMETRIC: (geometric, True),
    "nearest": (nearest, False),
    "mean": (mean, False),
}
# The run with --quick: two small problems, without slow peers.
QUICK, SLOW = ("spiral", "closed curve"), ("GPyTorch SVGP",)


def measure(name: str, model: str, seed: int) -> Row:
    warnings.simplefilter("ignore")
    logging.disable(logging.INFO)
    kind = REGRESSIONS[name]
    problem = kind.make(seed)
    start = time.perf_counter()
    found, deviation = MODELS[model][0](problem, kind.transductive)
    seconds = time.perf_counter() - start
    error = problem.y_test - found
    inside = None if deviation is None else float(np.mean(np.abs(error) < 1.96 * deviation))
    rmse = problem.unit * float(np.sqrt(np.mean(error**2)))
    return {"rmse": rmse, "coverage": inside, "seconds": seconds, "peak_gb": peak_gigabytes()}


def jobs(run: Run) -> list[Job]:
    missing = set() if "GeometricKernels" in installed() else {GEOMETRIC}
    found = []
    for name, kind in REGRESSIONS.items():
        if (run.given.only and name not in run.given.only) or (run.quick and name not in QUICK):
            continue
        if kind.file is not None and not kind.file.exists():
            print(f"{kind.file} is not there, so {name} is left out.")
            continue
        models = [model for model in MODELS if model not in missing and not (run.quick and model in SLOW)]
        models = [model for model in models if kind.transductive or model != GEOMETRIC]
        models = models if kind.peers else [OURS, "nearest", "mean"]
        for seed in range(1 if run.quick or not kind.peers else run.given.splits):
            about = [{"problem": name, "model": model, "split": seed} for model in models]
            found += [Job("regression", row, measure, name, row["model"], seed) for row in about]
    return found


def report(rows: list[Row]) -> str:
    """Report means over the splits, the ratio of our error to that of the best peer, and the error of their difference."""
    lines = []
    for name in dict.fromkeys(row["problem"] for row in rows):
        mine = [row for row in rows if row["problem"] == name and "failed" not in row]
        by_model = {model: [row for row in mine if row["model"] == model] for model in dict.fromkeys(r["model"] for r in mine)}
        errors = {model: np.array([row["rmse"] for row in each]) for model, each in by_model.items()}
        best = min((model for model in errors if model != OURS), key=lambda model: errors[model].mean())
        for model, each in by_model.items():
            verdict = f"{errors[model].mean() / errors[best].mean():.2f}"
            if model == OURS and len(errors[OURS]) == len(errors[best]) > 1:
                difference = errors[OURS] - errors[best]
                verdict += f" ({difference.mean() / difference.std(ddof=1) * len(difference) ** 0.5:+.1f} standard errors)"
            inside = [row["coverage"] for row in each if row["coverage"] is not None]
            lines.append({
                "problem": name, "model": model, "splits": len(each), "rmse": errors[model].mean(),
                "deviation": errors[model].std(), "verdict": verdict, "covered": np.mean(inside) if inside else None,
                "seen": "seen" if REGRESSIONS[name].transductive and MODELS[model][1] else "no",
                "seconds": np.mean([row["seconds"] for row in each]), "peak_gb": max(row["peak_gb"] for row in each),
            })  # fmt: skip
    columns: dict[str, Any] = {
        "problem": "problem", "model": "model", "test inputs": "seen", "splits": "splits", "RMSE": ("rmse", ".4g"),
        "deviation": ("deviation", ".2g"), "over the best peer": "verdict", "covered by 95%": ("covered", ".1%"),
        "s": ("seconds", ".1f"), "GB": ("peak_gb", ".1f"),
    }  # fmt: skip
    return table(lines, columns)
