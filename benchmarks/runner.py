"""One run of a benchmark: its options, its measurements one by one, and its results, which survive interruption.

::

    with Run(__doc__, "cg", quick="a few thousand nodes") as run:
        run.measure([Job("rows", {"nodes": 1_000}, function, 1_000)])
        run.report(table(run.rows("rows"), {"nodes": ("nodes", ","), "seconds": ("seconds", ".2g")}))
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.measuring import Row, attempted
from benchmarks.reporting import machine_info, write_atomically

__all__ = ["DATA", "Job", "Run"]

DATA = Path("../shared/data")  # published meshes and data sets, where they are


class Job:
    """A measurement: the first cells of its row, and the function that returns the others."""

    def __init__(self, part: str, about: Row, function: Callable[..., Row], *arguments: Any) -> None:
        self.part, self.about, self.function, self.arguments = part, about, function, arguments

    def __str__(self) -> str:
        return ", ".join(f"{value:,}" if isinstance(value, int) else str(value) for value in list(self.about.values())[:3])


class Run:
    """The options ``--quick``, ``--out`` and others, and a ``results.json`` that is written as it grows.

    :param doc: the description of the measurement, the text of ``--help``.
    :param name: the name of the folder ``results/<name>``, the default of ``--out``.
    :param quick: the size of a run with ``--quick``, in words.
    :param options: more options, each with the arguments of ``add_argument``.
    :ivar given: the parsed options.
    """

    interval = 2.0  # seconds between two writes

    def __init__(self, doc: str | None, name: str, quick: str, **options: dict[str, Any]) -> None:
        parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--quick", action="store_true", help=quick)
        parser.add_argument("--out", type=Path, default=Path("results") / name, help="where the results go (%(default)s)")
        for option, words in options.items():
            parser.add_argument(f"--{option.replace('_', '-')}", **words)
        self.given = parser.parse_args()
        self.quick: bool = self.given.quick
        self.out: Path = self.given.out
        self.content: dict[str, Any] = {"machine": machine_info()}
        self._written = 0.0

    def measure(self, jobs: Sequence[Job]) -> None:
        """Run every job in a separate process; the row of a failed job has its message."""
        for job in (bar := tqdm(jobs, unit="run")):
            bar.set_description(str(job))
            self.keep(job.part, {**job.about, **attempted(job.function, *job.arguments)})

    def keep(self, part: str, row: Row) -> None:
        self.content.setdefault(part, []).append(row)
        if time.monotonic() - self._written > self.interval:
            self.save()

    def rows(self, part: str) -> list[Row]:
        return self.content.get(part, [])

    def save(self) -> None:
        write_atomically(self.out / "results.json", json.dumps(self.content, indent=1, allow_nan=False) + "\n")
        self._written = time.monotonic()

    def report(self, *parts: str) -> None:
        """Print paragraphs and tables, and write them to ``report.md``."""
        text = "\n\n".join(parts)
        write_atomically(self.out / "report.md", text + "\n")
        print(text)
        print(f"\nWritten: {self.out}/report.md, results.json")

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *exception: object) -> None:
        self.save()  # after Ctrl-C too
