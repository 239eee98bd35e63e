"""Peak memory of a script in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[1]


def peak_of(script: str) -> float:
    """Run the script; its largest resident size in GiB, torch itself included."""
    script = textwrap.dedent(script) + "\nfrom swing_gp.utils.memory import peak_gigabytes\nprint(peak_gigabytes())\n"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    return float(result.stdout.split()[-1])
