"""Lines for a terminal: its width, text wrapped to it, and tables. Standard library only."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence


def width() -> int | None:
    """Return the largest length of a line; None for a file or a pipe, where lines are not wrapped."""
    return shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else None


def wrapped(text: str, width: int | None, indent: str = "") -> str:
    """Return lines of at most ``width`` characters; the rest of a long line follows below it, further indented.

    A line with an address keeps its words whole: a broken address opens nothing.
    """
    if width is None:
        return text
    lines = []
    for line in text.split("\n"):
        lead = line[: len(line) - len(line.lstrip())]
        below = indent or (lead + "  " if lead else "")
        wrapper = textwrap.TextWrapper(width, subsequent_indent=below[: width // 2], break_on_hyphens=False)
        wrapper.break_long_words = "://" not in line
        lines += wrapper.wrap(line) if len(line) > width else [line]
    return "\n".join(lines)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return lines with columns as wide as their widest entry."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = (
        "  ".join(text.ljust(size) for text, size in zip(row, widths, strict=True)).rstrip() for row in (head, *rows)
    )
    return "\n".join(lines)
