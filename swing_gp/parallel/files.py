"""Files of shards: every process loads its rows, and writes its part of the results.

.. code-block:: python

    import torch, torch.distributed as dist
    from swing_gp import Diffusion, Gaussian, ImplicitGraph
    from swing_gp.parallel.streamed_landmarks import StreamedLandmarks
    from swing_gp.parallel.streaming import StreamedKernel
    from swing_gp.parallel import Shards, load_shard, save_part

    dist.init_process_group("gloo")  # torchrun --nproc-per-node 4 product.py
    points, values = load_shard("points.npy"), load_shard("values.npy")
    graph = ImplicitGraph(points, Gaussian(0.1), shards=Shards())
    features = StreamedLandmarks(graph, 256, generator=torch.Generator().manual_seed(0))
    save_part("out", "result", StreamedKernel(features, Diffusion(5.0)).product(values))
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from swing_gp.utils.files import whole_file


def load_shard(path: str | os.PathLike, rank: int | None = None, world: int | None = None) -> Tensor:
    """Load the rows of this process from a ``.npy`` file or a folder of parts: rows N r / P to N (r+1) / P for process r of P.

    Files are mapped into memory and read on use; rows from several parts are copied. The parts are ordered by the numbers in
    their names (``2.npy`` before ``10.npy``). No part that :func:`save_part` wrote may be missing.

    :param path: the file or the folder.
    :param rank: the rank of this process; that in the default group if None.
    :param world: the number of processes; that of the default group if None.
    """
    rank = dist.get_rank() if rank is None else rank
    world = dist.get_world_size() if world is None else world
    path = Path(path)
    files = _parts(path) if path.is_dir() else [path]
    arrays = [_map_array(file) for file in files]
    for file, array in zip(files, arrays, strict=True):
        if array.shape[1:] != arrays[0].shape[1:] or array.dtype != arrays[0].dtype:
            raise ValueError(f"{file} has rows of another shape or dtype than {files[0]}; all parts must be alike.")
    number = sum(len(array) for array in arrays)
    start, stop = number * rank // world, number * (rank + 1) // world
    pieces, before = [], 0
    for array in arrays:
        pieces.append(array[max(0, start - before) : max(0, stop - before)])
        before += len(array)
    pieces = [piece for piece in pieces if len(piece)] or [arrays[0][:0]]
    return torch.from_numpy(pieces[0] if len(pieces) == 1 else np.concatenate(pieces))


def _parts(folder: Path) -> list[Path]:
    """List the files of a folder in order, without the unfinished files of killed processes."""
    files = [file for file in folder.glob("*.npy") if not file.name.startswith(".")]
    files.sort(key=lambda file: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", file.name)])
    if not files:
        raise ValueError(f"{folder} must hold .npy files, one row a node; there are none.")
    for world in {int(match[1]) for file in files if (match := re.fullmatch(r"\d+-of-(\d+)\.npy", file.name))}:
        expected = [part_path(folder, "", rank, world) for rank in range(world)]
        if missing := [part.name for part in expected if not part.exists()]:
            raise ValueError(f"{folder} lacks {', '.join(missing)}: the run that wrote it did not end; run it again.")
    return files


def part_path(folder: str | os.PathLike, name: str, rank: int | None = None, world: int | None = None) -> Path:
    """Path that :func:`save_part` writes the rows of this process to; its parameters are the same."""
    rank = dist.get_rank() if rank is None else rank
    world = dist.get_world_size() if world is None else world
    return Path(folder) / name / f"{rank:05d}-of-{world:05d}.npy"


def _map_array(path: Path) -> np.ndarray:
    """Map a ``.npy`` file with one row a node into memory."""
    try:
        array = np.load(path, mmap_mode="c", allow_pickle=False)  # copy on write, because torch needs writable memory
    except FileNotFoundError as error:
        raise ValueError(f"{path} does not exist.") from error
    except Exception as error:  # for a damaged header NumPy raises any error of Python's parser
        raise ValueError(f"{path} must be a .npy file of numbers, or a folder of them; write one with numpy.save.") from error
    if not isinstance(array, np.ndarray) or array.ndim == 0 or array.dtype.kind not in "fiub":
        raise ValueError(f"{path} must be a .npy file with one row a node.")
    if not array.dtype.isnative or array.dtype.itemsize > 8:
        raise ValueError(
            f"{path} has numbers of dtype {array.dtype.str}, which torch does not know; save them as float32 or float64."
        )
    return array


def save_part(folder: str | os.PathLike, name: str, values: Tensor, rank: int | None = None, world: int | None = None) -> Path:
    """Write the rows of this process to ``folder/name/00000-of-00004.npy``, atomically; :func:`load_shard` reads the folder.

    Parts there from a run with another number of processes are removed.

    :param folder: the folder of all results.
    :param name: the name of this result.
    :param values: the rows of this process.
    :param rank: the rank of this process; that in the default group if None.
    :param world: the number of processes; that of the default group if None.
    """
    target = part_path(folder, name, rank, world)
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.name.startswith("00000-"):
        for old in target.parent.glob("*-of-*.npy"):
            if old.name.rpartition("-")[2] != target.name.rpartition("-")[2]:
                old.unlink(missing_ok=True)
    with whole_file(target) as temporary:
        np.save(temporary, values.detach().cpu().numpy())
    return target
