"""The models beside their peers: regression, interpolation, classification with few labels, and local Gaussian processes.

    python -m benchmarks.models [--part regression normals fields digits local] [--quick] [--out results/models]

regression: GraphGPRegressor with its defaults on real and generated data, five splits, the same for all: RMSE in the units of
the target, with its deviation over the splits; over that of the best peer, with the paired difference in standard errors; and
the share of test values in 95% intervals, noise included. "Seen" marks models that see the inputs of the test set. On the globe
whole regions are held out, of which 5,000 points are scored. The exact GPs are given parts of the larger sets, as named. With
--only and --splits a part of it is run. 100,000 rows in the plane are for the time: no exact peer, one split.

normals: mean cosines of `interpolate` with defaults at hidden vertices (80%), with standard errors over masks and seconds;
deviations are computed too. fields: RMSE of `interpolate` in gaps of a lattice, beside that of every family alone.

digits: scikit-learn's 1,797 pictures of 64 pixels, 100 and 20 labels, stratified splits, the same for all. "All inputs"
marks models that see the inputs of the test set. Shares of correct labels, with their deviation over the splits, the mean
log-loss, and the calibration error: the difference of the probability of the likeliest class and its frequency, in ten bins.

local: means and standard deviations of LocalGP at m = 64 among 100,000 known values in the plane, and their differences
from those at m = 256.

Every entry is measured in a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks import models_labels, models_nodes, models_regression
from benchmarks.measuring import Row, clocked
from benchmarks.reporting import table
from benchmarks.runner import Job, Run
from swing_gp import LocalGP, Matern32
from swing_gp.utils.memory import peak_gigabytes


def measure_local(dtype: str, predictions: int) -> Row:
    generator = torch.Generator().manual_seed(0)
    known, at = (torch.rand(number, 2, generator=generator, dtype=torch.float64) for number in (100_000, predictions))
    noise = 0.1 * torch.randn(len(known), generator=generator, dtype=torch.float64)
    y = torch.sin(20 * known[:, 0]) * torch.cos(15 * known[:, 1]) + noise
    x, values, places = (part.to(getattr(torch, dtype)) for part in (known, y, at))
    found, spent = clocked(lambda: LocalGP(Matern32(0.2), x, values, noise=0.01).predict(places))
    more = LocalGP(Matern32(0.2), known, y, noise=0.01, neighbors=256).predict(at[:2000])
    apart = (found.mean[:2000].double() - more.mean).square().mean().sqrt()
    deviations = (found.variance[:2000].double().sqrt() / more.variance.sqrt() - 1).abs().mean()
    return {**spent, "peak_gb": peak_gigabytes(), "mean_apart": float(apart), "deviation_apart": float(deviations)}


def local_jobs(run: Run) -> list[Job]:
    number = 20_000 if run.quick else 1_000_000
    rows = [{"dtype": dtype, "predictions": number} for dtype in ("float64", "float32")]
    return [Job("local", row, measure_local, row["dtype"], number) for row in rows]


def local_report(rows: list[Row]) -> str:
    return table(rows, {
        "dtype": "dtype", "predictions": ("predictions", ","), "CPU s": ("cpu", ".0f"), "s": ("seconds", ".0f"),
        "GB": ("peak_gb", ".2f"), "means from m = 256, RMS": ("mean_apart", ".4f"),
        "deviations, relative": ("deviation_apart", ".3f"),
    })  # fmt: skip


PARTS: dict[str, tuple[Callable[[Run], list[Job]], Callable[[list[Row]], str]]] = {
    "regression": (models_regression.jobs, models_regression.report),
    "normals": (models_nodes.normal_jobs, models_nodes.normal_report),
    "fields": (models_nodes.field_jobs, models_nodes.field_report),
    "digits": (models_labels.jobs, models_labels.report),
    "local": (local_jobs, local_report),
}


def main() -> None:
    options: dict[str, dict[str, Any]] = {
        "part": {"nargs": "+", "choices": list(PARTS), "default": list(PARTS), "help": "what to run (all)"},
        "only": {"nargs": "+", "default": [], "metavar": "NAME", "help": "regressions, meshes or fields by name"},
        "splits": {"type": int, "default": 5, "help": "of regressions and labels (%(default)s)"},
    }
    with Run(__doc__, "models", quick="one split, two small regressions, 20,000 predictions", **options) as run:
        parts = []
        for part in run.given.part:
            jobs, report = PARTS[part]
            run.measure(jobs(run))
            if run.rows(part):
                parts += [f"## {part}", report(run.rows(part))]
        run.report(*parts)


if __name__ == "__main__":
    main()
