"""What estimators share: arrays that they take, and their files."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from textwrap import shorten
from typing import Any, TypeVar

import numpy as np
import torch

from swing_gp.utils.files import whole_file

T = TypeVar("T")

# Arrays that torch can take, whatever their strides and whoever may write to them; float32 stays, whose rounding is coarser.
ARRAYS: dict[str, Any] = {"dtype": (np.float64, np.float32), "order": "C", "copy": True}


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
        return restore(torch.load(path, weights_only=True))
    except Exception as error:  # zipfile, torch and pickle raise a dozen kinds, and other contents lack anything
        reason = shorten(f"{type(error).__name__}: {error}", 200)
        raise ValueError(f"{path}: no model of {name}.save; it is damaged or of another format ({reason}).") from error


def column_scales(nodes: np.ndarray, scaling: str | None) -> np.ndarray:  # (n, d) -> (d,)
    """What columns are divided by: one number (``"global"``), their own deviations (``"columns"``), or nothing (None). Their
    total variance is then one, unless they stay as they are."""
    columns = nodes.shape[1]
    if scaling is None:
        return np.ones(columns)
    deviations, size = nodes.std(0, dtype=np.float64), np.abs(nodes).max(0).astype(np.float64)
    deviations = np.where(deviations > 4 * np.finfo(nodes.dtype).eps * size, deviations, 0.0)  # rounding is no variance
    if not deviations.any():
        return np.ones(columns)
    if scaling == "global":
        return np.full(columns, np.sqrt((deviations**2).sum()))
    return np.where(deviations > 0, deviations, np.maximum(size, 1.0)) * np.sqrt((deviations > 0).sum())
