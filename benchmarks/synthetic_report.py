"""Tables and plots of :mod:`benchmarks.synthetic`, from its results file alone; of an interrupted run too.

python -m benchmarks.synthetic_report results/synthetic
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from benchmarks.reporting import markdown_table, save_figure, write_atomically

__all__ = ["report"]

TITLES = {
    "random_walk": "2-step random walk",
    "diffusion": "diffusion",
    "regularized_laplacian": "d-regularised Laplacian",
}


@dataclass(frozen=True)
class Style:
    label: str  # {walks} and {lookahead_walks} come from the settings
    color: str
    marker: str


STYLES = {
    "identity": Style("identity, $\\alpha_0 I$", "0.25", ""),
    "grf": Style("GRF, {walks} walks", "#d62728", "*"),
    "printed": Style("SWING as printed, {walks} walks, exact degrees", "#1f77b4", "o"),
    "printed_feature_degrees": Style("SWING as printed, {walks} walks, degrees from features", "#7fb7e0", "s"),
    "lookahead": Style("lookahead walks, data-drawn features, {lookahead_walks} walks", "#ff7f0e", "D"),
    "pairwise": Style("lookahead walks, exact transitions, {walks} walks", "#8c564b", "P"),
    "isotropic": Style("collapsed, positive features (paper's)", "#9467bd", "v"),
    "data": Style("collapsed, positive features (data-drawn)", "#e377c2", "^"),
    "landmarks": Style("collapsed, landmarks", "#2ca02c", "X"),
    "neighbors": Style("collapsed, neighbour list (auto)", "black", "h"),
}

AXES = {"features": ("number of features", "random features r"), "time": ("time", "set-up + product, seconds")}
WITHOUT_FEATURES = ("identity", "grf", "pairwise", "neighbors")  # horizontal lines where r is the axis

# Errors above are drawn at the edge: an estimate many times larger than K needs no scale.
WORST = 2.0


@dataclass(frozen=True)
class Point:
    """A method at one r: medians over seeds."""

    r: int | None
    fne: float
    beyond: float
    seconds: float


Curves = dict[str, list[Point]]  # by method, r rising


def curves(rows: list[dict[str, Any]], kernel: str, size: int) -> Curves:
    groups: dict[tuple[str, int | None], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        if (row["kernel"], row["N"]) == (kernel, size):
            groups[row["method"], row["r"]].append(row)
    found: Curves = {}
    for (method, r), group in sorted(groups.items(), key=lambda item: item[0][1] or 0):
        fne, beyond = (statistics.median(row[name] for row in group) for name in ("fne", "error_beyond_identity"))
        seconds = statistics.median(row["setup_seconds"] + row["product_seconds"] for row in group)
        found.setdefault(method, []).append(Point(r, fne, beyond, seconds))
    return {method: found[method] for method in STYLES if method in found}


def sizes_of(content: dict[str, Any], kernel: str) -> list[int]:
    return sorted({row["N"] for row in content["rows"] if row["kernel"] == kernel})


def kernels_of(content: dict[str, Any]) -> list[str]:
    """The kernels with results: an interrupted run may not have come to all."""
    return [kernel for kernel in content["kernels"] if sizes_of(content, kernel)]


def label(method: str, settings: dict[str, Any]) -> str:
    return STYLES[method].label.format(**settings)


# ------------------------------------------------------------------------------------------------------------- the tables


def summary(content: dict[str, Any]) -> str:
    machine, settings = content["machine"], content["settings"]
    parts = [
        "# Synthetic clouds\n",
        f"torch {machine['torch']}, {machine['torch_threads']} threads, {machine['processor']}"
        f", load average {machine['load_average']} at the start; "
        f"{settings['seeds']} seed(s), medians; {settings['probes']} right-hand sides in every timed product"
        + ("." if content["finished"] else "; **the run was interrupted**."),
    ]
    for kernel in kernels_of(content):
        sizes = sizes_of(content, kernel)
        results = {size: curves(content["rows"], kernel, size) for size in sizes}
        header = ["method", *(f"N = {size}" for size in sizes)]
        methods = [method for method in STYLES if any(method in result for result in results.values())]
        errors, beyond = [], []
        for method in methods:
            title = plain(label(method, settings))
            errors.append([title, *(error_cell(results[size], method) for size in sizes)])
            beyond.append([title, *(beyond_cell(results[size], method) for size in sizes)])
        parts += [
            f"\n## {TITLES[kernel]}: `{content['kernels'][kernel]}`\n",
            "Best FNE over r (that r; set-up and product as a multiple of GRF's time):\n",
            markdown_table(header, errors),
            "\nBest error relative to K - alpha_0 I:\n",
            markdown_table(header, beyond),
        ]
    parts += ["\n## Hyper-parameters, tuned at N = {}\n".format(settings["tune_size"]), tuned_table(content)]
    if failed := failures(content):
        parts += ["\n## Refused by the method\n", failed]
    return "\n".join(parts) + "\n"


def plain(text: str) -> str:
    return text.replace("$\\alpha_0 I$", "alpha_0 I")


def best(points: list[Point]) -> Point:
    return min(points, key=lambda point: point.fne)


def error_cell(result: Curves, method: str) -> str:
    if method not in result:
        return "-"
    point = best(result[method])
    facts = [] if point.r is None else [f"r={point.r}"]
    if "grf" in result and method != "identity":
        facts.append(ratio(point.seconds / best(result["grf"]).seconds))
    return f"{point.fne:.2g}" + (f" ({', '.join(facts)})" if facts else "")


def ratio(value: float) -> str:
    return f"{value:.2g}x" if value < 99.5 else f"{value:.0f}x"


def beyond_cell(result: Curves, method: str) -> str:
    return f"{min(point.beyond for point in result[method]):.2g}" if method in result else "-"


def tuned_table(content: dict[str, Any]) -> str:
    names = ("temperature", "importance", "spread", "fne")
    rows = [
        [row["kernel"], row["method"], str(row["r"] or "-")]
        + [f"{row[name]:.3g}" if row.get(name) is not None else "-" for name in names]
        for row in content["tuned"]
    ]
    return markdown_table(["kernel", "method", "r", "temperature", "importance / N^(1/3)", "spread", "FNE"], rows)


def failures(content: dict[str, Any]) -> str:
    """What methods refused to do; runs that the plan left out are in the results file only."""
    planned = ("no randomness", "O(N^2)", "every node", "one seed", "N x r x steps")
    counts: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in content["skipped"]:
        if not row["reason"].startswith(planned):
            counts[row["method"], row["reason"]].append(f"{row['kernel']} N={row['N']} r={row['r']}")
    return "\n".join(f"- {method}: {reason} ({', '.join(sorted(set(where)))})" for (method, reason), where in counts.items())


# -------------------------------------------------------------------------------------------------------------- the plots


def plot(content: dict[str, Any], kernel: str, against: str) -> Figure:
    """A row of panels over N: FNE against ``"features"`` or ``"time"``."""
    sizes, settings = sizes_of(content, kernel), content["settings"]
    results = {size: curves(content["rows"], kernel, size) for size in sizes}
    methods = [method for method in STYLES if any(method in result for result in results.values())]
    width = max(3.1 * len(sizes), 10.5)
    columns = 3 if width > 14 else 2
    below = 0.28 * math.ceil((len(methods) + 1) / columns)  # inches of legend
    height = below + 4.7
    figure, axes = plt.subplots(1, len(sizes), figsize=(width, height), sharey=True, squeeze=False)
    for axis, size in zip(axes[0], sizes, strict=True):
        axis.set_title(f"N = {size:,}")
        for method, points in results[size].items():
            draw(axis, method, points, against)
        finish(axis, against, results[size])
    lowest = min(point.fne for result in results.values() for points in result.values() for point in points)
    axes[0, 0].set_ylim(max(lowest / 1.6, 1e-8), WORST * 1.15)
    axes[0, 0].set_ylabel("relative Frobenius error (FNE)")
    goal, axis_name = AXES[against]
    figure.supxlabel(axis_name, y=(below + 0.15) / height, fontsize=13)
    figure.suptitle(f"{TITLES[kernel]} kernel: error against {goal}", y=1 - 0.08 / height)
    figure.subplots_adjust(0.85 / width, (below + 0.75) / height, 1 - 0.15 / width, 1 - 0.7 / height, wspace=0.08)
    legend(figure, methods, settings, against, columns)
    return figure


def draw(axis: Axes, method: str, points: list[Point], against: str) -> None:
    style = STYLES[method]
    errors = [min(point.fne, WORST) for point in points]
    if method == "identity":
        axis.axhline(errors[0], color=style.color, linestyle="--", linewidth=1.3, zorder=1)
        return
    if against == "features" and method in WITHOUT_FEATURES:
        axis.axhline(errors[0], color=style.color, linewidth=1.6, zorder=2)
        return
    x = [point.seconds if against == "time" else point.r for point in points]
    size = 13 if style.marker == "*" else 5.5
    axis.plot(x, errors, color=style.color, marker=style.marker, markersize=size, linewidth=1.4, zorder=3, clip_on=False)


def finish(axis: Axes, against: str, result: Curves) -> None:
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.grid(True, which="major", color="0.88", linewidth=0.8)
    axis.set_axisbelow(True)
    if against == "features":
        numbers = sorted({point.r for points in result.values() for point in points if point.r is not None})
        shown = [r for r in numbers if r in (8, 32, 128, 512)] or numbers
        axis.xaxis.set_major_locator(FixedLocator(shown))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set_xticklabels([str(r) for r in shown])


def legend(figure: Figure, methods: list[str], settings: dict[str, Any], against: str, columns: int) -> None:
    handles = []
    for method in methods:
        style = STYLES[method]
        line = "--" if method == "identity" else "-"
        marker = "" if against == "features" and method in WITHOUT_FEATURES else style.marker
        size = 13 if marker == "*" else 6
        handles.append(plt.Line2D([], [], color=style.color, marker=marker, markersize=size, linestyle=line))
    handles.append(plt.Line2D([], [], linestyle=""))
    labels = [*(label(method, settings) for method in methods), f"(errors above {WORST:g} are drawn at {WORST:g})"]
    figure.legend(handles, labels, loc="lower center", ncol=columns, frameon=False, fontsize=12, bbox_to_anchor=(0.5, 0.0))


def report(content: dict[str, Any], out: Path) -> str:
    """Write the summary and the plots; return the summary."""
    text = summary(content)
    write_atomically(out / "summary.md", text)
    for kernel in kernels_of(content):
        for against in ("features", "time"):
            with plt.rc_context({"font.size": 12}):
                save_figure(plot(content, kernel, against), out / f"{kernel}_{against}.png")
    return text


if __name__ == "__main__":
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else "results/synthetic")
    print(report(json.loads((directory / "results.json").read_text(encoding="utf-8")), directory))
