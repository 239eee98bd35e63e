"""Sphinx: ``make docs`` builds this folder into build/docs. Pages are Markdown (MyST), the reference comes from docstrings."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import swing_gp
from swing_gp.cli.arguments import command_parser

project = "swing_gp"
copyright = "the authors of swing_gp"
version = release = swing_gp.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
exclude_patterns = ["**/.ipynb_checkpoints"]
html_theme = "furo"
html_title = f"swing_gp {release}"

myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # the stored outputs are shown; `make notebooks` runs them

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_inherit_docstrings = False  # those of linear_operator and GPyTorch belong to their own pages
python_maximum_signature_line_length = 100

# Every reference to a name of ours must resolve. Names of other packages have no page here, and no network is needed.
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(abc|argparse|collections|gpytorch|linear_operator|np|numpy|os|pathlib|scipy|sklearn|torch)\..*"),
    ("py:.*", r"Any|ArrayLike|Axes|Callable|Figure|Interval|Kernel|LinearOperator|Path|Prior|Sequence|Tensor"),
    # Modules have no pages of their own.
    ("py:mod", r"swing_gp\..*"),
    # Bases and types in signatures that nobody has to make by hand.
    (
        "py:class",
        r"swing_gp\.(linalg|solvers|operators|utils|graphs.inputs|features.neighbors)\..*|dict\[str"
        r"|swing_gp\..*\.(_Binomial|_MaternEdge|_?Map|_?Mask|Alternative|FeatureMapT|GraphT|ScoredFamily|SmoothEdge)",
    ),
]


class CommandHelp(Directive):
    """``{command-help} normals``: what ``swing-gp normals --help`` prints."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        parser = next(action for action in command_parser()._actions if action.dest == "command").choices[self.arguments[0]]
        text = parser.format_help()
        return [nodes.literal_block(text, text, language="text")]


def copy_notebooks(app: Any) -> None:
    """Sphinx reads sources below its own folder only; the notebooks live beside it, and the copies are not in git."""
    target = HERE / "notebooks"
    wanted = {path.name: path for path in (ROOT / "notebooks").glob("*.ipynb")}
    for stale in target.glob("*.ipynb"):
        if stale.name not in wanted:
            stale.unlink()
    for name, path in wanted.items():
        copy = target / name
        if not copy.exists() or copy.read_bytes() != path.read_bytes():
            shutil.copy2(path, copy)


def links_of_root_files(app: Any, path: Path, parent: str, content: list[str]) -> None:
    """README.md and CONTRIBUTING.md are pages here too; their links and pictures are written for the folder above."""
    pages = {"README.md": "readme.md", "CONTRIBUTING.md": "contributing.md"}

    def moved(match: re.Match) -> str:
        target = match[1]
        if target.startswith(("docs/", "notebooks/")):
            return f"]({target.removeprefix('docs/')}"
        return f"]({pages.get(target, f'../{target}')}"

    parts = re.split(r"(^```.*?^```)", content[0], flags=re.DOTALL | re.MULTILINE)  # code is left as it is
    parts[::2] = [re.sub(r"\]\((?!\w+:|#)([^)#\s]+)", moved, part) for part in parts[::2]]
    content[0] = "".join(parts)


def setup(app: Any) -> None:
    os.environ["COLUMNS"] = "110"  # for the help of the commands
    app.add_directive("command-help", CommandHelp)
    app.connect("builder-inited", copy_notebooks)
    app.connect("include-read", links_of_root_files)
