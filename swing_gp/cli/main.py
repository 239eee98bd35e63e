"""The command line: ``swing-gp normals``, ``regress`` and ``sharded`` (also ``python -m swing_gp``)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from swing_gp.cli import normals, regress, sharded
from swing_gp.cli.output import UsageError

__all__ = ["main"]

COMMANDS = {"normals": normals, "regress": regress, "sharded": sharded}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code is 0, or 1 for files that cannot be used, or 2 for wrong arguments."""
    parser = _parser()
    parsed = parser.parse_args(arguments)
    try:
        COMMANDS[parsed.command].run(parsed)
    except UsageError as error:
        print(f"swing-gp {parsed.command}: error: {error}", file=sys.stderr)
        return 2
    except (OSError, ValueError, ImportError) as error:  # each says what is wrong with which file or option
        print(f"swing-gp {parsed.command}: error: {error}", file=sys.stderr)
        return 1
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
        command = commands.add_parser(
            name,
            help=module.DESCRIPTION.splitlines()[0],
            description=module.DESCRIPTION,
            epilog=module.EXAMPLES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
    return parser
