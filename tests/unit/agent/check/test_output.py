"""Findings as text: the four formats."""

import json

from gradcanary.check.findings import Finding
from gradcanary.check.output import render, visible

FINDING = Finding(
    "never_cleared", "critical", "train.py", 2, 5, 2, 13, "gradients stay", "They add up.", "Clear:\nzero()"
)
LINES = {"train.py": ["for x in y:", "    o.step(1)", "print()"]}


def test_full() -> None:
    assert render([FINDING], "full", LINES, 3).splitlines() == [
        "train.py:2:5: never_cleared gradients stay",
        "  |",
        "1 | for x in y:",
        "2 |     o.step(1)",
        "  |     ^^^^^^^^",
        "3 | print()",
        "  |",
        "why: They add up.",
        "help: Clear:",
        "    zero()",
        "",
        "Found 1 mistake in 3 files.",
    ]


def test_carets_stand_below_wide_letters_tabs_and_multi_line_code() -> None:
    finding = Finding("never_cleared", "critical", "a.py", 1, 7, 2, 4, "m")
    lines = render([finding], "full", {"a.py": ["\t字é = f(", "  1)"]}, 1).splitlines()
    assert lines[2:4] == ["1 |     字é = f(", "  |           ^^"]


def test_the_last_line_of_a_file_without_findings() -> None:
    assert render([], "full", {}, 1) == "No mistakes found in 1 file."
    assert render([], "concise", {}, 1200) == "No mistakes found in 1,200 files."
    assert render([], "github", {}, 2) == ""
    assert render([], "json", {}, 2) == "[]"


def test_a_file_cannot_write_to_the_terminal() -> None:
    finding = Finding("never_cleared", "critical", "a\x1b[2J.py", 1, 1, 1, 2, "m")
    text = render([finding], "full", {"a\x1b[2J.py": ["x = '\x1b[31m\u202e'" + "y" * 10_000]}, 1)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert max(map(len, text.splitlines())) < 300
    assert visible("ä字\n") == "ä字\\n"


def test_github_commands_are_escaped() -> None:
    finding = Finding("not_checked", "warning", "a,b:c%.py", 1, 2, 3, 4, "50 %", "w", "f\r\ng")
    assert render([finding], "github", {}, 1) == (
        "::warning title=gradcanary (not_checked),file=a%2Cb%3Ac%25.py,line=1,col=2,endLine=3,endColumn=4"
        "::a,b:c%25.py:1:2: not_checked 50 %25%0Awhy: w%0Ahelp: f%0D%0Ag"
    )
    severities = {
        each: render([Finding("c", each, "p", 1, 1, 1, 1, "m")], "github", {}, 1)
        for each in ("critical", "information")
    }
    assert severities["critical"].startswith("::error ")
    assert severities["information"].startswith("::notice ")


def test_json() -> None:
    assert json.loads(render([FINDING], "json", {}, 3)) == [
        {
            "code": "never_cleared",
            "severity": "critical",
            "message": "gradients stay",
            "why": "They add up.",
            "fix": "Clear:\nzero()",
            "filename": "train.py",
            "location": {"row": 2, "column": 5},
            "end_location": {"row": 2, "column": 13},
        }
    ]
