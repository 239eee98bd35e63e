"""The command line before a command runs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from swing_gp.cli import arguments
from swing_gp.features.auto import NAMES
from swing_gp.models import graph_gp, regressor, selection


@pytest.mark.parametrize("words", [["--help"], ["normals", "--help"], ["--version"], ["fill"], ["no-such-command"]])
def test_help_and_wrong_words_are_answered_without_torch(words):
    code = f"""
import sys
from swing_gp.cli.main import main
try:
    main({words})
finally:
    print([name for name in ("torch", "numpy", "scipy") if name in sys.modules])
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == (0 if words[-1].startswith("--") else 2), run.stderr
    assert run.stdout.splitlines()[-1] == "[]"


def test_words_of_options_are_those_of_the_library():
    assert arguments.FEATURES == NAMES
    assert arguments.RULES == selection.RULES
    assert (*regressor.FAMILIES, *graph_gp.KERNELS) == arguments.KERNELS


@pytest.mark.parametrize(("given", "expected"), [(None, "passive"), ("active", "active")])  # what a user says stays
def test_idle_threads_are_told_to_sleep_before_torch_is_loaded(given, expected):
    # Stand-ins for the two modules that load torch.
    code = """
import os, sys
from types import SimpleNamespace as Module
sys.modules["swing_gp.parallel"] = Module(ShardError=RuntimeError)
sys.modules["swing_gp.cli.fill"] = Module(run=lambda _: print("torch" in sys.modules, os.environ["OMP_WAIT_POLICY"]))
from swing_gp.cli.main import main
main(["fill", "field.csv", "--out", "out"])
"""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    environment |= {} if given is None else {"OMP_WAIT_POLICY": given}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert run.stdout.split() == ["False", expected], run.stderr
