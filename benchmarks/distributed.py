"""Sharded points: weak scaling on gloo processes of one thread each, bytes sent, and ten million points.

    python -m benchmarks.distributed [--quick] [--skip-large] [--out results/distributed]

The diffusion kernel on landmarks in the unit cube, float32. A product is of a kernel that is made already, with stored or with
streamed features; a training step is of the streamed GP, gradient in all hyper-parameters. On two cores judge two processes:
four take turns. The last table is computed from these measurements, not measured: it says how.
"""

from __future__ import annotations

import itertools
import json
import math
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from tqdm import tqdm

from benchmarks.measuring import Clock, Row
from benchmarks.reporting import markdown_table, table
from benchmarks.runner import Run
from swing_gp import Diffusion, DiffusionKernel, Gaussian, ImplicitGraph, StreamedGP, graph_kernel
from swing_gp.parallel import Shards, load_shard
from swing_gp.parallel.streamed_landmarks import StreamedLandmarks
from swing_gp.parallel.streaming import StreamedKernel
from swing_gp.utils.memory import peak_gigabytes

WORLDS = (1, 2, 4)
PER_RANK, QUICK_PER_RANK = 500_000, 20_000
LARGE = 10_000_000
LANDMARKS, LENGTHSCALE, TIME = 64, 0.3, 5.0
REPEATS, FIT_STEPS = 3, 3
TIMEOUT = 600
# Network of the predicted table: 10 Gbit/s, 50 microseconds a message.
BANDWIDTH, LATENCY = 1.25e9, 50e-6


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def timed(shards: Shards, call: Callable[[], Any], repeats: int = REPEATS) -> tuple[float, int, int]:
    """Measure a call of all processes: median seconds, the bytes that one of them puts into collectives, and their number."""
    seconds = []
    for _ in range(repeats):
        shards.bytes.clear()
        shards.calls.clear()
        dist.barrier()
        start = time.perf_counter()
        call()
        dist.barrier()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds), sum(shards.bytes.values()), sum(shards.calls.values())


def measure(rank: int, world: int, number: int) -> Row:
    """Measure products and a training step with ``number`` points on every process."""
    points = torch.rand(number, 3, generator=generator(rank))
    values = torch.randn(number, 1, generator=generator(100 + rank))
    row: Row = {}
    shards = Shards()
    graph = ImplicitGraph(points, Gaussian(LENGTHSCALE), shards=shards)
    start = time.perf_counter()
    features = StreamedLandmarks(graph, LANDMARKS, generator=generator(0))
    kernel = StreamedKernel(features, Diffusion(TIME))
    row["setup"] = time.perf_counter() - start
    row["streamed product"] = timed(shards, lambda: kernel.product(values))
    stored = graph_kernel(graph, Diffusion(TIME), features="landmarks", num_features=LANDMARKS)
    row["stored product"] = timed(shards, lambda: stored @ values, 10)
    row["difference"] = float((stored @ values - kernel.product(values)).norm() / values.norm())
    gp = StreamedGP(DiffusionKernel(graph, time=TIME, features="landmarks", num_features=LANDMARKS))
    y = torch.sin(6 * points[:, 0])
    gp.marginal_log_likelihood(y)  # chooses the landmarks
    row["training step"] = timed(shards, lambda: (-gp.marginal_log_likelihood(y)).backward())
    row["peak_gb"] = peak_gigabytes()
    return row


def measure_large(rank: int, world: int, folder: str) -> Row:
    """Measure a product and a GP fit on points that are mapped from a file."""
    points, values = load_shard(f"{folder}/points.npy"), load_shard(f"{folder}/values.npy")
    observed = torch.zeros(len(points), dtype=torch.bool)
    observed[::2] = True
    y = torch.sin(6 * points[:, 0]) + 0.1 * values
    graph, clock = ImplicitGraph(points, Gaussian(LENGTHSCALE), shards=Shards()), Clock()
    gp = StreamedGP(DiffusionKernel(graph, time=TIME, features="landmarks", num_features=LANDMARKS, normalize=True))
    gp.likelihood.noise = 0.1
    with torch.no_grad():
        streamed, _ = clock.time("setup", gp.streamed_kernel)
    clock.time("product", lambda: streamed.product(values.unsqueeze(-1)))
    clock.time("fit", lambda: gp.fit(y, observed, steps=FIT_STEPS))

    def errors() -> tuple[float, float]:
        error, trivial = 0.0, 0.0
        for rows, mean, _ in gp.predict_nodes():
            hidden = ~observed[rows]
            truth = torch.sin(6 * points[rows, 0])
            error += float((mean - truth)[hidden].square().sum())
            trivial += float(truth[hidden].square().sum())
        return error, trivial

    error, trivial = clock.time("predict", errors)
    facts = {"step": clock.row["fit"] / FIT_STEPS, "relative rmse": math.sqrt(error / trivial), "peak_gb": peak_gigabytes()}
    return {**clock.row, **facts}


