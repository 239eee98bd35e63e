"""Steps of conjugate gradients on (K + noise I) x = b to a residual of 1e-6, plain and preconditioned by landmarks.

    python -m benchmarks.cg [--quick] [--out results/cg]

K is the diffusion kernel exp(-5 (I - W~)) on the Fourier grid; a step is one product with K. "decided" is what the operator
decides by itself before the solve, beside what the landmarks would have done where it decided against them.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from tqdm import tqdm

from benchmarks.reporting import options, write_report
from swing_gp import Diffusion, Gaussian, ImplicitGraph, graph_kernel
from swing_gp.linalg.conjugate_gradients import conjugate_gradients

RESIDUAL = 1e-6
MOST_STEPS = 500
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


def solve(noisy: Any, b: torch.Tensor, precondition: Any) -> dict[str, float]:
    """Steps, seconds and the true residual of one solve."""
    start = time.perf_counter()
    found = conjugate_gradients(noisy._matmul, b, tol=RESIDUAL, max_iterations=MOST_STEPS, precondition=precondition)
    seconds = time.perf_counter() - start
    residual = float((noisy._matmul(found.solution) - b).norm() / b.norm())
    return {"steps": len(found.residuals), "seconds": seconds, "residual": residual}


@torch.no_grad()
def run(dim: int, number: int, lengthscale: float, noise: float) -> dict[str, Any]:
    points = torch.rand(number, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kernel = graph_kernel(ImplicitGraph(points, Gaussian(lengthscale)), Diffusion(5.0), features="grid", tol=1e-10)
    b = torch.randn(number, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    noisy = kernel.add_diagonal(torch.tensor(noise, dtype=torch.float64))
    row: dict[str, Any] = dict(dim=dim, number=number, lengthscale=lengthscale, noise=noise)
    row["plain"] = solve(noisy, b, None)
    start = time.perf_counter()
    helps = kernel._control.helps(kernel, noise)
    forced = kernel._control.kernel.add_diagonal(torch.tensor(noise, dtype=torch.float64)).solver()
    row["setup"] = time.perf_counter() - start
    row["helps"] = helps
    row["landmarks"] = solve(noisy, b, forced)
    row["decided"] = row["landmarks"] if helps else row["plain"]
    return row


def main() -> None:
    arguments = options(__doc__, "cg", quick="a few thousand nodes")
    rows = [run(*case) for case in tqdm(QUICK if arguments.quick else CASES, unit="case")]
    header = [
        "d, N, lengthscale, noise",
        "plain steps",
        "with landmarks",
        "decided",
        "plain s",
        "decided s",
        "decision s",
        "residual",
    ]
    lines = [
        [
            f"{row['dim']}, {row['number']:,}, {row['lengthscale']:g}, {row['noise']:g}",
            str(row["plain"]["steps"]),
            str(row["landmarks"]["steps"]),
            f"{row['decided']['steps']} ({'landmarks' if row['helps'] else 'plain'})",
            f"{row['plain']['seconds']:.2f}",
            f"{row['decided']['seconds']:.2f}",
            f"{row['setup']:.2f}",
            f"{row['decided']['residual']:.1e}",
        ]
        for row in rows
    ]
    write_report(arguments.out, rows, header, lines)


if __name__ == "__main__":
    main()
