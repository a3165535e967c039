"""The write queue of an SQLite file: group commit, recovery from a failed flush, checkpoints.

One transaction writes at a time, in the order of arrival. SQLite flushes its log at each commit (``synchronous=FULL``).
So transactions that may share a commit are savepoints of one SQLite transaction; the last one in the queue commits for
all, and none returns before.

After a failed flush the kernel takes the lost pages for written, and the next flush succeeds without them. The log
still has them. So all connections are closed without a checkpoint, and SQLite copies the whole log into the file before
the next write. The first writer of a process does the same: the last process may have seen a failed flush. Invariant:
whatever was acknowledged is in the flushed log or in the flushed file.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, cast

from sqlalchemy import Connection, Engine, RootTransaction
from sqlalchemy.exc import DBAPIError

from gradcanary_server.background import BackgroundLoop
from gradcanary_server.errors import StoreUnavailable
from gradcanary_server.storage.driver_errors import reason
from gradcanary_server.storage.sqlite import BUSY_S, begin, without_close_checkpoint

if TYPE_CHECKING:
    from gradcanary_server.storage.database import Database

UNFLUSHED = "The disk failed to keep what was written, so nothing is acknowledged: see to its room and health."

MOST_TOGETHER = 16
"""Transactions in one commit: with more, the first one waits longer than the saved flushes take."""

COLLECT_S = 0.02
"""How long a commit collects transactions: about one flush of a slow disk."""

RETRY_S = 2.0
"""How long writes are refused before a failed disk is tried again."""

DRAIN_S = 1.0
"""How long to wait for readers before all connections are closed."""

CHECKPOINT_S = 5.0
"""Between two checkpoints. A hundred trainings write about 100 MB in that time."""

MAX_LOG_PAGES = 2**15
"""Pages in the log, 128 MiB, from which on every commit tries a checkpoint: in case the checkpointer fails."""

logger = logging.getLogger(__name__)

_FLUSHES = {"SQLITE_IOERR_FSYNC", "SQLITE_IOERR_DIR_FSYNC"}


@dataclass(eq=False)
class _Ticket:
    """The place of a transaction in the queue."""

    may_share: bool
    granted: threading.Event = field(default_factory=threading.Event)


@dataclass(eq=False)
class _Commit:
    """An open SQLite transaction, shared by ``units`` threads; all of them wait for ``ended``."""

    connection: Connection
    root: RootTransaction
    raw: sqlite3.Connection
    began: float
    units: int = 0
    error: Exception | None = None
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def is_open(self) -> bool:
        """False after errors for which SQLite has rolled back, or SQLAlchemy has closed the connection."""
        try:
            return self.raw.in_transaction
        except sqlite3.ProgrammingError:
            return False


class SqliteWriter:
    """Opens the write transactions of this process, from any thread; SQLite's lock excludes other processes."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._queue_lock = threading.Lock()
        self._queue: deque[_Ticket] = deque()
        self._is_taken = False
        self._shared: _Commit | None = None  # owned by the thread that has the turn
        self._readers = 0
        self._readers_changed = threading.Condition()
        self._is_closing = False
        self._is_recovered = False
        self._retry_at = 0.0
        self.failed: str | None = None
        """The error of the last flush, None if it succeeded."""
        self.commit_count = 0
        """Since the process began; it grows with everything that enters the log."""

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Yield a connection whose changes are on disk when the block ends, or undone when it raises."""
        with self._turn():
            commit = self._begin()
            try:
                yield commit.connection
            except BaseException:
                self._end(commit, commits=False)
                raise
            self._end(commit, commits=True)
        if commit.error is not None:
            raise commit.error

    @contextmanager
    def shared_transaction(self) -> Iterator[Connection]:
        """As :meth:`transaction`, for work of a few milliseconds: transactions that wait share one flush."""
        self._enter(may_share=True)
        commit: _Commit | None = None
        try:
            commit, self._shared = self._shared or self._begin(), None
            with _unit(commit):
                yield commit.connection
            commit.units += 1
        finally:
            if commit is None or not self._hand_over(commit):
                try:
                    if commit is not None:
                        self._end(commit, commits=commit.units > 0)
                finally:
                    self._leave()
        commit.ended.wait()
        if commit.error is not None:
            raise StoreUnavailable(reason(commit.error) or "The commit failed.") from commit.error

    @contextmanager
    def exclusive_connection(self) -> Iterator[Connection]:
        """Yield a connection without a transaction, while no other thread of this process writes."""
        with self._turn():
            self._recover()
            try:
                with self.handling_errors(), self._engine.connect() as connection:
                    yield connection
            finally:
                self.commit_count += 1

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Count the block as a reader; it must close its connections before it ends."""
        with self._readers_changed:
            if self._is_closing:
                self._readers_changed.wait_for(lambda: not self._is_closing, BUSY_S)
            self._readers += 1
        try:
            yield
        finally:
            with self._readers_changed:
                self._readers -= 1
                self._readers_changed.notify_all()

    @contextmanager
    def handling_errors(self) -> Iterator[None]:
        """Remember a failed flush in the block; raise StoreUnavailable for it, and all other errors as they are."""
        try:
            yield
        except DBAPIError as error:
            raise self._translate(error) from error

    def _translate(self, error: Exception) -> Exception:
        """Return the error to raise; a failed flush stops all writes until :meth:`_recover` succeeds."""
        raw = error.orig if isinstance(error, DBAPIError) else error
        if getattr(raw, "sqlite_errorname", None) not in _FLUSHES:
            return error
        if self.failed is None:
            logger.warning("the disk failed to keep what was written (%s): nothing is acknowledged until it does", raw)
        self.failed, self._is_recovered = str(raw), False
        self._retry_at = time.monotonic() + RETRY_S
        return self._refusal()

    # -- commits -------------------------------------------------------------------------------------------------

    def _begin(self) -> _Commit:
        self._recover()
        connection = self._engine.connect()
        try:
            root = connection.begin()
            begin(connection, write=True)
        except BaseException:
            connection.close()
            raise
        raw = cast("sqlite3.Connection", connection.connection.driver_connection)
        return _Commit(connection, root, raw, time.monotonic())

    def _end(self, commit: _Commit, *, commits: bool) -> None:
        """Commit or roll back, set ``commit.error`` if that fails, and wake all threads that wait for it."""
        try:
            if commits and not commit.is_open:
                commit.error = StoreUnavailable("The database rolled back what it could not write.")
            elif commits:
                commit.root.commit()
                self.commit_count += 1
        except Exception as error:  # noqa: BLE001 -- every thread that waits for this commit raises it
            commit.error = self._translate(error)
        finally:
            with suppress(DBAPIError):
                commit.connection.close()  # rolls back if it was not committed
            commit.ended.set()

    # -- the queue -----------------------------------------------------------------------------------------------

    @contextmanager
    def _turn(self) -> Iterator[None]:
        self._enter(may_share=False)
        try:
            yield
        finally:
            self._leave()

    def _enter(self, *, may_share: bool) -> None:
        ticket = _Ticket(may_share)
        with self._queue_lock:
            if not self._is_taken:
                self._is_taken = True
                return
            self._queue.append(ticket)
        if ticket.granted.wait(BUSY_S):
            return
        with self._queue_lock:
            if ticket.granted.is_set():
                return
            self._queue.remove(ticket)
        raise StoreUnavailable("Other writers did not finish in time.")

    def _leave(self) -> None:
        with self._queue_lock:
            if self._queue:
                self._queue.popleft().granted.set()
            else:
                self._is_taken = False

    def _hand_over(self, commit: _Commit) -> bool:
        """Give the turn and the open commit to the next writer; return False if it cannot share or there is none."""
        is_full = commit.units >= MOST_TOGETHER or time.monotonic() - commit.began > COLLECT_S
        with self._queue_lock:
            if is_full or not commit.is_open or not self._queue or not self._queue[0].may_share:
                return False
            self._shared = commit
            self._queue.popleft().granted.set()  # it can no longer time out, so the commit will end
            return True

    # -- after a flush that failed -------------------------------------------------------------------------------

    def _recover(self) -> None:
        """Copy the whole log into the file and flush it, if the file may lack pages that a failed flush lost."""
        if self._is_recovered:
            return
        if time.monotonic() < self._retry_at:
            if self.failed is not None:
                raise self._refusal()
            return  # at the start another process may hold up the checkpoint
        if self.failed is not None:
            self._close_all()
        with self.handling_errors(), self._engine.connect() as connection:
            is_complete = checkpoint(connection, "TRUNCATE").is_complete
        if not is_complete:
            self._retry_at = time.monotonic() + RETRY_S
            if self.failed is not None:
                raise self._refusal()
            return
        if self.failed is not None:
            logger.warning("the disk keeps again what is written")
        self.failed, self._is_recovered = None, True

    def _close_all(self) -> None:
        """Close all connections without the checkpoint that SQLite makes when the last one is closed.

        SQLite remembers up to which page it has copied the log, lost pages included, until the last connection closes.
        """
        with self._readers_changed:
            self._is_closing = True
            is_drained = self._readers_changed.wait_for(lambda: not self._readers, DRAIN_S)
        try:
            if not is_drained:
                raise self._refusal()
            with without_close_checkpoint(self._engine):
                self._engine.dispose()
        finally:
            with self._readers_changed:
                self._is_closing = False
                self._readers_changed.notify_all()

    def _refusal(self) -> StoreUnavailable:
        return StoreUnavailable(f"{UNFLUSHED} ({self.failed})")


