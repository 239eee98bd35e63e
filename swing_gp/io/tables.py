"""Tables of numbers with named columns: CSV files, and NPZ files of arrays."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from swing_gp.utils.files import whole_file

__all__ = ["TableError", "load_table", "save_table"]


class TableError(ValueError):
    """A file that is not a usable table; the message says why."""


def load_table(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """Columns by name, as float64; what is empty or says NaN is NaN.

    A CSV file has its names in the first line; blank lines are skipped. In an NPZ file every vector is a column under its own
    name, and the columns of a matrix ``X`` go by ``feature_names`` (or ``X0, X1, ...``), those of ``y`` by ``target_name``.
    """
    path = Path(path)
    if path.suffix.lower() not in (".csv", ".npz"):
        raise TableError(f"{path}: a table is a CSV or an NPZ file.")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file.")
    columns = _read_csv(path) if path.suffix.lower() == ".csv" else _read_npz(path)
    lengths = {len(column) for column in columns.values()}
    if not columns or lengths == {0}:
        raise TableError(f"{path}: the table is empty.")
    if len(lengths) > 1:
        raise TableError(f"{path}: the columns have different lengths: {', '.join(map(str, sorted(lengths)))}.")
    return columns


def _read_csv(path: Path) -> dict[str, np.ndarray]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [(line, row) for line, row in enumerate(csv.reader(file), start=1) if row]  # blank lines are no rows
    except (UnicodeDecodeError, csv.Error) as error:
        raise TableError(f"{path}: cannot be read as CSV ({error}).") from error
    if not rows:
        raise TableError(f"{path}: the table is empty.")
    names = [name.strip() for name in rows[0][1]]
    if len(set(names)) != len(names):
        raise TableError(f"{path}: two columns have one name in the first line.")
    columns: dict[str, list[float] | None] = {name: [] for name in names}
    for line, row in rows[1:]:
        if len(row) != len(names):
            raise TableError(f"{path}, line {line}: {len(row)} cells, but {len(names)} columns in the first line.")
        for name, cell in zip(names, row, strict=True):
            values = columns[name]
            try:
                if values is not None:
                    values.append(float(cell) if cell.strip() else np.nan)
            except ValueError:
                columns[name] = None  # a column of words; asking for it by name says which there are
    return {name: np.array(values) for name, values in columns.items() if values is not None}


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as content:
            arrays = {name: content[name] for name in content.files}
    except Exception as error:  # numpy and zipfile raise a dozen kinds for a damaged file
        raise TableError(f"{path}: cannot be read as NPZ; it is damaged or of another format ({error}).") from error
    names = {"X": arrays.pop("feature_names", None), "y": arrays.pop("target_name", None)}
    columns: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        if not (np.issubdtype(array.dtype, np.number) and array.ndim in (1, 2)):
            continue
        matrix = array.reshape(len(array), -1).astype(np.float64)
        given = names.get(name)
        words = [name] if given is None and array.ndim == 1 else [f"{name}{i}" for i in range(matrix.shape[1])]
        if given is not None:
            given = [word.strip() for entry in np.atleast_1d(given) for word in str(entry).split(",")]
            words = given if len(given) == matrix.shape[1] else words
        columns.update(dict(zip(words, matrix.T, strict=True)))
    return columns


def save_table(path: str | os.PathLike, columns: dict[str, Sequence]) -> None:
    """As CSV, whole or absent."""
    with whole_file(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
