"""The models beside their peers: regression, interpolation, classification with few labels, and local Gaussian processes.

    python -m benchmarks.models [regression] [normals] [fields] [digits] [local] [--quick] [--out results/models]

regression: GraphGPRegressor with its defaults on real and generated data, five splits, the same for all: RMSE in the units of
the target, with its deviation over the splits; over that of the best peer, with the paired difference in standard errors; and
how many test values lie in 95% intervals, noise included. "Seen" says which models see the inputs of the test set. On the globe
whole regions are held out, of which 5,000 points are scored. The exact GPs are given parts of the larger sets, as named. With
--only and --splits a part of it is run. 100,000 rows in the plane are for the time: no exact peer, one split.

normals: mean cosines of `interpolate` with defaults at hidden vertices (80%), with standard errors over masks and seconds;
deviations are computed too. fields: RMSE of `interpolate` in gaps of a lattice, beside that of every family alone.

digits: scikit-learn's 1,797 pictures of 64 pixels, 100 and 20 labels, five stratified splits, the same for all. "All inputs"
says which models see the inputs of the test set. Shares of correct labels, with their deviation over the splits, the mean
log-loss, and the calibration error: how far the chance of the likeliest class is from the share of correct ones, over ten bins.

local: means and standard deviations of LocalGP at m = 64 among 100,000 known values in the plane, and how far they are from
those at m = 256.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpytorch.kernels import MaternKernel, ScaleKernel
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedShuffleSplit
from sklearn.neighbors import KNeighborsClassifier
from sklearn.semi_supervised import LabelSpreading

from benchmarks.models_nodes import fields, normals
from benchmarks.models_regression import regression
from benchmarks.reporting import machine_info, markdown_table, write_atomically
from swing_gp import GraphGPClassifier, LocalGP, Matern32
from swing_gp.gp.lbfgs import minimize_lbfgs
from swing_gp.models.dirichlet import DirichletGP, expected_softmax
from swing_gp.utils.memory import peak_gigabytes

# Classification with few labels: probabilities of the classes at the other inputs


def graph_gp(seen: np.ndarray, labels: np.ndarray, rest: np.ndarray) -> np.ndarray:
    return GraphGPClassifier().fit(seen, labels, X_unlabeled=rest).predict_proba(rest)


def graph_gp_inductive(seen: np.ndarray, labels: np.ndarray, rest: np.ndarray) -> np.ndarray:
    return GraphGPClassifier().fit(seen, labels).predict_proba(rest)


def plain_matern(seen: np.ndarray, labels: np.ndarray, rest: np.ndarray) -> np.ndarray:
    """The same likelihood with GPyTorch's Matérn-3/2 kernel on the pixels, from three lengthscales."""
    scale = np.sqrt(seen.var(0).sum())
    x, at = (torch.from_numpy(part / scale) for part in (seen, rest))
    found = []
    for lengthscale in (0.3, 1.0, 3.0):
        kernel = ScaleKernel(MaternKernel(1.5)).double()
        kernel.outputscale, kernel.base_kernel.lengthscale = 4.0, lengthscale
        model = DirichletGP(kernel, x, torch.from_numpy(labels), int(labels.max()) + 1, 0.01)
        found.append((minimize_lbfgs(model.loss, model), model))
    return expected_softmax(*min(found, key=lambda each: each[0])[1].latent(at), seed=0).numpy()


def label_spreading(seen: np.ndarray, labels: np.ndarray, rest: np.ndarray) -> np.ndarray:
    model = LabelSpreading(kernel="knn", n_neighbors=10, max_iter=200)
    model.fit(np.concatenate([seen, rest]), np.concatenate([labels, np.full(len(rest), -1)]))
    return model.label_distributions_[len(seen) :]


def nearest(seen: np.ndarray, labels: np.ndarray, rest: np.ndarray) -> np.ndarray:
    return KNeighborsClassifier(1).fit(seen, labels).predict_proba(rest)


CLASSIFIERS: dict[str, tuple[Callable[..., np.ndarray], bool]] = {
    "GraphGPClassifier": (graph_gp, True),
    "GraphGPClassifier, labelled inputs only": (graph_gp_inductive, False),
    "LabelSpreading (10 neighbours)": (label_spreading, True),
    "Matérn-3/2 GP": (plain_matern, False),
    "nearest label": (nearest, False),
}


def calibration_error(chances: np.ndarray, labels: np.ndarray) -> float:
    sure, right = chances.max(1), chances.argmax(1) == labels
    bins = np.digitize(sure, np.linspace(0, 1, 11))
    return float(sum(abs(right[bins == b].mean() - sure[bins == b].mean()) * (bins == b).mean() for b in np.unique(bins)))


