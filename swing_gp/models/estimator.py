"""What estimators share: arrays that they take, how columns are scaled, and their files."""

from __future__ import annotations

import os
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from textwrap import shorten
from typing import Any, TypeVar

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import validate_data
from torch import Tensor

from swing_gp.graphs.order import position_order
from swing_gp.utils.files import whole_file

T = TypeVar("T")

# Arrays that torch can take, whatever their strides and whoever may write to them; float32 stays, whose rounding is coarser.
ARRAYS: dict[str, Any] = {"dtype": (np.float64, np.float32), "order": "C", "copy": True}


SCALINGS = ("auto", "global", "columns", None)
# The largest entry of a column, other than zero: beyond, predictions would overflow or lose digits.
SMALLEST, LARGEST = 1e-304, 1e304
# A column is constant if its standard deviation is no more than so many roundings of its largest entry.
ROUNDINGS = 4
# Squares of standardised coordinates must not overflow.
FARTHEST = 1e150


def plain(value: Any) -> Any:
    """Settings from a grid search may be NumPy's scalars, which seeds and files cannot be."""
    return value.item() if isinstance(value, np.generic) else value


def save_content(path: str | os.PathLike, content: dict[str, Any]) -> None:
    """Write a fitted model, whole or not at all."""
    with whole_file(path) as temporary:
        torch.save(content, temporary)


def load_content(path: str | os.PathLike, restore: Callable[[dict[str, Any]], T], name: str) -> T:
    """What ``restore`` makes of the content of a file.

    :param name: of the class that wrote it.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file.")
    try:
        with zipfile.ZipFile(path) as archive:  # torch.load looks at no check sum
            if damaged := archive.testzip():
                raise zipfile.BadZipFile(f"bad check sum of {damaged}")
            # Of a record that claims to be a folder torch reads whatever memory holds.
            if any(record.external_attr or record.compress_size != record.file_size for record in archive.infolist()):
                raise zipfile.BadZipFile("records that torch does not write")
        return restore(torch.load(path, weights_only=True))
    except Exception as error:  # zipfile, torch and pickle raise a dozen kinds, and other contents lack anything
        reason = shorten(f"{type(error).__name__}: {error}", 200)
        raise ValueError(f"{path}: no model of {name}.save; it is damaged or of another format ({reason}).") from error


def seed_of(random_state: Any) -> int:
    """A seed from a seed or a ``RandomState``; from None another each time, and NumPy's global state stays as it is."""
    state = np.random.RandomState() if random_state is None else plain(random_state)
    return int(check_random_state(state).randint(2**31))


def checked_unlabeled(estimator: BaseEstimator, X_unlabeled: Any) -> np.ndarray:  # (m, d)
    """Inputs without a target, with the columns of those that have one."""
    more = check_array(X_unlabeled, input_name="X_unlabeled", estimator=estimator, **ARRAYS)
    if more.shape[1] != estimator.n_features_in_:
        raise ValueError(f"X_unlabeled must have {estimator.n_features_in_} columns like X, got {more.shape[1]}.")
    validate_data(estimator, X_unlabeled, reset=False, skip_check_array=True)  # the names of its columns
    return more


def in_order(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:  # (n, d), (n,) or (n, k)
    """Sort rows by what they hold: folds and samples are drawn by row, and go with the rows when these change places."""
    order = position_order(*(torch.from_numpy(array.astype(np.float64)) for array in arrays)).numpy()
    return tuple(array[order] for array in arrays)


def standards(name: str, array: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # (n, d) -> (d,), (d,), (d,)
    """Means, standard deviations, and largest entries of columns. The deviation is zero where all that varies is rounding.

    They are computed in units of the largest entry: squares neither overflow nor vanish.
    """
    values = array.astype(np.float64)
    size = np.abs(values).max(0)
    if ((size > LARGEST) | (size > 0) & (size < SMALLEST)).any():
        raise ValueError(f"{name} has a column whose largest entry is not within {SMALLEST:g} to {LARGEST:g}; change its unit.")
    unit = np.where(size > 0, size, 1.0)
    scaled = values / unit
    deviation = scaled.std(0)
    return scaled.mean(0) * unit, np.where(deviation > ROUNDINGS * np.finfo(array.dtype).eps, deviation, 0.0) * unit, size


def warn_of_rounding(name: str, array: np.ndarray, deviations: np.ndarray, stacklevel: int = 3) -> None:
    """Warn of columns that count as constant and are not."""
    if columns := np.flatnonzero((deviations == 0) & (array != array[0]).any(0)).tolist():
        warnings.warn(f"{name} varies by rounding alone in columns {columns}, which count as constant.", stacklevel=stacklevel)


def column_scales(nodes: np.ndarray, scaling: str | None) -> np.ndarray:  # (n, d) -> (d,)
    """What columns are divided by: one number (``"global"``), their own deviations (``"columns"``), or nothing (None). Their
    total variance is then one, unless they stay as they are.

    >>> column_scales(np.array([[0.0, 0.0], [2.0, 20.0]]), "columns").round(2)
    array([ 1.41, 14.14])
    """
    if scaling is None:
        return np.ones(nodes.shape[1])
    _, deviations, size = standards("X", nodes)
    varies = deviations > 0
    if not varies.any():
        return np.maximum(size, 1.0)
    if scaling == "global":
        largest = deviations.max()
        total = largest * np.sqrt(((deviations / largest) ** 2).sum())
        return np.where(varies, total, np.maximum(size, total))  # of a constant rounding alone is left, and stays rounding
    return np.where(varies, deviations, np.maximum(size, 1.0)) * np.sqrt(varies.sum())


def scalings_of(nodes: np.ndarray, scaling: str | None) -> tuple[str | None, ...]:
    """The scalings that ``"auto"`` may take: two where columns differ."""
    if scaling != "auto":
        return (scaling,)
    _, deviations, _ = standards("X", nodes)
    return ("global", "columns") if deviations.max() > 1.5 * deviations.min() else ("global",)


class Inputs:
    """Rows of X, centred and scaled."""

    def __init__(self, mean: np.ndarray, scale: np.ndarray) -> None:
        self.mean, self.scale = mean, scale

    def __call__(self, name: str, x: np.ndarray) -> Tensor:  # (n, d)
        result = torch.from_numpy((x.astype(np.float64) - self.mean) / self.scale)
        if not bool((result.abs() < FARTHEST).all()):
            raise ValueError(f"{name} has rows {FARTHEST:g} standard deviations or more from the mean of X in fit; drop them.")
        return result
