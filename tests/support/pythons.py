"""The Python interpreters of this machine that gradcanary supports."""

import os
import shutil
import sys
from pathlib import Path

VERSIONS = tuple(f"3.{minor}" for minor in range(10, 15))
"""The versions that gradcanary supports, the oldest first."""


def find_pythons() -> dict[str, str]:
    """Return an interpreter for each supported version that can be found: this one, those of pyenv and on PATH.

    A shim of pyenv is left out: it may stand for a version that pyenv does not have.
    """
    homes = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = {f"3.{sys.version_info.minor}": sys.executable}
    for version in VERSIONS:
        name = f"python{version}"
        on_path = shutil.which(name) or ""
        for python in [*map(str, homes.glob(f"*/bin/{name}")), "" if "shims" in on_path else on_path]:
            if python:
                found.setdefault(version, python)
    return found