def digits(quick: bool) -> tuple[list[dict[str, Any]], list[str], list[list[str]]]:
    x, y = load_digits(return_X_y=True)
    results = []
    for number in (100, 20):
        splits = StratifiedShuffleSplit(1 if quick else 5, train_size=number, random_state=0).split(x, y)
        parts = [(x[seen], y[seen], x[rest], y[rest]) for seen, rest in splits]
        for name, (model, transductive) in CLASSIFIERS.items():
            scores = []
            start = time.process_time()
            for seen, labels, rest, truth in parts:
                chances = model(seen, labels, rest)
                loss = log_loss(truth, np.clip(chances, 1e-6, 1))
                scores.append((np.mean(chances.argmax(1) == truth), loss, calibration_error(chances, truth)))
            seconds = (time.process_time() - start) / len(parts)
            correct, losses, errors = np.array(scores).T
            results.append(
                {"labels": number, "model": name, "all_inputs": transductive, "correct": correct.tolist(),
                 "log_loss": losses.tolist(), "calibration_error": errors.tolist(), "cpu_seconds": seconds}
            )  # fmt: skip
    header = ["labels", "model", "all inputs", "correct", "deviation", "log-loss", "calibration error", "CPU s"]
    lines = [
        [str(r["labels"]), r["model"], "yes" if r["all_inputs"] else "no", f"{np.mean(r['correct']):.3f}",
         f"{np.std(r['correct']):.3f}", f"{np.mean(r['log_loss']):.3f}", f"{np.mean(r['calibration_error']):.3f}",
         f"{r['cpu_seconds']:.1f}"]
        for r in results
    ]  # fmt: skip
    return results, header, lines


# Local Gaussian processes


def local(quick: bool) -> tuple[list[dict[str, Any]], list[str], list[list[str]]]:
    results = []
    predictions = 20_000 if quick else 1_000_000
    for dtype in (torch.float64, torch.float32):
        generator = torch.Generator().manual_seed(0)
        known, at = (torch.rand(number, 2, generator=generator, dtype=torch.float64) for number in (100_000, predictions))
        noise = 0.1 * torch.randn(len(known), generator=generator, dtype=torch.float64)
        y = torch.sin(20 * known[:, 0]) * torch.cos(15 * known[:, 1]) + noise
        start, wall = time.process_time(), time.perf_counter()
        model = LocalGP(Matern32(0.2), known.to(dtype), y.to(dtype), noise=0.01)
        found = model.predict(at.to(dtype))
        seconds = time.process_time() - start, time.perf_counter() - wall
        more = LocalGP(Matern32(0.2), known, y, noise=0.01, neighbors=256).predict(at[:2000])
        apart = [
            float((found.mean[:2000].double() - more.mean).square().mean().sqrt()),
            float((found.variance[:2000].double().sqrt() / more.variance.sqrt() - 1).abs().mean()),
        ]
        results.append(
            {"dtype": str(dtype), "predictions": predictions, "cpu_seconds": seconds[0], "seconds": seconds[1],
             "peak_gigabytes": peak_gigabytes(), "mean_apart": apart[0], "deviation_apart": apart[1]}
        )  # fmt: skip
    header = ["dtype", "predictions", "CPU s", "s", "GB", "means from m = 256, RMS", "deviations, relative"]
    lines = [
        [r["dtype"].removeprefix("torch."), f"{r['predictions']:,}", f"{r['cpu_seconds']:.0f}", f"{r['seconds']:.0f}",
         f"{r['peak_gigabytes']:.2f}", f"{r['mean_apart']:.4f}", f"{r['deviation_apart']:.3f}"]
        for r in results
    ]  # fmt: skip
    return results, header, lines


PROBLEMS = {"regression": regression, "normals": normals, "fields": fields, "digits": digits, "local": local}
# Those of which a part can be run.
IN_PARTS = ("regression", "normals", "fields")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*", metavar="PROBLEM", help=f"of {', '.join(PROBLEMS)} (all)")
    parser.add_argument("--quick", action="store_true", help="one split, two small regressions, 20,000 predictions")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="regressions, meshes or fields by name")
    parser.add_argument("--splits", type=int, default=5, help="of regressions, and masks of meshes (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("results") / "models", help="where the results go (%(default)s)")
    arguments = parser.parse_args()
    if unknown := set(arguments.problems) - set(PROBLEMS):
        parser.error(f"no problem {', '.join(sorted(unknown))}; there are {', '.join(PROBLEMS)}")
    warnings.simplefilter("ignore")  # peers that do not converge
    results, report = {}, []
    for name in arguments.problems or PROBLEMS:
        options = {"only": tuple(arguments.only), "splits": arguments.splits} if name in IN_PARTS else {}
        results[name], header, lines = PROBLEMS[name](arguments.quick, **options)
        report.append(f"## {name}\n\n{markdown_table(header, lines)}\n")
        print(report[-1], flush=True)

    content = {"machine": machine_info(), "results": results}
    write_atomically(arguments.out / "results.json", json.dumps(content, indent=1, allow_nan=False) + "\n")
    write_atomically(arguments.out / "report.md", "\n".join(report))


if __name__ == "__main__":
    main()