class Checkpoint(NamedTuple):
    """The result of a checkpoint: ``is_complete`` if all of the log was copied."""

    is_complete: bool
    logged_pages: int


def checkpoint(connection: Connection, mode: str, wait_s: float = 0.0) -> Checkpoint:
    """Copy SQLite's log into the file; wait up to ``wait_s`` for other connections."""
    connection.exec_driver_sql(f"PRAGMA busy_timeout = {wait_s * 1000:.0f}")
    try:
        is_busy, logged, copied = connection.exec_driver_sql(f"PRAGMA wal_checkpoint({mode})").one()
        return Checkpoint(not is_busy and logged == copied, logged)
    finally:
        if not connection.invalidated:  # a statement on a connection that is lost would hide the error
            connection.exec_driver_sql(f"PRAGMA busy_timeout = {BUSY_S * 1000:.0f}")


@contextmanager
def _unit(commit: _Commit) -> Iterator[None]:
    """Roll back the block alone if it raises: to a savepoint, which copies pages.

    The first one of a commit needs none: what fails ends the transaction, in which nothing else is yet.
    """
    if commit.units == 0:
        try:
            yield
        except BaseException:
            if commit.is_open:
                commit.raw.execute("ROLLBACK")
            raise
        return
    commit.raw.execute("SAVEPOINT unit")
    try:
        yield
    except BaseException:
        if commit.is_open:
            commit.raw.execute("ROLLBACK TO unit")
            commit.raw.execute("RELEASE unit")
        raise
    commit.raw.execute("RELEASE unit")


class Checkpointer(BackgroundLoop):
    """The thread that copies SQLite's log into the file, so that no commit does it.

    A page that was written eight times since the last checkpoint is copied once.
    """

    def __init__(self, database: Database) -> None:
        super().__init__("checkpointer", logger)
        self._database = database
        self._copied = 0

    def _run(self) -> None:
        while not self._stopping.wait(CHECKPOINT_S):
            with self._tracked_round():
                if self._database.commit_count != self._copied and self._database.checkpoint():
                    self._copied = self._database.commit_count
