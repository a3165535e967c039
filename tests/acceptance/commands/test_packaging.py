"""The wheel as a user installs it, on this Python; ``make release`` tries both archives, on each Python with torch."""

import json
import re
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
import tomllib
from packaging.requirements import Requirement
from plotly.offline import get_plotlyjs, get_plotlyjs_version

from gradcanary import __version__
from gradcanary_dashboard.web.assets import ASSETS, PLOTLY
from support.release import archives

INSIDES_USED = ("dash", "plotly", "psycopg", "pydantic", "uvicorn")
"""Packages of which we use more than they promise to keep: a version that no test has seen may break us."""

PROJECT = Path(__file__).parents[3]

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
    """The interpreter of a new venv without a package."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=True)
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def wheel(empty_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that ``pip install .`` builds; it is in the venv from now on."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [empty_python, "-m", "pip"]
    build = [*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(PROJECT)]
    subprocess.run(build, check=True, timeout=240)
    [wheel] = folder.iterdir()
    subprocess.run([*pip, "install", "--quiet", str(wheel)], check=True, timeout=240)
    return wheel


def test_installing_brings_no_other_package(empty_python: Path, wheel: Path) -> None:
    listing = subprocess.run(
        [empty_python, "-m", "pip", "list", "--format", "json"], capture_output=True, check=True, timeout=60
    )
    names = {package["name"] for package in json.loads(listing.stdout)}
    assert names - {"pip", "setuptools"} == {"gradcanary"}


def test_the_wheel_has_what_it_should_and_nothing_else(wheel: Path) -> None:
    assert archives.wheel_faults(wheel, PROJECT) == []


Contents = dict[str, bytes]
METADATA = f"gradcanary-{__version__}.dist-info/METADATA"


def add_a_test(contents: Contents) -> None:
    contents["tests/test_it.py"] = b""


def leave_out_the_type_marker(contents: Contents) -> None:
    del contents["gradcanary/py.typed"]


def leave_out_a_runbook(contents: Contents) -> None:
    del contents["gradcanary/knowledge/runbooks/collapse.md"]


def leave_out_the_licence(contents: Contents) -> None:
    del contents[f"gradcanary-{__version__}.dist-info/licenses/LICENSE"]


def leave_out_the_command(contents: Contents) -> None:
    contents[f"gradcanary-{__version__}.dist-info/entry_points.txt"] = b""


def require_torch(contents: Contents) -> None:
    contents[METADATA] = b"Requires-Dist: torch\n" + contents[METADATA]


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (add_a_test, "tests/test_it.py does not belong there"),
        (leave_out_the_type_marker, "gradcanary/py.typed is missing"),
        (leave_out_a_runbook, "gradcanary/knowledge/runbooks/collapse.md is missing"),
        (leave_out_the_licence, f"gradcanary-{__version__}.dist-info/licenses/LICENSE is missing"),
        (leave_out_the_command, "the commands are {}"),
        (require_torch, "the agent alone installs torch"),
    ],
)
def test_a_fault_of_a_wheel_is_found(
    spoil: Callable[[Contents], None], fault: str, wheel: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(wheel) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    spoil(contents)
    with zipfile.ZipFile(tmp_path / wheel.name, "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    assert archives.wheel_faults(tmp_path / wheel.name, PROJECT) == [fault]


def test_the_version_is_the_same_everywhere(wheel: Path) -> None:
    assert wheel.name == f"gradcanary-{__version__}-py3-none-any.whl"
    released = re.findall(
        r"^## (\d\S*) - \d{4}-\d\d-\d\d$", (PROJECT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE
    )
    assert released[0] == __version__
    texts = [
        path.read_text("utf-8") for path in (PROJECT / "docs" / "deploy").rglob("*") if path.suffix in (".md", ".yaml")
    ]
    tags = [tag for text in texts for tag in re.findall(r"/gradcanary:([\d.]+\d)", text)]
    assert len(tags) >= 4
    assert set(tags) == {__version__}


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


def test_importing_loads_nothing_from_site_packages(empty_python: Path, wheel: Path) -> None:
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


def test_pages_are_installed_and_explained(empty_python: Path, wheel: Path) -> None:
    command = [empty_python.with_name("gradcanary"), "explain", "collapse"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/", timeout=60).stdout
    page = Path(said.splitlines()[-1].removeprefix("Page: ").removesuffix(" (or add --page)"))
    assert page.is_relative_to(empty_python.parent.parent)
    assert page.read_text("utf-8") == (PROJECT / "docs" / "knowledge" / "shrinking_schedule.md").read_text("utf-8")
    command[1] = "runbook"
    said = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/", timeout=60).stdout
    assert said.startswith("# collapse\n\nThe gradients of some parameters fell")
