"""Pictures of benchmarks: curves by method, and atomic files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.measuring import Row
from swing_gp.io import pictures

__all__ = ["curves", "save_figure", "tidy"]

Value = str | Callable[[Row], Any]


def curves(axis: Axes, rows: Sequence[Row], x: Value, y: Value, styles: Mapping[str, dict[str, Any]]) -> None:
    """Draw a line for every method that has a style, in log-log axes; rows without a value are omitted."""

    def value(row: Row, of: Value) -> Any:
        return row.get(of) if isinstance(of, str) else of(row)

    for method, style in styles.items():
        mine = [row for row in rows if row["method"] == method and "failed" not in row]
        points = sorted((value(row, x), value(row, y)) for row in mine if value(row, x) and value(row, y))
        if points:
            axis.plot(*zip(*points, strict=True), **{"marker": "o", "label": method, **style})
    axis.set(xscale="log", yscale="log")


def tidy(axis: Axes, **words: Any) -> None:
    """Add labels and a pale grid."""
    axis.set(**words)
    axis.grid(alpha=0.3)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def save_figure(figure: Figure, path: Path, dpi: int = 110) -> None:
    """Write a figure as PNG, atomically, and close it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        pictures.save_figure(figure, path, dpi)
    finally:
        plt.close(figure)
