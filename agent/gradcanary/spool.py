"""A shelf in a file: what a collector that is away gets later, from this process or from ``gradcanary sync``.

One SQLite file per session, opened when a delivery fails for the first time and deleted when all of it arrived. The
process that has it open holds its lock.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sqlite3
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gradcanary.fork_safe import Connection, connect
from gradcanary.shelf import SPACING, Entry, Tally, Totals

LIMIT_BYTES = 256 * 2**20
SUFFIX = ".spool"
NEW_S = 60.0
"""An empty file that is younger may be one that its process is making."""

FORMAT = 1
"""Of the file; another version of gradcanary may write another one."""

TABLES = (
    """CREATE TABLE session (run TEXT, session TEXT, url TEXT, hello BLOB, ending BLOB,
                             next_seq INTEGER, told INTEGER, carried INTEGER)""",
    """CREATE TABLE batch (place INTEGER PRIMARY KEY, seq INTEGER, every INTEGER, steps INTEGER, lost INTEGER,
                           lost_after INTEGER, body BLOB)""",
)
COLUMNS = "body, every, steps, lost, lost_after, seq, place"

_open: set[Spool] = set()


class SpoolError(Exception):
    """A file cannot be used; the message says why."""


class LockedError(SpoolError):
    """A process that lives has the file."""


def folder(environ: Mapping[str, str]) -> Path:
    """Return where spools are; raises RuntimeError for a user without a home."""
    if environ.get("GRADCANARY_SPOOL"):
        return Path(environ["GRADCANARY_SPOOL"])
    state = environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "gradcanary" / "spool"


class Spool:
    """A shelf that outlives its process. Methods raise sqlite3.Error when the file cannot be read or written."""

    def __init__(self, path: Path, connection: Connection) -> None:
        self.path = path
        self.limit = LIMIT_BYTES
        self.totals = Totals()
        self._connection = connection
        self._gone = -(2**62)
        _open.add(self)
        for sizes in connection.rows("SELECT place, length(body), steps, lost + lost_after FROM batch"):
            self.totals.put(*sizes)
        told = self._one("SELECT run, session, url, hello, ending FROM session")
        self.run, self.session, self.url, self.hello, self.ending = told
        self.tally = Tally(*self._one("SELECT next_seq, told, carried FROM session"))

    @classmethod
    def create(cls, where: Path, run: str, session: str, url: str, hello: bytes, tally: Tally) -> Spool:
        """Make the file of a session; raises OSError or sqlite3.Error where that is not possible."""
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = where / f"{run}.{session}{SUFFIX}"
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        try:
            with contextlib.ExitStack() as undo:
                connection = undo.enter_context(contextlib.closing(_connect(path)))
                with connection:
                    for statement in ("BEGIN", *TABLES, f"PRAGMA user_version = {FORMAT}"):
                        connection.rows(statement)
                    row = (run, session, url, hello, None, tally.next_seq, tally.told, tally.carried)
                    connection.rows("INSERT INTO session VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
                spool = cls(path, connection)
                undo.pop_all()
                return spool
        except BaseException:
            path.unlink(missing_ok=True)
            raise

    @classmethod
    def open(cls, path: Path) -> Spool:
        """Open what another process left; raises SpoolError."""
        try:
            found = path.stat()
            with contextlib.ExitStack() as undo:
                connection = undo.enter_context(contextlib.closing(_connect(path)))
                if found.st_size == 0 and time.time() - found.st_mtime > NEW_S:
                    path.unlink()  # its process was killed as it made it
                if connection.rows("PRAGMA user_version") != [(FORMAT,)]:
                    raise SpoolError("another version of gradcanary wrote it")
                spool = cls(path, connection)
                undo.pop_all()
                return spool
        except (OSError, sqlite3.Error, LookupError, TypeError) as error:
            if "locked" in str(error):
                raise LockedError("a process that is running has it") from error
            raise SpoolError(f"it is damaged ({error})") from error

    # -- the shelf -----------------------------------------------------------------------------------------------

    def append(self, entry: Entry) -> Entry:
        last = self._one("SELECT coalesce(max(place), 0) FROM batch")[0]
        placed = replace(entry, place=last + SPACING)
        self.insert(placed)
        return placed

    def insert(self, entry: Entry) -> None:
        """Put an entry where its place is."""
        with self._connection:
            self._insert(entry)
        self.totals.put(*entry.sizes)

    def first(self) -> Entry | None:
        return next(iter(self._rows("1 ORDER BY place LIMIT 1")), None)

    def oldest_draft(self) -> Entry | None:
        return next(iter(self._rows("seq IS NULL ORDER BY place LIMIT 1")), None)

    def drafts_finer_than(self, every: int, count: int) -> Sequence[int]:
        query = "SELECT place FROM batch WHERE seq IS NULL AND every < ? AND place > ? ORDER BY place LIMIT ?"
        return [place for (place,) in self._connection.rows(query, (every, self._gone, count))]

    def at(self, place: int) -> Entry:
        return self._rows(f"place = {place}")[0]

    def put(self, entry: Entry, tally: Tally) -> None:
        with self._connection:
            self._insert(entry)
            self._note(tally)
        self.totals.put(*entry.sizes)

    def split(self, entry: Entry, halves: tuple[Entry, Entry], tally: Tally) -> None:
        with self._connection:
            self._connection.rows("DELETE FROM batch WHERE place = ?", (entry.place,))
            for half in halves:
                self._insert(half)
            self._note(tally)
        self._gone = min(self._gone, halves[0].place - 1)
        self.totals.drop(entry.place)
        for half in halves:
            self.totals.put(*half.sizes)

    def drop(self, entry: Entry, tally: Tally) -> None:
        self.totals.drop(entry.place)
        try:
            with self._connection:
                self._connection.rows("DELETE FROM batch WHERE place = ?", (entry.place,))
                self._note(tally)
        except sqlite3.Error:
            # Of a disk that is full: for this process the entry is gone all the same.
            self._gone = entry.place
            raise

    # -- the session ---------------------------------------------------------------------------------------------

    def say(self, hello: bytes) -> None:
        """Keep the hello of now."""
        with self._connection:
            self._connection.rows("UPDATE session SET hello = ?", (hello,))
        self.hello = hello

    def end(self, ending: bytes, tally: Tally) -> None:
        """Keep how the session ended."""
        with self._connection:
            self._connection.rows("UPDATE session SET ending = ?", (ending,))
            self._note(tally)
        self.ending = ending

    def close(self) -> None:
        """Let go of the file and its lock."""
        _open.discard(self)
        self._connection.close()

    def delete(self) -> None:
        """Remove the file: nobody needs it any more."""
        with contextlib.suppress(OSError):  # of a folder that turned read-only; it holds nothing that counts
            self.path.unlink(missing_ok=True)
        self.close()
        with contextlib.suppress(OSError):  # SQLite's own, where the process before this one was killed
            Path(f"{self.path}-journal").unlink(missing_ok=True)

    def _one(self, query: str) -> tuple[Any, ...]:
        return self._connection.rows(query)[0]

    def _rows(self, where: str) -> list[Entry]:
        query = f"SELECT {COLUMNS} FROM batch WHERE place > {self._gone} AND {where}"  # noqa: S608 -- our own numbers
        return [Entry(*row) for row in self._connection.rows(query)]

    def _insert(self, entry: Entry) -> None:
        values = (entry.place, entry.seq, entry.every, entry.steps, entry.lost, entry.lost_after, entry.body)
        self._connection.rows("INSERT OR REPLACE INTO batch VALUES (?, ?, ?, ?, ?, ?, ?)", values)

    def _note(self, tally: Tally) -> None:
        numbers = (tally.next_seq, tally.told, tally.carried)
        self._connection.rows("UPDATE session SET next_seq = ?, told = ?, carried = ?", numbers)


def _connect(path: Path) -> Connection:
    connection = connect(f"file:{quote(str(path.absolute()))}?mode=rw")
    try:
        # The lock is kept until the file is closed: that is how others see that it is in use.
        connection.rows("PRAGMA locking_mode = EXCLUSIVE")
        # What has to survive is the end of this process, not that of the machine: no waiting for the disk, which the
        # training may want for itself.
        connection.rows("PRAGMA synchronous = OFF")
        connection.rows("PRAGMA cache_size = 8")  # pages: memory is the training's
        connection.rows("BEGIN EXCLUSIVE")
        connection.rows("COMMIT")
    except BaseException:
        connection.close()
        raise
    return connection


def _forked() -> None:
    """In a forked child: never close a connection of the parent, which could undo what the parent is writing."""
    for spool in _open:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(spool._connection))  # noqa: SLF001 -- of this module
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
