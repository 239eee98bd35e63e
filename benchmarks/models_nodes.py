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

from benchmarks.measuring import Row
from benchmarks.normals import make_task
from benchmarks.normals_data import meshes
from benchmarks.normals_methods import Task, cosine, nearest
from benchmarks.reporting import table
from benchmarks.runner import DATA, Job, Run
from benchmarks.spatial_data import Lattice, heaton, lattice
from swing_gp import interpolate
from swing_gp.models.selection import FAMILIES
from swing_gp.utils.memory import peak_gigabytes

__all__ = ["field_jobs", "field_report", "normal_jobs", "normal_report"]

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


def measure_normals(mesh: Any, method: str, seed: int) -> Row:
    """The mean cosine at hidden vertices."""
    warnings.simplefilter("ignore")
    task, masked = make_task(mesh, seed)
    start = time.perf_counter()
    found = METHODS[method](task)
    seconds = time.perf_counter() - start
    return {"cosine": cosine(found[masked], task.normals[masked]), "seconds": seconds, "peak_gb": peak_gigabytes()}


def normal_jobs(run: Run) -> list[Job]:
    found = []
    for mesh in meshes(DATA / "meshes", quick=run.quick):
        if run.given.only and mesh.name not in run.given.only:
            continue
        for seed in range(1 if run.quick else MASKS if mesh.num_vertices <= SMALL else FEW_MASKS):
            about = [{"mesh": mesh.name, "method": name, "mask": seed, "vertices": mesh.num_vertices} for name in METHODS]
            found += [Job("normals", row, measure_normals, mesh, row["method"], seed) for row in about]
    return found


def normal_report(rows: list[Row]) -> str:
    """Means over masks with their standard errors, and seconds; the mean over meshes."""
    lines: list[Row] = []
    for mesh in dict.fromkeys(row["mesh"] for row in rows):
        mine = [row for row in rows if row["mesh"] == mesh]
        lines.append({"mesh": mesh, "vertices": mine[0]["vertices"], "masks": 1 + max(row["mask"] for row in mine)})
        for name in METHODS:
            cosines, seconds = np.array([(row["cosine"], row["seconds"]) for row in mine if row["method"] == name]).T
            error = f" ± {cosines.std(ddof=1) / len(cosines) ** 0.5:.4f}" if len(cosines) > 1 else ""
            lines[-1][name] = f"{cosines.mean():.4f}{error}, {seconds.mean():.1f} s"
    means = [{name: float(line[name].split()[0].rstrip(",")) for name in METHODS} for line in lines]
    lines.append({"mesh": "mean over meshes", **{name: f"{np.mean([each[name] for each in means]):.4f}" for name in METHODS}})
    return table(lines, {"mesh": "mesh", "vertices": ("vertices", ","), "masks": "masks", **{name: name for name in METHODS}})


LATTICES: dict[str, dict[str, Any]] = {
    "rough, long, wide gaps": {"reach": 30.0, "smoothness": 0.5, "gap": 12.0},
    "smooth, short, wide gaps": {"reach": 8.0, "smoothness": 1.5, "gap": 8.0},
    "cells at random": {"reach": 15.0, "smoothness": 1.0, "gap": 0.0},
}


def measure_field(problem: Lattice, alone: bool) -> Row:
    """Measure the RMSE in gaps, of the chosen family and of every family; the share of hidden values in 95% intervals, noise
    included; and seconds, deviations included."""
    warnings.simplefilter("ignore")
    known = np.arange(len(problem.observed))

    def missed(values: Any) -> float:
        return float(np.sqrt(np.mean((np.asarray(values)[-len(problem.hidden) :] - problem.hidden) ** 2)))

    start = time.perf_counter()
    result = interpolate(problem.cells, known, problem.observed)
    std = result.std
    seconds = time.perf_counter() - start
    assert result.selection is not None
    deviation = torch.hypot(std[len(known) :], result.noise_std).numpy()
    covered = np.abs(result.values[len(known) :].numpy() - problem.hidden) < 1.96 * deviation
    chosen = result.selection.table
    row: Row = {"rmse": missed(result.values), "covered": float(covered.mean()), "seconds": seconds,
                "chosen": chosen.chosen.family, "table": chosen.records(), "peak_gb": peak_gigabytes()}  # fmt: skip
    row["nearest"] = missed(KNeighborsRegressor(1).fit(problem.seen, problem.observed).predict(problem.unseen))
    for family in sorted({each.family for each in chosen} & set(FAMILIES)) if alone else ():
        row[family] = missed(interpolate(problem.cells, known, problem.observed, families=(family,)).values)
    return row


def field_jobs(run: Run) -> list[Job]:
    size, names = ((40, 60), list(LATTICES)[-1:]) if run.quick else ((80, 120), list(LATTICES))
    problems = {name: lattice(size, seed=list(LATTICES).index(name), **LATTICES[name]) for name in names}
    real = None if run.quick else heaton()
    problems |= {} if real is None else {"heaton_simulated": real}
    some = {name: problem for name, problem in problems.items() if not run.given.only or name in run.given.only}
    return [Job("fields", {"field": name}, measure_field, problem, name in LATTICES) for name, problem in some.items()]


def field_report(rows: list[Row]) -> str:
    return table(rows, {
        "field": "field", "RMSE, chosen": lambda row: f"{row['rmse']:.3f} ({row['chosen']})", "covered": ("covered", ".1%"),
        "s": ("seconds", ".0f"), "GB": ("peak_gb", ".1f"), **{family: (family, ".3f") for family in FAMILIES},
        "nearest": ("nearest", ".3f"),
    })  # fmt: skip
