"""Small trainings with one mistake each, and their correct twins: tests/support/check, read by the command itself."""

import re
from pathlib import Path

import pytest

from gradcanary.check.rules import RULES
from gradcanary.cli import main

SCRIPTS = Path(__file__).parents[3] / "support" / "check"
BAD = sorted((SCRIPTS / "bad").glob("*.py"))
GOOD = sorted((SCRIPTS / "good").glob("*.py"))
MARK = re.compile(r"# <- (\w+(?:, \w+)*)$")


def marks(script: Path) -> list[str]:
    """Return ``line: code`` of the lines that end in ``# <- code``."""
    lines = enumerate(script.read_text("utf-8").splitlines(), start=1)
    return [f"{line}: {code}" for line, text in lines if (mark := MARK.search(text)) for code in mark[1].split(", ")]


@pytest.mark.parametrize("script", BAD, ids=lambda script: script.stem)
def test_each_mistake_is_named_at_its_line(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--output-format", "concise", str(script)]) == 1
    found = re.findall(rf"{re.escape(script.name)}:(\d+):\d+: (\w+) ", capsys.readouterr().out)
    assert [f"{line}: {code}" for line, code in found] == marks(script)


@pytest.mark.parametrize("script", GOOD, ids=lambda script: script.stem)
def test_correct_twins_are_quiet(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(script)]) == 0
    assert capsys.readouterr().out == "No mistakes found in 1 file.\n"


def test_each_code_has_a_script() -> None:
    marked = {mark.partition(": ")[2] for script in BAD for mark in marks(script)}
    assert marked == {rule.code for rule in RULES}
