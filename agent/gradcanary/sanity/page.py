"""The page of a report for a terminal: a line for each check, and what to do first."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path

from gradcanary.sanity.report import Check, Report
from gradcanary.wording import count

TITLES = {
    "run": "run",
    "loss": "loss",
    "gradients": "has gradients",
    "optimizer": "in optimizer",
    "updates": "weights move",
    "finite": "finite",
    "size": "size",
    "sums": "sums",
    "float16": "float16",
    "metrics": "metrics",
    "time": "time",
    "memory": "memory",
}

INDENT = 27
"""Of the texts: two columns, of a verdict and a title."""

LEAST_WIDTH = 40


def page(report: Report, width: int | None) -> str:
    """Return the page, wrapped to a width; None does not wrap."""
    words = report.command[1:] if Path(report.command[0]).name.startswith("python") else report.command
    command = shlex.join((Path(words[0]).name, *words[1:]))
    lines = [f"{command}, {report.asked_steps:,} steps asked for", ""]
    for check in report.checks:
        lines += _lines(check, width)
    lines += ["", _verdict(report)]
    if report.checks[0].verdict == "not ok" and report.output_tail:
        lines += ["", "The end of its output:", *(f"    {line}" for line in report.output_tail)]
    return "\n".join(lines)


def _lines(check: Check, width: int | None) -> Iterator[str]:
    head = f"{check.verdict:<10}  {TITLES[check.code]:<13}  "
    yield from _wrapped(head + check.text, width)
    if check.do_first:
        yield from _wrapped(" " * (INDENT) + f"Do first: {check.do_first}", width)


def _wrapped(text: str, width: int | None) -> list[str]:
    if width is None:
        return [text]
    return textwrap.wrap(text, max(width, LEAST_WIDTH), subsequent_indent=" " * INDENT, break_on_hyphens=False)


def _verdict(report: Report) -> str:
    wrong = sum(check.verdict == "not ok" for check in report.checks)
    if wrong:
        return f"Not healthy: {count(wrong, 'check', ('is', 'are'))} not ok."
    unjudged = sum(check.verdict == "not judged" for check in report.checks)
    rest = f" {count(unjudged, 'check', ('was', 'were'))} not judged: more steps may tell." if unjudged else ""
    return f"Healthy in these {count(report.steps, 'step')}.{rest}"
