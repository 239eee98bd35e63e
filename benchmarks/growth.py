"""How time and memory grow with N: build and apply every dense route at two sizes, each in a process of its own.

    python -m benchmarks.growth [--quick] [--out results/growth]

The unit cube in 3-D, lengthscale 0.3, float32, 256 features, 8 walks. Ratios matter, seconds depend on the machine: an
algorithm linear in N grows by the ratio of the sizes. The error of the adjacency on exact rows stands beside the times.
"""

from __future__ import annotations

import json
import subprocess
import sys

from tqdm import tqdm

from benchmarks.reporting import options, write_report

ROUTES = {
    "landmarks": "features='landmarks'",
    "positive": "features='positive'",
    "walks, two-sided": "features='positive', walks=Walks(8, temperature=0.3)",
    "walks, one-sided": "features='positive', walks=Walks(8, temperature=0.3, sides=1)",
}

SCRIPT = """
import json, time, torch
from swing_gp.utils.memory import peak_gigabytes
from swing_gp import Diffusion, Gaussian, ImplicitGraph, Walks, graph_kernel
torch.set_num_threads(2)
def run(number):
    points = torch.rand(number, 3, generator=torch.Generator().manual_seed(0))
    graph = ImplicitGraph(points, Gaussian(0.3))
    v = torch.randn(number, 4, generator=torch.Generator().manual_seed(1))
    start = time.perf_counter()
    K = graph_kernel(graph, Diffusion(1.0), num_features=256, {route})
    built = time.perf_counter()
    for _ in range(5):
        K @ v
    return built - start, (time.perf_counter() - built) / 5, K
run(2000)  # first calls load libraries
build, apply, K = run({number})
peak = peak_gigabytes()
print(json.dumps(dict(build=build, apply=apply, peak_gb=peak, error=K.estimate_error(8).adjacency)))
"""


def measure(number: int, route: str) -> dict[str, float]:
    """Build and apply once in a fresh process, so that its peak memory is this route's alone."""
    script = SCRIPT.replace("{route}", route).replace("{number}", str(number))
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return json.loads(result.stdout.splitlines()[-1])  # pykeops, where installed, prints before it


def main() -> None:
    arguments = options(__doc__, "growth", quick="5,000 and 50,000 nodes in place of 20,000 and 200,000")
    small, large = (5_000, 50_000) if arguments.quick else (20_000, 200_000)
    times = [[f"{what} {small:,}", f"{what} {large:,}", "ratio"] for what in ("build", "apply")]
    header = ["route", *times[0], *times[1], "peak GB", "error"]
    rows, lines = {}, []
    for name, route in tqdm(ROUTES.items(), unit="route"):
        one, two = measure(small, route), measure(large, route)
        rows[name] = {small: one, large: two}
        build = [f"{one['build']:.2f} s", f"{two['build']:.2f} s", f"{two['build'] / one['build']:.1f}"]
        apply = [f"{1e3 * one['apply']:.1f} ms", f"{1e3 * two['apply']:.1f} ms", f"{two['apply'] / one['apply']:.1f}"]
        lines.append([name, *build, *apply, f"{two['peak_gb']:.2f}", f"{two['error']:.1e}"])
    write_report(arguments.out, rows, header, lines)


if __name__ == "__main__":
    main()
