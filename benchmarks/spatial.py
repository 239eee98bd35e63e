"""Gaussian processes in precision form on sparse graphs: a lattice with gaps, up to a million nodes, a mesh, training.

    python -m benchmarks.spatial [--quick] [--out results/spatial] [--only lattice ...]

- lattice: `heaton_simulated` of the shared data (150,000 cells, 44,431 of them hidden by gaps; a synthetic lattice where it is
  missing) beside GPBoost's Vecchia approximation, GPyTorch's SVGP, the nearest neighbour and the training mean. Ours has given
  hyper-parameters, a constant mean by generalised least squares and the likeliest amplitude. CRPS and the interval score at 95%
  are the lower the better. Also the steps of conjugate gradients on a quarter of the lattice and on all of it.
- scaling: a field of the prior on random points of a sphere, a square and a cube, graph of 10 nearest neighbours, a tenth of
  the nodes observed with noise. Seconds by stage: graph, set-up, mean at all nodes, deviations there (32 samples); `coverage`
  is the share of hidden nodes whose true value is within 1.96 deviations.
- mesh: mean and deviations of `interpolate` for three targets on spot (11,533 vertices, 20% known) at given hyper-parameters;
  the error of the deviations at 50 vertices beside sparse factors.
- training: 30 steps of Adam on all hyper-parameters of an ExactGP on all nodes of a graph.

Every entry is measured in a process of its own, in seconds of the clock and of all cores: on a shared machine the second is the
fairer.
"""

from __future__ import annotations

import itertools
from importlib.util import find_spec
from typing import Any

from benchmarks.measuring import Row
from benchmarks.reporting import table
from benchmarks.runner import DATA, Job, Run
from benchmarks.spatial_data import heaton, lattice
from benchmarks.spatial_mesh import mesh
from benchmarks.spatial_models import MODELS, cg_steps, measure
from benchmarks.spatial_runs import scaling, training

STAGES = ("graph", "setup", "mean", "deviations")
SHAPES = ("sphere", "plane", "volume")


def lattice_jobs(quick: bool) -> list[Job]:
    found = None if quick else heaton()
    problem = lattice((120, 100) if quick else (500, 300), reach=10.0 if quick else 40.0) if found is None else found
    about = {"problem": problem.name, "observed": len(problem.observed), "hidden": len(problem.hidden)}
    names = list(MODELS)
    if find_spec("gpboost") is None:
        print("gpboost is not installed, so its Vecchia approximation is left out: pip install gpboost")
        names = [name for name in names if not name.startswith("GPBoost")]
    jobs = [Job("lattice", {"method": name, **about}, measure, name, problem) for name in names]
    return jobs + [Job("steps", {"problem": problem.name, "nu": nu}, cg_steps, problem, nu) for nu in (1.0, 1.5, 2.0)]


def scaling_jobs(quick: bool) -> list[Job]:
    cases = itertools.product((3_000,) if quick else (10_000, 100_000, 1_000_000), SHAPES, (1.0, 2.0))
    return [Job("scaling", {"shape": name, "nodes": size, "nu": nu}, scaling, name, size, nu) for size, name, nu in cases]


def mesh_jobs(quick: bool) -> list[Job]:
    path = DATA / "meshes" / ("spot_low_resolution.npz" if quick else "spot.npz")
    if path.exists():
        return [Job("mesh", {"mesh": path.stem}, mesh, path)]
    print(f"{path} is missing, so the mesh is left out.")
    return []


def training_jobs(quick: bool) -> list[Job]:
    size = 2_500 if quick else 20_000
    cases = itertools.product(("sphere", "volume"), (1.0, 2.0))
    return [Job("training", {"shape": name, "nodes": size, "nu": nu}, training, name, size, nu) for name, nu in cases]


PARTS = {"lattice": lattice_jobs, "scaling": scaling_jobs, "mesh": mesh_jobs, "training": training_jobs}


def total(row: Row, end: str = "") -> float:
    return sum(row[stage + end] for stage in STAGES)


NODES: dict[str, Any] = {"nodes": lambda row: f"{row['shape']}, {row['nodes']:,}", "nu": ("nu", "g")}
SPENT: dict[str, Any] = {"seconds": ("seconds", ".0f"), "CPU seconds": ("cpu", ".0f"), "peak GB": ("peak_gb", ".1f")}
TABLES: dict[str, dict[str, Any]] = {
    "lattice": {
        "method": "method",
        "RMSE": ("rmse", ".3f"),
        "MAE": ("mae", ".3f"),
        "CRPS": ("crps", ".3f"),
        "interval score": ("interval", ".2f"),
        "within 95%": ("coverage", ".1%"),
        **SPENT,
    },
    "steps": {"nu": ("nu", "g"), "steps, a quarter of the lattice": "quarter", "steps, all of it": "whole"},
    "scaling": {
        **NODES,
        **{stage: (stage, ".3g") for stage in STAGES},
        "total": lambda row: f"{total(row):.3g}",
        "total CPU": lambda row: f"{total(row, '_cpu'):.3g}",
        "steps": "steps",
        "peak GB": ("peak_gb", ".2g"),
        "coverage": ("coverage", ".1%"),
    },
    "mesh": {
        "mesh": "mesh",
        "mean s": ("mean", ".3g"),
        "CPU s": ("mean_cpu", ".3g"),
        "deviations s": ("deviations", ".3g"),
        "CPU s of them": ("deviations_cpu", ".3g"),
        "RMSE": ("rmse", ".2e"),
        "error of deviations": ("deviation_error", ".1%"),
    },
    "training": {
        **NODES,
        "30 steps, seconds": ("training", ".3g"),
        "CPU seconds": ("training_cpu", ".3g"),
        "kappa found": ("kappa", ".3g"),
        "noise found": ("noise", ".2g"),
        "peak GB": ("peak_gb", ".2g"),
    },
}


def main() -> None:
    only: dict[str, Any] = {"nargs": "+", "choices": PARTS, "default": list(PARTS), "help": "parts to run"}
    with Run(__doc__, "spatial", quick="a few thousand nodes", only=only) as run:
        run.measure([job for part in run.given.only for job in PARTS[part](run.quick)])
        found = {name: run.rows(name) for name in TABLES if run.rows(name)}
        run.report(*(f"## {name}\n\n{table(rows, TABLES[name])}" for name, rows in found.items()))


if __name__ == "__main__":
    main()
