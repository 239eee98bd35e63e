"""The console script itself, before it is a command."""

from __future__ import annotations

import os
import subprocess
import sys


def test_the_script_tells_idle_threads_to_sleep_before_torch_is_loaded():
    code = """
import os, sys
import swing_gp_command
assert "torch" not in sys.modules
sys.argv = ["swing-gp", "--version"]
try:
    swing_gp_command.main()
finally:
    print(os.environ["OMP_WAIT_POLICY"])
"""
    for given, expected in ((None, "passive"), ("active", "active")):  # what a user says stays
        environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
        environment |= {} if given is None else {"OMP_WAIT_POLICY": given}
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
        assert run.returncode == 0, run.stderr
        assert run.stdout.split()[-1] == expected
