"""SQLite's write-ahead log on its disk: one flush serves every commit that waits for it.

With ``synchronous=FULL`` SQLite flushes inside each transaction, so that writers queue for the disk one by one. With
NORMAL it leaves that to whoever needs it: here, after the transaction and before anybody is told of it. What is in
the log is in the order of commits, so no commit is on disk without those before it.
"""

import os
import threading
from pathlib import Path

_flush = getattr(os, "fdatasync", os.fsync)  # macOS has the other one alone


class WriteAheadLog:
    """The log beside a database file."""

    def __init__(self, database: str) -> None:
        self._path = Path(f"{os.path.realpath(database)}-wal")  # SQLite follows links, too
        self._lock = threading.Lock()
        self._begun = self._ended = 0
        self._descriptor: int | None = None
        self._failed: str | None = None

    def flush(self) -> None:
        """Return when all that was committed before is on disk; raises OSError, after a flush that failed each time.

        A kernel whose disk failed forgets what it could not write, and the next flush would succeed without it.
        """
        missed = self._begun  # one that is under way may have begun before the commit
        with self._lock:
            if self._failed is not None:
                raise OSError(self._failed)
            if self._ended > missed:
                return
            self._begun += 1
            self._follow()
            self._write_out()
            self._ended = self._begun

    def close(self) -> None:
        """Let go of the log."""
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
            self._descriptor = None

    def _write_out(self) -> None:
        if self._descriptor is None:
            return  # SQLite has written all of it into the database, and waited for the disk
        try:
            _flush(self._descriptor)
        except OSError as error:
            self._failed = str(error)
            raise

    def _follow(self) -> None:
        """Open the log where it is another one: SQLite takes it away with the last connection, and makes a new one.

        One descriptor is kept all the time: a kernel tells each of them once that writing failed, and one that is
        opened later of nothing that SQLite's own flush was told of before.
        """
        try:
            there = self._path.stat()
        except FileNotFoundError:
            there = None
        if self._descriptor is not None:
            if there is not None and os.path.samestat(there, os.fstat(self._descriptor)):
                return
            self._write_out()
            os.close(self._descriptor)
            self._descriptor = None
        if there is not None:
            self._descriptor = os.open(self._path, os.O_RDONLY)
