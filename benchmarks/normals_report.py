"""The report of :mod:`benchmarks.normals`: tables beside the paper's numbers, scores and times against mesh size."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from benchmarks.measuring import Row
from benchmarks.normals_methods import METHODS
from benchmarks.reporting import markdown_table, table

__all__ = ["PAPER", "report"]

Scores = dict[str, dict[str, np.ndarray]]  # over masks, by mesh and method

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


def report(rows: list[Row], times: list[Row], mask: float) -> list[str]:
    scores = collect(rows)
    parts = ["# Vertex normals", f"{mask:.0%} of the normals hidden; mean cosine at hidden vertices."]
    parts += ["## Scores, mean and deviation over masks", score_table(scores, sizes_of(rows))]
    if any(mesh in PAPER for mesh in scores):
        parts += ["## Beside the paper", paper_table(scores)]
    return [*parts, "## Seconds, set-up included", time_table(times)]


def sizes_of(rows: list[Row]) -> dict[str, int]:
    """Numbers of vertices of the meshes, ascending."""
    return {row["mesh"]: row["vertices"] for row in sorted(rows, key=lambda row: row["vertices"])}


def collect(rows: list[Row]) -> Scores:
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if "cosine" in row:
            found[row["mesh"]][row["method"]].append(row["cosine"])
    return {mesh: {method: np.array(values) for method, values in by.items()} for mesh, by in found.items()}


def deviation(values: np.ndarray) -> float:
    return float(values.std(ddof=min(1, len(values) - 1)))


def score_table(scores: Scores, sizes: dict[str, int]) -> str:
    lines = []
    for method in METHODS:
        found = [scores[mesh].get(method) for mesh in sizes]
        cells = ["" if values is None else f"{values.mean():.3f} ± {deviation(values):.3f}" for values in found]
        whole = [float(values.mean()) for values in found if values is not None]
        lines.append([method, *cells, f"{np.mean(whole):.4f}" if len(whole) == len(sizes) else ""])
    return markdown_table(["method", *(f"{named(mesh)} ({size:,})" for mesh, size in sizes.items()), "mean"], lines)


def named(mesh: str) -> str:
    return mesh.removeprefix("thingi10k_")


def paper_table(scores: Scores) -> str:
    rows = [
        {"mesh": mesh, "method": method, "paper": PAPER[mesh][theirs], "here": float(found.mean()), "std": deviation(found)}
        for mesh in PAPER
        for method, theirs in OURS.items()
        if (found := scores.get(mesh, {}).get(method)) is not None and len(found) > 1
    ]
    columns: dict[str, Any] = {key: key for key in ("mesh", "method")}
    columns |= {"paper": ("paper", ".3f"), "here": ("here", ".3f"), "deviation": ("std", ".3f")}
    columns["difference in deviations"] = lambda row: f"{(row['here'] - row['paper']) / row['std']:+.1f}"
    return table(rows, columns)


def time_table(rows: list[Row]) -> str:
    found = {(row["mesh"], row["method"]): row for row in rows if "seconds" in row}
    sizes = sizes_of(rows)

    def cell(mesh: str, method: str) -> str:
        row = found.get((mesh, method))
        if row is None:
            return "-"
        more = row["gigabytes"] - row["gigabytes_before"]
        return f"{row['seconds']:.3g} s, {row['cosine']:.3f}" + (f", +{more:.1f} GB" if more > 0.1 else "")

    lines = [[method, *(cell(mesh, method) for mesh in sizes)] for method in METHODS]
    return markdown_table(["method", *(f"{mesh} ({size:,})" for mesh, size in sizes.items())], lines)
