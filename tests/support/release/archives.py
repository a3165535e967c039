"""The contents that the two archives of a release must have, and no others.

``make release`` reads both archives. The tests of packaging read the wheel, because it is built without git.
"""

import re
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from configparser import ConfigParser
from email.parser import Parser
from pathlib import Path

FOLDERS = {
    "agent/gradcanary": "gradcanary",
    "server/gradcanary_server": "gradcanary_server",
    "dashboard/gradcanary_dashboard": "gradcanary_dashboard",
    "migrations/gradcanary_migrations": "gradcanary_migrations",
    "docs/knowledge": "gradcanary/knowledge",
    "docs/runbooks": "gradcanary/knowledge/runbooks",
}
"""Folders of the source that a wheel holds, and their names in it."""

METADATA = ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")
"""Files of a wheel's folder ``.dist-info``."""

SAMPLES = (
    "gradcanary/py.typed",
    "gradcanary/sitecustomize/sitecustomize.py",
    "gradcanary/knowledge/swamping.md",
    "gradcanary/knowledge/runbooks/collapse.md",
    "gradcanary_migrations/script.py.mako",
)
"""Files of a wheel that are named here, so that a folder that is missing in the source, too, is found."""

EXTRAS = {"all", "dashboard", "mcp", "notify", "postgres", "server"}


def read_version(source: Path) -> str:
    """Return the version of a source tree, which only the agent's package names."""
    text = (source / "agent" / "gradcanary" / "__init__.py").read_text("utf-8")
    [version] = re.findall(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    return version


def wheel_faults(wheel: Path, source: Path) -> list[str]:
    """Return the faults of a wheel, as sentences, compared with the source tree that it was built from."""
    version = read_version(source)
    folder = f"gradcanary-{version}.dist-info"
    expected = {*_packaged(source), *SAMPLES, *(f"{folder}/{name}" for name in METADATA)}
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        texts = {name: archive.read(name).decode() for name in names if name.startswith(folder)}
    faults = [*_different(names, expected)]
    faults += metadata_faults(texts.get(f"{folder}/METADATA", ""), version)
    if "\nTag: py3-none-any\n" not in texts.get(f"{folder}/WHEEL", ""):
        faults.append("the wheel is not for every machine (py3-none-any)")
    entries = ConfigParser()
    entries.read_string(texts.get(f"{folder}/entry_points.txt", ""))
    commands = dict(entries["console_scripts"]) if entries.has_section("console_scripts") else {}
    if commands != {"gradcanary": "gradcanary.cli:main"}:
        faults.append(f"the commands are {commands}")
    return faults


def sdist_faults(sdist: Path, source: Path, tracked: Iterable[str]) -> list[str]:
    """Return the faults of a source archive, as sentences: it holds the ``tracked`` files, and its metadata."""
    version = read_version(source)
    root = f"gradcanary-{version}/"
    with tarfile.open(sdist) as archive:
        names = {member.name for member in archive if member.isfile()}
        member = archive.extractfile(f"{root}PKG-INFO") if f"{root}PKG-INFO" in names else None
        text = member.read().decode() if member else ""
    expected = {f"{root}{name}" for name in (*tracked, "PKG-INFO")}
    return [*_different(names, expected), *metadata_faults(text, version)]


def metadata_faults(text: str, version: str) -> list[str]:
    """Return the faults of the metadata that a package index shows, as sentences."""
    found = Parser().parsestr(text)
    expected = {
        "Name": "gradcanary",
        "Version": version,
        "License-Expression": "Apache-2.0",
        "License-File": "LICENSE",
        "Requires-Python": ">=3.10",
        "Description-Content-Type": "text/markdown",
    }
    faults = [f"{key} is {found[key]}, not {value}" for key, value in expected.items() if found[key] != value]
    if set(found.get_all("Provides-Extra", [])) != EXTRAS:
        faults.append(f"the extras are {found.get_all('Provides-Extra')}")
    wanted = found.get_all("Requires-Dist", [])
    faults += [f"the agent alone installs {line}" for line in wanted if "extra ==" not in line]
    return faults


def _packaged(source: Path) -> Iterator[str]:
    """Yield the names in a wheel of the files of a source tree."""
    for folder, name in FOLDERS.items():
        for path in (source / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                yield f"{name}/{path.relative_to(source / folder).as_posix()}"


def _different(names: set[str], expected: set[str]) -> Iterator[str]:
    yield from (f"{name} is missing" for name in sorted(expected - names))
    yield from (f"{name} does not belong there" for name in sorted(names - expected))
