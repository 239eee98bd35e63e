"""The console script ``swing-gp``. A module beside the package, because the package imports torch."""

import os


def main() -> int:
    """Run a command. Idle OpenMP threads sleep instead of spinning, which has to be said before torch is loaded."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from swing_gp.cli.main import main as command

    return command()
