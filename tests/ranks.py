"""Runs a function on several processes of one gloo group and hands back what each returned."""

from __future__ import annotations

import multiprocessing
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

# Imported once, then forked: a process starts in a tenth of a second.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["ranks", "swing_gp.cli.sharded", "swing_gp.models.interpolation"])


def _main(function: Callable, rank: int, world: int, folder: str, timeout: float, args: tuple) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=timeout))
    try:
        torch.save(function(rank, world, *args), f"{folder}/{rank}.pt")
    except BaseException:
        Path(f"{folder}/{rank}.err").write_text(traceback.format_exc())
        raise SystemExit(1) from None
    dist.destroy_process_group()


def start(function: Callable, world: int, folder: str, args: tuple = (), timeout: float = 60) -> list[Any]:
    processes = [CONTEXT.Process(target=_main, args=(function, rank, world, folder, timeout, args)) for rank in range(world)]
    for process in processes:
        process.start()
    return processes


def run(function: Callable, world: int, *args: Any, timeout: float = 60) -> list[Any]:
    """``function(rank, world, *args)`` on every rank; its results, by rank."""
    with tempfile.TemporaryDirectory() as folder:
        for process in start(function, world, folder, args, timeout):
            process.join()
        errors = "\n".join(path.read_text() for path in sorted(Path(folder).glob("*.err")))
        assert not errors, errors
        return [torch.load(f"{folder}/{rank}.pt") for rank in range(world)]
