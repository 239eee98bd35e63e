"""What commands share: checks of options, the folder of results, printed lines and reports."""

from __future__ import annotations

import argparse
import json
import math
import platform
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swing_gp import __version__
from swing_gp.utils.files import whole_file

if TYPE_CHECKING:
    from swing_gp.models.comparison import Comparison

# Maps of features that have a number of them.
NUMBERED = ("landmarks", "positive", "fourier")
# NumPy's generators take seeds below this.
MOST_SEEDS = 2**32


class UsageError(Exception):
    """Wrong arguments; exit code 2."""


def check_options(arguments: argparse.Namespace, *positive: str, share: str | None = None) -> None:
    """Refuse a share outside of (0, 1), options that are given and not positive and finite, negative ``--steps``, and seeds
    that generators do not take."""
    if share is not None and not 0 < (value := getattr(arguments, share)) < 1:
        raise UsageError(f"--{share} must lie between 0 and 1, both excluded, got {value:g}.")
    for name in positive:
        value = getattr(arguments, name)
        if value is not None and not 0 < value < math.inf:
            raise UsageError(f"{option(name)} must be positive and finite, got {value}.")
    if (getattr(arguments, "steps", None) or 0) < 0:
        raise UsageError(f"--steps must not be negative, got {arguments.steps}.")
    if not 0 <= arguments.seed < MOST_SEEDS:
        raise UsageError(f"--seed must lie between 0 and {MOST_SEEDS - 1}, got {arguments.seed}.")


def option(name: str) -> str:
    """Write the name of an argument as it is typed."""
    return f"--{name.replace('_', '-')}"


def refuse_given(arguments: argparse.Namespace, names: Sequence[str], reason: str) -> None:
    """Refuse options that are given, for a reason that others give."""
    given = [option(name) for name in names if getattr(arguments, name) not in (None, False)]
    if given:
        raise UsageError(f"{', '.join(given)}: {reason}.")


def check_features(arguments: argparse.Namespace, kernel: str | None) -> None:
    """Refuse a number of features where the map has none, and maps that cannot hold a kernel.

    :param kernel: its name.
    """
    if arguments.features not in NUMBERED:
        words = f"only with --features {', '.join(NUMBERED)}, got --features {arguments.features}"
        refuse_given(arguments, ["num_features"], words)
    if kernel == "log_matern" and arguments.features not in ("auto", *NUMBERED):
        raise UsageError(
            f"--features {arguments.features} cannot hold log_matern, which is too steep: use --features landmarks."
        )


def prepare_folder(path: Path, given: Sequence[Path], results: Sequence[str]) -> Path:
    """Make the folder and write to it once, so that a folder without permission fails before the work, not after it.

    :param given: what is read, over which no result may be written.
    :param results: names of what will be written.
    """
    targets = {(path / name).resolve() for name in results}
    for source in given:
        if targets & {source.resolve(), *source.resolve().parents}:
            raise UsageError(f"--out: {source} would be written over by a result of its name; give another folder.")
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
