"""Peak memory of a script in a process of its own."""

from __future__ import annotations

import textwrap

import apart

# What scripts use, and with it nearly all of the package.
MODULES = ("swing_gp.models.regressor", "swing_gp.models.interpolation", "swing_gp.parallel.streaming")


def peak_of(script: str) -> float:
    """Run the script; its largest resident size in GiB, torch itself included."""
    script = textwrap.dedent(script) + "\nfrom swing_gp.utils.memory import peak_gigabytes\nprint(peak_gigabytes())\n"
    return float(apart.run(script, *MODULES).split()[-1])
