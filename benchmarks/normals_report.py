"""The report of :mod:`benchmarks.normals`: tables beside the paper's numbers, scores and times against mesh size."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from benchmarks.normals_methods import METHODS
from benchmarks.reporting import markdown_table, save_figure, write_atomically

__all__ = ["PAPER", "report"]

# Table 2 of the paper, for the ids we hold; meshes are told apart by their size there.
PAPER = {
    "thingi10k_60246": {"BF": 0.8461, "Al-Mohy": 0.8457, "Lanczos": 0.7855, "GRF": 0.8255, "SWING": 0.8301},
    "thingi10k_40179": {"BF": 0.8210, "Al-Mohy": 0.8210, "Lanczos": 0.6797, "GRF": 0.8321, "SWING": 0.8197},
    "thingi10k_40172": {"BF": 0.5138, "Al-Mohy": 0.5075, "Lanczos": 0.3438, "GRF": 0.4852, "SWING": 0.5145},
    "thingi10k_65414": {"BF": 0.3221, "Al-Mohy": 0.3087, "Lanczos": 0.2207, "GRF": 0.3105, "SWING": 0.3089},
    "thingi10k_40171": {"BF": 0.6163, "Al-Mohy": 0.6129, "Lanczos": 0.0384, "GRF": 0.6266, "SWING": 0.6136},
    "thingi10k_550964": {"BF": 0.6240, "Al-Mohy": 0.6228, "Lanczos": 0.2541, "GRF": 0.5726, "SWING": 0.5332},
}
OURS = {
    "BF, raw W (the paper's)": "BF",
    "BF": "BF",
    "Al-Mohy, dense W": "Al-Mohy",
    "Lanczos, dense W": "Lanczos",
    "GRF, our list": "GRF",
    "SWING as printed": "SWING",
}


def report(content: dict[str, Any], out: Path) -> None:
    scores = collect(content.get("scores", []))
    sizes = {row["mesh"]: row["vertices"] for row in [*content.get("scores", []), *content.get("times", [])]}
    parts = ["# Vertex normals", "", f"{content['mask']:.0%} of the normals hidden; mean cosine at hidden vertices.", ""]
    parts += ["## Scores, mean and deviation over masks", "", score_table(scores, sizes), ""]
    if any(mesh in PAPER for mesh in scores):
        parts += ["## Beside the paper", "", paper_table(scores), ""]
    parts += ["## Seconds, set-up included", "", time_table(content["times"]), ""]
    write_atomically(out / "report.md", "\n".join(parts) + "\n")
    print("\n".join(parts))
    draw(scores, sizes, content["times"], out / "normals.png")


def collect(rows: list[dict[str, Any]]) -> dict[str, dict[str, np.ndarray]]:
    """Scores over masks, by mesh and method."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if "cosine" in row:
            found[row["mesh"]][row["method"]].append(row["cosine"])
    return {mesh: {method: np.array(values) for method, values in by.items()} for mesh, by in found.items()}


def score_table(scores: dict[str, dict[str, np.ndarray]], sizes: dict[str, int]) -> str:
    names = sorted(scores, key=lambda mesh: sizes[mesh])
    header = ["method", *(f"{mesh.removeprefix('thingi10k_')} ({sizes[mesh]:,})" for mesh in names), "mean"]
    lines = []
    for method in METHODS:
        cells = []
        for mesh in names:
            values = scores[mesh].get(method)
            cells.append("" if values is None else f"{values.mean():.3f} ± {values.std(ddof=min(1, len(values) - 1)):.3f}")
        complete = all(method in scores[mesh] for mesh in names)
        mean = np.mean([scores[mesh][method].mean() for mesh in names]) if complete else None
        lines.append([method, *cells, "" if mean is None else f"{mean:.4f}"])
    return markdown_table(header, lines)


