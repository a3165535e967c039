"""``gradcanary doctor --json`` with a Python that has no torch: to import it takes a second each time."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MISSING = "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n"

Examine = Callable[..., tuple[int, dict[str, dict[str, Any]]]]


@pytest.fixture
def torch_of_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that a child process imports as torch."""
    folder = tmp_path / "modules"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder / "torch.py"


@pytest.fixture
def examine(typed: Callable[..., tuple[int, str, str]], torch_of_child: Path) -> Examine:
    """Run the doctor; return its exit status, and the findings by the name of the check."""
    torch_of_child.write_text(MISSING)

    def run(*words: object) -> tuple[int, dict[str, dict[str, Any]]]:
        status, out, err = typed("doctor", "--json", *words)
        assert err == ""
        found = json.loads(out)
        assert all(list(each) == ["check", "state", "found", "do"] for each in found)
        assert (status == 1) == any(each["state"] == "fault" for each in found)
        return status, {each["check"]: each for each in found}

    return run
