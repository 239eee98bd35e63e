"""Kernel products beside GeometricKernels, fast-graph-gp, PyGSP and KeOps; for regressions see ``benchmarks.models``.

    python -m benchmarks.peers [--quick] [--cloud NAME] [--out results/peers]

Every entry is measured in this run, in a process of its own, at the sizes a method holds or finishes in a minute or two; peak
memory is of that process, Python and its libraries (about 0.3 GB) included and worker processes of its own left out. Peers are
optional: one that is missing is named and left out. Products are of the diffusion kernel exp(-5 (I - W~)), the same for all, in
double precision (KeOps and dense matrices: single); the least of up to five times, where they are short. We are asked for an
error of 1e-5, and for all digits where the graph is given as a sparse matrix. Errors are relative to a Taylor series of the
dense (or sparse) matrix, above 10,000 nodes to our own tightest route, and stand beside that of the trivial guess alpha_0 v.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from itertools import groupby
from typing import Any

from benchmarks.measuring import Row, attempted
from benchmarks.peers_packages import installed
from benchmarks.peers_products import CLOUDS, METHODS, GraphCase, measure_product, truth
from benchmarks.reporting import table
from benchmarks.runner import Job, Run
from benchmarks.scaling import total

SIZES, QUICK_SIZES = (1_000, 4_000, 10_000, 100_000), (1_000,)
AUTO = "swing_gp, auto"


def measure_products(run: Run, clouds: Iterable[str], have: set[str | None]) -> None:
    """Measure products by every method that can hold a case."""
    for case in [GraphCase(cloud, number) for cloud in clouds for number in (QUICK_SIZES if run.quick else SIZES)]:
        names = [name for name, m in METHODS.items() if m.package in have and case.number <= m.most.get(case.cloud, 0)]
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/truth.pt"
            about = {"cloud": case.cloud, "number": case.number, **attempted(truth, case, path)}
            run.measure([Job("products", {"method": name, **about}, measure_product, case, name, path) for name in names])


def product_table(rows: list[Row]) -> str:
    auto = next((row for row in rows if row["method"] == AUTO), {})
    columns: dict[str, Any] = {
        "method": "method",
        "set-up s": ("setup", ".2g"),
        "K v s": ("kv", ".2g"),
        "set-up + 10 K v, over auto's": lambda row: f"{total(row) / total(auto):.2g}",
        "peak GB": ("peak_gb", ".2g"),
        "relative error": ("error", ".1e"),
    }
    guess = {"method": "the guess alpha_0 v", "error": rows[0].get("trivial")}
    return f"{table([*rows, guess], columns)}\n\nTruth: {rows[0].get('reference', 'none')}."


def report(run: Run) -> list[str]:
    versions = ", ".join(f"{name} {version}" for name, version in run.content["versions"].items())
    parts = ["# Beside the peers", versions, "## Kernel products"]
    for (cloud, number), group in groupby(run.rows("products"), key=lambda row: (row["cloud"], row["number"])):
        parts += [f"### {cloud}, {number:,} nodes: {CLOUDS[cloud]}", product_table(list(group))]
    return parts


def main() -> None:
    options: dict[str, dict[str, Any]] = {
        "cloud": {"choices": list(CLOUDS), "help": "products on this cloud alone"},
    }
    with Run(__doc__, "peers", quick="1,000 nodes", **options) as run:
        run.content["versions"] = installed()
        have = {None, *run.content["versions"]}
        measure_products(run, [run.given.cloud] if run.given.cloud else CLOUDS, have)
        run.report(*report(run))


if __name__ == "__main__":
    main()
