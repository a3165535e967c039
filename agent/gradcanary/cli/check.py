"""``check``: mistakes of mixed precision and accumulation in source, with a status for scripts and CI."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gradcanary import terminal
from gradcanary.cli import console
from gradcanary.cli.console import UsageError

if TYPE_CHECKING:
    from gradcanary.check.findings import Rule
    from gradcanary.cli.console import Commands

STDIN = "-"

FORMATS = ("full", "concise", "github", "json")


def add_command(commands: Commands) -> None:
    """Add ``check``."""
    text = "find mistakes of mixed precision and accumulation in source, which is not run; status 1 if there are any"
    command = commands.add_parser("check", help=text, description=text)
    command.add_argument("paths", nargs="*", type=Path, metavar="FILE|FOLDER", help="'-' reads from stdin")
    formats = f"{', '.join(FORMATS)}; default: %(default)s"
    command.add_argument("--output-format", choices=FORMATS, default="full", metavar="FORMAT", help=formats)
    command.add_argument("--select", type=_codes, metavar="CODES", help="only these, separated by commas")
    command.add_argument("--ignore", type=_codes, default=(), metavar="CODES", help="all but these")
    command.add_argument("--list", action="store_true", help="list all codes, and check nothing")
    command.set_defaults(run=_check)


def _codes(text: str) -> tuple[str, ...]:
    return tuple(code.strip() for code in text.split(",") if code.strip())


def _check(arguments: argparse.Namespace) -> int:
    from gradcanary.check.rules import RULES

    if arguments.list:
        rows = [(rule.code, rule.severity, rule.summary) for rule in RULES]
        console.print_rows(terminal.table(("code", "severity", "mistake"), rows))
        return 0
    if not arguments.paths:
        raise UsageError("gradcanary check: give a file or a folder, such as: gradcanary check train.py")
    return _check_paths(arguments.paths, _selected(RULES, arguments.select, arguments.ignore), arguments.output_format)


def _selected(rules: Sequence[Rule], select: Sequence[str] | None, ignore: Sequence[str]) -> list[Rule]:
    known = [rule.code for rule in rules]
    for code in (*(select or ()), *ignore):
        if code not in known:
            raise UsageError(f"gradcanary check: there is no code {code!r}: choose from {', '.join(known)}")
    return [rule for rule in rules if (select is None or rule.code in select) and rule.code not in ignore]


def _check_paths(paths: Iterable[Path], rules: Sequence[Rule], form: str) -> int:
    """Check each file once, print the findings of all, and return the status; what cannot be read is 2."""
    from gradcanary.check import output
    from gradcanary.check.checker import check_source
    from gradcanary.check.source import shown_lines

    found, sources, failed, files = [], {}, False, 0
    for path in _files(paths):
        shown = _shown(path)
        try:
            content = sys.stdin.buffer.read() if shown == STDIN else path.read_bytes()
        except OSError as error:
            console.print_error(f"gradcanary check: {output.visible(shown)} cannot be read: {error.strerror}")
            failed = True
            continue
        files += 1
        new = check_source(shown, content, rules)
        if new:
            sources[shown] = shown_lines(content)
        found += new
    if files or form == "json":
        text = output.render(found, form, sources, files, terminal.width())
        if text:
            console.print_unwrapped(text)
    return 2 if failed else int(bool(found))


def _shown(path: Path) -> str:
    """Return the path as seen from the working folder, where it lies below it."""
    try:
        return str(path.absolute().relative_to(Path.cwd())) if path.is_absolute() else str(path)
    except ValueError:
        return str(path)


def _files(paths: Iterable[Path]) -> list[Path]:
    """Return the files to check, each once, in the order given; raises UsageError where there is none."""
    from gradcanary.check.source import find_files

    files: dict[Path, Path] = {}
    for path in paths:
        try:
            below = list(find_files(path))
        except OSError as error:
            raise UsageError(f"gradcanary check: {path} cannot be read: {error.strerror}") from error
        if not below:
            raise UsageError(f"gradcanary check: there is no Python file in {path}")
        if path.suffix == ".ipynb":
            raise UsageError(f"gradcanary check: {path} is a notebook: first jupyter nbconvert --to script {path}")
        for each in below:
            files.setdefault(each.absolute(), each)
    return list(files.values())
