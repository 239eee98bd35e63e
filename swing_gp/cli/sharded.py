"""``swing-gp sharded``: a kernel product or a GP on points of any number, a shard of them in every process."""

from __future__ import annotations

import argparse
import os
import sys
import time
from datetime import timedelta

import gpytorch
import torch
import torch.distributed as dist
from torch import Tensor

from swing_gp.cli.output import UsageError, check_options, prepare_folder, refuse_given, save_report
from swing_gp.gp import DiffusionKernel
from swing_gp.graphs.edges import Gaussian
from swing_gp.graphs.implicit import ImplicitGraph
from swing_gp.parallel import Shards, load_shard, part_path, save_part
from swing_gp.parallel.streaming import StreamedGP
from swing_gp.utils.memory import peak_gigabytes

START_NOISE, STEPS = 0.1, 50
# Of the diagonal of W; a kernel on landmarks that leave out more is another kernel.
LARGE_RESIDUAL = 0.01


def run(arguments: argparse.Namespace) -> None:
    if (arguments.values is None) == (arguments.targets is None):
        raise UsageError("give either --values, for a product, or --targets, for a regression.")
    check_options(arguments, "lengthscale", "time", "landmarks", "timeout")
    if arguments.values is not None:
        refuse_given(arguments, ["steps"], "only with --targets; a product has nothing to train")
    if "RANK" not in os.environ:
        raise UsageError("there is no process group: start with `torchrun --nproc-per-node P -m swing_gp sharded ...`.")
    dist.init_process_group("gloo", timeout=timedelta(seconds=arguments.timeout))
    try:
        _work(arguments, Shards())
    finally:
        dist.destroy_process_group()


def _work(arguments: argparse.Namespace, shards: Shards) -> None:
    start = time.perf_counter()
    points, column = _loaded(arguments, shards)
    given = [path for path in (arguments.points, arguments.values, arguments.targets) if path is not None]
    out = prepare_folder(arguments.out, given, ("product", "mean", "deviation"))
    # What an earlier run has left goes first, so that a run that does not end leaves no mixture of the two.
    for path in (*(part_path(out, name) for name in ("product", "mean", "deviation")), out / "report.json"):
        path.unlink(missing_ok=True)
    graph = ImplicitGraph(points, Gaussian(arguments.lengthscale), shards=shards)
    options = {"features": "landmarks", "num_features": arguments.landmarks, "seed": arguments.seed}
    kernel = DiffusionKernel(graph, time=arguments.time, normalize=arguments.targets is not None, **options)
    if arguments.values is not None:
        with torch.no_grad():
            streamed, _ = StreamedGP(kernel).streamed_kernel()
            result = streamed.product(column.reshape(len(points), -1))
        save_part(out, "product", result.reshape(column.shape))
        found: dict = {"residual": streamed.residual()}
    else:
        found = _regress(arguments, kernel, column, shards)
    report = {
        "settings": {name: getattr(arguments, name) for name in ("lengthscale", "time", "landmarks", "steps", "seed")},
        "nodes": shards.count(len(points)),
        "processes": shards.size,
        "seconds": time.perf_counter() - start,
        "memory_gigabytes": peak_gigabytes(),
        "bytes": dict(shards.bytes),
        **found,
    }
    if shards.rank > 0:
        return
    save_report(out / "report.json", report)
    print(f"{report['nodes']:,} nodes on {shards.size} processes in {report['seconds']:.1f} s: {out}")
    if report["residual"] > LARGE_RESIDUAL:
        print(
            f"warning: {arguments.landmarks} landmarks leave a mean residual of {report['residual']:.2g} at lengthscale "
            f"{kernel.lengthscale.item():.3g}: the kernel is far from that of the graph. Raise --landmarks or --lengthscale.",
            file=sys.stderr,
        )


def _loaded(arguments: argparse.Namespace, shards: Shards) -> tuple[Tensor, Tensor]:
    """The points of this process and their values or targets, which fit together."""
    given = arguments.values or arguments.targets
    points, column = load_shard(arguments.points), load_shard(given)
    if points.dtype not in (torch.float32, torch.float64):
        points = points.double()
    nodes, rows = shards.count(len(points)), shards.count(len(column))
    if nodes != rows:
        raise ValueError(f"{given} has {rows:,} rows, {arguments.points} has {nodes:,}; they must have one a node, both.")
    column = column.to(points.dtype)
    if arguments.targets is not None:
        if column.dim() > 2 or column.shape[1:] not in ((), (1,)):
            raise ValueError(f"{given} must have one target a row, got rows of shape {tuple(column.shape[1:])}.")
        column = column.reshape(len(points))
    elif not shards.all(bool(torch.isfinite(column).all())):
        raise ValueError(f"{given} must be finite: it contains NaN or infinity, which a product would spread to all nodes.")
    return points, column


def _regress(arguments: argparse.Namespace, kernel: DiffusionKernel, targets: Tensor, shards: Shards) -> dict:
    observed = ~torch.isnan(targets)
    number = max(1, shards.count(int(observed.sum())))
    center = shards.sum(targets[observed].double().sum(), "center") / number
    spread = (shards.sum((targets[observed].double() - center).square().sum(), "center") / number).sqrt().clamp_min(1e-300)
    gp = StreamedGP(gpytorch.kernels.ScaleKernel(kernel).to(targets.dtype))
    gp.likelihood.noise = START_NOISE
    standard = ((targets - center) / spread).to(targets.dtype)
    losses = gp.fit(
        standard,
        observed,
        steps=STEPS if arguments.steps is None else arguments.steps,
        progress=None if shards.rank == 0 else False,
    )
    mean, deviation = torch.empty_like(targets), torch.empty_like(targets)
    for rows, means, variances in gp.predict_nodes():
        mean[rows] = (means * spread + center).to(mean.dtype)
        deviation[rows] = (variances.clamp_min(0).sqrt() * spread).to(mean.dtype)
    save_part(arguments.out, "mean", mean)
    save_part(arguments.out, "deviation", deviation)
    trained = {"lengthscale": kernel.lengthscale.item(), "time": kernel.time.item()}
    noise = float(gp.likelihood.noise.detach().sqrt() * spread)
    return {"residual": gp.residual(), "observed": number, "losses": losses, "trained": trained, "noise_deviation": noise}
