"""Gaussian processes in precision form on sparse graphs: a lattice with gaps, up to a million nodes, a mesh, training.

    python -m benchmarks.spatial [--quick] [--out results/spatial] [--only lattice ...] [--before CHECKOUT]

- lattice: `heaton_simulated` of the shared data (150,000 cells, 44,431 of them hidden by gaps; a synthetic lattice where it is
  missing) beside GPBoost's Vecchia approximation, GPyTorch's SVGP, the nearest neighbour and the training mean. Ours has given
  hyper-parameters, a constant mean by generalised least squares and the likeliest amplitude. CRPS and the interval score at 95%
  are the lower the better. Also the steps of conjugate gradients on a quarter of the lattice and on all of it.
- scaling: a field of the prior on random points of a sphere, a square and a cube, graph of 10 nearest neighbours, a tenth of
  the nodes observed with noise. Seconds by stage: graph, set-up, mean at all nodes, deviations there (32 samples); `coverage`
  is the share of hidden nodes whose true value is within 1.96 deviations.
- mesh: mean and deviations of `interpolate` for three targets on spot (11,533 vertices, 20% known) at given hyper-parameters,
  beside another checkout of swing_gp (`--before`); the error of the deviations at 50 vertices beside sparse factors.
- training: 30 steps of Adam on all hyper-parameters of an ExactGP on all nodes of a graph.

Every entry is measured in a process of its own, in seconds of the clock and of all cores: on a shared machine the second is the
fairer.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import spatial_mesh
from benchmarks.reporting import ResultsFile, attempted, machine_info
from benchmarks.spatial_data import DATA, heaton, lattice
from benchmarks.spatial_models import MODELS, cg_steps, measure
from benchmarks.spatial_report import report
from benchmarks.spatial_runs import scaling, training

Row = dict[str, Any]


def steps_on(problem: Any, nu: float) -> Row:
    return {"quarter": cg_steps(problem.quarter(), nu), "whole": cg_steps(problem, nu)}


def run_lattice(quick: bool, keep: Callable[..., None]) -> None:
    found = None if quick else heaton()
    problem = lattice((120, 100) if quick else (500, 300), reach=10.0 if quick else 40.0) if found is None else found
    about = {"problem": problem.name, "observed": len(problem.observed), "hidden": len(problem.hidden)}
    for name in MODELS:
        if name.startswith("GPBoost") and find_spec("gpboost") is None:
            print("gpboost is not installed, so its Vecchia approximation is left out: pip install gpboost")
            continue
        keep("lattice", {**about, "method": name, **attempted(measure, name, problem)})
    for nu in (1.0, 1.5, 2.0):
        keep("steps", {"problem": problem.name, "nu": nu, **attempted(steps_on, problem, nu)})


def run_scaling(quick: bool, keep: Callable[..., None]) -> None:
    for number in (3_000,) if quick else (10_000, 100_000, 1_000_000):
        for name in ("sphere", "plane", "volume"):
            for nu in (1.0, 2.0):
                keep("scaling", {"shape": name, "nodes": number, "nu": nu, **attempted(scaling, name, number, nu)})


def run_mesh(quick: bool, keep: Callable[..., None], before: Path | None) -> None:
    mesh = DATA / "meshes" / ("spot_low_resolution.npz" if quick else "spot.npz")
    if not mesh.exists():
        print(f"{mesh} is missing, so the mesh is left out.")
        return
    vertices, spacing, known, targets = spatial_mesh.problem(np.load(mesh)["vertices"])
    checked, truth = spatial_mesh.exact(vertices, spacing, known, targets[known])
    for version, path in (("this", Path.cwd()), ("before", before)):
        if path is None:
            continue
        with tempfile.TemporaryDirectory() as folder:
            results = Path(folder) / "results.npz"
            command = [sys.executable, spatial_mesh.__file__, str(mesh), str(results)]
            subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(path.resolve())})
            found = np.load(results)
            mean, mean_cpu, total, cpu = found["times"].tolist()
            ratio = found["std"][checked] / truth
            keep(
                "mesh",
                {
                    "version": version,
                    "vertices": len(vertices),
                    "mean": mean,
                    "mean_cpu": mean_cpu,
                    "total": total,
                    "total_cpu": cpu,
                    "rmse": float(found["rmse"]),
                    "deviation_error": float(np.sqrt(((ratio - 1) ** 2).mean())),
                },
            )


def run_training(quick: bool, keep: Callable[..., None]) -> None:
    number = 2_500 if quick else 20_000
    for name in ("sphere", "volume"):
        for nu in (1.0, 2.0):
            keep("training", {"shape": name, "nodes": number, "nu": nu, **attempted(training, name, number, nu)})


PARTS = ("lattice", "scaling", "mesh", "training")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few thousand nodes")
    parser.add_argument("--out", type=Path, default=Path("results/spatial"), help="where the results go (%(default)s)")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts to run")
    parser.add_argument("--before", type=Path, help="another checkout of swing_gp, for the mesh")
    arguments = parser.parse_args()
    with ResultsFile(arguments.out / "results.json", {"machine": machine_info()}) as results:

        def keep(part: str, row: Row) -> None:
            print(part, row, flush=True)
            results.append(part, row)

        for part in arguments.only:
            if part == "mesh":
                run_mesh(arguments.quick, keep, arguments.before)
            else:
                {"lattice": run_lattice, "scaling": run_scaling, "training": run_training}[part](arguments.quick, keep)
    report(arguments.out)


if __name__ == "__main__":
    main()
