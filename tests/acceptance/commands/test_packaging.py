"""The distribution as a user installs it: no dependency, and the four packages."""

import json
import subprocess
import sys
import venv
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
import tomllib
from packaging.requirements import Requirement
from plotly.offline import get_plotlyjs, get_plotlyjs_version

from gradcanary_dashboard.web.assets import ASSETS, PLOTLY

INSIDES_USED = ("dash", "plotly", "psycopg", "pydantic", "uvicorn")
"""Packages of which we use more than they promise to keep: a version that no test has seen may break us."""

PROJECT = Path(__file__).parents[3]
PACKAGES = (
    "agent/gradcanary",
    "server/gradcanary_server",
    "dashboard/gradcanary_dashboard",
    "migrations/gradcanary_migrations",
)

LOADED_FROM_SITE_PACKAGES = """
import importlib.util, json, sys
assert importlib.util.find_spec("torch") is not None
before = set(sys.modules)
import gradcanary
files = {name: getattr(sys.modules[name], "__file__", None) or "" for name in set(sys.modules) - before}
print(json.dumps([name for name, file in files.items() if "site-packages" in file and name != "gradcanary"]))
"""


@pytest.fixture(scope="module")
def empty_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new venv with gradcanary in it, installed as ``pip install .`` does."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", str(PROJECT)], check=True, timeout=240)
    return python


def test_installing_brings_no_other_package(empty_python: Path) -> None:
    listing = subprocess.run(
        [empty_python, "-m", "pip", "list", "--format", "json"], capture_output=True, check=True, timeout=60
    )
    names = {package["name"] for package in json.loads(listing.stdout)}
    assert names - {"pip", "setuptools"} == {"gradcanary"}


def test_it_is_installed_as_typed(empty_python: Path) -> None:
    found = "import gradcanary, pathlib; print((pathlib.Path(gradcanary.__file__).parent / 'py.typed').exists())"
    told = subprocess.run([empty_python, "-I", "-c", found], capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout == "True\n"


def wanted_by_extras() -> Iterator[Requirement]:
    extras = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    yield from (Requirement(line) for name, lines in extras.items() if name != "all" for line in lines)


def test_packages_whose_insides_are_used_have_an_upper_bound() -> None:
    for name in INSIDES_USED:
        bounds = [each.specifier for each in wanted_by_extras() if each.name == name]
        assert any({"<", ">="} <= {part.operator for part in bound} for bound in bounds), name


def test_installed_versions_are_within_the_bounds() -> None:
    for each in wanted_by_extras():
        assert each.specifier.contains(version(each.name)), f"{each} is not {version(each.name)}"


def test_an_old_python_gets_no_half_of_the_collector() -> None:
    for python, is_wanted in (("3.10", False), ("3.11", True)):
        for each in wanted_by_extras():
            assert each.marker is not None
            assert each.marker.evaluate({"python_version": python, "sys_platform": "linux"}) == is_wanted, each


def test_the_plotly_of_the_pages_is_that_of_the_figures() -> None:
    assert get_plotlyjs_version() in PLOTLY.removesuffix(".min.js").split("-")
    bundled = (ASSETS / PLOTLY).read_text("utf-8").splitlines()[1]
    installed = get_plotlyjs().splitlines()[1]
    assert bundled == installed.replace("plotly.js", "plotly.js (cartesian - minified)")


def test_importing_loads_nothing_from_site_packages(empty_python: Path) -> None:
    torch_packages = next(path for path in map(Path, sys.path) if (path / "torch").is_dir())
    loaded = subprocess.run(
        [empty_python, "-c", LOADED_FROM_SITE_PACKAGES],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(torch_packages)},  # torch can be imported, and is not
        cwd="/",
        timeout=60,
    )
    assert {name for name in json.loads(loaded.stdout) if not name.startswith("gradcanary.")} == set()


def test_the_four_packages_come_with_all_their_files(empty_python: Path) -> None:
    (site_packages,) = empty_python.parent.parent.glob("lib/python*/site-packages")
    recorded = next(site_packages.glob("gradcanary-*.dist-info/RECORD")).read_text().splitlines()
    names = {line.rsplit(",", 2)[0] for line in recorded}
    assert {name.partition("/")[0] for name in names if ".dist-info" not in name} - {".."} == {
        "gradcanary",
        "gradcanary_server",
        "gradcanary_dashboard",
        "gradcanary_migrations",
    }
    for package in PACKAGES:
        root = PROJECT / package
        files = {path.relative_to(root.parent).as_posix() for path in root.rglob("*") if path.is_file()}
        assert {name for name in files if "__pycache__" not in name} <= names


def test_pages_are_installed_and_explained(empty_python: Path) -> None:
    command = [empty_python.with_name("gradcanary"), "explain", "collapse"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/", timeout=60).stdout
    page = Path(said.splitlines()[-1].removeprefix("Page: ").removesuffix(" (or add --page)"))
    assert page.is_relative_to(empty_python.parent.parent)
    assert page.read_text("utf-8") == (PROJECT / "docs" / "knowledge" / "shrinking_schedule.md").read_text("utf-8")
    command[1] = "runbook"
    said = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/", timeout=60).stdout
    assert said.startswith("# collapse\n\nThe gradients of some parameters fell")
