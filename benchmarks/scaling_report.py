"""Tables and plots of :mod:`benchmarks.scaling`, from its results file alone; of an interrupted run too.

python -m benchmarks.scaling_report results/scaling
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from benchmarks.reporting import markdown_table, save_figure, write_atomically

__all__ = ["report"]

STYLES = {
    "auto": ("black", "o", "-"),
    "neighbors": ("#2ca02c", "s", "-"),
    "grid": ("#1f77b4", "D", "-"),
    "landmarks": ("#ff7f0e", "^", "-"),
    "KeOps + expm_multiply": ("#d62728", "v", "--"),
    "torch + expm_multiply": ("#9467bd", "<", "--"),
    "dense + expm_multiply": ("#8c564b", ">", "--"),
    "KeOps + Lanczos": ("#e377c2", "P", ":"),
    "dense + Lanczos": ("0.5", "X", ":"),
}
OURS = ("auto", "neighbors", "grid", "landmarks")
PRODUCTS = 10
# A route counts as meeting the tolerance up to this multiple of it.
SLACK = 10

Row = dict[str, Any]


def total(row: Row) -> float | None:
    """Set-up and ten products."""
    return None if row.get("kv") is None else row["setup"] + PRODUCTS * row["kv"]


def meets(row: Row) -> bool:
    return row.get("error_k") is not None and row["error_k"] <= SLACK * row["tol"]


def number(value: float | None, style: str = ".2g") -> str:
    return "-" if value is None else format(value, style)


def case_table(rows: list[Row]) -> str:
    auto = next((row for row in rows if row["method"] == "auto"), {})
    header = ["method", "set-up s", "W v s", "K v s", "set-up + 10 K v, over auto's", "peak GB", "error W v", "error K v"]
    lines = []
    for row in rows:
        if "failed" in row:
            lines.append([row["method"], *["-"] * 6, row["failed"]])
            continue
        ratio = None if total(row) is None or total(auto) is None else total(row) / total(auto)  # type: ignore[operator]
        name = f"auto: {row['took']}" if row["method"] == "auto" else row["method"]
        cells = [number(row[key]) for key in ("setup", "wv", "kv")]
        errors = [number(row["error_w"], ".1e"), number(row["error_k"], ".1e")]
        lines.append([name, *cells, number(ratio), number(row["peak_gb"]), *errors])
    first = rows[0]
    lines.append(["alpha_0 v", *["-"] * 6, number(first.get("trivial"), ".1e")])
    note = f"Truth of K v: {first.get('reference') or 'none that could be afforded'}."
    return markdown_table(header, lines) + "\n\n" + note


def verdict(rows: list[Row]) -> list[str]:
    """Which route auto took, which was fastest among those that meet the tolerance, and whether a peer beats it."""
    usable = [row for row in rows if meets(row)]
    auto = next((row for row in usable if row["method"] == "auto"), None)
    ours = [row for row in usable if row["method"] in OURS[1:]]
    peers = [row for row in usable if row["method"] not in OURS]
    best = min(ours, key=total, default=None)  # type: ignore[arg-type,type-var]
    peer = min(peers, key=total, default=None)  # type: ignore[arg-type,type-var]
    if auto is None:
        return ["-", "-", "-", "-", "-"]
    own = total(auto)
    assert own is not None
    return [
        auto["took"],
        "-" if best is None else best["method"],
        "-" if best is None else f"{own / total(best):.2f}",  # type: ignore[operator]
        "-" if peer is None else peer["method"],
        "-" if peer is None else f"{total(peer) / own:.1f}",  # type: ignore[operator]
    ]


def group(rows: list[Row]) -> dict[tuple[str, int, float], list[Row]]:
    groups: dict[tuple[str, int, float], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["cloud"], row["number"], row["tol"]), []).append(row)
    return groups


def headline(rows: list[Row]) -> str:
    """The figures at a tolerance of 1e-4: how a kernel product and the set-up compare with one W v, and how they grow."""
    grid = {row["number"]: row for row in rows if row["tol"] == 1e-4 and "failed" not in row}
    lines = [
        f"- N = {size:,}: K v = {row['kv'] / row['wv']:.2f} W v, set-up = {row['setup'] / row['wv']:.2f} W v, "
        f"peak {row['peak_gb']:.2f} GB, error of K v {number(row['error_k'], '.1e')}"
        for size, row in grid.items()
    ]
    sizes = sorted(grid)
    if len(sizes) > 1:
        growth = grid[sizes[-1]]["kv"] / grid[sizes[0]]["kv"]
        lines.append(f"- from {sizes[0]:,} to {sizes[-1]:,} nodes K v grows {growth:.1f} times")
    return "\n".join(lines)


def plot(rows: list[Row], path: Path) -> None:
    clouds = [
        cloud
        for cloud in dict.fromkeys(row["cloud"] for row in rows)
        if len({r["number"] for r in rows if r["cloud"] == cloud}) > 1
    ]
    panels = [("time", "set-up + 10 K v, seconds"), ("peak_gb", "peak memory, GB"), ("error_k", "relative error of K v")]
    figure, axes = plt.subplots(3, len(clouds), figsize=(3.6 * len(clouds), 9), squeeze=False, sharex=True, sharey="row")
    for column, cloud in enumerate(clouds):
        for index, (key, label) in enumerate(panels):
            axis = axes[index, column]
            for method, (color, marker, line) in STYLES.items():
                mine = [row for row in rows if row["cloud"] == cloud and row["method"] == method and "failed" not in row]
                values = [(row["number"], total(row) if key == "time" else row[key]) for row in mine if row["kv"] is not None]
                values = [(x, y) for x, y in values if y]
                width = 2.5 if method == "auto" else 1.3
                axis.plot(
                    *zip(*values, strict=True), color=color, marker=marker, ls=line, lw=width, ms=5, label=method
                ) if values else None
            if key == "error_k":
                trivial = {row["number"]: row["trivial"] for row in rows if row["cloud"] == cloud and row.get("trivial")}
                axis.plot(list(trivial), list(trivial.values()), color="0.7", lw=1, label="trivial: $\\alpha_0 v$")
                axis.axhline(1e-5, color="0.8", lw=1, ls="--", zorder=0)
            axis.set(xscale="log", yscale="log")
            axis.grid(alpha=0.25)
            if index == 0:
                axis.set_title(cloud)
            if index == 2:
                axis.set_xlabel("nodes N")
            if column == 0:
                axis.set_ylabel(label)
    handles, labels = axes[2, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncol=5, frameon=False)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    save_figure(figure, path, dpi=130)


HEADLINE = {  # the picture of the README: who applies the same kernel to the same accuracy
    "auto": ("swing_gp", "black", "o"),
    "KeOps + Lanczos": ("KeOps + Lanczos", "#d62728", "v"),
    "dense + Lanczos": ("dense + Lanczos", "#8c564b", "s"),
}


def plot_headline(rows: list[Row], path: Path) -> None:
    """Time and memory in the unit cube at lengthscale 0.1, for the methods of :data:`HEADLINE`."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    for method, (label, color, marker) in HEADLINE.items():
        mine = [row for row in rows if (row["cloud"], row["method"]) == ("cube 0.1", method) and row.get("kv") is not None]
        sizes = [row["number"] for row in mine]
        axes[0].plot(sizes, [total(row) for row in mine], color=color, marker=marker, label=label)
        axes[1].plot(sizes, [row["peak_gb"] for row in mine], color=color, marker=marker, label=label)
    for axis, label in zip(axes, ("set-up and ten products, seconds", "peak memory, GB"), strict=True):
        axis.set(xscale="log", yscale="log", xlabel="nodes", ylabel=label)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    axes[1].set_ylim(0.1, 10)
    axes[0].legend(frameon=False, loc="upper right")
    save_figure(figure, path, dpi=100)


