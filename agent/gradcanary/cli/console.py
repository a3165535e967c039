"""What all commands share: their options and errors, and printing.

Whatever needs HTTP or TLS is imported by the function that uses it: ``gradcanary run`` starts a training.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from gradcanary import terminal
from gradcanary.export.collector import CollectorClient, CollectorError
from gradcanary.settings import DEFAULT_URL

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001 -- argparse has no public name for it

ROW_INDENT = "    "

LISTS_RUNS = "'gradcanary runs'"

MAX_TIME_SPAN = timedelta(days=99_999)
"""Keeps the end of a time span within the years that datetime has."""

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class UsageError(Exception):
    """The arguments of a command cannot work; the message names some that do."""


Command = Callable[[argparse.Namespace, CollectorClient], int | None]
"""A command that asks a collector; it returns the exit status, None for 0."""


def add_command(
    commands: Commands, name: str, text: str, run: Command, *, is_below: bool = False
) -> argparse.ArgumentParser:
    """Add a command that asks a collector, and return its parser; ``is_below`` another such command."""
    command = commands.add_parser(name, help=text, description=text)
    add_collector_options(command, argparse.SUPPRESS if is_below else None)  # None would replace the upper one's
    command.set_defaults(run=lambda arguments: run_command(run, arguments))
    return command


def add_collector_options(command: argparse.ArgumentParser, default: str | None = None) -> None:
    """Add ``--url`` and ``--token``."""
    text = f"of the collector (default: GRADCANARY_URL, else {DEFAULT_URL})"
    command.add_argument("--url", default=default, help=text)
    command.add_argument("--token", default=default, help="for the collector (default: GRADCANARY_TOKEN)")


def run_command(command: Command, arguments: argparse.Namespace) -> int:
    """Run a command; return 1 if the collector fails, 2 if it refuses the arguments."""
    try:
        return command(arguments, CollectorClient.resolve(arguments.url, arguments.token)) or 0
    except CollectorError as error:
        print_error(f"gradcanary: {error}")
        return 2 if error.is_refusal else 1
    except ValueError as error:
        print_error(f"gradcanary: {error}")
        return 2


def parse_time_span(text: str) -> timedelta:
    """Return the length of ``45s``, ``30m``, ``8h`` or ``3d``; raises ArgumentTypeError."""
    matched = re.fullmatch(r"([0-9]{1,9})([smhd])", text)
    span = timedelta(**{_UNITS[matched[2]]: int(matched[1])}) if matched else None
    if span is None or not timedelta() < span <= MAX_TIME_SPAN:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time span: 45s, 30m, 8h, 3d")
    return span


def to_minute(moment: str) -> str:
    """Return a time of the API, RFC 3339 in UTC, to the minute."""
    return moment[:16].replace("T", " ")


def print_unwrapped(text: str) -> None:
    """Print a text as it is; a character that the terminal's encoding lacks is escaped."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"  # there may be no stdout
    print(text.encode(encoding, "backslashreplace").decode(encoding))  # noqa: T201 -- the answer of a command


def print_text(text: str) -> None:
    """Print a text, wrapped at the width of the terminal."""
    print_unwrapped(terminal.wrapped(text, terminal.width()))


def print_rows(text: str) -> None:
    """Print lines of a table; the rest of a line that is too long follows below it, indented."""
    print_unwrapped(terminal.wrapped(text, terminal.width(), ROW_INDENT))


def print_json(found: object) -> None:
    """Print an answer as JSON, which is not wrapped."""
    print_unwrapped(json.dumps(found, indent=2))


def print_error(text: str) -> None:
    """Print a text on stderr."""
    print(text, file=sys.stderr)  # noqa: T201 -- the one place where commands write errors
