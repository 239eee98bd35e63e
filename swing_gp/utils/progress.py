"""Progress bars."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

Item = TypeVar("Item")

# Seconds before a bar appears unasked (shown=None): shorter work needs none.
DELAY = 3.0


def progress_bar(work: Iterable[Item], description: str, shown: bool | None = True) -> Iterable[Item]:
    """Iterate over items behind a bar that disappears at the end.

    :param work: the items.
    :param description: the words beside the bar.
    :param shown: True or False; None shows the bar on a terminal, after a few seconds, if tqdm is installed.

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
