"""Tables and pictures of :mod:`benchmarks.peers`, from its results file alone; of an interrupted run too.

python -m benchmarks.peers_report results/peers
"""

from __future__ import annotations

import json
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullLocator

from benchmarks.peers_models import REFERENCE
from benchmarks.peers_packages import PACKAGES
from benchmarks.peers_problems import spiral
from benchmarks.peers_products import CLOUDS
from benchmarks.reporting import markdown_table, save_figure, write_atomically
from benchmarks.scaling_runs import TOL

__all__ = ["report"]

AUTO, MEAN = "swing_gp, auto", "training mean"
PRODUCTS = 10
# A method counts as meeting the tolerance up to this multiple of it.
SLACK = 10
# A model is as accurate as another up to this ratio of their errors.
AS_GOOD = 1.02
STYLES = {
    "swing_gp, auto": ("black", "o"),
    "swing_gp, landmarks": ("C1", "^"),
    "swing_gp, GRF on our list": ("C9", "P"),
    "GeometricKernels": ("C3", "s"),
    "fast-graph-gp": ("C2", "v"),
    "KeOps + Lanczos": ("C4", "D"),
    "dense + Lanczos": ("0.55", "X"),
    "PyGSP": ("C6", ">"),
    "list + SciPy": ("C5", "<"),
}

Row = dict[str, Any]


def total(row: Row) -> float:
    """Set-up and ten products."""
    return row["setup"] + PRODUCTS * row["kv"]


def short(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}"


def product_table(rows: list[Row]) -> str:
    auto = next((row for row in rows if row["method"] == AUTO and "failed" not in row), None)
    header = ["method", "set-up s", "K v s", "set-up + 10 K v, over auto's", "peak GB", "relative error"]
    lines = []
    for row in rows:
        if "failed" in row:
            lines.append([row["method"], "-", "-", "-", "-", row["failed"]])
            continue
        ratio = None if auto is None else total(row) / total(auto)
        numbers = [short(value) for value in (row["setup"], row["kv"], ratio, row["peak_gb"])]
        lines.append([row["method"], *numbers, f"{row['error']:.1e}"])
    lines.append(["the guess alpha_0 v", "-", "-", "-", "-", f"{rows[0]['trivial']:.1e}" if "trivial" in rows[0] else "-"])
    return markdown_table(header, lines) + f"\n\nTruth: {rows[0].get('reference', 'none')}."


def regression_table(rows: list[Row]) -> str:
    ours = next((row for row in rows if row["method"] == REFERENCE and "failed" not in row), None)
    header = ["model", "set-up s", "step s", "predict s", "total s", "over ours", "peak GB", "RMSE", "NLPD", "covered by 95%"]
    lines = []
    for row in rows:
        if "failed" in row:
            lines.append([row["method"], *["-"] * 8, row["failed"]])
            continue
        times = ["-"] * 5 + [short(row["peak_gb"])]
        if row["method"] != MEAN:
            ratio = None if ours is None else row["total"] / ours["total"]
            seconds = [row[key] for key in ("setup", "step", "predict", "total")]
            times = [short(value) for value in (*seconds, ratio, row["peak_gb"])]
        lines.append([row["method"], *times, f"{row['rmse']:.3g}", f"{row['nlpd']:.3f}", f"{row['covered']:.0%}"])
    return markdown_table(header, lines)


def product_wins(rows: list[Row]) -> list[str]:
    """Where a method that is not ours meets the tolerance in less time."""
    usable = [row for row in rows if "failed" not in row and row["error"] <= SLACK * TOL]
    auto = next((row for row in usable if row["method"] == AUTO), None)
    if auto is None:
        return []
    faster = [row for row in usable if not row["method"].startswith("swing_gp") and total(row) < total(auto)]
    return [
        f"- {row['cloud']}, {row['number']:,} nodes: {row['method']} takes {total(row) / total(auto):.2f} of auto's time"
        for row in sorted(faster, key=total)
    ]


def regression_wins(rows: list[Row]) -> list[str]:
    """Where a model that is not ours has a lower error than one of ours in less time, or than all of ours in any time."""
    usable = [row for row in rows if "failed" not in row and row["method"] != MEAN]
    ours = [row for row in usable if row["method"].startswith("swing_gp")]
    lines = []
    for row in (row for row in usable if row not in ours):
        beaten = [own for own in ours if row["rmse"] <= AS_GOOD * own["rmse"] and row["total"] < own["total"]]
        what = f"- {row['problem']}: {row['method']} (RMSE {row['rmse']:.3g}, {row['total']:.2g} s) "
        if ours and all(row["rmse"] < own["rmse"] for own in ours):
            best = min(ours, key=lambda own: own["rmse"])
            lines.append(what + f"is more accurate than all of ours (best {best['rmse']:.3g}, {best['total']:.2g} s)")
        elif beaten:
            names = ", ".join(f"{own['method'].removeprefix('swing_gp ')} ({own['total']:.2g} s)" for own in beaten)
            lines.append(what + f"is as accurate as and faster than our {names}")
    return lines


