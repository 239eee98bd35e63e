"""Graph masks in a small vision transformer: scikit-learn's digits, over several seeds, beside the same model without a mask.

    python -m benchmarks.vit [--quick] [--out results/vit]

The paper reports ImageNet and Places365, 0.2 points above a ViT. Neither is within reach of two cores; 1,797 images of 8 x 8
pixels are, and the 500 of them that are tested on cannot resolve 0.2 points. What can be seen is whether a mask does good or
harm beyond that, also where images are few.

All masks are of one graph (the patches, Gaussian weights of lengthscale one patch) and one kernel, the diffusion at t = 5: by
graph random features on the explicit graph, by SWING as printed, and collapsed, in the dense and in the low-rank form. For one
seed all variants start from the same weights and see the same images in the same order, while walks are drawn anew;
differences to the ViT are paired. Learning rate and first strength were chosen on 297 validation images with other seeds
(100 to 103): the rate from 0.001 to 0.01 without a mask, the strength from 1 and 4 with the collapsed mask (from 0 it stays
below 0.3, and the mask unused). Test images are scored once, after the last step. The mean strength leaves out the last layer:
the class is read from the class token, which no mask reaches.
"""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from tqdm import tqdm

from benchmarks.measuring import Clock, Row
from benchmarks.reporting import table
from benchmarks.runner import Run
from benchmarks.vit_model import ViT
from swing_gp import Diffusion, Gaussian, ImplicitGraph, PairwiseFeatures, Walks, adjacency, graph_kernel, grf_kernel
from swing_gp.models.attention import GraphMask, LowRankGraphMask, patch_grid

SIDE, CLASSES, TEST, VALIDATION = 8, 10, 500, 297
WIDTH, DEPTH, HEADS, BATCH = 32, 3, 4, 50
RATE, DECAY, STRENGTH = 0.01, 0.05, 4.0
EDGE, SERIES = Gaussian(1.0), Diffusion(5.0)
AS_PRINTED = Walks(16, temperature=0.2, noise="frechet", deposit="spread", halting=0.3, sides=1, groups=16)
VARIANTS = ["ViT", "GRF mask", "SWING mask, as printed", "collapsed mask", "collapsed mask, low rank"]


@dataclass(frozen=True)
class Regime:
    """Pixels per side of a patch, number of training images, and number of steps."""

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
    """Make the function that makes the mask of one layer."""
    if name == "ViT":
        return lambda: None
    kernel = kernel_of(name, grid, seed)
    form = LowRankGraphMask if name.endswith("low rank") else GraphMask
    return lambda: form(kernel, HEADS, num_prefix_tokens=1, strength=strength)


def mask_error(name: str, grid: int, seed: int) -> float:
    """Relative error of the mask, off the diagonal, against that of the exact kernel."""
    ours, truth = (mask_of(which, grid, seed)().bias()[0, 1:, 1:].detach() for which in (name, "collapsed mask"))
    return float((ours - truth).fill_diagonal_(0).norm() / truth.fill_diagonal_(0).norm())


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images, classes, and the ids of test images and of those to learn from; validation images are the rest."""
    pixels, classes = load_digits(return_X_y=True)
    images, labels = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, SIDE, SIDE) / 16, torch.tensor(classes)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    test, pool = order[:TEST], order[TEST + VALIDATION :]
    return (images - images[pool].mean()) / images[pool].std(), labels, test, pool


def measure(name: str, regime: Regime, seed: int) -> Row:
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
    clock = Clock()

    def epoch() -> None:
        for batch in chosen[torch.randperm(len(chosen), generator=generator)].split(BATCH):
            optimizer.zero_grad()
            cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
            schedule.step()

    for _ in range(regime.epochs):
        clock.time("epoch", epoch)
    model.eval()
    with torch.no_grad():
        correct = (model(images[test]).argmax(-1) == labels[test]).double().mean()
    strengths = [block.attention.mask.strength.tolist() for block in model.blocks if block.attention.mask is not None]
    row = {"regime": regime.name, "variant": name, "seed": seed, "accuracy": float(correct), **clock.row}
    return row | ({"strengths": strengths, "mask_error": mask_error(name, regime.grid, seed)} if strengths else {})


def summary(rows: list[Row], regime: Regime) -> list[Row]:
    """One row a variant: accuracies over the seeds, and their paired differences to the model without a mask, in percent."""
    mine = {name: sorted((r for r in rows if r["variant"] == name), key=lambda r: r["seed"]) for name in VARIANTS}
    percent = {name: 100 * np.array([row["accuracy"] for row in found]) for name, found in mine.items()}
    lines = []
    for name, found in mine.items():
        gains = percent[name] - percent["ViT"]
        line = {
            "model": name,
            "digits": f"{regime.name}, {regime.seeds} seeds",
            "accuracy": f"{percent[name].mean():.1f} ± {percent[name].std(ddof=1):.1f}",
            "epoch": float(np.median([row["epoch"] for row in found])),
        }
        if name != "ViT":
            line["gain"] = f"{gains.mean():+.2f} ± {gains.std(ddof=1) / len(gains) ** 0.5:.2f}"
            line["strength"] = f"{STRENGTH:g} to {np.mean([np.mean(row['strengths'][:-1]) for row in found]):.2f}"
            line["error"] = float(np.mean([row["mask_error"] for row in found]))
        lines.append(line)
    return lines


def main() -> None:
    with Run(__doc__, "vit", quick="two seeds of one case, too short to say what a mask does") as run:
        warnings.simplefilter("ignore")
        regimes = QUICK if run.quick else REGIMES
        jobs = [(name, regime, seed) for regime in regimes for seed in range(regime.seeds) for name in VARIANTS]
        # The tensors are small: one thread a model, and two models at a time.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(2, mp_context=context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            futures = [pool.submit(measure, *job) for job in jobs]
            for future in tqdm(as_completed(futures), total=len(jobs), unit="model"):
                run.keep("rows", future.result())
        _, labels, test, pool_ids = digits()
        most = float((labels[test] == labels[pool_ids].mode().values).double().mean())
        found = [line for r in regimes for line in summary([row for row in run.rows("rows") if row["regime"] == r.name], r)]
        columns = {"test accuracy %": "accuracy", "above the ViT": "gain", "strength": "strength"}
        times = {"error of M": ("error", ".2g"), "s an epoch": ("epoch", ".2f")}
        names = {"model": "model", "digits": "digits"}
        run.report(f"The commonest class: {most:.1%}.", table(found, {**names, **columns, **times}))


if __name__ == "__main__":
    main()
