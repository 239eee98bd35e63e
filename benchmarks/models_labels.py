"""Classification with few labels: probabilities of the classes of all other pictures of digits."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

import numpy as np
import torch
from gpytorch.kernels import MaternKernel, ScaleKernel
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedShuffleSplit
from sklearn.neighbors import KNeighborsClassifier
from sklearn.semi_supervised import LabelSpreading

from benchmarks.measuring import Row
from benchmarks.reporting import table
from benchmarks.runner import Job, Run
from swing_gp import GraphGPClassifier
from swing_gp.gp.lbfgs import minimize_lbfgs
from swing_gp.models.dirichlet import DirichletGP, expected_softmax

__all__ = ["CLASSIFIERS", "jobs", "report"]


def graph_gp(seen: np.ndarray, labels: np.ndarray, rest: np.ndarray) -> np.ndarray:
    return GraphGPClassifier().fit(seen, labels, X_unlabeled=rest).predict_proba(rest)


def graph_gp_inductive(seen: np.ndarray, labels: np.ndarray, rest: np.ndarray) -> np.ndarray:
    return GraphGPClassifier().fit(seen, labels).predict_proba(rest)


def plain_matern(seen: np.ndarray, labels: np.ndarray, rest: np.ndarray) -> np.ndarray:
    """Classify with GPyTorch's Matérn-3/2 kernel on the pixels and our likelihood, from three initial lengthscales."""
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


# Models, and True if they see the inputs of the test set.
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


def measure(number: int, model: str, split: int) -> Row:
    warnings.simplefilter("ignore")
    x, y = load_digits(return_X_y=True)
    seen, rest = list(StratifiedShuffleSplit(split + 1, train_size=number, random_state=0).split(x, y))[split]
    start = time.process_time()
    chances = CLASSIFIERS[model][0](x[seen], y[seen], x[rest])
    seconds = time.process_time() - start
    loss = float(log_loss(y[rest], np.clip(chances, 1e-6, 1)))
    correct = float(np.mean(chances.argmax(1) == y[rest]))
    return {"correct": correct, "log_loss": loss, "calibration": calibration_error(chances, y[rest]), "cpu": seconds}


def jobs(run: Run) -> list[Job]:
    rows = [{"labels": number, "model": model, "split": split} for number in (100, 20) for model in CLASSIFIERS
            for split in range(1 if run.quick else run.given.splits)]  # fmt: skip
    return [Job("digits", row, measure, row["labels"], row["model"], row["split"]) for row in rows]


def report(rows: list[Row]) -> str:
    lines = []
    for labels, model in dict.fromkeys((row["labels"], row["model"]) for row in rows):
        mine = [row for row in rows if (row["labels"], row["model"]) == (labels, model) and "failed" not in row]
        means = {name: np.mean([row[name] for row in mine]) for name in ("correct", "log_loss", "calibration", "cpu")}
        deviation = np.std([row["correct"] for row in mine])
        seen = "yes" if CLASSIFIERS[model][1] else "no"
        lines.append({"labels": labels, "model": model, "seen": seen, "deviation": deviation, "splits": len(mine), **means})
    return table(lines, {
        "labels": "labels", "model": "model", "all inputs": "seen", "splits": "splits", "correct": ("correct", ".3f"),
        "deviation": ("deviation", ".3f"), "log-loss": ("log_loss", ".3f"), "calibration error": ("calibration", ".3f"),
        "CPU s": ("cpu", ".1f"),
    })  # fmt: skip
