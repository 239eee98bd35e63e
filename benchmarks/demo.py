"""The main job in one minute: a graph of 20,000 points on a knotted tube, its diffusion kernel, a solve, a picture.

    python -m benchmarks.demo [--out demo_output] [--nodes 20000]

A signal is seen, with noise, at 400 of the nodes. The kernel of the implicit graph (a complete graph of 4 * 10^8 weighted
edges that is never stored) fills in the rest: the posterior mean of a Gaussian process, by the closed form and by conjugate
gradients through SciPy.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import scipy.sparse.linalg
import torch
from torch import Tensor

from benchmarks.reporting import save_figure
from swing_gp import Diffusion, Gaussian, ImplicitGraph, graph_kernel, to_scipy


def knotted_tube(number: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:  # (N, 3), (N,)
    """Points on a tube around a trefoil knot, and the position of each along the knot."""
    t, angle = 2 * math.pi * torch.rand(2, number, generator=generator, dtype=torch.float64)
    center = torch.stack([t.sin() + 2 * (2 * t).sin(), t.cos() - 2 * (2 * t).cos(), -(3 * t).sin()], -1)
    tangent = torch.stack([t.cos() + 4 * (2 * t).cos(), -t.sin() + 4 * (2 * t).sin(), -3 * (3 * t).cos()], -1)
    tangent = tangent / tangent.norm(dim=-1, keepdim=True)
    up = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64).expand_as(tangent)
    normal = torch.linalg.cross(tangent, up)
    normal = normal / normal.norm(dim=-1, keepdim=True)
    binormal = torch.linalg.cross(tangent, normal)
    around = angle.cos().unsqueeze(-1) * normal + angle.sin().unsqueeze(-1) * binormal
    return center + 0.35 * around, t


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo_output"))
    parser.add_argument("--nodes", type=int, default=20_000)
    arguments = parser.parse_args()
    generator = torch.Generator().manual_seed(0)

    points, t = knotted_tube(arguments.nodes, generator)
    graph = ImplicitGraph(points, Gaussian(0.3))
    start = time.perf_counter()
    kernel = graph_kernel(graph, Diffusion(50.0), features="landmarks")
    built = time.perf_counter()
    kernel @ torch.ones(len(points), dtype=torch.float64)
    multiplied = time.perf_counter()
    estimate = kernel.estimate_error()
    print(f"graph    {graph}")
    print(f"kernel   {kernel.features.num_features} landmarks in {built - start:.2f} s, K v in {multiplied - built:.4f} s")
    print(f"error    {estimate.adjacency:.1e} on {estimate.compared}")

    truth = torch.sin(2 * t) + 0.5 * torch.cos(5 * t)
    known = torch.randperm(len(points), generator=generator)[:400]
    noise = 0.2
    observed = truth[known] + noise * torch.randn(len(known), generator=generator, dtype=torch.float64)
    # The kernel on the observed nodes, scaled to unit mean variance.
    scale = 1 / kernel.diagonal()[known].mean()
    block = (kernel.block(known) * scale).add_diagonal(torch.tensor(noise**2, dtype=torch.float64))
    start = time.perf_counter()
    weights = block.solve(observed)
    solved = time.perf_counter()
    residuals: list[float] = []
    matrix = to_scipy(block)

    def record(x: np.ndarray) -> None:
        residuals.append(float(np.linalg.norm(matrix @ x - observed.numpy()) / observed.norm()))

    iterated, _ = scipy.sparse.linalg.cg(matrix, observed.numpy(), rtol=1e-10, callback=record)
    difference = float((torch.from_numpy(iterated) - weights).norm() / weights.norm())
    mean = kernel @ torch.zeros(len(points), dtype=torch.float64).index_put((known,), weights) * scale
    unseen = torch.ones(len(points), dtype=torch.bool)
    unseen[known] = False
    error = float((mean - truth)[unseen].square().mean().sqrt())
    nearest = observed[torch.cdist(points, points[known]).argmin(-1)]
    baseline = float((nearest - truth)[unseen].square().mean().sqrt())
    print(f"solve    closed form {1e3 * (solved - start):.1f} ms; CG {len(residuals)} steps, {difference:.0e} away from it")
    print(f"RMSE     {error:.3f} at {int(unseen.sum()):,} unseen nodes; nearest observation {baseline:.3f}, "
          f"standard deviation of the signal {float(truth.std()):.3f}")  # fmt: skip

    arguments.out.mkdir(parents=True, exist_ok=True)
    picture(arguments.out / "demo.png", points, known, observed, mean, mean - truth, residuals, (error, baseline))
    print(f"picture  {arguments.out / 'demo.png'}")


def picture(
    path: Path,
    points: Tensor,
    known: Tensor,
    observed: Tensor,
    mean: Tensor,
    error: Tensor,
    residuals: list[float],
    scores: tuple[float, float],
) -> None:
    figure = plt.figure(figsize=(15, 4.2), layout="constrained")
    panels = (
        (f"{len(known)} noisy observations", points[known], observed, 14, 1.6),
        (f"posterior mean at {len(points):,} nodes", points, mean, 1.5, 1.6),
        (f"error (RMSE {scores[0]:.2f}; nearest {scores[1]:.2f})", points, error, 1.5, 1.6),
    )
    for index, (title, where, values, size, limit) in enumerate(panels):
        axes = figure.add_subplot(1, 4, index + 1, projection="3d")
        dots = axes.scatter(*where.T.numpy(), c=values.numpy(), s=size, cmap="coolwarm", vmin=-limit, vmax=limit, linewidths=0)
        axes.set_title(title, fontsize=11)
        axes.set_axis_off()
        axes.view_init(elev=65, azim=-60)
        axes.set_box_aspect((1, 1, 0.5), zoom=1.2)
        figure.colorbar(dots, ax=axes, shrink=0.6, pad=0.0)
    axes = figure.add_subplot(1, 4, 4)
    axes.semilogy(range(1, len(residuals) + 1), residuals, color="black")
    axes.set(xlabel="CG step", ylabel="relative residual", title="conjugate gradients")
    axes.title.set_fontsize(11)
    axes.grid(alpha=0.3)
    save_figure(figure, path)


if __name__ == "__main__":
    main()
