"""What commands share: checks of options, the folder of results, printed lines and reports."""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swing_gp import __version__
from swing_gp.utils.files import whole_file

if TYPE_CHECKING:
    from swing_gp.models.comparison import Comparison


class UsageError(Exception):
    """Wrong arguments; exit code 2."""


def check_options(arguments: argparse.Namespace, *positive: str, share: str | None = None) -> None:
    """Refuse a share outside of (0, 1), options that are given and not positive, and negative ``--steps``."""
    if share is not None and not 0 < (value := getattr(arguments, share)) < 1:
        raise UsageError(f"--{share} must lie between 0 and 1, both excluded, got {value:g}.")
    for name in positive:
        value = getattr(arguments, name)
        if value is not None and not value > 0:
            raise UsageError(f"--{name.replace('_', '-')} must be positive, got {value}.")
    if getattr(arguments, "steps", 0) < 0:
        raise UsageError(f"--steps must not be negative, got {arguments.steps}.")


def prepare_folder(path: Path) -> Path:
    """Make the folder and write to it once, so that a folder without permission fails before the work, not after it."""
    path.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=path).close()
    return path


def print_line(label: str, text: str) -> None:
    print(f"{label:<9} {text}", flush=True)


def print_table(table: Comparison) -> None:
    """What was tried, with a label beside its first line."""
    for number, line in enumerate(str(table).splitlines()):
        print_line("" if number else "tried", line)


def save_report(path: Path, content: dict[str, Any]) -> None:
    """Write the report as JSON, whole or not at all, with the versions and threads it was made with."""
    import torch  # loaded by then; the parser of arguments shares this module and does without

    machine = {"python": platform.python_version(), "torch": torch.__version__, "threads": torch.get_num_threads()}
    text = json.dumps({**content, "swing_gp": __version__, **machine}, indent=1, allow_nan=False)
    with whole_file(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")
