"""Separate processes, clocks and scores of benchmarks."""

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import numpy as np
import scipy.special
import torch

__all__ = ["Clock", "Row", "attempted", "clocked", "isolated", "least", "relative", "scores"]

Row = dict[str, Any]


def isolated(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a fresh process, so that its peak memory is its own."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([function.__module__])  # its imports are loaded once
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *arguments).result()


def attempted(function: Callable[..., Row], *arguments: Any) -> Row:
    """Call a function like :func:`isolated`; a failure becomes a part of the result."""
    try:
        return isolated(function, *arguments)
    except BrokenProcessPool:
        return {"failed": "out of memory"}
    except (ValueError, RuntimeError) as error:
        return {"failed": str(error).split(":")[0]}
    except Exception as error:  # a peer that fails must not stop the others
        return {"failed": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"}


class Clock:
    """Seconds of the clock and of all cores, stage by stage: ``row`` has ``stage`` and ``stage_cpu``."""

    def __init__(self) -> None:
        self.row: Row = {}

    def time(self, stage: str, function: Callable[[], Any]) -> Any:
        start, used = time.perf_counter(), time.process_time()
        found = function()
        self.row[stage] = time.perf_counter() - start
        self.row[f"{stage}_cpu"] = time.process_time() - used
        return found


def clocked(function: Callable[[], Any]) -> tuple[Any, Row]:
    """Call a function; add its ``seconds`` and ``cpu`` seconds to its result."""
    clock = Clock()
    found = clock.time("seconds", function)
    return found, {"seconds": clock.row["seconds"], "cpu": clock.row["seconds_cpu"]}


def least(function: Callable[[], Any], budget: float = 1.5) -> tuple[float, Any]:
    """Least seconds of up to five runs within a budget, and the last result: waiting for a core spoils short runs."""
    times: list[float] = []
    while len(times) < 5 and sum(times) <= budget:
        start = time.perf_counter()
        result = function()
        times.append(time.perf_counter() - start)
    return min(times), result


def relative(ours: Any, truth: torch.Tensor) -> float:
    """The relative error, in the norm of all entries."""
    return float((torch.as_tensor(ours).double().reshape(truth.shape) - truth).norm() / truth.norm())


def scores(truth: np.ndarray, mean: np.ndarray, variance: np.ndarray, unit: float = 1.0) -> Row:
    """Scores of normal predictions: errors in a unit, log density, CRPS, interval score and coverage at 95%."""
    deviation, error = np.sqrt(variance), truth - mean
    z = error / deviation
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    crps = deviation * (z * (2 * scipy.special.ndtr(z) - 1) + 2 * density - 1 / math.sqrt(math.pi))
    half = scipy.special.ndtri(0.975) * deviation
    beyond = np.clip(np.abs(error) - half, 0, None)
    return {
        "rmse": unit * float(np.sqrt((error**2).mean())),
        "mae": unit * float(np.abs(error).mean()),
        "nlpd": float(np.mean(0.5 * (np.log(2 * np.pi * variance) + z**2))),
        "crps": unit * float(crps.mean()),
        "interval": unit * float((2 * half + 2 / 0.05 * beyond).mean()),
        "coverage": float((beyond == 0).mean()),
    }
