"""The pages of docs/knowledge and docs/runbooks, found by the rules of the collector. Standard library only.

A page is read as it is, so there is one text of each. Its first line is the title, the first paragraph its summary,
and the line ``Rules:`` says which rules lead to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent
FOLDERS = (PACKAGE, PACKAGE.parents[2] / "docs" / "knowledge")
"""Where a wheel has the pages, and where the repository has them; ``hatch_build.py`` copies one to the other."""

RUNBOOKS = (PACKAGE / "runbooks", PACKAGE.parents[2] / "docs" / "runbooks")

FIX = "What to do"
_RULES = re.compile(r"^Rules: ([^.]*)\.", re.MULTILINE)


@dataclass(frozen=True)
class Page:
    """A page: its name, file, and text in Markdown."""

    name: str
    path: Path
    text: str

    @property
    def title(self) -> str:
        """Return the heading."""
        return _plain(self.text.partition("\n")[0].removeprefix("# "))

    @property
    def summary(self) -> str:
        """Return the first paragraph, in one line."""
        return _plain(self.text.split("\n\n")[1])

    @property
    def fix(self) -> str:
        """Return what to do, a line for each point."""
        return _plain(self.text.partition(f"\n## {FIX}\n\n")[2].partition("\n\n## ")[0])

    @property
    def rules(self) -> list[str]:
        """Return the rules of the collector that lead here."""
        found = _RULES.search(self.text)
        return re.findall(r"`(\w+)`", found[1]) if found else []


@cache
def pages() -> tuple[Page, ...]:
    """Return all pages by name; none where the files are missing."""
    return _read(FOLDERS)


def page_of(rule: str) -> Page | None:
    """Return the page that a rule of the collector leads to."""
    return next((page for page in pages() if rule in page.rules), None)


def runbook(rule: str) -> Page | None:
    """Return the runbook of a rule; None of an unknown one, and where the files are missing."""
    return next((page for page in runbooks() if page.name == rule), None)


@cache
def runbooks() -> tuple[Page, ...]:
    """Return the runbooks by rule; none where the files are missing."""
    return _read(RUNBOOKS)


def _read(folders: Iterable[Path]) -> tuple[Page, ...]:
    paths = next(filter(None, (sorted(folder.glob("[a-z]*.md")) for folder in folders)), [])
    return tuple(Page(path.stem, path, path.read_text("utf-8")) for path in paths)


def _plain(text: str) -> str:
    """Return Markdown as the terminal shows it: a line for each paragraph or point, no marks, no targets of links."""
    unwrapped = re.sub(r"\n(?!- |\n)\s*", " ", text)
    return re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", unwrapped).replace("`", "")
