"""What benchmarks share: processes of their own, a results file that survives interruption, the machine, Markdown tables."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import matplotlib
import numpy
import scipy
import torch

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from swing_gp.io import pictures
from swing_gp.utils.files import whole_file

__all__ = [
    "ResultsFile",
    "attempted",
    "isolated",
    "machine_info",
    "markdown_table",
    "options",
    "save_figure",
    "write_atomically",
    "write_report",
]


def isolated(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a fresh process, so that its peak memory is its own."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([function.__module__])  # what it imports is loaded once
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *arguments).result()


def attempted(function: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """The same; what went wrong is part of the result."""
    try:
        return isolated(function, *arguments)
    except BrokenProcessPool:
        return {"failed": "out of memory"}
    except (ValueError, RuntimeError) as error:
        return {"failed": str(error).split(":")[0]}
    except Exception as error:  # a peer that does not fit its surroundings is no reason to stop
        return {"failed": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"}


def options(description: str | None, name: str, quick: str) -> argparse.Namespace:
    """The two options of every benchmark: ``--quick`` and ``--out``."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--out", type=Path, default=Path("results") / name, help="where the results go (%(default)s)")
    return parser.parse_args()


def write_report(out: Path, results: Any, header: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """The results as JSON, and as a table that is printed too."""
    table = markdown_table(header, lines)
    content = {"machine": machine_info(), "results": results}
    write_atomically(out / "results.json", json.dumps(content, indent=1, allow_nan=False) + "\n")
    write_atomically(out / "report.md", table + "\n")
    print(table)


def write_atomically(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def save_figure(figure: Figure, path: Path, dpi: int = 110) -> None:
    """Write a figure as PNG, whole or not at all, and let it go."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        pictures.save_figure(figure, path, dpi)
    finally:
        plt.close(figure)


class ResultsFile:
    """A JSON document that is written as it grows, at most once in ``interval`` seconds, and on leaving the context."""

    def __init__(self, path: Path, content: dict[str, Any], *, interval: float = 2.0) -> None:
        self.path, self.content, self.interval = path, content, interval
        self._written = 0.0

    def append(self, key: str, row: dict[str, Any]) -> None:
        self.content.setdefault(key, []).append(row)
        if time.monotonic() - self._written > self.interval:
            self.save()

    def save(self) -> None:
        write_atomically(self.path, json.dumps(self.content, indent=1, allow_nan=False) + "\n")
        self._written = time.monotonic()

    def __enter__(self) -> ResultsFile:
        return self

    def __exit__(self, *exception: object) -> None:
        self.save()  # after Ctrl-C too


def machine_info() -> dict[str, Any]:
    return {
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 1)
        if hasattr(os, "getloadavg")
        else None,  # others on the machine spoil times
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_threads": torch.get_num_threads(),
        "numpy": numpy.__version__,
        "scipy": scipy.__version__,
    }


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, padded so that it reads as plain text too; numbers to the right."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        first, *rest = (
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(cells, widths, strict=True))
        )
        return "| " + " | ".join([first, *rest]) + " |"

    rule = "|" + "|".join(("-" * (w + 2)) if i == 0 else ("-" * (w + 1) + ":") for i, w in enumerate(widths)) + "|"
    return "\n".join([line(header), rule, *(line(row) for row in rows)])
