"""Fields on a lattice with gaps, from CSV and NPZ files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from swing_gp.io.tables import MISSING, TEXT, TableError, separator_of, text_of
from swing_gp.utils.files import read_npz, whole_file


@dataclass(frozen=True)
class Field:
    """Values on a lattice.

    :ivar name: the name of the values.
    :ivar values: the values, (rows, columns), float64, NaN in gaps.
    :ivar x: the coordinates of the columns, (columns,), float64.
    :ivar y: the coordinates of the rows, (rows,), float64.
    """

    name: str
    values: np.ndarray
    x: np.ndarray
    y: np.ndarray

    @property
    def points(self) -> np.ndarray:  # (rows * columns, 2)
        """Coordinates of all cells, row by row."""
        x, y = np.meshgrid(self.x, self.y)
        return np.stack([x.ravel(), y.ravel()], -1)


def load_field(path: str | os.PathLike, variable: str | None = None) -> Field:
    """Read a field; values that are not finite are gaps.

    A CSV file is a matrix without names, separated by commas, semicolons or tabs; cells in gaps are empty, ``NA``, ``nan`` or
    ``-``. An NPZ file has the matrix under any name, and may have the coordinates of its columns and rows as ``x`` and ``y``
    (or ``lon`` and ``lat``).

    :param path: the file.
    :param variable: the name of the matrix in an NPZ file; needed if it has several.
    """
    path = Path(path)
    if path.suffix.lower() not in (*TEXT, ".npz"):
        raise TableError(f"{path}: a field is a CSV (or TSV) or an NPZ file.")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file.")
    if path.suffix.lower() == ".npz":
        name, values, x, y = _from_npz(path, variable)
    elif variable is not None:
        raise TableError(f"{path}: a CSV file has one field; variable= is for NPZ files.")
    else:
        name, values, x, y = path.stem, _from_csv(path), None, None
    values = np.where(np.isfinite(values), values, np.nan)
    if min(values.shape) < 2 or not np.isfinite(values).any():
        raise TableError(f"{path}: a field has at least two rows, two columns and one number, got the shape {values.shape}.")
    axes = [
        np.arange(size, dtype=np.float64) if axis is None else axis for axis, size in ((y, len(values)), (x, values.shape[1]))
    ]
    return Field(name, values, axes[1], axes[0])


def save_matrix(path: str | os.PathLike, values: np.ndarray) -> None:
    """Write a matrix as a CSV file without names, atomically."""
    with whole_file(path) as temporary:
        np.savetxt(temporary, values, fmt="%.9g", delimiter=",")


def _from_csv(path: Path) -> np.ndarray:
    text = text_of(path)
    separator = separator_of(text)
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            rows.append(
                [_cell(path, number, column, cell.strip(), separator) for column, cell in enumerate(line.split(separator), 1)]
            )
    lengths = {len(row) for row in rows}
    if len(lengths) != 1:
        raise TableError(f"{path}: the rows of a field have one length, got {', '.join(map(str, sorted(lengths))) or 'none'}.")
    return np.array(rows, dtype=np.float64)


def _cell(path: Path, row: int, column: int, cell: str, separator: str) -> float:
    if cell in MISSING:
        return np.nan
    try:
        return float(cell.replace(",", ".") if separator == ";" else cell)
    except ValueError:
        words = f"row {row}, column {column}: {cell[:40]!r} is no number"
        raise TableError(f"{path}: {words}; a field has no names, and gaps are empty, NA or nan.") from None


def _from_npz(path: Path, variable: str | None) -> tuple[str, np.ndarray, np.ndarray | None, np.ndarray | None]:
    try:
        arrays = {name: array for name, array in read_npz(path).items() if array.dtype.kind in "fiu"}
    except Exception as error:  # numpy and zipfile raise many types for a damaged file
        raise TableError(f"{path}: cannot be read as NPZ; it is damaged or of another format ({error}).") from error
    fields = [name for name, array in arrays.items() if array.ndim == 2]
    if variable is None and len(fields) != 1:
        raise TableError(f"{path}: name one of its matrices with --variable: {', '.join(fields) or 'there are none'}.")
    name = fields[0] if variable is None else variable
    if name not in fields:
        raise TableError(f"{path}: no matrix {name!r}; there are: {', '.join(fields) or 'none'}.")
    values = arrays[name].astype(np.float64)
    axes = []
    for names, size in ((("x", "lon"), values.shape[1]), (("y", "lat"), values.shape[0])):
        axis = next((arrays[each] for each in names if each in arrays and arrays[each].ndim == 1), None)
        if axis is not None and (len(axis) != size or not np.isfinite(axis).all() or len(np.unique(axis)) != size):
            raise TableError(f"{path}: {names[0]} must hold {size} distinct coordinates, like the field, got {len(axis)}.")
        axes.append(None if axis is None else axis.astype(np.float64))
    return name, values, axes[0], axes[1]
