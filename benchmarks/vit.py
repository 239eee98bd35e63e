"""Graph masks in a small vision transformer: scikit-learn's digits, over several seeds, beside the same model without a mask.

    python -m benchmarks.vit [--quick] [--out results/vit]

The paper reports ImageNet and Places365, 0.2 points above a ViT. Neither is within reach of two cores; 1,797 images of 8 x 8
pixels are, and the 500 of them that are tested on cannot resolve 0.2 points. What can be seen is whether a mask does good or
harm beyond that, also where images are few, and what it costs.

All masks are of one graph (the patches, Gaussian weights of lengthscale one patch) and one kernel, the diffusion at t = 5: by
graph random features on the explicit graph, by SWING as printed, and collapsed, in the dense and in the low-rank form. For one
seed all variants start from the same weights and see the same images in the same order, while walks are drawn anew;
differences to the ViT are paired. Learning rate and first strength were chosen on 297 validation images with other seeds
(100 to 103): the rate from 0.001 to 0.01 without a mask, the strength from 1 and 4 with the collapsed mask (from 0 it stays
below 0.3, and the mask unused). Test images are scored once, after the last step. The mean strength leaves out the last layer:
the class is read from the class token, which no mask reaches.
"""

from __future__ import annotations

import json
import multiprocessing
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import scipy.sparse
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from tqdm import tqdm

from benchmarks.reporting import machine_info, markdown_table, options, save_figure, write_atomically
from benchmarks.vit_model import ViT
from swing_gp import Diffusion, Gaussian, ImplicitGraph, PairwiseFeatures, Walks, adjacency, graph_kernel, grf_kernel
from swing_gp.models.attention import GraphMask, LowRankGraphMask, patch_grid
from swing_gp.utils.memory import peak_gigabytes

SIDE, CLASSES, TEST, VALIDATION = 8, 10, 500, 297
WIDTH, DEPTH, HEADS, BATCH = 32, 3, 4, 50
RATE, DECAY, STRENGTH = 0.01, 0.05, 4.0
EDGE, SERIES = Gaussian(1.0), Diffusion(5.0)
AS_PRINTED = Walks(16, temperature=0.2, noise="frechet", deposit="spread", halting=0.3, sides=1, groups=16)


@dataclass(frozen=True)
class Regime:
    """Patches of how many pixels a side, how many images to learn from, and for how long."""

    name: str
    patch: int
    images: int
    epochs: int
    seeds: int

    @property
    def grid(self) -> int:
        return SIDE // self.patch


REGIMES = [
    Regime("16 patches, 1,000 images", 2, 1_000, 30, 5),
    Regime("16 patches, 200 images", 2, 200, 100, 10),
    Regime("64 pixels, 200 images", 1, 200, 100, 6),
]
QUICK = [Regime("16 patches, 200 images", 2, 200, 30, 2)]


# The masks


