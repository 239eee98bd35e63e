"""Progress bars."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


# Seconds after which a bar that nobody asked for appears.
DELAY = 3.0


def progress_bar(work: Iterable[T], description: str, shown: bool | None = True) -> Iterable[T]:
    """The same items, with a bar that goes away at the end.

    :param shown: None shows it on a terminal after a few seconds, where tqdm is installed.

    >>> sum(progress_bar(range(4), "count"))
    6
    """
    if shown is False:
        return work
    try:
        from tqdm import tqdm
    except ImportError as error:
        if shown is None:
            return work
        raise ImportError("Progress is shown with tqdm: pip install 'swing_gp[plots]', or leave progress=False.") from error
    quiet = {"disable": None, "delay": DELAY} if shown is None else {}
    return tqdm(work, desc=description, leave=False, **quiet)
