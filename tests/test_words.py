"""The words of the package: first lines of docstrings, names of classes and constants, and types at borders."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "swing_gp"
MODULES = {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}

# A first line is a noun phrase or an imperative, so it begins with none of these.
FORBIDDEN = re.compile(r"(?:Of|By|From|Where|What|Whether|How|The same|And)\b")
# Folders and modules that are not rewritten yet: remove an entry with the last of its lines. The aim is none.
EXEMPT = (
    "cli/",
    "features/auto.py",
    "gp/__init__.py",
    "gp/cache.py",
    "gp/graph_kernel.py",
    "gp/trend.py",
    "linalg/",
    "models/",
    "operators/",
)
# Names that two classes have. The aim is none.
DUPLICATES = {"Inputs"}
# Parameters and results of public functions and methods that are typed Any, and the number to reach.
MOST_ANY, AIM = 117, 60


def docstrings(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
            yield getattr(node, "name", "module"), text


def forbidden_first_lines(tree):
    return [f"{name}: {line}" for name, text in docstrings(tree) if FORBIDDEN.match(line := text.splitlines()[0])]


def mentions_any(annotation):
    return annotation is not None and any(isinstance(node, ast.Name) and node.id == "Any" for node in ast.walk(annotation))


def borders(tree):
    """Annotations of public functions and of double-underscore methods, such as constructors.

    The context of an autograd function is left out, and so are keyword arguments that are passed on: no type fits them.
    """
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and not re.match(r"_(?!_)", function.name):
            arguments = function.args.posonlyargs + function.args.args + function.args.kwonlyargs
            for argument in arguments:
                if argument.arg not in ("self", "cls", "ctx"):
                    yield f"{function.name}({argument.arg})", argument.annotation
            yield function.name, function.returns


@pytest.mark.parametrize("name", [name for name in MODULES if not name.startswith(EXEMPT)])
def test_docstrings_begin_with_a_noun_or_an_imperative(name):
    assert forbidden_first_lines(MODULES[name]) == []


def test_exempt_modules_exist():
    assert [entry for entry in EXEMPT if not any(name.startswith(entry) for name in MODULES)] == []


def test_names_of_classes_are_unique():
    classes = [node.name for tree in MODULES.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    assert {name for name, count in Counter(classes).items() if count > 1} <= DUPLICATES


def constants(tree):
    """Names in capitals that a module assigns, alone or in a tuple."""
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        for target in targets:
            for name in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(name, ast.Name) and re.fullmatch(r"[A-Z][A-Z0-9_]+", name.id):
                    yield name.id


def test_names_of_constants_are_unique():
    modules = [(constant, name) for name, tree in MODULES.items() for constant in constants(tree)]
    count = Counter(constant for constant, _ in modules)
    assert [pair for pair in modules if count[pair[0]] > 1 and not pair[1].startswith(EXEMPT)] == []


def test_borders_have_types():
    counts = {name: sum(mentions_any(annotation) for _, annotation in borders(tree)) for name, tree in MODULES.items()}
    total = sum(counts.values())
    worst = sorted(counts, key=counts.get, reverse=True)[:8]
    listing = ", ".join(f"{name} ({counts[name]})" for name in worst)
    assert total <= MOST_ANY, f"{total} borders are typed Any, {MOST_ANY} at most for now and {AIM} in the end: {listing}"


def test_the_walk_finds_what_it_looks_for():
    tree = ast.parse(
        'class A:\n    def f(self, x: Any, y: "int", **words: Any) -> list[Any]:\n        """Of x.\n\n        And y."""'
    )
    assert forbidden_first_lines(tree) == ["f: Of x."]
    assert [name for name, annotation in borders(tree) if mentions_any(annotation)] == ["f(x)", "f"]
    assert list(constants(ast.parse("A, LEAST = 1, 2\nMOST: int = 3\nname = 4"))) == ["LEAST", "MOST"]
