"""Vertex normals: the paper's table and run times (section 3.2, appendix D.1), with earlier methods and ours.

    python -m benchmarks.normals [--quick] [--masks 10] [--meshes ../shared/data/meshes] [--out results/normals]

80% of the normals of a mesh are hidden, at random; the score is the mean cosine between predicted and true normals at hidden
vertices, over several masks. Settings are chosen for every mask from its known vertices alone, by leaving them out one by one.
Every method is timed once on every mesh of some size, set-up included and the choice of settings excluded.
Without the folder of meshes, and with --quick, procedural meshes and a terrain are used.
"""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from benchmarks.measuring import Row, isolated
from benchmarks.normals_data import meshes, terrain
from benchmarks.normals_methods import BLOCKS, METHODS, WALKED, Task, TooLarge, cosine
from benchmarks.normals_report import PAPER, report
from benchmarks.runner import DATA, Run
from swing_gp.cli.normals import split
from swing_gp.io.meshes import Mesh, vertex_normals
from swing_gp.utils.memory import peak_gigabytes

MASK = 0.8
# Scored over all masks up to here, over three above; larger meshes are scored once, while timed.
MANY_MASKS, SOME_MASKS, FEW_MASKS = 1_000, 4_000, 3
TIMED_FROM = 800


def make_task(mesh: Mesh, seed: int) -> tuple[Task, torch.Tensor]:
    normals = vertex_normals(mesh)
    known, masked = split(normals, MASK, seed)
    return Task(torch.from_numpy(mesh.vertices), torch.from_numpy(normals.values), known), masked


def number_of_masks(mesh: Mesh, masks: int) -> int:
    if mesh.num_vertices <= MANY_MASKS or mesh.name in PAPER:
        return masks
    return min(masks, FEW_MASKS) if mesh.num_vertices <= SOME_MASKS else 0


def score(mesh: Mesh, seed: int) -> list[Row]:
    """Score every method under one mask."""
    task, masked = make_task(mesh, seed)
    rows = []
    for name, method in METHODS.items():
        row: Row = {"mesh": mesh.name, "vertices": mesh.num_vertices, "seed": seed, "method": name}
        try:
            if name in WALKED and mesh.num_vertices > BLOCKS and seed >= FEW_MASKS:
                raise TooLarge(f"walks above {BLOCKS:,} vertices are scored on {FEW_MASKS} masks")
            row["cosine"] = cosine(method(task)[masked], task.normals[masked])
        except TooLarge as reason:
            row["skipped"] = str(reason)
        rows.append(row)
    return rows


def clock(mesh: Mesh) -> list[Row]:
    """Measure seconds of every method on one mesh. Settings are chosen before, unless their choice is the method."""
    warnings.simplefilter("ignore")
    small, _ = make_task(terrain(16), 0)
    task, masked = make_task(mesh, 0)
    for settings in ("diffusion", "raw", "smoothing", "rbf", "short"):
        getattr(task, settings)
    rows = []
    for name, method in METHODS.items():
        row: Row = {"mesh": mesh.name, "vertices": mesh.num_vertices, "method": name}
        try:
            method(small)  # libraries load, plans are made
            row["gigabytes_before"] = peak_gigabytes()
            start = time.perf_counter()
            found = method(task)
            row["seconds"] = time.perf_counter() - start
            row["gigabytes"] = peak_gigabytes()
            row["cosine"] = cosine(found[masked], task.normals[masked])
        except TooLarge as reason:
            row["skipped"] = str(reason)
        rows.append(row)
    return rows


def main() -> None:
    options: dict[str, dict[str, Any]] = {
        "masks": {"type": int, "default": 10, "help": "masks of a mesh, at most (%(default)s)"},
        "meshes": {"type": Path, "default": DATA / "meshes", "help": "a folder (%(default)s)"},
    }
    with Run(__doc__, "normals", quick="two masks of two small procedural meshes", **options) as run:
        warnings.simplefilter("ignore")
        found = meshes(run.given.meshes, quick=run.quick)
        timed = [mesh for mesh in found if run.quick or mesh.num_vertices >= TIMED_FROM]
        for mesh in (bar := tqdm(timed, desc="times", unit="mesh")):
            bar.set_postfix_str(mesh.name)
            for row in isolated(clock, mesh):
                run.keep("times", row)
        masks = 2 if run.quick else run.given.masks
        jobs = [(mesh, seed) for mesh in found for seed in range(number_of_masks(mesh, masks))]
        for mesh, seed in tqdm(jobs, desc="scores", unit="mask"):
            for row in score(mesh, seed):
                run.keep("scores", row)
        run.report(*report(run.rows("scores"), run.rows("times"), MASK))


if __name__ == "__main__":
    main()
