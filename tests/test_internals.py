"""docs/internals.md is true: what it lists exists in the installed versions, and it lists every override."""

import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import swing_gp

PAGE = (Path(__file__).parents[1] / "docs" / "internals.md").read_text()
LISTED = [
    f"{owner}.{name}"
    for owner, section in re.findall(r"^## `(\S+)`\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
    for cell in re.findall(r"^\| (`.*?) \|", section, re.M)
    for name in re.findall(r"`(.+?)`", cell)
]
STARS = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


def parameters(function):
    found = inspect.signature(function).parameters.values()
    return ", ".join(STARS.get(one.kind, "") + one.name for one in found if one.name != "self")


@pytest.mark.parametrize("listed", LISTED)
def test_what_is_listed_exists(listed):
    name, _, expected = listed.partition("(")
    path, _, last = name.rpartition(".")
    try:
        owner = importlib.import_module(path)
    except ModuleNotFoundError:  # a class in a module
        owner = pkgutil.resolve_name(path)
    if hasattr(owner, last):
        assert not expected or parameters(getattr(owner, last)) == expected.rstrip(")")
    else:  # an attribute or buffer of instances
        assert re.search(rf'self\.{last} = |register_buffer\("{last}"', inspect.getsource(owner))


def test_every_override_is_listed():
    names = {name.partition("(")[0].rpartition(".")[2] for name in LISTED}
    for module in pkgutil.walk_packages(swing_gp.__path__, "swing_gp."):
        for cls in vars(importlib.import_module(module.name)).values():
            if inspect.isclass(cls) and cls.__module__ == module.name:
                theirs = [base for base in cls.__mro__ if base.__module__.startswith(("linear_operator.", "gpytorch."))]
                overridden = {name for name in vars(cls) if any(name in vars(base) for base in theirs)}
                missing = {name for name in overridden - names if not re.match("__(?!add|call|getitem)|_abc", name)}
                assert not missing, f"{cls} overrides {missing}: list it in docs/internals.md"
