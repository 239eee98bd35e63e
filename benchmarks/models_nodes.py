"""``interpolate`` with its defaults beside its peers: vertex normals of meshes, and fields on a lattice with gaps."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.neighbors import KNeighborsRegressor
from torch import Tensor

from benchmarks.normals import make_task
from benchmarks.normals_data import meshes
from benchmarks.normals_methods import Task, cosine, nearest
from benchmarks.runner import DATA
from benchmarks.spatial_data import Lattice, heaton, lattice
from swing_gp import interpolate
from swing_gp.models.selection import FAMILIES

__all__ = ["fields", "normals"]

DIRECTIONS: dict[str, Any] = {"criterion": "cosine", "mean": None}
# Masks of meshes of up to so many vertices, and of larger ones.
SMALL, MASKS, FEW_MASKS = 4_000, 10, 3


def chosen(task: Task) -> Tensor:
    result = interpolate(task.points, task.known, task.values, **DIRECTIONS)
    assert result.std.shape == result.values.shape  # deviations are part of what is timed
    return result.values


METHODS: dict[str, Callable[[Task], Tensor]] = {
    "interpolate": chosen,
    "Matérn GP on coordinates": lambda task: (
        interpolate(task.points, task.known, task.values, families=("coordinates",), **DIRECTIONS).values
    ),
    "the paper's rule": lambda task: interpolate(task.points, task.known, task.values, rule="paper", **DIRECTIONS).values,
    "nearest vertex": nearest,
}


def normals(quick: bool, *, only: tuple[str, ...] = (), splits: int = MASKS) -> tuple[list[dict[str, Any]], list[str], list]:
    """Mean cosines at hidden vertices, over masks that are the same for all."""
    warnings.simplefilter("ignore")
    results: list[dict[str, Any]] = []
    lines = []
    for mesh in meshes(DATA / "meshes", quick=quick):
        if only and mesh.name not in only:
            continue
        masks = 1 if quick else min(splits, MASKS if mesh.num_vertices <= SMALL else FEW_MASKS)
        rows: dict[str, list[tuple[float, float]]] = {name: [] for name in METHODS}
        for seed in range(masks):
            task, masked = make_task(mesh, seed)
            for name, method in METHODS.items():
                start = time.perf_counter()
                found = method(task)
                seconds = time.perf_counter() - start
                rows[name].append((cosine(found[masked], task.normals[masked]), seconds))
        line = [mesh.name, f"{mesh.num_vertices:,}", str(masks)]
        for name, pairs in rows.items():
            cosines, seconds = np.array(pairs).T
            results.append({"mesh": mesh.name, "vertices": mesh.num_vertices, "method": name, "cosine": cosines.tolist(),
                            "seconds": float(seconds.mean())})  # fmt: skip
            error = cosines.std(ddof=1) / masks**0.5 if masks > 1 else float("nan")
            line.append(f"{cosines.mean():.4f} ± {error:.4f}, {seconds.mean():.1f} s")
        lines.append(line)
        print(" | ".join(line), flush=True)
    means = [np.mean([np.mean(row["cosine"]) for row in results if row["method"] == name]) for name in METHODS]
    lines.append(["mean over meshes", "", "", *(f"{mean:.4f}" for mean in means)])
    return results, ["mesh", "vertices", "masks", *METHODS], lines


LATTICES: dict[str, dict[str, Any]] = {
    "rough, long, wide gaps": {"reach": 30.0, "smoothness": 0.5, "gap": 12.0},
    "smooth, short, wide gaps": {"reach": 8.0, "smoothness": 1.5, "gap": 8.0},
    "cells at random": {"reach": 15.0, "smoothness": 1.0, "gap": 0.0},
}


def fields(quick: bool, *, only: tuple[str, ...] = (), **_: Any) -> tuple[list[dict[str, Any]], list[str], list]:
    """RMSE in gaps, of what is chosen and of every family alone; the share of hidden values in 95% intervals, noise included;
    and seconds, deviations included."""
    warnings.simplefilter("ignore")
    problems: dict[str, Lattice | None] = {}
    for seed, (name, words) in enumerate(list(LATTICES.items())[-1 if quick else 0 :]):
        problems[name] = lattice((40, 60) if quick else (80, 120), seed=seed, **words)
    if not quick:
        problems["heaton_simulated"] = heaton()
    results, lines = [], []
    for name, problem in problems.items():
        if problem is None or (only and name not in only):
            continue
        known = np.arange(len(problem.observed))
        start = time.perf_counter()
        result = interpolate(problem.cells, known, problem.observed)
        std = result.std
        seconds = time.perf_counter() - start
        assert result.selection is not None
        missed = result.values[len(known) :].numpy() - problem.hidden
        deviation = torch.hypot(std[len(known) :], result.noise_std).numpy()
        row: dict[str, Any] = {"field": name, "rmse": rms(missed), "covered": float(np.mean(np.abs(missed) < 1.96 * deviation)),
                               "seconds": seconds, "table": result.selection.table.records()}  # fmt: skip
        of_nearest = KNeighborsRegressor(1).fit(problem.seen, problem.observed).predict(problem.unseen)
        row["nearest"] = rms(of_nearest - problem.hidden)
        tried = {entry["family"] for entry in row["table"]} & set(FAMILIES) if name in LATTICES and not quick else set()
        for family in sorted(tried):
            alone = interpolate(problem.cells, known, problem.observed, families=(family,))
            row[family] = rms(alone.values[len(known) :].numpy() - problem.hidden)
        results.append(row)
        families = [f"{row[family]:.3f}" if family in row else "" for family in FAMILIES]
        chosen = result.selection.table.chosen.family
        lines.append(
            [
                name,
                f"{row['rmse']:.3f} ({chosen})",
                f"{row['covered']:.1%}",
                f"{seconds:.0f}",
                *families,
                f"{row['nearest']:.3f}",
            ]
        )
        print(" | ".join(lines[-1]), flush=True)
    return results, ["field", "RMSE, chosen", "covered", "s", *FAMILIES, "nearest"], lines


def rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(values**2)))