def draw_products(rows: list[Row], path: Path) -> None:
    """Time against error; a line joins the sizes of a method."""
    clouds = [cloud for cloud in CLOUDS if any(row["cloud"] == cloud for row in rows)]
    size = (1 + 4.2 * len(clouds), 5)
    figure, axes = plt.subplots(1, len(clouds), figsize=size, squeeze=False, sharey=True, layout="constrained")
    for axis, cloud in zip(axes[0], clouds, strict=True):
        for method, (color, marker) in STYLES.items():
            mine = [row for row in rows if (row["cloud"], row["method"]) == (cloud, method) and "failed" not in row]
            times, errors = [total(row) for row in mine], [row["error"] for row in mine]
            axis.plot(times, errors, color=color, marker=marker, linewidth=1, markersize=7, label=method)
            for row in mine:
                label = f"{row['number'] // 1000}k"
                axis.annotate(label, (total(row), row["error"]), (4, 4), textcoords="offset points", fontsize=7, color=color)
        trivial = [row["trivial"] for row in rows if row["cloud"] == cloud and "trivial" in row]
        if trivial:
            axis.axhspan(0.9 * min(trivial), 1.1 * max(trivial), color="0.8", zorder=0, label="the guess $\\alpha_0 v$")
        axis.loglog()
        axis.grid(alpha=0.3)
        axis.set(title=cloud, xlabel=f"seconds: set-up and {PRODUCTS} products")
    axes[0, 0].set_ylabel("relative error of K v")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=8)
    save_figure(figure, path)


def draw_regressions(rows: list[Row], path: Path) -> None:
    """The spiral, then time against error for every problem."""
    names = list(dict.fromkeys(row["problem"] for row in rows))
    methods = [name for name in dict.fromkeys(row["method"] for row in rows) if name != MEAN]
    panels = 1 + len(names)
    rows_of_panels = 1 if panels <= 3 else 2
    columns = -(-panels // rows_of_panels)
    size = (1 + 3.8 * columns, 0.8 + 4 * rows_of_panels)
    figure, grid = plt.subplots(rows_of_panels, columns, figsize=size, squeeze=False, layout="constrained")
    first, *axes = grid.flat
    draw_spiral(first)
    for unused in axes[len(names) :]:
        unused.set_axis_off()
    for axis, name in zip(axes, names, strict=False):
        for row in (row for row in rows if row["problem"] == name and "failed" not in row):
            if row["method"] == MEAN:
                axis.axhline(row["rmse"], color="0.5", linestyle="--", label=MEAN)
                continue
            marker = "o" if row["method"].startswith("swing_gp") else "s"
            color = f"C{methods.index(row['method'])}"
            axis.plot(row["total"], row["rmse"], marker, color=color, markersize=8, label=row["method"])
        axis.loglog()
        for scale in (axis.xaxis, axis.yaxis):
            scale.set_major_formatter(FormatStrFormatter("%g"))
            scale.set_minor_locator(NullLocator())
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
        axis.grid(alpha=0.3)
        axis.set_title(name, fontsize=10)
        axis.set(xlabel="seconds to train and predict", ylabel="RMSE on held-out inputs")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=min(3, columns), fontsize=8)
    save_figure(figure, path)


def draw_spiral(axis: Any) -> None:
    problem = spiral(2_000)
    axis.scatter(*problem.x_test.T, c=problem.y_test, s=3, cmap="coolwarm")
    axis.scatter(*problem.x.T, c=problem.y, s=28, cmap="coolwarm", edgecolor="black", linewidth=0.8)
    axis.set(aspect="equal", xticks=[], yticks=[])
    axis.set_title(f"the spiral: {len(problem.x)} of 2,000 nodes observed", fontsize=10)


def report(folder: Path) -> None:
    """Write report.md, products.png and regressions.png beside results.json."""
    content = json.loads((folder / "results.json").read_text())
    products, regressions = content.get("products", []), content.get("regressions", [])
    text = ["# Beside the peers\n"]
    for name, version in content["versions"].items():
        package = PACKAGES[name]
        missing = f"not installed, so left out: pip install {package.project}"
        text.append(f"- {name} ({package.about}): {version or missing}")
    cases = [list(group) for _, group in groupby(products, key=lambda row: (row["cloud"], row["number"]))]
    trials = [list(group) for _, group in groupby(regressions, key=lambda row: row["problem"])]
    wins = [line for rows in cases for line in product_wins(rows)] + [line for rows in trials for line in regression_wins(rows)]
    text += ["\n## Where others win\n", *(wins or ["Nowhere in this run."])]
    text += ["\n## Kernel products\n", "The diffusion kernel exp(-5 (I - W~)) times a Gaussian vector.\n"]
    for rows in cases:
        cloud, number = rows[0]["cloud"], rows[0]["number"]
        text += [f"### {cloud}, {number:,} nodes: {CLOUDS[cloud]}\n", product_table(rows), ""]
    text += ["## GP regressions\n", f"{content['steps']} steps of Adam; NLPD of the standardised target.\n"]
    for rows in trials:
        sizes = f"{rows[0]['train']:,} observed, {rows[0]['test']:,} held out"
        text += [f"### {rows[0]['problem']}: {sizes}\n", regression_table(rows), ""]
    write_atomically(folder / "report.md", "\n".join(text))
    print("\n".join(text))
    if products:
        draw_products(products, folder / "products.png")
    if regressions:
        draw_regressions(regressions, folder / "regressions.png")
    print(f"Written: {folder}/report.md, with pictures")


if __name__ == "__main__":
    report(Path(sys.argv[1] if len(sys.argv) > 1 else "results/peers"))
