"""Public names: few, documented, the same for type checkers and at run time, and loaded when they are used."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import swing_gp

SOURCE = Path(swing_gp.__file__)
ROOT = SOURCE.parents[1]
HEAVY = ["sklearn", "pandas", "scipy.stats", "matplotlib", "trimesh", "pyamg"]


def seen_by_type_checkers() -> dict[str, str]:
    """The module of every name that the package imports under ``if TYPE_CHECKING``."""
    tree = ast.parse(SOURCE.read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    return {alias.name: node.module for node in block.body for alias in node.names}


def fresh(code: str) -> str:
    """What a new interpreter prints."""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_type_checkers_and_python_see_the_same_names():
    assert seen_by_type_checkers() == swing_gp._MODULES
    assert sorted(swing_gp._MODULES) == sorted(swing_gp.__all__)
    assert len(swing_gp.__all__) == len(set(swing_gp.__all__)) <= 50


@pytest.mark.parametrize("name", swing_gp.__all__)
def test_a_name_is_that_of_the_module_that_defines_it(name):
    module = swing_gp._MODULES[name]
    value = getattr(swing_gp, name)
    assert value is getattr(import_module(module), name)
    assert value.__module__ == module


def test_unknown_names_are_refused_and_known_ones_listed():
    assert set(swing_gp.__all__) <= set(dir(swing_gp))
    with pytest.raises(AttributeError, match="no attribute 'Gausian'"):
        swing_gp.Gausian  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'Gausian'"):
        from swing_gp import Gausian  # noqa: F401


def test_importing_the_package_loads_nothing_and_a_kernel_only_what_it_needs():
    code = f"""
import sys
import swing_gp
print([name for name in ("torch", "numpy", "scipy", "gpytorch") if name in sys.modules], "DiffusionKernel" in dir(swing_gp))
from swing_gp import DiffusionKernel, ImplicitGraph, SparseGraph, graph_kernel, interpolate, knn_graph, solve
print([name for name in {HEAVY} if name in sys.modules])
"""
    assert fresh(code).split("\n")[:2] == ["[] True", "[]"]


@pytest.mark.slow
def test_mypy_sees_the_names_and_misses_none(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "user.py").write_text("import swing_gp\n\nreveal_type(swing_gp.knn_graph)\nswing_gp.Gausian\n")
    command = [sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml", tmp_path / "user.py"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert "KNNGraph" in run.stdout.splitlines()[0]
    assert '"Gausian"' in run.stdout.splitlines()[1]
    assert run.returncode == 1


def test_the_changelog_says_where_names_have_gone():
    text = (ROOT / "CHANGELOG.md").read_text()
    rows = re.findall(r"^  \| (`.+`.*) \| `(swing_gp[\w.]+)` \|$", text, re.M)
    moved = {name: module for names, module in rows for name in re.findall(r"`(\w+)`", names.partition(" (")[0])}
    assert len(moved) == 27
    for name, module in moved.items():
        assert name not in swing_gp.__all__
        assert hasattr(import_module(module), name), name
