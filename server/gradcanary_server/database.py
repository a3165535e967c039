"""The connection to the store, and every difference between SQL dialects.

SQLite: WAL, synchronous=FULL (a commit is on disk before it is acknowledged), one writer at a time, readers on
their own connections. All other modules write portable SQLAlchemy Core.
"""

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import Connection, Engine, Row, TextClause, create_engine, event, make_url, text
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, OperationalError
from sqlalchemy.pool import ConnectionPoolEntry

from gradcanary_server.errors import RequestError, StoreError

Record = Row[Any]
"""A row of a table, its columns as attributes."""

BUSY_S = 5.0
"""How long a transaction waits for another writer before the sender is told to come back."""

WAL_LIMIT = 64 * 2**20
"""Bytes that SQLite's write-ahead log keeps on disk after a checkpoint."""

_PRAGMAS = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",
    "PRAGMA foreign_keys=ON",
    f"PRAGMA busy_timeout={int(BUSY_S * 1000)}",
    f"PRAGMA journal_size_limit={WAL_LIMIT}",
)

_PAGES_AT_ONCE = 2000
"""8 MB: some ten milliseconds in which nobody else writes."""

_NOW = {
    # 'subsec' modifiers need SQLite 3.42; the Julian day carries milliseconds in every version.
    "sqlite": "SELECT (julianday('now') - 2440587.5) * 86400.0",
    "postgresql": "SELECT extract(epoch FROM clock_timestamp())",
}


class Database:
    """Opens transactions on one store."""

    def __init__(self, url: str) -> None:
        self._engine = _engine(url)
        self._writer = threading.Lock()
        self._now: TextClause = text(_NOW[self._engine.dialect.name])

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Yield a connection that sees one moment of the store."""
        with self._engine.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Yield a connection whose changes are on disk when the block ends, or undone when it raises."""
        with self._writing(), self._engine.connect() as connection:
            writer = connection.execution_options(gradcanary_write=True)
            with writer.begin():
                yield writer

    @contextmanager
    def _writing(self) -> Iterator[None]:
        # SQLite waits by sleeping and retrying, in no order: a lock in front queues the threads of this process.
        if not self._writer.acquire(timeout=BUSY_S):
            raise busy("Other writers did not finish in time.")
        try:
            yield
        finally:
            self._writer.release()

    def now(self, connection: Connection) -> float:
        """Return the unix time by the database's clock, in seconds."""
        return float(connection.execute(self._now).scalar_one())

    def migrate(self) -> None:
        """Bring the tables to this version's shape; raises StoreError when a newer version wrote them."""
        config = Config()
        config.set_main_option("script_location", "gradcanary_migrations:")
        config.set_main_option("path_separator", "os")
        try:
            # A write transaction is the lock: of two collectors that start together, the second finds the work done.
            with self.write() as connection:
                config.attributes["connection"] = connection
                command.upgrade(config, "head")
        except CommandError as error:
            raise StoreError(
                f"The database was written by a newer gradcanary ({error}): upgrade this one, or use another --data."
            ) from error
        except (DBAPIError, RequestError) as error:
            raise StoreError(f"The database cannot be migrated: {error}") from error

    def reclaim(self) -> bool:
        """Give some room of deleted rows back to the disk; tell whether there is more. PostgreSQL does it by itself."""
        if self._engine.dialect.name != "sqlite":
            return False
        with self._writing(), self._engine.connect() as connection:
            # Beside SQLAlchemy: it frees a page per row, and only a script takes the rows of what has no columns.
            raw = cast("sqlite3.Connection", connection.connection.driver_connection)
            raw.executescript(f"PRAGMA incremental_vacuum({_PAGES_AT_ONCE}); PRAGMA wal_checkpoint(TRUNCATE);")
            return int(raw.execute("PRAGMA freelist_count").fetchone()[0]) > 0

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()


def busy(message: str) -> RequestError:
    """Return the 503 that asks the sender to come back."""
    return RequestError(503, "unavailable", message, retry_after_s=2)


def unavailable(error: OperationalError) -> RequestError | None:
    """Return the 503 for a store that is locked or full, None for any other failure."""
    words = str(error.orig).lower()
    if "locked" in words or "busy" in words:
        return busy("The database is locked by another writer.")
    if "full" in words or "disk i/o" in words:
        return busy("The database cannot be written: its disk is full or failing.")
    return None


def _engine(url: str) -> Engine:
    try:
        parsed = make_url(url)
        if parsed.get_backend_name() != "sqlite":
            raise StoreError(f"--db {url}: this version stores in SQLite only: sqlite:///FILE.")
        if parsed.database in (None, "", ":memory:"):
            raise StoreError(f"--db {url}: name a file, sqlite:///FILE; readers need their own connections to it.")
        _create_private(Path(str(parsed.database)))
        engine = create_engine(parsed, pool_size=8, max_overflow=64)
    except (ArgumentError, NoSuchModuleError) as error:
        raise StoreError(
            f"--db {url} is not a database URL ({error}): for example sqlite:////srv/gradcanary.db."
        ) from error
    event.listen(engine, "connect", _prepare)
    event.listen(engine, "begin", _begin)
    return engine


def _create_private(path: Path) -> None:
    """Create the folder and an empty file that only its owner may read; SQLite's side files copy its mode."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        if path.stat().st_size == 0:
            with contextlib.closing(sqlite3.connect(path)) as connection:
                # It has to be said before the first page is written, which WAL mode does.
                connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
                connection.execute("PRAGMA journal_mode=WAL")
    except OSError as error:
        raise StoreError(
            f"{path} cannot be created or written ({error.strerror}): choose a folder of yours with --data DIR."
        ) from error


def _prepare(connection: DBAPIConnection, _record: ConnectionPoolEntry) -> None:
    # Python's sqlite3 would begin on its own, deferred and only before writes; _begin says it instead.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in _PRAGMAS:
        cursor.execute(pragma)
    cursor.close()


def _begin(connection: Connection) -> None:
    write = connection.get_execution_options().get("gradcanary_write", False)
    # A deferred transaction that reads and then writes fails at once under WAL when another one wrote in between.
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")
