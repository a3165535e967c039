"""SQLite's write-ahead log on its disk: one flush serves every commit that waits for it.

With ``synchronous=FULL`` SQLite flushes inside each transaction, so that writers queue for the disk one by one. With
NORMAL it leaves that to whoever needs it: here, after the transaction and before anybody is told of it. What is in
the log is in the order of commits, so no commit is on disk without those before it.
"""

import os
import threading

_flush = getattr(os, "fdatasync", os.fsync)  # macOS has the other one alone


class WriteAheadLog:
    """The log beside a database file."""

    def __init__(self, database: str) -> None:
        self._path = f"{database}-wal"
        self._lock = threading.Lock()
        self._begun = self._ended = 0
        self._error: OSError | None = None

    def flush(self) -> None:
        """Return when all that was committed before is on disk; raises OSError, after a flush that failed each time.

        A kernel whose disk failed forgets what it could not write, and the next flush would succeed without it.
        """
        missed = self._begun  # one that is under way may have begun before the commit
        with self._lock:
            if self._error is not None:
                raise self._error
            if self._ended > missed:
                return
            self._begun += 1
            self._write_out()
            self._ended = self._begun

    def _write_out(self) -> None:
        # Opened each time, at 10 us: SQLite takes the log away with the last connection, and makes another one.
        try:
            descriptor = os.open(self._path, os.O_RDONLY)
        except FileNotFoundError:
            return  # before that it writes all of it into the database, and waits for the disk
        try:
            _flush(descriptor)
        except OSError as error:
            self._error = error
            raise
        finally:
            os.close(descriptor)
