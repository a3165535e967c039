"""The distribution as a user installs it: no dependency, and the four packages."""

import json
import subprocess
import sys
import venv
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent.parent
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
