"""W v and K v against N, beside KeOps and dense matrices with expm_multiply and Lanczos.

    python -m benchmarks.scaling [--quick] [--clouds NAME ...] [--out results/scaling]

K is the diffusion kernel exp(-5 (I - W~)) of the symmetric normalisation, the points are float32 (KeOps is at its best
there), every method is asked for a relative error of 1e-5, and each runs in a process of its own, so that its peak memory is
its own (Python and its libraries, about 0.3 GB, included). Errors are relative and measured on a random Gaussian v: up to
10,000 nodes against exact products in float64; above, W v on 64 exact rows and K v against our own tightest route, which is
named. Beside them stands the error of the trivial guess K v = alpha_0 v. Peers get the sizes they finish in minutes.
"""

from __future__ import annotations

import importlib.util
import tempfile
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from benchmarks.measuring import Row, attempted
from benchmarks.plotting import curves, save_figure, tidy
from benchmarks.reporting import table
from benchmarks.runner import Job, Run
from benchmarks.scaling_runs import MOST_KERNEL, OURS, Case, measure, reference

CLOUDS = ("cube 0.1", "cube 0.3", "paper", "surface")
PRODUCTS = 10
HEADLINE = {  # the picture of the README: who applies the same kernel to the same accuracy
    "auto": {"label": "swing_gp", "color": "black"},
    "KeOps + Lanczos": {"color": "#d62728", "marker": "v"},
    "dense + Lanczos": {"color": "#8c564b", "marker": "s"},
}


def methods(case: Case, quick: bool) -> list[str]:
    """List the methods: ours everywhere; peers, whose time does not depend on the cloud, at sizes they finish in minutes."""
    one = case.cloud == "cube 0.1"
    if case.tol == 1e-4:
        return ["grid"]
    if case.number > 100_000 or (case.number > 10_000 and not one) or (quick and case.number > 1_000 and not one):
        return list(OURS)
    matrices = ["dense"] if importlib.util.find_spec("pykeops") is None else ["KeOps", "dense"]
    if case.number > MOST_KERNEL:  # W v alone
        return [*OURS, *(["KeOps + expm_multiply"] if "KeOps" in matrices else [])]
    return [*OURS, *(f"{matrix} + {solver}" for solver in ("expm_multiply", "Lanczos") for matrix in matrices)]


# The report


def total(row: Row) -> float:
    """Seconds of set-up and ten products."""
    return row["setup"] + PRODUCTS * row["kv"]


def case_table(rows: list[Row]) -> str:
    auto = next((row for row in rows if row["method"] == "auto"), {})
    columns: dict[str, Any] = {
        "method": lambda row: f"auto: {row['took']}" if row["method"] == "auto" and "took" in row else row["method"],
        "set-up s": ("setup", ".2g"),
        "W v s": ("wv", ".2g"),
        "K v s": ("kv", ".2g"),
        "set-up + 10 K v, over auto's": lambda row: f"{total(row) / total(auto):.2g}",
        "peak GB": ("peak_gb", ".2g"),
        "error W v": ("error_w", ".1e"),
        "error K v": ("error_k", ".1e"),
    }
    guess = {"method": "alpha_0 v", "error_k": rows[0].get("trivial")}
    truth = rows[0].get("reference") or "none that could be afforded"
    return f"{table([*rows, guess], columns)}\n\nTruth of K v: {truth}."


def report(rows: list[Row]) -> list[str]:
    loose = [row for row in rows if row["tol"] == 1e-4]
    groups = groupby((row for row in rows if row not in loose), key=lambda row: (row["cloud"], row["number"]))
    found = {case: list(mine) for case, mine in groups}
    parts = ["# Scaling: W v and K v against N"]
    if loose:  # how a kernel product and the set-up compare with one W v
        columns: dict[str, Any] = {
            "nodes": ("number", ","),
            "K v / W v": lambda row: f"{row['kv'] / row['wv']:.2f}",
            "set-up / W v": lambda row: f"{row['setup'] / row['wv']:.2f}",
            "peak GB": ("peak_gb", ".2f"),
            "error K v": ("error_k", ".1e"),
        }
        parts += ["## Unit cube, lengthscale 0.1, tolerance 1e-4", table(loose, columns)]
    for (cloud, size), mine in found.items():
        parts += [f"## {cloud}, N = {size:,}", case_table(mine)]
    return parts


def draw(rows: list[Row], path: Path) -> None:
    """Draw time and memory in the unit cube at lengthscale 0.1, for the methods of :data:`HEADLINE`."""
    mine = [row for row in rows if row["cloud"] == "cube 0.1" and row["tol"] != 1e-4 and row.get("kv") is not None]
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    curves(axes[0], mine, "number", total, HEADLINE)
    curves(axes[1], mine, "number", "peak_gb", HEADLINE)
    tidy(axes[0], xlabel="nodes", ylabel="set-up and ten products, seconds")
    tidy(axes[1], xlabel="nodes", ylabel="peak memory, GB", ylim=(0.1, 10))
    axes[0].legend(frameon=False, loc="upper right")
    save_figure(figure, path, dpi=100)


def main() -> None:
    clouds: dict[str, Any] = {"nargs": "+", "choices": CLOUDS, "default": CLOUDS, "help": "clouds to measure (all)"}
    with Run(__doc__, "scaling", quick="up to 10,000 nodes: about three minutes", clouds=clouds) as run:
        if importlib.util.find_spec("pykeops") is None:
            print("pykeops is not installed, so KeOps is left out: pip install pykeops")
        sizes = (1_000, 10_000) if run.quick else (1_000, 3_000, 10_000, 100_000, 1_000_000)
        work = [Case(cloud, number) for cloud in run.given.clouds for number in sizes]
        if not run.quick and "cube 0.1" in run.given.clouds:  # the figures at a million nodes are for a tolerance of 1e-4
            work += [Case("cube 0.1", number, 1e-4) for number in (100_000, 1_000_000)]
        for case in work:
            with tempfile.TemporaryDirectory() as folder:
                path = f"{folder}/truth.pt"
                about = {**asdict(case), **attempted(reference, case, path)}
                names = methods(case, run.quick)
                run.measure([Job("rows", {"method": name, **about}, measure, case, name, path) for name in names])
        run.report(*report(run.rows("rows")))
        draw(run.rows("rows"), run.out / "headline.png")


if __name__ == "__main__":
    main()
