"""Findings of ``gradcanary check`` in a text, as short as a test compares them."""

from textwrap import dedent

from gradcanary.check.checker import check_source
from gradcanary.check.findings import Finding
from gradcanary.check.program import Program
from gradcanary.check.source import parse


def findings(text: str) -> list[Finding]:
    """Return what all rules find."""
    return check_source("train.py", dedent(text).encode())


def found(text: str, *codes: str) -> list[tuple[int, str]]:
    """Return line and code of the findings, only of these codes if any are given."""
    return [(each.line, each.code) for each in findings(text) if not codes or each.code in codes]


def program(text: str) -> Program:
    """Return a text as rules see it."""
    return Program(parse("train.py", dedent(text).encode()))
