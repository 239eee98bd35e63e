"""Files that are whole or absent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["whole_file"]


@contextmanager
def whole_file(path: str | os.PathLike) -> Iterator[Path]:
    """A temporary path beside the target, renamed to it at the end: a reader, or an interrupted run, never sees half a file.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "numbers.txt"
    >>> with whole_file(target) as temporary:
    ...     _ = temporary.write_text("1 2 3")
    ...     target.exists()
    False
    >>> target.read_text()
    '1 2 3'
    """
    target = Path(path)
    # The suffix stays last: many writers choose their format by it.
    temporary = target.with_name(f".{os.getpid()}.{target.name}")
    try:
        yield temporary
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
