"""SQLite's write-ahead log on its disk: one flush serves every commit that waits for it.

With ``synchronous=FULL`` SQLite flushes inside each transaction, so that writers queue for the disk one by one. With
NORMAL it leaves that to whoever needs it: here, after the transaction and before anybody is told of it. What is in
the log is in the order of commits, so no commit is on disk without those before it.

A kernel whose disk failed takes what it could not write for written, keeps it in memory or forgets it, and the next
flush succeeds without it. So what may be in doubt, at the start and after a flush that failed, is written once more
before anybody writes on: as it was, for each frame carries sums that say whether it still is.
"""

import contextlib
import logging
import os
import threading
import time
from pathlib import Path

from gradcanary_server.frames import FOUND, HEADER, INDEX, MOVED, Chain, Extent, extent

RENEW_EACH_S = 2.0
"""How often a disk that fails is tried: each time the whole log is written."""

_CHUNK = 256
"""Frames that are written at once, a megabyte."""

logger = logging.getLogger(__name__)

_flush = _flush_file = getattr(os, "fdatasync", os.fsync)  # macOS has the other one alone


class LostError(OSError):
    """The disk gave up what nobody was told of yet, and whoever has the store open may have read it: only a process
    that begins anew knows nothing of it."""


class WriteAheadLog:
    """The log beside a database file; ``failed`` is why nothing can be written for now."""

    def __init__(self, database: str) -> None:
        base = os.path.realpath(database)  # SQLite follows links, too
        self._file, self._path, self._shared = Path(base), Path(f"{base}-wal"), Path(f"{base}-shm")
        self._lock = threading.Lock()
        self._looking = threading.Lock()  # at the index: who asks how long the log is waits for no disk
        self._begun = self._ended = 0
        self._descriptor: int | None = None
        self._index: int | None = None
        self._database: int | None = None
        self._is_sure = False
        self._again = 0.0
        self.failed: str | None = None

    def flush(self) -> None:
        """Return when all that was committed before is on disk; raises OSError, after a flush that failed until
        :meth:`renew`."""
        missed = self._begun  # one that is under way may have begun before the commit
        with self._lock:
            if self._ended > missed:
                return
            if self.failed is not None:
                raise OSError(self.failed)
            self._begun += 1
            self._follow()
            self._write_out()
            self._ended = self._begun

    def renew(self) -> bool:
        """Make sure that all that was committed is on disk, where that is in doubt; tell whether it was because a flush
        had failed.

        To be called inside a transaction that may write and has not yet: so nobody else writes meanwhile. Raises
        LostError where some of it is gone, OSError where the disk still fails.
        """
        if self._is_sure:
            return False  # and nobody waits here for a flush that is under way
        with self._lock:
            if self.failed is not None and time.monotonic() < self._again:
                raise OSError(self.failed)
            self._again = time.monotonic() + RENEW_EACH_S
            self._begun += 1
            self._follow()
            try:
                if self._write_again() or self.failed is not None:
                    self._write_out()
            except OSError as error:
                self._fail(error)
                raise
            self._ended = self._begun
            was_failed, self.failed, self._is_sure = self.failed is not None, None, True
            return was_failed

    def open_file(self) -> None:
        """Make sure that :meth:`flush_file` fails only where the disk does; raises OSError."""
        if self._database is None:
            self._database = os.open(self._file, os.O_RDONLY)

    def flush_file(self) -> None:
        """Return when the database file, which is open, is on disk as it is; raises OSError."""
        assert self._database is not None  # noqa: S101 -- whoever calls has opened it
        _flush_file(self._database)

    def put_again(self) -> None:
        """Have whoever puts the log into the file next, or ends last, begin at its first frame; raises OSError.

        SQLite counts what is there in the index, for all that have the store open, and whatever the disk kept of it.
        """
        self._forget(MOVED)

    def look_again(self) -> None:
        """Have whoever reads next, or ends last, see for himself how much of the log is whole; raises OSError.

        To be called inside a transaction that may write and has not: one that goes on would write over what is there.
        """
        self._forget(FOUND)

    def size(self) -> int:
        """Return the bytes that were written since it began anew; its file may have room for more."""
        try:
            return self._extent().size
        except FileNotFoundError:
            return 0  # SQLite takes the index away with the last connection

    def close(self) -> None:
        """Let go of the log, which nobody has open any more."""
        with self._lock:
            self._is_sure = False
            if self._descriptor is not None:
                os.close(self._descriptor)
            self._descriptor = None
        # To close one that is there would give back SQLite's locks of a connection that somebody in this process still
        # holds: https://sqlite.org/howtocorrupt.html. So the database file stays open.
        with self._looking:
            if self._index is not None and not _leads_to(self._shared, self._index):
                os.close(self._index)
            self._index = None

    def _fail(self, error: OSError) -> None:
        if self.failed is None:
            logger.warning(
                "the disk failed to keep what was written (%s): nothing is acknowledged until it does", error
            )
        self.failed, self._is_sure = str(error), False

    def _write_out(self) -> None:
        if self._descriptor is None:
            return  # SQLite has written all of it into the database, and waited for the disk
        try:
            _flush(self._descriptor)
        except OSError as error:
            self._fail(error)
            raise

    def _write_again(self) -> bool:
        """Write the log as it is over itself, and tell whether there is any; raises LostError where it is not what was
        committed."""
        known = self._extent()
        if self._descriptor is None or not known.count:
            return False
        header = os.pread(self._descriptor, HEADER, 0)
        try:
            chain = Chain(header)
        except ValueError as error:
            raise LostError(str(error)) from error
        self._put(header, 0)
        while chain.count < known.count:
            at = HEADER + chain.count * chain.size
            raw = os.pread(self._descriptor, _CHUNK * chain.size, at)
            whole = chain.follow(raw, known.count - chain.count)
            if not whole:
                raise LostError(f"Of {known.count} frames of the log {chain.count} are whole.")
            self._put(raw[:whole], at)
        if chain.sums != known.sums:
            raise LostError("The log is another one than was written.")
        return True

    def _put(self, raw: bytes, at: int) -> None:
        assert self._descriptor is not None  # noqa: S101 -- whoever calls has it
        while raw:
            written = os.pwrite(self._descriptor, raw, at)
            raw, at = raw[written:], at + written

    def _extent(self) -> Extent:
        """Return how much of the log was committed, as SQLite knows it."""
        with self._looking:
            index = self._opened_index()
            return extent(b"" if index is None else os.pread(index, INDEX, 0))

    def _forget(self, part: slice) -> None:
        with self._looking:
            if (index := self._opened_index()) is not None:
                os.pwrite(index, bytes(part.stop - part.start), part.start)

    def _opened_index(self) -> int | None:
        """Return the index, opened where it is another one; None without a log."""
        if self._index is not None and not _leads_to(self._shared, self._index):
            os.close(self._index)  # nobody has the old one open
            self._index = None
        if self._index is None and self._path.exists() and self._path.stat().st_size:
            self._index = os.open(self._shared, os.O_RDWR)
        return self._index

    def _follow(self) -> None:
        """Open the log where it is another one: SQLite takes it away with the last connection, and makes a new one.

        One descriptor is kept all the time: a kernel tells each of them once that writing failed, and one that is
        opened later of nothing that SQLite's own flush was told of before.
        """
        if self._descriptor is not None:
            if _leads_to(self._path, self._descriptor):
                return
            self._write_out()
            os.close(self._descriptor)
            self._descriptor = None
        if self._path.exists():
            _enter(self._path)
            self._descriptor = os.open(self._path, os.O_RDWR)


def _leads_to(path: Path, descriptor: int) -> bool:
    """Tell whether an open file is the one that is there: some file systems are wrong about how many links it has."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _enter(file: Path) -> None:
    """Make sure that a new file is in its folder after the power was cut: its own flush does not promise that."""
    with contextlib.suppress(OSError):  # not every system flushes folders; SQLite takes no notice either
        folder = os.open(file.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
