"""Transactions on the store, and what SQL dialects differ in (how to connect: engines; one statement: rows; what fails:
outages).

SQLite: WAL, on disk before anybody is told of a commit (:mod:`gradcanary_server.wal`), one writer at a time, readers on
their own connections. PostgreSQL: readers see one snapshot, writers wait for each other at the rows they lock; the
row of a run comes first, so that nobody waits in a circle. All other modules write portable SQLAlchemy Core, with
``FOR UPDATE`` where PostgreSQL needs it: SQLAlchemy leaves it away for SQLite.
"""

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, cast

from alembic.util import CommandError
from sqlalchemy import Connection, Row, text
from sqlalchemy.exc import DBAPIError

from gradcanary_server import revisions
from gradcanary_server.door import Door
from gradcanary_server.engines import (
    BUSY_S,
    CHECKPOINT_PAGES,
    begin_sqlite,
    check_file,
    check_server,
    claimed,
    left_alone,
    open_engine,
    take_time,
)
from gradcanary_server.errors import RequestError, StoreError
from gradcanary_server.outages import LOST, UNFLUSHED, busy
from gradcanary_server.wal import LostError, WriteAheadLog

logger = logging.getLogger(__name__)

Record = Row[Any]
"""A row of a table, its columns as attributes."""

SET_UP_S = 120
"""How long a collector that starts waits for another one that migrates."""

_RECLAIM_S = 0.03
"""In which nobody else writes while room is given back."""

_MOVED_S, _SOUGHT_S = 40e-6, 4e-9
"""What a page takes that is given back, and each free one beside it: SQLite looks for it among all of them."""

_DRAIN_S = 1.0
"""How long the checkpointer waits for those who read, so that the log can begin anew; who begins to waits with it."""

_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

_NOW = text("SELECT CAST(extract(epoch FROM clock_timestamp()) AS double precision)")

_SNAPSHOT: dict[str, dict[str, Any]] = {
    "sqlite": {},
    "postgresql": {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True},
}

_SET_UP_LOCK, _TIDY_LOCK = int.from_bytes(b"gradcnry", "big"), int.from_bytes(b"gradtidy", "big")
_SET_UP = {
    "sqlite": (),  # a write transaction is alone anyway
    "postgresql": (
        f"SET LOCAL lock_timeout = {SET_UP_S * 1000}",
        "SET LOCAL statement_timeout = 0",
        f"SELECT pg_advisory_xact_lock({_SET_UP_LOCK})",
    ),
}