def paper_table(scores: dict[str, dict[str, np.ndarray]]) -> str:
    header = ["mesh", "method", "paper", "here", "deviation", "difference in deviations"]
    lines = []
    for mesh in PAPER:
        for method, theirs in OURS.items():
            values = scores.get(mesh, {}).get(method)
            if values is None or len(values) < 2:
                continue
            deviation = values.std(ddof=1)
            value = PAPER[mesh][theirs]
            lines.append([mesh, method, f"{value:.3f}", f"{values.mean():.3f}", f"{deviation:.3f}",
                          f"{(values.mean() - value) / deviation:+.1f}"])  # fmt: skip
    return markdown_table(header, lines)


def time_table(rows: list[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(row["mesh"] for row in sorted(rows, key=lambda row: row["vertices"])))
    header = ["method", *(f"{name} ({next(r['vertices'] for r in rows if r['mesh'] == name):,})" for name in names)]
    lines = []
    for method in METHODS:
        cells = []
        for name in names:
            row = next((r for r in rows if r["mesh"] == name and r["method"] == method), {})
            if "seconds" in row:
                more = row["gigabytes"] - row["gigabytes_before"]
                cells.append(f"{row['seconds']:.3g} s, {row['cosine']:.3f}" + (f", +{more:.1f} GB" if more > 0.1 else ""))
            else:
                cells.append("-")
        lines.append([method, *cells])
    return markdown_table(header, lines)


SHOWN = {
    "nearest known vertex": ("0.6", "o"),
    "exact GP, RBF": ("C5", "s"),
    "BF": ("black", "D"),
    "GRF, our list": ("C2", "v"),
    "SWING as printed": ("C3", "^"),
    "lookahead walks, exact moves": ("C1", "<"),
    "auto": ("C0", "P"),
    "GP rule, settings and kernel chosen": ("C4", "*"),
}
TIMED = {
    "BF": ("black", "D"),
    "Al-Mohy, dense W": ("C1", "s"),
    "Lanczos, dense W": ("C5", "o"),
    "Lanczos, our list": ("C6", "x"),
    "GRF, our list": ("C2", "v"),
    "SWING as printed": ("C3", "^"),
    "auto": ("C0", "P"),
    "GP rule, settings and kernel chosen": ("C4", "*"),
}


def draw(scores: dict[str, dict[str, np.ndarray]], sizes: dict[str, int], times: list[dict[str, Any]], path: Path) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(14, 6), layout="constrained", width_ratios=[1.3, 1])
    names = sorted(scores, key=lambda mesh: sizes[mesh])
    for number, (method, (color, marker)) in enumerate(SHOWN.items()):
        have = [i for i, mesh in enumerate(names) if method in scores[mesh]]
        place = np.array(have) + 0.08 * (number - len(SHOWN) / 2)
        values = [scores[names[i]][method] for i in have]
        left.errorbar(
            place,
            [v.mean() for v in values],
            [v.std(ddof=min(1, len(v) - 1)) for v in values],
            fmt=marker,
            color=color,
            markersize=7 if marker != "*" else 11,
            linewidth=1,
            label=method,
        )
    for number, mesh in enumerate(names):
        if mesh in PAPER:
            label = "the paper's BF" if mesh == "thingi10k_60246" else None
            left.plot([number - 0.4, number + 0.4], [PAPER[mesh]["BF"]] * 2, color="0.3", linestyle=":", label=label)
    ticks = [f"{mesh.removeprefix('thingi10k_')}\n{sizes[mesh]:,}" for mesh in names]
    left.set_xticks(range(len(names)), ticks, fontsize=8, rotation=20)
    left.set(ylabel="cosine at hidden vertices", title="scores, with deviations over masks")
    left.grid(alpha=0.3, axis="y")
    left.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3, frameon=False)
    for method, (color, marker) in TIMED.items():
        rows = sorted((r for r in times if r["method"] == method and "seconds" in r), key=lambda r: r["vertices"])
        right.loglog([r["vertices"] for r in rows], [r["seconds"] for r in rows], marker=marker, color=color, label=method)
    right.set(xlabel="vertices", ylabel="seconds, set-up included", title="times on two shared cores")
    right.grid(alpha=0.3, which="both")
    right.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3, frameon=False)
    save_figure(figure, path)
