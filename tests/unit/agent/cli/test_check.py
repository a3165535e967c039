"""``gradcanary check`` through the command line: files in folders, formats, selection and exit statuses."""

import errno
import io
import json
import os
import sys
from pathlib import Path

import pytest

from gradcanary.check.rules import RULES
from gradcanary.cli import main

BAD = """\
import torch
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    with torch.autocast("cuda"):
        loss = criterion(model(x), y)
        loss.backward()
    optimizer.step()
"""
GOOD = BAD.replace('"cuda"', '"cpu"').replace("        loss.b", "    loss.b") + "    optimizer.zero_grad()\n"
CODES = ["fp16_without_scaler", "backward_in_autocast", "never_cleared"]

Out = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(BAD)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "good.py").write_text(GOOD)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lines(capsys: Out) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_findings_and_status(capsys: Out) -> None:
    assert main(["check", ".", "--output-format", "concise"]) == 1
    assert lines(capsys) == [
        "train.py:4:10: fp16_without_scaler float16 autocast without a GradScaler",
        "train.py:6:9: backward_in_autocast the backward pass runs inside autocast",
        "train.py:7:5: never_cleared gradients are never cleared in this loop",
        "Found 3 mistakes in 2 files.",
    ]


def test_nothing_found(capsys: Out) -> None:
    assert main(["check", "lib"]) == 0
    assert lines(capsys) == ["No mistakes found in 1 file."]


def test_full_shows_the_line_why_and_help(capsys: Out) -> None:
    assert main(["check", "train.py"]) == 1
    shown = lines(capsys)
    assert '4 |     with torch.autocast("cuda"):' in shown
    assert "  |          ^^^^^^^^^^^^^^^^^^^^^^" in shown
    assert [line.partition(":")[0] for line in shown if line.startswith(("why:", "help:"))] == ["why", "help"] * 3


def test_paths_are_seen_from_the_working_folder_and_each_file_is_checked_once(folder: Path, capsys: Out) -> None:
    assert main(["check", str(folder / "train.py"), "train.py", ".", "--output-format=json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [(each["filename"], each["code"]) for each in found] == [("train.py", code) for code in CODES]


def test_github(capsys: Out) -> None:
    assert main(["check", "train.py", "--output-format", "github"]) == 1
    assert [line.partition(" ")[0] for line in lines(capsys)] == ["::error", "::notice", "::error"]


def test_select_and_ignore(capsys: Out) -> None:
    assert (
        main(["check", "train.py", "--select", "never_cleared,fp16_without_scaler", "--ignore", "never_cleared"]) == 1
    )
    assert lines(capsys)[-1] == "Found 1 mistake in 1 file."
    assert main(["check", "train.py", "--ignore", ",".join(CODES)]) == 0


def test_list(capsys: Out) -> None:
    assert main(["check", "--list"]) == 0
    assert [line.split()[0] for line in lines(capsys)] == ["code", *(rule.code for rule in RULES)]


def test_stdin(monkeypatch: pytest.MonkeyPatch, capsys: Out) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(BAD.encode())))
    assert main(["check", "-", "--output-format", "concise"]) == 1
    assert lines(capsys)[0].startswith("-:4:10: ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give a file or a folder"),
        (["missing.py"], "missing.py cannot be read: No such file or directory"),
        (["train.py", "--select", "clip"], "there is no code 'clip': choose from fp16_without_scaler"),
        (["empty"], "there is no Python file in empty"),
        (["notes.ipynb"], "is a notebook"),
        (["broken.py"], "broken.py cannot be read"),
    ],
)
def test_status_2(arguments: list[str], said: str, folder: Path, capsys: Out) -> None:
    (folder / "empty").mkdir()
    (folder / "notes.ipynb").write_text("{}")
    (folder / "broken.py").symlink_to("nowhere.py")
    assert main(["check", *arguments]) == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert "No mistakes" not in printed.out


def test_other_files_are_checked_beside_one_that_cannot_be_read(folder: Path, capsys: Out) -> None:
    (folder / "lib" / "broken.py").symlink_to("nowhere.py")
    assert main(["check", "lib", "train.py", "--output-format", "concise"]) == 2
    printed = capsys.readouterr()
    assert "lib/broken.py cannot be read" in printed.err
    assert printed.out.splitlines()[-1] == "Found 3 mistakes in 2 files."


def test_a_folder_without_permission_is_status_2(folder: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the system refuses it to anybody but root."""
    scan = os.scandir

    def refused(path: str) -> object:
        if os.fspath(path).endswith("lib"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", refused)
    assert main(["check", "."]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_a_syntax_error_is_a_finding_with_its_line(folder: Path, capsys: Out) -> None:
    (folder / "old.py").write_text("x = 1\nprint 'hello'\n")
    assert main(["check", "old.py", "lib"]) == 1
    shown = lines(capsys)
    assert shown[0].startswith("old.py:2:1: syntax_error Missing parentheses")
    assert shown[-1] == "Found 1 mistake in 2 files."


def test_nothing_of_the_checked_code_runs(folder: Path) -> None:
    (folder / "evil.py").write_text("import pathlib\npathlib.Path('ran').touch()\nraise SystemExit(9)\n")
    assert main(["check", "evil.py"]) == 0
    assert not (folder / "ran").exists()
