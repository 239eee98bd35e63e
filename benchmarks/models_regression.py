"""The regressor with its defaults beside its peers, on every problem of :mod:`benchmarks.models_data`."""

from __future__ import annotations

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

from benchmarks.models_data import REGRESSIONS
from benchmarks.peers_models import MODELS as PEERS
from benchmarks.peers_packages import installed
from benchmarks.regression_data import Problem
from benchmarks.regression_models import Exact, matern, svgp
from swing_gp import GraphGPRegressor

__all__ = ["regression"]

Outcome = tuple[np.ndarray, np.ndarray | None]  # means, and deviations of observations
# Rows that an exact GP is given at most.
SKLEARN, EXACT = 1000, 4000
# Neighbours of SciPy's thin plates, and steps of Adam.
RADIAL, STEPS = 64, 60
GEOMETRIC = "GeometricKernels heat, chosen graph"


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
    """GPyTorch's exact GP by Cholesky factors: 100 steps of Adam on up to 1,000 rows, then conditioned on up to 4,000."""
    torch.manual_seed(0)
    order = torch.randperm(len(problem.x))[:EXACT]
    x, y, at = (torch.from_numpy(part) for part in (problem.x[order], problem.y[order], problem.x_test))
    few = slice(0, SKLEARN)
    with gpytorch.settings.max_cholesky_size(EXACT + 1):
        model = Exact(x[few], y[few], matern(x.shape[1])).double()
        objective = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        model.train()
        for _ in range(100):
            optimizer.zero_grad()
            (-objective(model(x[few]), y[few])).backward()
            optimizer.step()
        model.set_train_data(x, y, strict=False)
        model.eval()
        with torch.no_grad():
            parts = [model.likelihood(model(part)) for part in at.split(2000)]
    mean, variance = (torch.cat([getattr(part, what) for part in parts]).numpy() for what in ("mean", "variance"))
    return mean, np.sqrt(variance)


def variational(problem: Problem, transductive: bool) -> Outcome:
    mean, variance = svgp(problem)[0](problem.x_test)
    return mean, np.sqrt(variance)


def radial(problem: Problem, transductive: bool) -> Outcome:
    """SciPy's: thin plates through the nearest values, with the smoothing that predicts a tenth of them best."""
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
    """GeometricKernels' heat kernel, on a graph of Gaussian weights between all inputs."""
    mean, variance = PEERS[GEOMETRIC].fit(problem, STEPS)()
    return mean, np.sqrt(variance)


def nearest(problem: Problem, transductive: bool) -> Outcome:
    return KNeighborsRegressor(1).fit(problem.x, problem.y).predict(problem.x_test), None


def mean(problem: Problem, transductive: bool) -> Outcome:
    return np.full(len(problem.x_test), problem.y.mean()), np.full(len(problem.x_test), problem.y.std())


# Models, and whether they can use the inputs of the test set.
MODELS: dict[str, tuple[Callable[[Problem, bool], Outcome], bool]] = {
    "GraphGPRegressor": (ours, True),
    f"scikit-learn GP, {SKLEARN:,} rows": (scikit_learn, False),
    f"GPyTorch exact, {EXACT:,} rows": (exact, False),
    "GPyTorch SVGP": (variational, False),
    "SciPy RBFInterpolator": (radial, False),
    GEOMETRIC: (geometric, True),
    "nearest": (nearest, False),
    "mean": (mean, False),
}
# What is run with --quick: two small problems, and no peer that takes long.
QUICK, SLOW = ("spiral", "closed curve"), ("GPyTorch SVGP",)


def regression(
    quick: bool, only: tuple[str, ...] = (), splits: int = 5
) -> tuple[list[dict[str, Any]], list[str], list[list[str]]]:
    results: list[dict[str, Any]] = []
    left_out = set() if "GeometricKernels" in installed() else {GEOMETRIC}
    for name, kind in REGRESSIONS.items():
        if (only and name not in only) or (quick and name not in QUICK):
            continue
        if kind.file is not None and not kind.file.exists():
            print(f"{kind.file} is not there, so {name} is left out.")
            continue
        rows: dict[str, list[tuple[float, float, float]]] = {}
        for seed in range(1 if quick or not kind.peers else splits):
            problem = kind.make(seed)
            for model, (run, _) in MODELS.items():
                if (quick and model in SLOW) or (not kind.peers and model not in ("GraphGPRegressor", "nearest", "mean")):
                    continue
                if model in left_out or (model == GEOMETRIC and not kind.transductive):
                    continue
                start = time.perf_counter()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    found, deviation = run(problem, kind.transductive)
                seconds = time.perf_counter() - start
                error = problem.y_test - found
                inside = np.nan if deviation is None else float(np.mean(np.abs(error) < 1.96 * deviation))
                rows.setdefault(model, []).append((float(np.sqrt(np.mean(error**2))) * problem.unit, inside, seconds))
                print(f"{name}, split {seed}: {model}: {rows[model][-1][0]:.4g}, {inside:.3f}, {seconds:.1f} s", flush=True)
        results += _judged(name, kind.transductive, rows)
    header = ["problem", "model", "test inputs", "RMSE", "deviation", "over the best peer", "covered by 95%", "s"]
    lines = [
        [r["problem"], r["model"], "seen" if r["test_inputs"] else "no", f"{np.mean(r['rmse']):.4g}",
         f"{np.std(r['rmse']):.2g}", r["verdict"], "" if r["coverage"] is None else f"{r['coverage']:.1%}",
         f"{r['seconds']:.1f}"]
        for r in results
    ]  # fmt: skip
    return results, header, lines


def _judged(name: str, transductive: bool, rows: dict[str, list[tuple[float, float, float]]]) -> list[dict[str, Any]]:
    """Means over the splits; how our error compares with that of the best peer, and the standard error of the difference."""
    errors = {model: np.array([each[0] for each in found]) for model, found in rows.items()}
    peers = {model: each.mean() for model, each in errors.items() if model != "GraphGPRegressor"}
    best = min(peers, key=lambda model: peers[model])
    difference = errors["GraphGPRegressor"] - errors[best]
    spread = float(difference.std(ddof=1) / len(difference) ** 0.5) if len(difference) > 1 else np.nan
    results = []
    for model, found in rows.items():
        ratio = errors[model].mean() / peers[best]
        verdict = f"{ratio:.2f}"
        if model == "GraphGPRegressor" and spread > 0:
            verdict += f" ({difference.mean() / spread:+.1f} standard errors)"
        coverage = float(np.mean([each[1] for each in found]))
        results.append(
            {"problem": name, "model": model, "test_inputs": transductive and MODELS[model][1], "rmse": errors[model].tolist(),
             "verdict": verdict, "coverage": None if np.isnan(coverage) else coverage,
             "seconds": float(np.mean([each[2] for each in found]))}
        )  # fmt: skip
    return results
