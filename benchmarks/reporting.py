"""Reports: Markdown tables, atomic files, and facts about the machine."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
import scipy
import torch

from benchmarks.measuring import Row, isolated
from benchmarks.plotting import save_figure
from swing_gp.utils.files import whole_file

__all__ = ["isolated", "machine_info", "markdown_table", "save_figure", "table", "write_atomically", "write_report"]


def write_atomically(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_report(out: Path, results: Any, header: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """Write the results as JSON, and as a table that is also printed."""
    text = markdown_table(header, lines)
    content = {"machine": machine_info(), "results": results}
    write_atomically(out / "results.json", json.dumps(content, indent=1, allow_nan=False) + "\n")
    write_atomically(out / "report.md", text + "\n")
    print(text)


def machine_info() -> Row:
    return {
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        # The load average: other processes spoil times.
        "load_average": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_threads": torch.get_num_threads(),
        "numpy": numpy.__version__,
        "scipy": scipy.__version__,
    }


Column = str | tuple[str, str] | Callable[[Row], str]


def table(rows: Sequence[Row], columns: Mapping[str, Column]) -> str:
    """Make a table with one line a row. A column is a key, a key and a format, or a function of the row; missing values are
    dashes, and the last cell has the message of a row that ``failed``.

    >>> print(table([{"nodes": 5_000, "s": 0.25}, {"nodes": 9, "failed": "no"}], {"N": ("nodes", ","), "time": ("s", ".1f")}))
    | N     | time |
    |-------|-----:|
    | 5,000 |  0.2 |
    | 9     |   no |
    """
    lines = [[cell(row, column) for column in columns.values()] for row in rows]
    for row, line in zip(rows, lines, strict=True):
        if "failed" in row:
            line[-1] = row["failed"]
    return markdown_table(list(columns), lines)


def cell(row: Row, column: Column) -> str:
    if callable(column):
        try:
            return column(row)
        except (KeyError, TypeError):  # the run failed, or measured nothing
            return "-"
    key, style = (column, "") if isinstance(column, str) else column
    value = row.get(key)
    return "-" if value is None else format(value, style)


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Make a Markdown table, padded to be readable as plain text; numbers are right-aligned."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        first, *rest = (
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(cells, widths, strict=True))
        )
        return "| " + " | ".join([first, *rest]) + " |"

    rule = "|" + "|".join(("-" * (w + 2)) if i == 0 else ("-" * (w + 1) + ":") for i, w in enumerate(widths)) + "|"
    return "\n".join([line(header), rule, *(line(row) for row in rows)])
