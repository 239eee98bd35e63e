"""The command line: ``swing-gp normals``, ``fill``, ``regress`` and ``sharded`` (also ``python -m swing_gp``)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from swing_gp.cli import fill, normals, regress, sharded
from swing_gp.cli.output import UsageError
from swing_gp.parallel import ShardError

COMMANDS = {"normals": normals, "fill": fill, "regress": regress, "sharded": sharded}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. The exit code is 0, 1 for files that cannot be used, 2 for wrong arguments, 130 if interrupted."""
    parsed = _parser().parse_args(arguments)
    try:
        COMMANDS[parsed.command].run(parsed)
    except (UsageError, ShardError, OSError, ValueError, ImportError) as error:  # each says what is wrong, and with what
        print(f"swing-gp {parsed.command}: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    from swing_gp import __version__

    parser = argparse.ArgumentParser("swing-gp", description="Graph kernels on implicit graphs, from the command line.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in COMMANDS.items():
        texts = {"help": module.DESCRIPTION.splitlines()[0], "description": module.DESCRIPTION, "epilog": module.EXAMPLES}
        command = commands.add_parser(name, formatter_class=argparse.RawDescriptionHelpFormatter, **texts)
        module.add_arguments(command)
        command.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the results go")
    return parser
