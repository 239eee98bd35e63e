"""Peak memory of a script in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[1]

# glibc raises the size from which it maps memory, and keeps what is freed below it: peaks of one script then differ by
# 0.15 GiB from run to run. With a fixed threshold every large tensor is mapped, and returned when it is freed.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "262144", "MALLOC_ARENA_MAX": "2"}


def peak_of(script: str) -> float:
    """Run the script; its largest resident size in GiB, torch itself included."""
    script = textwrap.dedent(script) + "\nfrom swing_gp.utils.memory import peak_gigabytes\nprint(peak_gigabytes())\n"
    command = [sys.executable, "-c", script]
    result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=os.environ | ALLOCATOR)
    assert result.returncode == 0, result.stderr
    return float(result.stdout.split()[-1])
