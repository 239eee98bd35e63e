"""Tables and the plot of :mod:`benchmarks.spatial`, from its results file alone; of an interrupted run too.

python -m benchmarks.spatial_report results/spatial
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from benchmarks.reporting import markdown_table, save_figure, write_atomically

__all__ = ["report"]

COLORS = {"sphere": "#1f77b4", "plane": "#2ca02c", "volume": "#ff7f0e"}

Row = dict[str, Any]


def line(row: Row, first: list[str], cells: list[tuple[str, str]]) -> list[str]:
    if "failed" in row:
        return [*first, *["-"] * (len(cells) - 1), row["failed"]]
    return [*first, *(format(row[key], style) if key in row else "-" for key, style in cells)]


def lattice_table(rows: list[Row]) -> str:
    header = ["method", "RMSE", "MAE", "CRPS", "interval score", "within 95%", "seconds", "CPU seconds", "peak GB"]
    styles = [".3f", ".3f", ".3f", ".2f", ".1%", ".0f", ".0f", ".1f"]
    keys = ["rmse", "mae", "crps", "interval", "coverage", "seconds", "cpu", "peak_gb"]
    lines = [line(row, [row["method"]], list(zip(keys, styles, strict=True))) for row in rows]
    about = f"{rows[0]['problem']}: {rows[0]['observed']:,} cells observed, {rows[0]['hidden']:,} hidden."
    return f"{about}\n\n{markdown_table(header, lines)}"


def steps_table(rows: list[Row]) -> str:
    lines = [line(row, [f"{row['nu']:g}"], [("quarter", "d"), ("whole", "d")]) for row in rows]
    return markdown_table(["nu", "steps, a quarter of the lattice", "steps, all of it"], lines)


def scaling_table(rows: list[Row]) -> str:
    stages = ("graph", "setup", "mean", "deviations")
    header = ["nodes", "nu", "graph", "set-up", "mean", "deviations", "total", "total CPU", "steps", "peak GB", "coverage"]
    for row in rows:
        if "failed" not in row:
            row["total"], row["total_cpu"] = (sum(row[stage + end] for stage in stages) for end in ("", "_cpu"))
    cells = [(stage, ".3g") for stage in (*stages, "total", "total_cpu")] + [
        ("steps", "d"),
        ("peak_gb", ".2g"),
        ("coverage", ".1%"),
    ]
    lines = [line(row, [f"{row['shape']}, {row['nodes']:,}", f"{row['nu']:g}"], cells) for row in rows]
    return markdown_table(header, lines)


def mesh_table(rows: list[Row]) -> str:
    cells = [
        ("mean", ".3g"),
        ("mean_cpu", ".3g"),
        ("total", ".3g"),
        ("total_cpu", ".3g"),
        ("rmse", ".2e"),
        ("deviation_error", ".1%"),
    ]
    header = ["version", "mean", "mean CPU", "with deviations", "with deviations CPU", "RMSE", "error of deviations"]
    return markdown_table(header, [line(row, [row["version"]], cells) for row in rows])


def training_table(rows: list[Row]) -> str:
    cells = [("training", ".3g"), ("training_cpu", ".3g"), ("kappa", ".3g"), ("noise", ".2g"), ("peak_gb", ".2g")]
    header = ["nodes", "nu", "30 steps, seconds", "CPU seconds", "kappa found", "noise found", "peak GB"]
    return markdown_table(header, [line(row, [f"{row['shape']}, {row['nodes']:,}", f"{row['nu']:g}"], cells) for row in rows])


def plot(rows: list[Row], path: Path) -> None:
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    panels = (
        ("graph, set-up and mean, seconds", "mean"),
        ("with deviations, seconds", "total"),
        ("peak memory, GB", "peak_gb"),
    )
    for axis, (title, key) in zip(axes, panels, strict=True):
        for shape, color in COLORS.items():
            for nu, style in ((1.0, "o-"), (2.0, "s--")):
                mine = [row for row in rows if row["shape"] == shape and row["nu"] == nu and "failed" not in row]
                values = [row["graph"] + row["setup"] + row["mean"] if key == "mean" else row[key] for row in mine]
                axis.loglog([row["nodes"] for row in mine], values, style, color=color, label=f"{shape}, nu = {nu:g}")
        axis.set(xlabel="nodes", title=title)
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=8)
    save_figure(figure, path)


def report(out: Path) -> None:
    results = json.loads((out / "results.json").read_text())
    tables = {
        "lattice": lattice_table,
        "steps": steps_table,
        "scaling": scaling_table,
        "mesh": mesh_table,
        "training": training_table,
    }
    parts = [f"## {name}\n\n{make(results[name])}" for name, make in tables.items() if name in results]
    if "scaling" in results:
        plot(results["scaling"], out / "scaling.png")
    write_atomically(out / "report.md", "\n\n".join(parts) + "\n")
    print("\n\n".join(parts))


if __name__ == "__main__":
    report(Path(sys.argv[1]))
