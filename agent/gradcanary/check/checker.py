"""A file held against the rules: findings in order, without those that a comment ignores."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from gradcanary.check import findings
from gradcanary.check.findings import Finding, Found, Rule
from gradcanary.check.program import Program
from gradcanary.check.rules import RULES
from gradcanary.check.scopes import statement_of
from gradcanary.check.source import Source, SourceError, parse

CODES = frozenset(rule.code for rule in RULES) | frozenset(findings.ALWAYS)

_WHY_UNKNOWN = "The comment ignores nothing by that name."
_FIX_UNKNOWN = "Correct the code, or remove it; 'gradcanary check --list' lists all codes."
_WHY_SYNTAX = "Nothing in this file was checked."
_FIX_SYNTAX = "Make it a file that 'python -m py_compile' takes, with the Python that runs gradcanary."
_WHY_DEEP = "Python's limit of recursion was reached: usually an expression of thousands of terms, made by a program."
_FIX_DEEP = "Split the expression, or leave the file out."


def check_source(path: str, content: bytes, rules: Sequence[Rule] = RULES) -> list[Finding]:
    """Return what is wrong in a file, by line; ``path`` is only shown."""
    try:
        source = parse(path, content)
    except SourceError as error:
        place = (error.line, error.column, error.line, error.column + 1)
        return [Finding(findings.SYNTAX_ERROR, "critical", path, *place, str(error), _WHY_SYNTAX, _FIX_SYNTAX)]
    try:
        found = {*_apply_rules(source, rules), *_unknown_codes(source)}
    except RecursionError:
        message = findings.ALWAYS[findings.NOT_CHECKED]
        return [Finding(findings.NOT_CHECKED, "warning", path, 1, 1, 1, 2, message, _WHY_DEEP, _FIX_DEEP)]
    return sorted(found, key=lambda each: (each.line, each.column, each.code))


def _apply_rules(source: Source, rules: Sequence[Rule]) -> Iterator[Finding]:
    program = Program(source)
    for rule in rules:
        for found in rule.find(program):
            if not _is_ignored(rule.code, found.node, program):
                yield _finding(rule, found, source)


def _finding(rule: Rule, found: Found, source: Source) -> Finding:
    node = found.node
    line, offset = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
    end_line, end_offset = getattr(node, "end_lineno", line), getattr(node, "end_col_offset", offset)
    start, end = source.column(line, offset), source.column(end_line, end_offset)
    place = (line, start, end_line, end)
    return Finding(rule.code, rule.severity, source.path, *place, found.message, found.why, found.fix)


def _is_ignored(code: str, node: ast.AST, program: Program) -> bool:
    """Return True if a comment stands on a line of the node, or on the first line of its statement."""
    first = getattr(node, "lineno", 1)
    last = first if isinstance(node, ast.stmt) else getattr(node, "end_lineno", first)
    statement = statement_of(node, program.scopes.parents)
    lines = {getattr(statement, "lineno", first), *range(first, last + 1)}
    ignores = [program.source.ignores[line] for line in lines if line in program.source.ignores]
    return any(each.codes is None or code in each.codes for each in ignores)


def _unknown_codes(source: Source) -> Iterator[Finding]:
    for ignore in source.ignores.values():
        for code in sorted((ignore.codes or frozenset()) - CODES):
            message = (
                f"there is no code {code!r} to ignore" if code else "an ignore comment with no code in its brackets"
            )
            place = (ignore.line, ignore.column, ignore.line, ignore.end_column)
            yield Finding(findings.UNKNOWN_CODE, "warning", source.path, *place, message, _WHY_UNKNOWN, _FIX_UNKNOWN)