class Database:
    """Opens transactions on one store; ``when_lost`` is called where only a process that begins anew can go on."""

    def __init__(self, url: str, checkpoint_pages: int = CHECKPOINT_PAGES) -> None:
        """SQLite's commits make room in a log of so many pages: many where somebody calls :meth:`checkpoint`."""
        self._engine = open_engine(url, checkpoint_pages)
        self._dialect = self._engine.dialect.name
        self._readers = Door()
        self._writer = threading.Lock() if self._dialect == "sqlite" else None
        self._wal = WriteAheadLog(str(self._engine.url.database)) if self._dialect == "sqlite" else None
        self.when_lost: Callable[[], None] = lambda: None

    @property
    def has_one_writer(self) -> bool:
        """Whether each transaction that writes waits for the one before, of whatever run."""
        return self._writer is not None

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Yield a connection that sees one moment of the store."""
        with self._readers.passed(), self._engine.connect() as connection:
            reader = connection.execution_options(**_SNAPSHOT[self._dialect])
            with reader.begin():
                self._begin(reader, write=False)
                yield reader

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Yield a connection whose changes are on disk when the block ends, or undone when it raises."""
        with self._queued(), self._engine.connect() as connection, connection.begin():
            self._begin(connection, write=True)
            yield connection
        self._flush()

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Keep other collectors away that would share what cannot be shared; raises StoreError where one is there."""
        with claimed(self._engine) if self._dialect == "sqlite" else nullcontext():
            yield

    @contextmanager
    def set_up(self) -> Iterator[Connection]:
        """Yield a writing connection to prepare the store with: one collector at a time is in such a block."""
        with self.write() as connection:
            if self._dialect == "postgresql":
                take_time(connection)
            for statement in _SET_UP[self._dialect]:
                connection.exec_driver_sql(statement)
            yield connection

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Yield whether nobody else is in such a block: of the collectors on one store, one tidies it at a time."""
        if self._dialect == "sqlite":
            yield True  # its file is claimed by one collector
            return
        with self._engine.connect() as connection:
            keeper = connection.execution_options(isolation_level="AUTOCOMMIT")
            is_mine = bool(keeper.exec_driver_sql(f"SELECT pg_try_advisory_lock({_TIDY_LOCK})").scalar_one())
            try:
                yield is_mine
            finally:
                if is_mine:
                    keeper.exec_driver_sql(f"SELECT pg_advisory_unlock({_TIDY_LOCK})")

    def now(self, connection: Connection) -> float:
        """Return the unix time by the database's clock, in seconds; SQLite's is that of this process."""
        if self._dialect == "sqlite":
            return time.time()
        return float(connection.execute(_NOW).scalar_one())

    def steady(self) -> float:
        """Return seconds by a clock that nobody sets, of any origin; on Linux it goes on while the machine sleeps."""
        return time.clock_gettime(_STEADY)

    def migrate(self) -> tuple[str | None, str]:
        """Bring the tables to this version's shape and return the revision that they had, None = none, and the new one.

        Raises StoreError, also where there is no store to be reached.
        """
        self._check()
        try:
            with self.set_up() as connection:
                return revisions.upgrade(connection)
        except CommandError as error:
            raise StoreError(
                f"The database was written by a newer gradcanary ({error}): upgrade this one, or use another database."
            ) from error
        except (DBAPIError, RequestError) as error:
            raise StoreError(f"The database cannot be migrated: {_reason(error)}") from error

    def log_size(self) -> int:
        """Return the bytes in SQLite's log, of which the file may have some already; PostgreSQL's is its own affair."""
        try:
            return 0 if self._wal is None else self._wal.size()
        except OSError as error:
            raise busy(f"The index of the database's log cannot be read ({error}).") from error

    def checkpoint(self) -> bool:
        """Put SQLite's log into the file, so that the next writer begins it anew; tell whether he can.

        A log that is written and read all the time has no end by itself. So who begins to read waits until those who
        read what was are done, and who writes while the little is put there that was written meanwhile.
        """
        with self._engine.connect() as connection:
            self._open_file()
            self._put_into_file(connection, "PASSIVE")
            self._flush_file()
            with self._readers.shut(_DRAIN_S):
                self._put_into_file(connection, "PASSIVE")
                self._flush_file()
                with self._queued():
                    return self._put_into_file(connection, "RESTART")

    def _put_into_file(self, connection: Connection, how: str) -> bool:
        """Put what is in the log into the file, and tell whether nobody was in the way; nobody is waited for."""
        self._flush()  # a flush that failed is told SQLite once, and that commit does not say so
        # It would wait for readers, and writers would wait for it.
        connection.exec_driver_sql("PRAGMA busy_timeout = 0")
        try:
            is_busy, _logged, _moved = connection.exec_driver_sql(f"PRAGMA wal_checkpoint({how})").one()
            return not is_busy
        finally:
            connection.exec_driver_sql(f"PRAGMA busy_timeout = {BUSY_S * 1000:.0f}")

    def _open_file(self) -> None:
        try:
            if self._wal is not None:
                self._wal.open_file()
        except OSError as error:
            raise busy(f"The database file cannot be opened ({error}).") from error

    def _flush_file(self) -> None:
        """Wait for the disk with what was put into the file, while others write: SQLite does so while nobody does."""
        if self._wal is None:
            return
        try:
            self._wal.flush_file()
        except OSError as error:
            # What was put there counts as done, for a command beside this one as well: it would end with the log gone.
            with suppress(OSError):
                self._wal.put_again()
            self.when_lost()
            raise self._unflushed(error) from error

    def reclaim(self) -> bool:
        """Give some room of deleted rows back to the disk; tell whether there is more. PostgreSQL does it by itself."""
        if self._dialect != "sqlite":
            return False
        with self._queued(), self._engine.connect() as connection:
            with connection.begin():
                self._begin(connection, write=True)  # which makes sure of the log
            # Beside SQLAlchemy: it frees a page per row, and only a script takes the rows of what has no columns.
            raw = cast("sqlite3.Connection", connection.connection.driver_connection)
            free = int(raw.execute("PRAGMA freelist_count").fetchone()[0])
            pages = max(int(_RECLAIM_S / (_MOVED_S + _SOUGHT_S * free)), 1)
            raw.executescript(f"PRAGMA incremental_vacuum({pages});")
            self._put_into_file(connection, "TRUNCATE")
            return free > pages

    def size(self, connection: Connection) -> int:
        """Return the bytes that the store takes on disk."""
        if self._dialect == "postgresql":
            return int(connection.exec_driver_sql("SELECT pg_database_size(current_database())").scalar_one())
        files = (Path(f"{os.path.realpath(str(self._engine.url.database))}{suffix}") for suffix in ("", "-wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    def trouble(self) -> str | None:
        """Return why nothing can be written for now, None where nothing is known of that."""
        failed = None if self._wal is None else self._wal.failed
        return None if failed is None else f"{UNFLUSHED} ({failed})"

    def close(self) -> None:
        """Close every connection."""
        with nullcontext() if self.trouble() is None else left_alone(self._engine):
            self._engine.dispose()
        if self._wal is not None:
            self._wal.close()

    def _check(self) -> None:
        """Raise StoreError unless the store can be reached, is whole, and is one that this version can use."""
        if self._dialect == "sqlite":
            check_file(self._engine)
        try:
            with self.read() as connection:
                if self._dialect == "postgresql":
                    check_server(connection)
        except DBAPIError as error:
            raise StoreError(
                f"The database cannot be reached ({_reason(error)}): see that it runs, and that --db is right."
            ) from error

    def _begin(self, connection: Connection, *, write: bool) -> None:
        if self._dialect == "sqlite":
            begin_sqlite(connection, write=write)
        if write:
            self._renew()

    def _flush(self) -> None:
        """Wait for the disk, where the database does not by itself; the next writer works meanwhile."""
        try:
            if self._wal is not None:
                self._wal.flush()
        except OSError as error:
            raise self._unflushed(error) from error

    def _renew(self) -> None:
        """Make sure, before anything is added, that the disk has what is there."""
        if self._wal is None:
            return
        try:
            if self._wal.renew():
                logger.warning("The disk keeps again what is written, and what was in doubt is on it.")
        except LostError as error:
            # A command beside this one would put it into the file as it ends, and nobody could open that any more.
            with suppress(OSError):
                self._wal.look_again()
            self.when_lost()
            raise busy(f"{LOST} ({error})") from error
        except OSError as error:
            raise self._unflushed(error) from error

    def _unflushed(self, error: OSError) -> RequestError:
        return busy(f"{UNFLUSHED} ({error})")

    @contextmanager
    def _queued(self) -> Iterator[None]:
        # SQLite waits by sleeping and retrying, in no order: a lock in front queues the threads of this process.
        if self._writer is None:
            yield
            return
        if not self._writer.acquire(timeout=BUSY_S):
            raise busy("Other writers did not finish in time.")
        try:
            yield
        finally:
            self._writer.release()


def _reason(error: Exception) -> str:
    """Return what the driver said in one line, without the statement."""
    return " ".join(str(error.orig if isinstance(error, DBAPIError) else error).split())
