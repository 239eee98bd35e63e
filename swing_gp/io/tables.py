"""Tables of numbers with named columns, in CSV and NPZ files."""

from __future__ import annotations

import csv
import os
import warnings
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from swing_gp.utils.files import read_npz, read_text, whole_file

TEXT, SEPARATORS = (".csv", ".tsv"), (",", ";", "\t")
MISSING = ("", "NA", "N/A", "-")


class TableError(ValueError):
    """The error of a file that is no usable table."""


def load_table(path: str | os.PathLike, numbers: Collection[str] = ()) -> dict[str, np.ndarray]:
    """Read the columns of numbers by name, as float64. Missing cells are NaN; columns of words are omitted.

    A CSV file has its names in the first line; blank lines are skipped. Columns are separated by commas, semicolons or tabs,
    the most frequent in the first line; between semicolons a comma is a decimal point. Missing cells are empty, ``NA``,
    ``N/A`` or ``-``. In an NPZ file every vector is a column under its own name; the columns of a matrix ``X`` have the names
    in ``feature_names`` (or ``X0, X1, ...``), those of ``y`` the names in ``target_name``.

    :param path: the file.
    :param numbers: names of columns that must be numbers if the file has them; an error names the first cell that is none.
    """
    path = Path(path)
    if path.suffix.lower() not in (*TEXT, ".npz"):
        raise TableError(f"{path}: a table is a CSV (or TSV) or an NPZ file.")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file.")
    columns = _read_npz(path) if path.suffix.lower() == ".npz" else _read_csv(path)
    if len(dict(columns)) < len(columns):
        raise TableError(f"{path}: two columns have one name.")
    table = {}
    for name, column in columns:
        try:
            table[name] = column.astype(np.float64)
        except ValueError:  # a column of words
            if name in numbers:
                row, cell = next((row, cell) for row, cell in enumerate(column, 1) if not _is_number(cell))
                words = f"column {name!r}, row {row}: {str(cell)[:40]!r} is no number"
                raise TableError(f"{path}: {words}; missing cells are empty, NA or -.") from None
    lengths = {len(column) for column in table.values()}
    if not table or lengths == {0}:
        raise TableError(f"{path}: the table is empty or has no column of numbers.")
    if len(lengths) > 1:
        raise TableError(f"{path}: the columns have different lengths: {', '.join(map(str, sorted(lengths)))}.")
    return table


def _is_number(cell: object) -> bool:
    try:
        float(cell)  # type: ignore[arg-type]
    except ValueError:
        return False
    return True


def _read_csv(path: Path) -> list[tuple[str, np.ndarray]]:
    separator = separator_of(text_of(path))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of an empty file, which the caller refuses
            # Python strings: with dtype=str every cell takes the memory of the longest.
            layout: dict = {"delimiter": separator, "quotechar": '"', "comments": None, "encoding": "utf-8-sig"}
            cells = np.loadtxt(path, object, ndmin=2, converters=str.strip, **layout)
    except ValueError as error:
        reason = str(error).partition(";")[0]  # NumPy adds advice for programmers
        raise TableError(f"{path}: cannot be read as CSV: {reason}.") from error
    body = cells[1:]
    for missing in MISSING:
        body[body == missing] = "nan"
    columns = [(column[0], column[1:]) for column in cells.T if len(column)]
    if separator == ";":
        columns = [(name, np.array([cell.replace(",", ".") for cell in column], dtype=object)) for name, column in columns]
    return columns


def text_of(path: Path) -> str:
    """Read a text file, or name it in the error if it is none."""
    try:
        text = read_text(path)
    except ValueError as error:
        raise TableError(str(error)) from None
    if "\0" in text:
        raise TableError(f"{path}: this is no text in UTF-8 (it has bytes of zero); save it as UTF-8.")
    return text


def separator_of(text: str) -> str:
    """Find the separator of a CSV text: the most frequent outside quotes in the first line that is not blank."""
    line = next((line for line in text.splitlines() if line.strip()), "")
    outside = "".join(line.split('"')[::2])
    return max(SEPARATORS, key=outside.count)


def _read_npz(path: Path) -> list[tuple[str, np.ndarray]]:
    try:
        arrays = read_npz(path)
    except Exception as error:  # numpy and zipfile raise many types for a damaged file
        raise TableError(f"{path}: cannot be read as NPZ; it is damaged or of another format ({error}).") from error
    headers = {"X": arrays.pop("feature_names", None), "y": arrays.pop("target_name", None)}
    columns: list[tuple[str, np.ndarray]] = []
    for name, array in arrays.items():
        if array.dtype.kind not in "fiu" or array.ndim not in (1, 2):  # complex numbers are no column of numbers either
            continue
        matrix = array[:, None] if array.ndim == 1 else array
        words = [name] if array.ndim == 1 else [f"{name}{i}" for i in range(matrix.shape[1])]
        if (labels := headers.get(name)) is not None:
            entries = [str(entry) for entry in np.atleast_1d(labels)]
            if len(entries) != matrix.shape[1]:  # one text with all names
                entries = [word for entry in entries for word in entry.split(",")]
            words = [entry.strip() for entry in entries] if len(entries) == matrix.shape[1] else words
        columns += zip(words, matrix.T, strict=True)
    return columns


def save_table(path: str | os.PathLike, columns: dict[str, Sequence]) -> None:
    """Write columns as a CSV file with their names in the first line, atomically."""
    with whole_file(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
