"""Atomic writes: a file appears complete or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: str | os.PathLike) -> Iterator[Path]:
    """Yield a temporary path beside the target, and rename it to the target at the end. An error removes it.

    :param path: the target, which is replaced if it exists.

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
