"""The package as users get it: without the extras, and from wheel and sdist."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import distributions
from pathlib import Path

import apart
import pytest

import swing_gp

ROOT = Path(__file__).parents[1]
EXTRAS = ["matplotlib", "tqdm", "trimesh", "pykeops", "botorch", "hypothesis", "nbmake", "pandas"]


def run(*command: str | Path, cwd: Path | None = None) -> str:
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, cwd=cwd)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    return result.stdout


WITHOUT_EXTRAS = f"""
import importlib, pkgutil, sys
for name in {EXTRAS}:
    sys.modules[name] = None  # importing it fails as if it were not installed
import swing_gp, torch
for module in pkgutil.walk_packages(swing_gp.__path__, "swing_gp."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
graph = swing_gp.ImplicitGraph(torch.rand(50, 2), swing_gp.Gaussian(0.3))
print((swing_gp.graph_kernel(graph, swing_gp.Diffusion(1.0)) @ torch.ones(50)).shape)
"""


def test_every_module_imports_without_the_extras():
    assert "50" in run(sys.executable, "-c", WITHOUT_EXTRAS, cwd=ROOT)


INSTALLED_FROM = "".join(found.read_text("direct_url.json") or "" for found in distributions(name="swing_gp"))


@pytest.mark.skipif(f'"{ROOT.as_uri()}"' not in INSTALLED_FROM, reason="this environment has another clone, or none")
@pytest.mark.parametrize("place", ["inside", "beside", "elsewhere"])
def test_scripts_inside_a_clone_beside_it_and_elsewhere_import_the_package(place, tmp_path):
    # A clone's folder has the name of the package and no __init__.py: beside it, Python sees a namespace package first.
    if place == "beside":
        (tmp_path / "swing_gp").symlink_to(ROOT)
    script = tmp_path / "script.py"
    script.write_text("from importlib.util import find_spec; print(find_spec('swing_gp').origin)")
    command = ["-c", script.read_text()] if place == "inside" else [script]
    assert run(sys.executable, *command, cwd=ROOT if place == "inside" else tmp_path).strip().endswith("__init__.py")


def test_an_editable_install_is_a_path_and_not_a_finder():
    # setuptools writes a path only if the folder of the packages is named; a finder loses to the clone's folder beside a clone.
    setting = r'^\[tool\.setuptools\]\n(#.*\n)*package-dir = \{ "" = "\." \}$'
    assert re.search(setting, (ROOT / "pyproject.toml").read_text(), re.M)


def test_the_lowest_versions_are_those_of_the_ranges():
    project = (ROOT / "pyproject.toml").read_text()
    lowest = re.findall(r"^([\w-]+)==(\S+)$", (ROOT / "constraints-lowest.txt").read_text(), re.M)
    assert set(lowest) <= set(re.findall(r'"([\w-]+)>=([^"]+)"', project))
    required = re.findall(r'^  "([\w-]+)>=', project.partition("dependencies = [")[2].partition("]")[0], re.M)
    assert len(required) > 5
    assert set(required) <= set(dict(lowest))


def test_the_version_is_the_same_everywhere():
    version = re.escape(swing_gp.__version__)
    changes, citation = ((ROOT / name).read_text() for name in ("CHANGELOG.md", "CITATION.cff"))
    (first,) = re.findall(r"^## \[(\S+)\] - (\S+)$", changes, re.M)[:1]
    assert re.fullmatch(version, first[0])
    assert re.search(rf"^version: {version}$", citation, re.M)
    assert re.search(rf"^date-released: {first[1]}$", citation, re.M)


def test_extras_are_listed_once_and_whole():
    project, page = ((ROOT / name).read_text() for name in ("pyproject.toml", "docs/index.md"))
    extras = project.partition("[project.optional-dependencies]\n")[2].partition("\n\n")[0]
    listed = page.partition("| extra | brings |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", listed, re.M) == re.findall(r"^(\w+) = \[", extras, re.M)


def test_the_workflow_runs_the_steps_of_ci_on_every_python():
    yaml = pytest.importorskip("yaml")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    (job,) = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"].values()
    steps = [step["run"] for step in job["steps"] if "run" in step]
    assert steps == re.findall(r"^make .+$", (ROOT / ".ci" / "run").read_text(), re.M)
    versions = [tuple(map(int, version.split("."))) for version in job["strategy"]["matrix"]["python"]]
    lowest = re.search(r'requires-python = ">=(\d+)\.(\d+)"', (ROOT / "pyproject.toml").read_text())
    assert versions[0] == tuple(map(int, lowest.groups()))
    assert versions == [(3, minor) for minor in range(versions[0][1], versions[-1][1] + 1)]


@pytest.mark.parametrize(
    ("missing", "action", "remedy"),
    [
        ("trimesh", "from swing_gp.io.meshes import load_mesh; load_mesh('a.ply')", "swing_gp[meshes]"),
        ("matplotlib", "from swing_gp.io.pictures import require_matplotlib; require_matplotlib()", "swing_gp[plots]"),
        ("tqdm", "from swing_gp.utils.progress import progress_bar; progress_bar([], '')", "swing_gp[plots]"),
    ],
)
def test_a_missing_extra_names_its_installation(missing, action, remedy, tmp_path):
    (tmp_path / "a.ply").write_text("ply\n")
    script = f"""
import os, sys
os.chdir({str(tmp_path)!r})
sys.modules[{missing!r}] = None
try:
    {action}
except Exception as error:
    print(error)
"""
    message = apart.run(script, "swing_gp.models.regressor", "swing_gp.models.interpolation")
    assert "pip install" in message
    assert remedy in message


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    # From a copy: builds that run at the same time write to the same folders of their source.
    folder = tmp_path_factory.mktemp("dist")
    shutil.copytree(
        ROOT, folder / "source", ignore=shutil.ignore_patterns(".*", "build", "*.egg-info", "results", "__pycache__")
    )
    run(sys.executable, "-m", "build", "--outdir", folder / "out", folder / "source")
    return folder / "out"


@pytest.mark.slow
def test_wheel_and_sdist_hold_the_package_and_nothing_else(built):
    (wheel,) = built.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / "swing_gp").rglob("*.py")}
    assert sources <= set(names)
    assert "swing_gp/py.typed" in names
    assert all(name.startswith(("swing_gp/", "swing_gp-")) for name in names)
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        held = {name.split("/", 1)[-1] for name in archive.getnames()}
    assert sources | {"pyproject.toml", "README.md", "LICENSE"} <= held


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"])
def test_installs_into_a_clean_environment(built, kind, tmp_path):
    (archive,) = built.glob(kind)
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    for package in ("torch", archive):
        run(python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", package)
    installed = run(python, "-I", "-c", WITHOUT_EXTRAS + "print(swing_gp.__file__)", cwd=tmp_path)
    assert str(tmp_path) in installed
    assert "usage: swing-gp" in run(tmp_path / "venv" / "bin" / "swing-gp", "--help", cwd=tmp_path)
