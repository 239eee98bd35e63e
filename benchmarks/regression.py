"""GP regression on real data with whole regions held out: RMSE, NLPD and times beside GPyTorch's own GPs.

    python -m benchmarks.regression [--quick] [--data ../shared/data/regression] [--out results/regression]

Every model gets the same standardised inputs (one lengthscale a dimension) and 60 steps of Adam (SVGP: 20 epochs or more), in a
process of its own. RMSE is in the units of the target; NLPD is that of the standardised target, noise included. The training
mean with the training variance stands first: what a model must beat. Without the data only a synthetic problem is run.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullLocator
from tqdm import tqdm

from benchmarks.regression_data import Problem, load
from benchmarks.regression_models import MODELS
from benchmarks.reporting import isolated, save_figure, write_report


def measure(name: str, problem: Problem) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    start = time.perf_counter()
    predict, detail = MODELS[name](problem)
    fitted = time.perf_counter()
    mean, variance = predict(problem.x_test)
    predicted = time.perf_counter()
    error = problem.y_test - mean
    nlpd = 0.5 * (np.log(2 * np.pi * variance) + error**2 / variance)
    return {
        "problem": problem.name,
        "model": name,
        "detail": detail,
        "rmse": float(np.sqrt(np.mean(error**2)) * problem.unit),
        "nlpd": float(nlpd.mean()),
        "covered": float(np.mean(np.abs(error) < 1.96 * np.sqrt(variance))),
        "fit": fitted - start,
        "predict": predicted - fitted,
    }


def draw(rows: list[dict[str, Any]], out: Path) -> None:
    problems = list(dict.fromkeys(row["problem"] for row in rows))
    figure, axes = plt.subplots(1, len(problems), figsize=(1 + 4 * len(problems), 4.4), squeeze=False, layout="constrained")
    for axis, problem in zip(axes[0], problems, strict=True):
        for number, name in enumerate(MODELS):
            row = next(row for row in rows if row["problem"] == problem and row["model"] == name)
            if name == "training mean":
                axis.axhline(row["rmse"], color="0.5", linestyle="--", label=name)
                continue
            marker = "o" if name.startswith("swing_gp") else "s"
            axis.plot(row["fit"] + row["predict"], row["rmse"], marker, color=f"C{number}", markersize=8, label=name)
        axis.loglog()
        for scale in (axis.xaxis, axis.yaxis):
            scale.set_major_locator(LogLocator(subs=(1, 2, 5)))
            scale.set_major_formatter(FormatStrFormatter("%g"))
            scale.set_minor_locator(NullLocator())
        axis.grid(alpha=0.3)
        axis.set_title(problem, fontsize=10)
        axis.set_xlabel("seconds to fit and predict")
    axes[0, 0].set_ylabel("RMSE on held-out inputs")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8)
    save_figure(figure, out / "regression.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the synthetic problem only")
    parser.add_argument("--data", type=Path, default=Path("../shared/data/regression"), help="a folder of .npz (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("results/regression"), help="where the results go (%(default)s)")
    arguments = parser.parse_args()
    problems = load(arguments.data)[: 1 if arguments.quick else None]
    work = [(name, problem) for problem in problems for name in MODELS]
    rows = [isolated(measure, *job) for job in tqdm(work, unit="model")]
    sizes = {problem.name: f"{len(problem.x):,} / {len(problem.x_test):,}" for problem in problems}
    header = ["problem", "train / test", "model", "RMSE", "NLPD", "covered by 95%", "fit s", "predict s"]
    lines = [
        [
            row["problem"],
            sizes[row["problem"]],
            row["model"] + (f" ({row['detail']})" if row["detail"] else ""),
            f"{row['rmse']:.3g}",
            f"{row['nlpd']:.3f}",
            f"{row['covered']:.1%}",
            f"{row['fit']:.1f}",
            f"{row['predict']:.2f}",
        ]
        for row in rows
    ]
    draw(rows, arguments.out)
    write_report(arguments.out, rows, header, lines)


if __name__ == "__main__":
    main()