def report(folder: Path) -> None:
    """Write report.md, scaling.png and headline.png beside results.json."""
    rows = json.loads((folder / "results.json").read_text()).get("rows", [])
    main = [row for row in rows if row["tol"] != 1e-4]
    groups = group(main)
    header = ["cloud", "N", "auto took", "fastest of ours", "auto / fastest", "best peer", "peer / auto"]
    summary = [[cloud, f"{size:,}", *verdict(mine)] for (cloud, size, _), mine in groups.items()]
    text = [
        "# Scaling: W v and K v against N\n",
        "Times are set-up and ten products; ratios count only methods that meet the tolerance.\n",
    ]
    text += [markdown_table(header, summary), ""]
    if len(main) < len(rows):
        text += ["## A million nodes, unit cube, lengthscale 0.1, tolerance 1e-4\n", headline(rows), ""]
    for (cloud, size, _), mine in groups.items():
        text += [f"## {cloud}, N = {size:,}\n", case_table(mine), ""]
    write_atomically(folder / "report.md", "\n".join(text))
    plot(main, folder / "scaling.png")
    plot_headline(main, folder / "headline.png")
    print("\n".join(text))
    print(f"Written: {folder / 'report.md'}, scaling.png, headline.png")


if __name__ == "__main__":
    report(Path(sys.argv[1] if len(sys.argv) > 1 else "results/scaling"))
