"""A finding, and the rule that makes it. Pure."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradcanary.check.program import Program

SYNTAX_ERROR = "syntax_error"
NOT_CHECKED = "not_checked"
UNKNOWN_CODE = "unknown_code"

ALWAYS = {
    SYNTAX_ERROR: "the file is not Python that this Python reads",
    NOT_CHECKED: "the file is nested too deeply to be checked",
    UNKNOWN_CODE: "an ignore comment names a code that does not exist",
}
"""Codes without a rule: about the file itself, and never selected or ignored."""


@dataclass(frozen=True)
class Finding:
    """A mistake at a place in a file. Lines and columns count from 1, columns in characters; the end is exclusive."""

    code: str
    severity: str
    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    message: str
    why: str = ""
    fix: str = ""


@dataclass(frozen=True)
class Found:
    """What a rule yields: the node that is wrong, and the words. The checker adds code, severity and place.

    ``message`` is a clause without capital and full stop, ``why`` one or two sentences, ``fix`` a sentence that may be
    followed by lines of code.
    """

    node: ast.AST
    message: str
    why: str
    fix: str


@dataclass(frozen=True)
class Rule:
    """A mistake: its code, severity (information, warning or critical), page of ``gradcanary explain``, and function.

    ``page`` is empty where there is none.
    ``find`` reads a program and yields what is certainly wrong. Where the file does not hold all of the evidence it
    yields nothing: a false finding is worse than a missing one.
    """

    code: str
    severity: str
    page: str
    summary: str
    find: Callable[[Program], Iterable[Found]]
