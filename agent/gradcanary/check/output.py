"""Findings as text: full and concise as ruff prints them, GitHub's workflow commands, and JSON. Pure."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping, Sequence

from gradcanary import terminal
from gradcanary.check.findings import Finding

FORMATS = ("full", "concise", "github", "json")

GITHUB = {"critical": "error", "warning": "warning", "information": "notice"}
"""The workflow command of each severity."""

INDENT = "    "

MOST_CHARACTERS = 200
"""Of a line of source that is shown: generated files have lines of megabytes."""


def render(
    found: Sequence[Finding], form: str, sources: Mapping[str, Sequence[str]], files: int, width: int | None = None
) -> str:
    """Return what is printed of findings in a number of checked files; ``sources`` are the lines of each path.

    Texts of the full format are wrapped at ``width`` characters, None for never.
    """
    if form == "json":
        return json.dumps([_as_json(each) for each in found], indent=2)
    if form == "github":
        return "\n".join(_as_command(each) for each in found)
    if form == "concise":
        blocks = [_headline(each) for each in found]
    else:
        blocks = [_in_full(each, sources.get(each.path, ()), width) + "\n" for each in found]
    return "\n".join([*blocks, summary(len(found), files)])


def summary(found: int, files: int) -> str:
    """Return the last line: the number of mistakes and of the files that were checked."""
    mistakes = f"Found {_count(found, 'mistake')}" if found else "No mistakes found"
    return f"{mistakes} in {_count(files, 'file')}."


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _headline(finding: Finding) -> str:
    place = f"{visible(finding.path)}:{finding.line}:{finding.column}"
    return f"{place}: {finding.code} {visible(finding.message)}"


def _in_full(finding: Finding, lines: Sequence[str], width: int | None) -> str:
    parts = [_headline(finding)]
    if 0 < finding.line <= len(lines):
        parts += _excerpt(finding, lines)
    for name, text in (("why", finding.why), ("help", finding.fix)):
        if text:
            indented = f"{name}: {text}".replace("\n", f"\n{INDENT}")
            parts.append(terminal.wrapped(indented, width, INDENT))
    return "\n".join(parts)


def _excerpt(finding: Finding, lines: Sequence[str]) -> list[str]:
    """Return the line of a finding between its neighbours, and carets below what is wrong."""
    first, last = max(finding.line - 1, 1), min(finding.line + 1, len(lines))
    margin = len(str(last))
    shown = [f"{' ' * margin} |"]
    for number in range(first, last + 1):
        text = lines[number - 1].rstrip()
        shown.append(f"{number:>{margin}} | {_line(text)}".rstrip())
        if number == finding.line and finding.column <= MOST_CHARACTERS:
            shown.append(f"{' ' * margin} | {_carets(finding, text)}")
    return [*shown, f"{' ' * margin} |"]


def _carets(finding: Finding, text: str) -> str:
    end = finding.end_column if finding.end_line == finding.line else len(text) + 1
    before, marked = text[: finding.column - 1], text[finding.column - 1 : min(end - 1, MOST_CHARACTERS)]
    return " " * _cells(before) + "^" * max(_cells(marked), 1)


def _line(text: str) -> str:
    cut = text if len(text) <= MOST_CHARACTERS else text[:MOST_CHARACTERS] + "..."
    return visible(cut.replace("\t", "    "))


def _cells(text: str) -> int:
    """Return the width of a text in a terminal: letters of East Asia take two cells, accents none."""
    return sum(_cell(each) for each in visible(text.replace("\t", "    ")))


def _cell(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def visible(text: str) -> str:
    """Return a text whose control characters are escaped: a file must not write to the terminal."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def _as_command(finding: Finding) -> str:
    """Return GitHub's workflow command of a finding, which it shows beside the line."""
    values = {
        "title": f"gradcanary ({finding.code})",
        "file": finding.path,
        "line": str(finding.line),
        "col": str(finding.column),
        "endLine": str(finding.end_line),
        "endColumn": str(finding.end_column),
    }
    properties = ",".join(f"{name}={_property(value)}" for name, value in values.items())
    text = f"{finding.path}:{finding.line}:{finding.column}: {finding.code} {finding.message}"
    text += "".join(f"\n{name}: {said}" for name, said in (("why", finding.why), ("help", finding.fix)) if said)
    return f"::{GITHUB[finding.severity]} {properties}::{_data(text)}"


def _data(text: str) -> str:
    """Escape the message of a workflow command, as @actions/core does."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _as_json(finding: Finding) -> dict[str, object]:
    return {
        "code": finding.code,
        "severity": finding.severity,
        "message": finding.message,
        "why": finding.why,
        "fix": finding.fix,
        "filename": finding.path,
        "location": {"row": finding.line, "column": finding.column},
        "end_location": {"row": finding.end_line, "column": finding.end_column},
    }
