"""What commands share: a folder that can be written to, reports, and errors that end in an exit code."""

from __future__ import annotations

import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import torch

from swing_gp.utils.files import whole_file

__all__ = ["UsageError", "prepare_folder", "progress_wanted", "save_report"]


class UsageError(Exception):
    """Arguments that make no sense; exit code 2."""


def prepare_folder(path: Path) -> Path:
    """Make the folder and write to it once, so that hours of work do not end at a closed door."""
    path.mkdir(parents=True, exist_ok=True)
    probe = path / f".{os.getpid()}.probe"
    try:
        probe.write_bytes(b"")
    finally:
        probe.unlink(missing_ok=True)
    return path


def save_report(path: Path, content: dict[str, Any]) -> None:
    """As JSON, whole or absent, with what is needed to make it again."""
    from swing_gp import __version__

    machine = {"python": platform.python_version(), "torch": torch.__version__, "threads": torch.get_num_threads()}
    content = {**content, "swing_gp": __version__, **machine}
    with whole_file(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def progress_wanted() -> bool:
    """Progress bars are for people: not for files and pipes."""
    return sys.stderr.isatty()
