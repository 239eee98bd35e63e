"""``swing-gp fill``: fill the gaps of a field on a lattice, with standard deviations."""

from __future__ import annotations

import argparse
import time

import numpy as np

from swing_gp.cli.output import (
    UsageError,
    check_options,
    prepare_folder,
    print_line,
    print_table,
    refuse_given,
    save_report,
)
from swing_gp.io.fields import load_field, save_matrix
from swing_gp.io.pictures import field_picture, require_matplotlib
from swing_gp.models.interpolation import interpolate
from swing_gp.utils.files import whole_file
from swing_gp.utils.memory import peak_gigabytes

# Parameters of numpy.savez_compressed, which arrays cannot be called.
WORDS = ("file", "allow_pickle")


def run(arguments: argparse.Namespace) -> None:
    check_options(arguments, "time_limit")
    matrices = arguments.field.suffix.lower() != ".npz"
    if matrices:
        refuse_given(arguments, ["variable"], "only with an NPZ file; a CSV file has one field")
    require_matplotlib()
    start = time.perf_counter()
    field = load_field(arguments.field, arguments.variable)
    known = np.isfinite(field.values).ravel()
    if known.all():
        raise UsageError(f"{arguments.field}: the field has no gap to fill.")
    out = prepare_folder(arguments.out, [arguments.field], ["filled.npz", *(["filled.csv", "std.csv"] if matrices else [])])
    rows, columns = field.values.shape
    print_line("field", f"{field.name}: {rows:,} x {columns:,} cells, {int((~known).sum()):,} in gaps ({np.mean(~known):.0%})")
    ids = np.flatnonzero(known)
    result = interpolate(
        field.points, ids, field.values.ravel()[ids], mean=arguments.mean, time_limit=arguments.time_limit, seed=arguments.seed
    )
    assert result.selection is not None
    predicted = time.perf_counter()
    std = result.std.numpy().reshape(rows, columns)
    noise = float(result.noise_std)
    # What was known stays as it is; it is known up to the noise.
    filled = np.where(known.reshape(rows, columns), field.values, result.values.numpy().reshape(rows, columns))
    seconds = {"predict": predicted - start, "deviations": time.perf_counter() - predicted}
    table, memory = result.selection.table, peak_gigabytes()
    print_table(table)
    print_line("noise", f"{noise:.4g}; deviations in gaps {np.median(std.ravel()[~known]):.4g} in the median")
    print_line("time", f"{sum(seconds.values()):.1f} s, memory {memory:.2f} GB")

    with whole_file(out / "filled.npz") as temporary, temporary.open("wb") as file:
        content = {"std": std, "known": known.reshape(rows, columns), "x": field.x, "y": field.y}
        name = "filled" if field.name in {*content, *WORDS} else field.name
        np.savez_compressed(file, **content, **{name: filled})  # type: ignore[arg-type]  # its other words are no names here
    written = f"filled.npz (the field as {name!r}), filled.png, report.json"
    if matrices:
        save_matrix(out / "filled.csv", filled)
        save_matrix(out / "std.csv", std)
        written = f"filled.csv, std.csv, {written}"
    score, nearest = table.chosen.score, table.best("nearest")
    title = f"{field.name}: held-out cells are predicted with an RMSE of {score:.3g}"
    title += "" if nearest is None else f" (nearest known cell {nearest.score:.3g})"
    field_picture(out / "filled.png", field, filled, std, title=title)
    report = {
        "field": str(arguments.field),
        "variable": field.name,
        "written_as": name,
        "shape": [rows, columns],
        "known": int(known.sum()),
    }
    report |= {"mean": arguments.mean, "seed": arguments.seed, "noise_std": noise, "family": table.chosen.family}
    report |= {"settings": dict(table.chosen.settings), "table": table.records(), "seconds": seconds}
    save_report(out / "report.json", {**report, "memory_gigabytes": memory})
    print_line("written", f"{out}: {written}")
