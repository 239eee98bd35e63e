"""W v and K v against N, beside KeOps, chunked torch, dense and matrix-free expm_multiply, and Lanczos.

    python -m benchmarks.scaling [--quick] [--clouds NAME ...] [--meshes DIR] [--out results/scaling]

K is the diffusion kernel exp(-5 (I - W~)) of the symmetric normalisation, the points are float32 (KeOps is at its best
there), every method is asked for a relative error of 1e-5, and each runs in a process of its own, so that its peak memory is
its own (Python and its libraries, about 0.3 GB, included). Errors are relative and measured on a random Gaussian v: up to
10,000 nodes against exact products in float64; above, W v on 64 exact rows and K v against our own tightest route, which is
named. Beside them stands the error of the trivial guess K v = alpha_0 v. Peers get the sizes they finish in minutes.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from tqdm import tqdm

from benchmarks.reporting import ResultsFile, attempted, machine_info
from benchmarks.scaling_report import report
from benchmarks.scaling_runs import OURS, Case, measure, reference

CLOUDS = ("cube 0.1", "cube 0.3", "paper", "surface")


def cases(quick: bool, clouds: Sequence[str], meshes: Path | None) -> list[Case]:
    sizes = (1_000, 10_000) if quick else (1_000, 3_000, 10_000, 100_000, 1_000_000)
    found = [Case(cloud, number) for cloud in clouds for number in sizes]
    for path in sorted(meshes.glob("*.npz")) if meshes is not None else ():
        with np.load(path) as mesh:
            number = len(mesh["vertices"])
        if number >= 1_000:
            found.append(Case(path.stem, number, mesh=str(path)))
    return found


def methods(case: Case, quick: bool) -> list[str]:
    """Ours everywhere; peers, whose time does not depend on the cloud, at the sizes they finish in minutes."""
    one = case.cloud == "cube 0.1"
    if case.number > 100_000 or (case.number > 10_000 and not one) or (quick and case.number > 1_000 and not one):
        return list(OURS)
    matrices = ["KeOps", "torch", "dense"] if case.number <= 10_000 else ["KeOps", "torch"]
    if importlib.util.find_spec("pykeops") is None:
        matrices.remove("KeOps")
    peers = [f"{matrix} + expm_multiply" for matrix in matrices]
    if case.number <= 10_000:
        peers += [f"{matrix} + Lanczos" for matrix in matrices if matrix != "torch"]
    return [*OURS, *peers]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="up to 10,000 nodes: about three minutes")
    parser.add_argument("--clouds", nargs="+", choices=CLOUDS, default=CLOUDS, metavar="NAME", help=f"of {', '.join(CLOUDS)}")
    parser.add_argument("--meshes", type=Path, help="a folder of .npz files with vertices and faces, measured too")
    parser.add_argument("--out", type=Path, default=Path("results/scaling"))
    arguments = parser.parse_args()
    if importlib.util.find_spec("pykeops") is None:
        print("pykeops is not installed, so KeOps is left out: pip install pykeops")
    work = [(case, methods(case, arguments.quick)) for case in cases(arguments.quick, arguments.clouds, arguments.meshes)]
    if not arguments.quick and "cube 0.1" in arguments.clouds:  # the figures at a million nodes are for a tolerance of 1e-4
        work += [(Case("cube 0.1", number, 1e-4), ["grid"]) for number in (100_000, 1_000_000)]
    total = sum(1 + len(names) for _, names in work)
    with (
        ResultsFile(arguments.out / "results.json", {"machine": machine_info()}) as results,
        tempfile.TemporaryDirectory() as folder,
        tqdm(total=total, unit="run") as progress,
    ):
        for case, names in work:
            path = str(Path(folder) / "truth.pt")
            progress.set_description(f"{case.cloud}, N={case.number:,}: truth")
            truth = attempted(reference, case, path)
            progress.update()
            for method in names:
                progress.set_description(f"{case.cloud}, N={case.number:,}: {method}")
                results.append("rows", {**asdict(case), "method": method, **truth, **attempted(measure, case, method, path)})
                progress.update()
    report(arguments.out)


if __name__ == "__main__":
    main()
