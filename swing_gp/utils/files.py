"""Files that are written whole or not at all; readers of arrays and text that name a file of another format."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


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


def read_text(path: Path) -> str:
    """Read a file of text in UTF-8, with or without a mark at its beginning."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: this is no text in UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8."
        ) from None


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of an NPZ file by name."""
    import numpy as np  # not at the top: the command line answers wrong words without it

    if not zipfile.is_zipfile(path):  # NumPy takes anything else for pickled objects, and tells how to load these
        raise ValueError("it is no archive of arrays")
    with np.load(path, allow_pickle=False) as content:
        return dict(content)
