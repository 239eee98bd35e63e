"""The command line: ``swing-gp normals``, ``fill``, ``regress`` and ``sharded`` (also ``python -m swing_gp``)."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from swing_gp.cli.arguments import command_parser
from swing_gp.cli.output import UsageError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. The exit code is 0, 1 for files that cannot be used, 2 for wrong arguments, 130 if interrupted."""
    parsed = command_parser().parse_args(arguments)
    # Idle OpenMP threads sleep instead of spinning; that has to be said before torch is loaded, which the commands do.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from swing_gp.parallel import ShardError

    try:
        import_module(f"swing_gp.cli.{parsed.command}").run(parsed)
    except (UsageError, ShardError, OSError, ValueError, ImportError) as error:  # each says what is wrong, and with what
        print(f"swing-gp {parsed.command}: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0
