"""Steps of conjugate gradients on (K + noise I) x = b to a residual of 1e-6, plain and preconditioned by landmarks.

    python -m benchmarks.cg [--quick] [--out results/cg]

K is the diffusion kernel exp(-5 (I - W~)) on the Fourier grid; a step is one product with K. The rows "decided" have the
decision of the operator for or against landmarks; rows with landmarks stand beside them in either case.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from benchmarks.measuring import Row
from benchmarks.reporting import table
from benchmarks.runner import Job, Run
from swing_gp import Diffusion, Gaussian, ImplicitGraph, graph_kernel
from swing_gp.linalg.conjugate_gradients import conjugate_gradients

RESIDUAL, MOST_STEPS = 1e-6, 500
# dimension, nodes, lengthscale, noise
CASES = [
    (3, 100_000, 0.3, 1e-3),
    (3, 100_000, 0.1, 1e-3),
    (3, 100_000, 0.1, 1e-1),
    (2, 100_000, 0.05, 1e-3),
    (2, 10_000, 0.02, 1e-3),
    (2, 4_000, 0.03, 1e-3),
]
QUICK = [(2, 5_000, 0.1, 1e-3), (3, 4_000, 0.2, 1e-3), (2, 2_500, 0.02, 1e-3)]


def solve(noisy: Any, b: torch.Tensor, precondition: Any) -> Row:
    """Measure steps, seconds and the true residual of one solve."""
    start = time.perf_counter()
    found = conjugate_gradients(noisy._matmul, b, tol=RESIDUAL, max_iterations=MOST_STEPS, precondition=precondition)
    seconds = time.perf_counter() - start
    residual = float((noisy._matmul(found.solution) - b).norm() / b.norm())
    return {"steps": len(found.residuals), "seconds": seconds, "residual": residual}


@torch.no_grad()
def measure(dim: int, number: int, lengthscale: float, noise: float) -> Row:
    points = torch.rand(number, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kernel = graph_kernel(ImplicitGraph(points, Gaussian(lengthscale)), Diffusion(5.0), features="grid", tol=1e-10)
    b = torch.randn(number, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    shift = torch.tensor(noise, dtype=torch.float64)
    noisy = kernel.add_diagonal(shift)
    plain = solve(noisy, b, None)
    start = time.perf_counter()
    helps = kernel._control.helps(kernel, noise)
    forced = kernel._control.kernel.add_diagonal(shift).solve
    row = {"plain": plain, "decision": time.perf_counter() - start, "helps": helps}
    landmarks = solve(noisy, b, forced)
    return {**row, "landmarks": landmarks, "decided": landmarks if helps else plain}


def main() -> None:
    with Run(__doc__, "cg", quick="a few thousand nodes") as run:
        cases = QUICK if run.quick else CASES
        names = ("dim", "number", "lengthscale", "noise")
        run.measure([Job("rows", dict(zip(names, case, strict=True)), measure, *case) for case in cases])
        columns: dict[str, Any] = {
            "d, N, lengthscale, noise": lambda r: f"{r['dim']}, {r['number']:,}, {r['lengthscale']:g}, {r['noise']:g}",
            "plain steps": lambda r: str(r["plain"]["steps"]),
            "with landmarks": lambda r: str(r["landmarks"]["steps"]),
            "decided": lambda r: f"{r['decided']['steps']} ({'landmarks' if r['helps'] else 'plain'})",
            "plain s": lambda r: f"{r['plain']['seconds']:.2f}",
            "decided s": lambda r: f"{r['decided']['seconds']:.2f}",
            "decision s": ("decision", ".2f"),
            "residual": lambda r: f"{r['decided']['residual']:.1e}",
        }
        run.report(table(run.rows("rows"), columns))


if __name__ == "__main__":
    main()
