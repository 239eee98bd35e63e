"""Growth of time and memory with N: build and apply every dense route at two sizes, each in a process of its own.

    python -m benchmarks.growth [--quick] [--out results/growth]

The unit cube in 3-D, lengthscale 0.3, float32, 256 features, 8 walks. Ratios matter, seconds depend on the machine: an
algorithm linear in N grows by the ratio of the sizes. The error of the adjacency on exact rows stands beside the times.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from benchmarks.measuring import Row
from benchmarks.reporting import table
from benchmarks.runner import Job, Run
from swing_gp import Diffusion, Gaussian, ImplicitGraph, Walks, graph_kernel
from swing_gp.utils.memory import peak_gigabytes

ROUTES: dict[str, dict[str, Any]] = {
    "landmarks": {"features": "landmarks"},
    "positive": {"features": "positive"},
    "walks, two-sided": {"features": "positive", "walks": Walks(8, temperature=0.3)},
    "walks, one-sided": {"features": "positive", "walks": Walks(8, temperature=0.3, sides=1)},
}


def once(number: int, route: dict[str, Any]) -> tuple[float, float, Any]:
    points = torch.rand(number, 3, generator=torch.Generator().manual_seed(0))
    graph = ImplicitGraph(points, Gaussian(0.3))
    v = torch.randn(number, 4, generator=torch.Generator().manual_seed(1))
    start = time.perf_counter()
    kernel = graph_kernel(graph, Diffusion(1.0), num_features=256, **route)
    built = time.perf_counter()
    for _ in range(5):
        kernel @ v
    return built - start, (time.perf_counter() - built) / 5, kernel


def measure(name: str, number: int) -> Row:
    once(2_000, ROUTES[name])  # first calls load libraries
    build, apply, kernel = once(number, ROUTES[name])
    return {"build": build, "apply": apply, "peak_gb": peak_gigabytes(), "error": kernel.estimate_error(8).adjacency}


def main() -> None:
    with Run(__doc__, "growth", quick="5,000 and 50,000 nodes in place of 20,000 and 200,000") as run:
        small, large = (5_000, 50_000) if run.quick else (20_000, 200_000)
        about = [{"route": name, "nodes": number} for name in ROUTES for number in (small, large)]
        run.measure([Job("rows", row, measure, *row.values()) for row in about])
        first = {row["route"]: row for row in run.rows("rows") if row["nodes"] == small}
        columns: dict[str, Any] = {"route": "route"}
        for what, unit, scale in (("build", "s", 1), ("apply", "ms", 1e3)):
            columns |= {
                f"{what} {small:,}, {unit}": lambda r, w=what, k=scale: f"{k * first[r['route']][w]:.2f}",
                f"{what} {large:,}, {unit}": lambda r, w=what, k=scale: f"{k * r[w]:.2f}",
                f"{what} ratio": lambda r, w=what: f"{r[w] / first[r['route']][w]:.1f}",
            }
        columns |= {"peak GB": ("peak_gb", ".2f"), "error": ("error", ".1e")}
        run.report(table([row for row in run.rows("rows") if row["nodes"] == large], columns))


if __name__ == "__main__":
    main()