def kernel_of(name: str, grid: int, seed: int) -> Any:
    graph = ImplicitGraph(patch_grid(grid, grid), EDGE)
    if name == "GRF mask":
        explicit = scipy.sparse.csr_array(adjacency(PairwiseFeatures(graph)).to_dense().numpy())
        return grf_kernel(explicit, SERIES, walks=100, seed=seed, dtype=torch.float32)
    if name == "SWING mask, as printed":
        return graph_kernel(graph, SERIES, features="positive", num_features=256, walks=AS_PRINTED, seed=seed)
    if name == "collapsed mask":
        return graph_kernel(graph, SERIES, features="pairwise")
    return graph_kernel(graph, SERIES, features="landmarks", num_features=grid**2 // 2)


def mask_of(name: str, grid: int, seed: int, strength: float = 1.0) -> Callable[[], nn.Module | None]:
    """A function that makes the mask of one layer."""
    if name == "ViT":
        return lambda: None
    kernel = kernel_of(name, grid, seed)
    form = LowRankGraphMask if name.endswith("low rank") else GraphMask
    return lambda: form(kernel, HEADS, num_prefix_tokens=1, strength=strength)


VARIANTS = ["ViT", "GRF mask", "SWING mask, as printed", "collapsed mask", "collapsed mask, low rank"]


def mask_error(name: str, grid: int, seed: int) -> float:
    """Of the mask against that of the exact kernel, off the diagonal, relative to it."""
    ours, truth = (mask_of(which, grid, seed)().bias()[0, 1:, 1:].detach() for which in (name, "collapsed mask"))
    return float((ours - truth).fill_diagonal_(0).norm() / truth.fill_diagonal_(0).norm())


# The data and the training


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images, classes, and the ids of test images and of those to learn from; validation images are the rest."""
    pixels, classes = load_digits(return_X_y=True)
    images, labels = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, SIDE, SIDE) / 16, torch.tensor(classes)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    test, pool = order[:TEST], order[TEST + VALIDATION :]
    return (images - images[pool].mean()) / images[pool].std(), labels, test, pool


def majority() -> float:
    """The accuracy of the commonest class."""
    _, labels, test, pool = digits()
    return float((labels[test] == labels[pool].mode().values).double().mean())


def run(name: str, regime: Regime, seed: int) -> dict[str, Any]:
    """Train one model and score it once, after the last step."""
    images, labels, test, pool = digits()
    make_mask = mask_of(name, regime.grid, seed, STRENGTH)
    torch.manual_seed(seed)  # masks draw from generators of their own: the same weights with and without
    model = ViT(SIDE, regime.patch, CLASSES, make_mask, width=WIDTH, depth=DEPTH, heads=HEADS)
    generator = torch.Generator().manual_seed(seed)
    chosen = pool[torch.randperm(len(pool), generator=generator)[: regime.images]]
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() <= 1]  # strengths among them: no decay
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}], lr=RATE
    )
    steps = regime.epochs * (regime.images // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps, pct_start=0.1)
    start = time.perf_counter()
    for _ in range(regime.epochs):
        for batch in chosen[torch.randperm(len(chosen), generator=generator)].split(BATCH):
            optimizer.zero_grad()
            cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
            schedule.step()
    seconds = (time.perf_counter() - start) / regime.epochs
    model.eval()
    with torch.no_grad():
        correct = (model(images[test]).argmax(-1) == labels[test]).double().mean()
    strengths = [block.attention.mask.strength.tolist() for block in model.blocks if block.attention.mask is not None]
    row = {"regime": regime.name, "variant": name, "seed": seed, "accuracy": float(correct), "epoch_seconds": seconds}
    if strengths:
        row |= {"strengths": strengths, "mask_error": mask_error(name, regime.grid, seed)}
    return row


# What attention alone costs


def attention_cost(form: str, grid: int) -> dict[str, Any]:
    """One forward and backward pass of attention over a grid of patches, and the memory it adds."""
    shape = (1, HEADS, grid**2, 32)
    query, key, value = (torch.randn(shape, generator=torch.Generator().manual_seed(i)).requires_grad_() for i in range(3))
    edge, series = Gaussian(grid / 8), Diffusion(8.0)
    attend: Any = scaled_dot_product_attention
    if form == "dense":
        attend = GraphMask.for_grid(grid, grid, edge, series, num_heads=HEADS)
    if form == "low rank":
        attend = LowRankGraphMask.for_grid(grid, grid, edge, series, num_heads=HEADS, num_features=64)
    held = sum(buffer.numel() * buffer.itemsize for buffer in attend.buffers()) if form != "none" else 0
    few = [tensor[..., :64, :] for tensor in (query, key, value)]
    scaled_dot_product_attention(*few).sum().backward()  # torch loads what it loads
    before, times = peak_gigabytes(), []
    for _ in range(3):
        start = time.perf_counter()
        attend(query, key, value).sum().backward()
        times.append(time.perf_counter() - start)
    return {"mask": form, "tokens": grid**2, "seconds": min(times), "held": held, "gigabytes": peak_gigabytes() - before}


def isolated(form: str, grid: int) -> dict[str, Any]:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(attention_cost, form, grid).result()


# The report


def paired(rows: list[dict[str, Any]], regime: Regime, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Accuracies of the seeds, and their differences to the model without a mask, in percent."""

    def of(variant: str) -> np.ndarray:
        found = [row for row in rows if row["regime"] == regime.name and row["variant"] == variant]
        return 100 * np.array([row["accuracy"] for row in sorted(found, key=lambda row: row["seed"])])

    return of(name), of(name) - of("ViT")


def lines_of(rows: list[dict[str, Any]], regimes: list[Regime]) -> list[list[str]]:
    lines = []
    for regime in regimes:
        lines.append(["majority class", f"{regime.name}, {regime.seeds} seeds", f"{100 * majority():.1f}", "", "", "", ""])
        for name in VARIANTS:
            scores, gains = paired(rows, regime, name)
            mine = [row for row in rows if row["regime"] == regime.name and row["variant"] == name]
            masked = name != "ViT"
            error = np.mean([row["mask_error"] for row in mine]) if masked else 0.0
            learnt = np.mean([np.mean(row["strengths"][:-1]) for row in mine]) if masked else 0.0
            lines.append(
                [
                    name,
                    f"{regime.name}, {regime.seeds} seeds",
                    f"{scores.mean():.1f} ± {scores.std(ddof=1):.1f}",
                    f"{gains.mean():+.2f} ± {gains.std(ddof=1) / len(gains) ** 0.5:.2f}" if masked else "",
                    f"{STRENGTH:g} to {learnt:.2f}" if masked else "",
                    f"{error:.2g}" if masked else "",
                    f"{np.median([row['epoch_seconds'] for row in mine]):.2f}",
                ]
            )
    return lines


def draw(rows: list[dict[str, Any]], regimes: list[Regime], out: Path) -> None:
    figure = plt.figure(figsize=(13, 7), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=[0.8, 1])
    grid = regimes[-1].grid
    node = (grid // 2) * grid + grid // 2
    top.suptitle(f"M: what one patch of {grid} x {grid} is given for attending to the others", fontsize=11)
    axes = top.subplots(1, len(VARIANTS) - 1)
    for axis, name in zip(axes, VARIANTS[1:], strict=True):
        row = mask_of(name, grid, 0)().bias()[0, 1 + node, 1:].detach()
        picture = axis.imshow(row.view(grid, grid), vmin=0, vmax=1)
        axis.set(xticks=[], yticks=[], title=name)
    top.colorbar(picture, ax=axes, shrink=0.8)
    for axis, regime in zip(bottom.subplots(1, len(regimes), squeeze=False)[0], regimes, strict=True):
        for number, name in enumerate(VARIANTS[1:]):
            _, gains = paired(rows, regime, name)
            axis.plot(gains, np.full(len(gains), number) + 0.12, ".", color=f"C{number}", alpha=0.5)
            error = gains.std(ddof=1) / len(gains) ** 0.5
            axis.errorbar(gains.mean(), number, xerr=error, fmt="o", color=f"C{number}", capsize=4)
        axis.axvline(0, color="0.4", linewidth=1)
        axis.set_yticks(range(len(VARIANTS) - 1), VARIANTS[1:] if axis.get_subplotspec().colspan.start == 0 else [])
        axis.set_ylim(len(VARIANTS) - 1.5, -0.5)
        without = paired(rows, regime, "ViT")[0].mean()
        axis.set(xlabel="points of accuracy above the ViT", title=f"{regime.name}\nViT: {without:.1f}%")
        axis.grid(alpha=0.3, axis="x")
    save_figure(figure, out / "vit.png")


def main() -> None:
    arguments = options(__doc__, "vit", quick="two seeds of one case, too short to say what a mask does")
    warnings.simplefilter("ignore")
    regimes = QUICK if arguments.quick else REGIMES
    costs = [
        isolated(form, grid)
        for grid in tqdm([32] if arguments.quick else [32, 64], desc="cost", unit="grid")
        for form in ("none", "dense", "low rank")
    ]
    jobs = [(name, regime, seed) for regime in regimes for seed in range(regime.seeds) for name in VARIANTS]
    # The tensors are small: one thread a model, and two models at a time.
    with ProcessPoolExecutor(
        2, mp_context=multiprocessing.get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        futures = [pool.submit(run, *job) for job in jobs]
        rows = [future.result() for future in tqdm(as_completed(futures), total=len(jobs), desc="training", unit="model")]
    header = ["model", "digits", "test accuracy %", "above the ViT", "strength", "error of M", "s an epoch"]
    table = markdown_table(header, lines_of(rows, regimes))
    cost_header = ["mask", "tokens", "forward and backward s", "held by the mask MB", "peak memory GB"]
    cost_lines = [
        [row["mask"], f"{row['tokens']:,}", f"{row['seconds']:.3f}", f"{row['held'] / 1e6:.1f}", f"{row['gigabytes']:.2f}"]
        for row in costs
    ]
    text = f"{table}\n\nAttention alone, {HEADS} heads of width 32, 64 landmarks:\n\n{markdown_table(cost_header, cost_lines)}"
    draw(rows, regimes, arguments.out)
    content = {"machine": machine_info(), "results": rows, "costs": costs}
    write_atomically(arguments.out / "results.json", json.dumps(content, indent=1, allow_nan=False) + "\n")
    write_atomically(arguments.out / "report.md", text + "\n")
    print(text)


if __name__ == "__main__":
    main()
