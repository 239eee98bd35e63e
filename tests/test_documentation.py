"""The documentation is true: examples run, links lead somewhere, the reference is whole, the layers are those of the code."""

import ast
import doctest
import importlib
import pkgutil
import re
from graphlib import TopologicalSorter
from pathlib import Path

import apart
import pytest

import swing_gp

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
MODULES = ["swing_gp", *(module.name for module in pkgutil.walk_packages(swing_gp.__path__, "swing_gp."))]


def name_of(page):
    return page.relative_to(ROOT).as_posix()


def fences(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def prose(page):
    """A page without its fenced blocks; a page that is an include is what it includes."""
    text = page.read_text()
    included = re.fullmatch(r"```\{include\} (\S+)\n```\n", text)
    return prose(page.parent / included[1]) if included else re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


# Examples


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.draws
def test_docstring_examples_run(name):
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0


EXAMPLES = [
    pytest.param(page, block, id=f"{name_of(page)}-{number}")
    for page in PAGES
    for number, block in enumerate(fences(page, "python"))
]


@pytest.mark.parametrize(("page", "block"), EXAMPLES)
@pytest.mark.draws
def test_markdown_examples_run(page, block, capsys, tmp_path, monkeypatch):
    if re.search(r"^(?:from|import) botorch", block, re.M):
        return run_apart(block, tmp_path)
    monkeypatch.chdir(tmp_path)
    exec(compile(block, name_of(page), "exec"), {})
    assert capsys.readouterr().out


def run_apart(block, folder):
    """In a process of its own: importing BoTorch changes global settings of linear_operator."""
    assert apart.run(f"import os\nos.chdir({str(folder)!r})\n{block}", "botorch", "pytest")


def test_pages_that_promise_examples_have_them():
    assert len(fences(ROOT / "README.md", "python")) >= 2
    for page in (DOCS / "howto").glob("*.md"):
        assert page.name == "index.md" or fences(page, "python"), page


# Names


def test_every_public_name_exists_and_is_documented():
    for name in swing_gp.__all__:
        assert getattr(swing_gp, name).__doc__, name


def test_the_reference_is_whole():
    pages = (DOCS / "reference").glob("*.md")
    directive = r"^\.\. auto(?:class|function|exception):: (\S+)"
    shown = [name for page in pages for name in re.findall(directive, page.read_text(), re.M)]
    assert {f"swing_gp.{name}" for name in swing_gp.__all__} <= set(shown)
    assert len(set(shown)) == len(shown)
    index = fences(DOCS / "reference" / "index.md", r"\{eval-rst\}")
    tables = [table for block in index for table in re.split(r"^\.\. py:currentmodule:: ", block, flags=re.M)[1:]]
    listed = [f"{table.split()[0]}.{name}" for table in tables for name in re.findall(r"^   (\w\S*)$", table, re.M)]
    assert sorted(listed) == sorted(shown)  # one line a name


def string_literals():
    for path in (ROOT / "swing_gp").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def test_quoted_messages_are_those_of_the_code():
    literals = list(string_literals())
    quoted = [line for block in fences(DOCS / "troubleshooting.md", "text") for line in block.splitlines()]
    assert len(quoted) > 20
    for line in quoted:
        parts = [part for part in (part.strip() for part in line.split("...")) if len(part) > 3]
        assert parts, line
        for part in parts:
            assert any(part in literal for literal in literals), line


def test_tests_commands_and_benchmarks_that_pages_name_exist():
    tests = {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
    for path in (ROOT / "tests").rglob("test_*.py"):
        tests |= set(re.findall(r"def (test_\w+)", path.read_text()))
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    benchmarks = {path.stem for path in (ROOT / "benchmarks").glob("*.py")}
    for page in PAGES:
        text = page.read_text()
        assert set(re.findall(r"`(?:tests/(?:\w+/)?)?(test_\w+)(?:\.py)?`", text)) <= tests, page
        assert set(re.findall(r"(?:`|^)make ([\w-]+)", text, re.M)) <= targets, page
        assert set(re.findall(r"python -m benchmarks\.(\w+)", text)) <= benchmarks, page


# Links


def anchors(page):
    """Of the headings of a page, as GitHub and MyST make them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    if "{include}" in page.read_text():
        return  # its links are checked where they are written
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", prose(page))):
        if re.match(r"https?://|mailto:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


def test_every_page_is_in_one_table_of_contents():
    listed = []
    for page in DOCS.rglob("*.md"):
        for block in fences(page, r"\{toctree\}"):
            entries = [line for line in block.splitlines() if line and not line.startswith(":")]
            entries = [re.sub(r"^.*<(.*)>$", r"\1", entry) for entry in entries]
            if ":glob:" not in block:
                listed += [(page.parent / f"{entry}.md").resolve() for entry in entries]
    assert sorted(listed) == sorted(page for page in DOCS.rglob("*.md") if page not in (DOCS / "index.md",))


# Layers


def layers():
    """The folders of swing_gp in the order of the table of docs/architecture.md: the number of the layer of each."""
    rows = re.findall(r"^\| `(\w+)` \| ", (DOCS / "architecture.md").read_text().partition("## Data flow")[0], re.M)
    return {folder: number for number, folder in enumerate(rows)}


def imports(path):
    """The modules of swing_gp that a module imports, at its top or in a function: a late import is a dependency too.

    The version is free: the package itself loads nothing.
    """
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "swing_gp":
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                if name != "swing_gp.__version__":
                    yield name if name in MODULES else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "swing_gp")


def test_folders_are_the_layers():
    package = ROOT / "swing_gp"
    assert set(layers()) == {path.name for path in package.iterdir() if (path / "__init__.py").exists()}
    assert len(list(package.glob("*.py"))) <= 6
    for path in package.rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 400, f"{path} has a second idea in it"


def test_imports_in_functions_count(tmp_path):
    path = tmp_path / "module.py"
    path.write_text(
        "from swing_gp import __version__\n"
        "if __version__:\n    from swing_gp.models import regressor\n"
        "def f():\n    import swing_gp.gp.cache\n    from swing_gp.graphs.edges import Gaussian\n"
        "    from swing_gp import Walks\n"
    )
    assert sorted(imports(path)) == ["swing_gp", "swing_gp.gp.cache", "swing_gp.graphs.edges", "swing_gp.models.regressor"]


def test_imports_follow_the_layers():
    layer, graph = layers(), {}
    for name in MODULES[1:]:
        path = ROOT / name.replace(".", "/")
        graph[name] = list(imports(path / "__init__.py" if path.is_dir() else path.with_suffix(".py")))
        if name == "swing_gp.__main__":  # a file at the top may import from every folder
            continue
        for other in graph[name]:
            assert other != "swing_gp", f"{name} imports the package itself"
            assert layer[other.split(".")[1]] <= layer[name.split(".")[1]], f"{name} imports {other}, a layer below its own"
    TopologicalSorter(graph).prepare()  # raises at a cycle


def test_tests_mirror_the_folders():
    folders = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")} - {"conformance"}  # of all layers at once
    assert folders <= set(layers())
    assert set(layers()) - folders <= {"utils"}  # whose checks are those of all others
