"""Every example in a docstring runs."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import swing_gp

MODULES = ["swing_gp", *(module.name for module in pkgutil.walk_packages(swing_gp.__path__, "swing_gp."))]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name):
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0


def test_every_public_name_exists_and_is_documented():
    for name in swing_gp.__all__:
        assert getattr(swing_gp, name).__doc__, name


README = Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_readme_examples_run(block, capsys):
    exec(compile(block, str(README), "exec"), {})
    assert capsys.readouterr().out


def test_readme_has_examples():
    assert len(BLOCKS) >= 2
