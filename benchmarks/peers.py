"""Beside GeometricKernels, fast-graph-gp, PyGSP, KeOps and GPyTorch's own kernels: kernel products and GP regressions.

    python -m benchmarks.peers [--quick] [--cloud NAME] [--data ../shared/data/regression] [--out results/peers]

Every entry is measured in this run, in a process of its own, at the sizes a method holds or finishes in a minute or two; peak
memory is of that process, Python and its libraries (about 0.3 GB) included and worker processes of its own left out. Peers are
optional: one that is missing is named and left out. Products are of the diffusion kernel exp(-5 (I - W~)), the same for all, in
double precision (KeOps and dense matrices: single); the least of up to five times, where they are short. We are asked for an
error of 1e-5, and for all digits where the graph is given as a sparse matrix. Errors are relative to a Taylor series of the
dense (or sparse) matrix, above 10,000 nodes to our own tightest route, and stand beside that of the guess alpha_0 v.
Regressions train by the same number of steps of Adam; the training mean stands first.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tqdm import tqdm

from benchmarks.peers_models import MODELS, measure_regression
from benchmarks.peers_packages import PACKAGES, installed
from benchmarks.peers_problems import problems
from benchmarks.peers_products import CLOUDS, METHODS, GraphCase, measure_product, truth
from benchmarks.peers_report import report
from benchmarks.regression_data import Problem
from benchmarks.reporting import ResultsFile, attempted, machine_info

SIZES, QUICK_SIZES = (1_000, 4_000, 10_000, 100_000), (1_000,)
STEPS, QUICK_STEPS = 30, 10


def product_jobs(quick: bool, have: set[str | None], clouds: list[str]) -> list[tuple[GraphCase, list[str]]]:
    """The methods that hold each case."""
    cases = [GraphCase(cloud, number) for cloud in clouds for number in (QUICK_SIZES if quick else SIZES)]
    return [
        (case, [name for name, m in METHODS.items() if m.package in have and case.number <= m.most.get(case.cloud, 0)])
        for case in cases
    ]


def regression_jobs(found: list[Problem], quick: bool, have: set[str | None]) -> list[tuple[Problem, str]]:
    jobs = []
    for problem in found:
        size = len(problem.x) + len(problem.x_test)
        for name, model in MODELS.items():
            holds = model.most is None or size <= model.most
            if holds and model.package in have and (model.quick or not quick):
                jobs.append((problem, name))
    return jobs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="1,000 nodes and one small regression: about a minute")
    parser.add_argument("--cloud", choices=list(CLOUDS), help="products on this cloud alone, and no regressions")
    parser.add_argument("--data", type=Path, default=Path("../shared/data/regression"), help="a folder of .npz (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("results/peers"), help="where the results go (%(default)s)")
    arguments = parser.parse_args()
    versions = installed()
    for name in (name for name, version in versions.items() if version is None):
        print(f"{name} is not installed, so it is left out: pip install {PACKAGES[name].project}")
    have = {None, *(name for name, version in versions.items() if version is not None)}
    products = product_jobs(arguments.quick, have, [arguments.cloud] if arguments.cloud else list(CLOUDS))
    found = [] if arguments.cloud else problems(arguments.data, quick=arguments.quick)
    regressions = regression_jobs(found, arguments.quick, have)
    steps = QUICK_STEPS if arguments.quick else STEPS
    content = {"machine": machine_info(), "versions": versions, "steps": steps}
    with (
        ResultsFile(arguments.out / "results.json", content) as results,
        tempfile.TemporaryDirectory() as folder,
        tqdm(total=sum(1 + len(names) for _, names in products) + len(regressions), unit="run") as progress,
    ):
        for case, names in products:
            path = str(Path(folder) / "truth.pt")
            progress.set_description(f"{case.cloud}, {case.number:,}: truth")
            common = {"cloud": case.cloud, "number": case.number, **attempted(truth, case, path)}
            progress.update()
            for name in names:
                progress.set_description(f"{case.cloud}, {case.number:,}: {name}")
                results.append("products", {**common, "method": name, **attempted(measure_product, case, name, path)})
                progress.update()
        for problem, name in regressions:
            progress.set_description(f"{problem.name}: {name}")
            common = {"problem": problem.name, "train": len(problem.x), "test": len(problem.x_test), "method": name}
            results.append("regressions", {**common, **attempted(measure_regression, problem, name, steps)})
            progress.update()
    report(arguments.out)


if __name__ == "__main__":
    main()