# Processes


def _main(function: Callable, rank: int, world: int, folder: str, arguments: tuple) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=TIMEOUT))
    row = function(rank, world, *arguments)
    Path(f"{folder}/{rank}.json").write_text(json.dumps(row))
    dist.destroy_process_group()


def on_ranks(function: Callable, world: int, *arguments: Any) -> list[Row]:
    """Run a function on every process of a gloo group, and return the results."""
    context = multiprocessing.get_context("spawn")
    os.environ["OMP_NUM_THREADS"] = "1"  # the processes inherit it
    with tempfile.TemporaryDirectory() as folder:
        processes = [context.Process(target=_main, args=(function, rank, world, folder, arguments)) for rank in range(world)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        if any(process.exitcode for process in processes):
            raise RuntimeError(f"A process of {world} failed; its error is above.")
        return [json.loads(Path(f"{folder}/{rank}.json").read_text()) for rank in range(world)]


# Tables

WHATS = ("stored product", "streamed product", "training step")


def scaling_table(rows: dict[int, Row]) -> str:
    lines = []
    for world, row in rows.items():
        ratios = [rows[1][what][0] / row[what][0] for what in WHATS]
        seconds = [f"{row[what][0]:.3g} s" for what in WHATS]
        lines.append([str(world), *seconds, ", ".join(f"{ratio:.2f}" for ratio in ratios)])
    return markdown_table(["processes", *WHATS, "efficiency of each"], lines)


def outlook_table(row: Row, number: int) -> str:
    """Predict seconds: cost of a node here x nodes a process + transfer of a ring + messages of a tree."""
    lines = []
    for nodes, world in itertools.product((10**8, 10**9), (16, 128)):
        cells = []
        for what in WHATS:
            seconds, sent, calls = row[what]
            compute = seconds / number * nodes / world
            network = 2 * sent * (world - 1) / world / BANDWIDTH + calls * 2 * math.log2(world) * LATENCY
            cells.append(f"{compute:.2g} s + {1e3 * network:.2g} ms")
        memory = nodes / world * LANDMARKS * 4 * 2 / 2**30
        lines.append([f"{nodes:.0e}", str(world), *cells, f"{memory:.2g} GB"])
    return markdown_table(["nodes", "processes", *WHATS, "memory, stored"], lines)


def report(weak: dict[int, Row], large: list[Row], number: int) -> list[str]:
    two = weak[2]
    parts = [
        "# Sharded points",
        f"The diffusion kernel with {LANDMARKS} landmarks, float32, one thread a process, gloo.",
        f"## Weak scaling: {number:,} points on every process",
        scaling_table(weak),
        "## Bytes that one process puts into collectives, on two processes",
        markdown_table(["", "bytes", "collectives"], [[what, f"{two[what][1]:,}", str(two[what][2])] for what in WHATS]),
        "## What more nodes would take (computed from two processes, not measured)",
        f"Assumed: cores like these, {BANDWIDTH / 1e9:g} GB/s and {1e6 * LATENCY:g} microseconds between processes, one thread "
        "each; a ring for bytes, a tree for messages. Compute, then network.",
        outlook_table(two, number),
    ]
    if large:
        times = {name: (name, ".0f") for name in ("setup", "product", "step", "predict")}
        facts = {"relative RMSE, hidden half": ("relative rmse", ".2g"), "peak GB of a process": ("peak_gb", ".1f")}
        parts += [f"## {LARGE:,} points from a mapped file, features streamed: the processes", table(large, {**times, **facts})]
    return parts


def main() -> None:
    skip = {"action": "store_true", "help": "not ten million points"}
    with Run(__doc__, "distributed", quick="20,000 points a process, and not ten million", skip_large=skip) as run:
        number = QUICK_PER_RANK if run.quick else PER_RANK
        weak, large = {world: on_ranks(measure, world, number)[0] for world in tqdm(WORLDS, unit="run")}, []
        if not (run.quick or run.given.skip_large):
            with tempfile.TemporaryDirectory() as folder:
                rng = np.random.default_rng(0)
                np.save(f"{folder}/points.npy", rng.random((LARGE, 3), dtype=np.float32))
                np.save(f"{folder}/values.npy", rng.standard_normal(LARGE, dtype=np.float32))
                large = on_ranks(measure_large, 2, folder)
        run.content |= {"weak": weak, "large": large}
        run.report(*report(weak, large, number))


if __name__ == "__main__":
    main()
