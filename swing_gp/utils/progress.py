"""Progress bars."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def progress_bar(work: Iterable[T], description: str) -> Iterable[T]:
    """The same items, with a bar that goes away at the end.

    >>> sum(progress_bar(range(4), "count"))
    6
    """
    try:
        from tqdm import tqdm
    except ImportError as error:
        raise ImportError("Progress is shown with tqdm: pip install 'swing_gp[plots]', or leave progress=False.") from error
    return tqdm(work, desc=description, leave=False)
