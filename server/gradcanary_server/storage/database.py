"""The store: transactions, migration and maintenance on SQLite and PostgreSQL.

SQLite: WAL, one writer at a time (:mod:`gradcanary_server.storage.sqlite_writer`), readers on their own connections.
PostgreSQL: readers see one snapshot; writers lock rows, the row of a run first, so that they cannot deadlock. A commit
is on disk before it returns. All other modules write portable SQLAlchemy Core, with ``FOR UPDATE`` for PostgreSQL:
SQLAlchemy omits it for SQLite.
"""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from alembic.util import CommandError
from sqlalchemy import Connection, Engine, Row, make_url, select, text, update
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from gradcanary import __version__
from gradcanary_server.errors import CollectorError, StoreError, StoreUnavailable, without_password
from gradcanary_server.storage import citus, maintenance, sqlite
from gradcanary_server.storage.citus_nodes import Nodes
from gradcanary_server.storage.driver_errors import driver_message, translated
from gradcanary_server.storage.schema import collector_heartbeat, next_number
from gradcanary_server.storage.sqlite_writer import UNFLUSHED, SqliteWriter, checkpoint

Record = Row[Any]
"""A row of a table, its columns as attributes."""

SET_UP_S = 120
"""How long a starting collector waits for another one that migrates."""

_RECLAIM_S = 0.03
"""How long one call of :meth:`Database.release_free_pages` may hold up the writers."""

_PAGE_S, _SEARCH_S = 40e-6, 4e-9
"""Seconds for each page that is given back, and for each free page of the file: SQLite searches all of them."""

CHECKPOINT_PASSES = 3
"""Each pass copies and flushes the pages that were written to SQLite's log during the pass before."""

RESTART_PAGES = 2**13
"""In SQLite's log, 32 MiB, from which on a checkpoint waits for readers, so that the log restarts at its first page.
Without readers it restarts after each complete checkpoint."""

RESTART_WAIT_S = 1.0
"""How long writers wait for these readers; new readers read the file and do not delay the restart."""

_NOW = text("SELECT CAST(extract(epoch FROM clock_timestamp()) AS double precision)")

_SNAPSHOT: dict[str, dict[str, Any]] = {
    "sqlite": {},
    "postgresql": {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True},
}

_SET_UP_LOCK, _TIDY_LOCK = int.from_bytes(b"gradcnry", "big"), int.from_bytes(b"gradtidy", "big")
_SET_UP = (
    f"SET LOCAL lock_timeout = {SET_UP_S * 1000}",
    "SET LOCAL statement_timeout = 0",
    f"SELECT pg_advisory_xact_lock({_SET_UP_LOCK})",
)
"""On PostgreSQL; a write transaction of SQLite is alone anyway."""

_LAST_VERSION = select(collector_heartbeat.c.version).where(collector_heartbeat.c.heartbeat_id == 1)

_NEWER = (
    "The database was written by a newer gradcanary ({found}; here is {here}) and is left as it is: install that "
    "version or a later one here, or use a backup from before the upgrade."
)

_OLDER = (
    "The tables are of revision {found}, and gradcanary {here} works on {head}: stop the collectors of the store, and "
    "upgrade it with 'gradcanary migrate', or use the version that they have."
)

_EXAMPLES = "sqlite:////srv/gradcanary.db or postgresql://USER:PASSWORD@HOST/NAME"

_POSTGRESQL = ("postgresql", "postgres", "postgresql+psycopg")


def open_engine(url: str, checkpoint_pages: int) -> Engine:
    """Return the engine for a database URL, which connects at its first use; raises StoreError."""
    try:
        parsed = make_url(url)
        if parsed.drivername in _POSTGRESQL:
            from gradcanary_server.storage import postgresql  # needs an extra

            return postgresql.open_engine(parsed)
        if parsed.get_backend_name() == "sqlite":
            return sqlite.open_engine(parsed, checkpoint_pages)
    except ModuleNotFoundError:
        raise  # the command names the extra
    except ImportError as error:
        raise StoreError("psycopg finds no PostgreSQL client library: pip install 'psycopg[binary]'.") from error
    except (ArgumentError, NoSuchModuleError, ValueError) as error:
        raise StoreError(f"--db {without_password(url)} is not a database URL: {_EXAMPLES}, for example.") from error
    raise StoreError(f"--db {without_password(url)}: this version stores in SQLite and PostgreSQL, {_EXAMPLES}.")


class Database:
    """Opens transactions on one store."""

    def __init__(self, url: str, checkpoint_pages: int = sqlite.CHECKPOINT_PAGES) -> None:
        """SQLite's commits make a checkpoint from so many pages on: many if a loop calls :meth:`checkpoint`."""
        self._engine = open_engine(url, checkpoint_pages)
        self._dialect = self._engine.dialect.name
        self._sqlite = SqliteWriter(self._engine) if self._dialect == "sqlite" else None
        self.nodes: Nodes | None = None

    @property
    def has_one_writer(self) -> bool:
        """Whether all write transactions wait for each other, also those of different runs."""
        return self._sqlite is not None

    @property
    def commit_count(self) -> int:
        """How many commits of this process SQLite's log has got."""
        return 0 if self._sqlite is None else self._sqlite.commit_count

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Yield a connection that sees one snapshot of the store."""
        with translated(), self._reading(), self._engine.connect() as connection:
            reader = connection.execution_options(**_SNAPSHOT[self._dialect])
            with reader.begin():
                if self._dialect == "sqlite":
                    sqlite.begin(reader, write=False)
                yield reader

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Yield a connection whose changes are on disk when the block ends, or undone when it raises."""
        transaction = self._engine.begin() if self._sqlite is None else self._sqlite.transaction()
        with translated(), transaction as connection:
            yield connection

    @contextmanager
    def write_shared(self) -> Iterator[Connection]:
        """As :meth:`write`, for work of a few milliseconds: on SQLite transactions that wait share one flush."""
        transaction = self._engine.begin() if self._sqlite is None else self._sqlite.shared_transaction()
        with translated(), transaction as connection:
            yield connection

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Lock an SQLite file against other collectors; raises StoreError if another one holds the lock."""
        with sqlite.lock_store_file(self._engine) if self._dialect == "sqlite" else nullcontext():
            yield

    @contextmanager
    def setup_transaction(self) -> Iterator[Connection]:
        """Yield a writing connection to prepare the store; one collector at a time is in such a block."""
        with self.write() as connection:
            if self._dialect == "postgresql":
                from gradcanary_server.storage.postgresql import disable_statement_timeout

                disable_statement_timeout(connection)
                for statement in _SET_UP:
                    connection.exec_driver_sql(statement)
                if self.nodes is not None:
                    next_number(connection, "set-up")  # an advisory lock is known to one node only
            yield connection

    @contextmanager
    def singleton_lock(self) -> Iterator[bool]:
        """Yield True if no other collector is in such a block: one at a time deletes what nothing needs any more.

        It saves work and protects nothing: on Citus there is one for each node that collectors are connected to.
        """
        if self._dialect == "sqlite":
            yield True  # its file is locked by one collector
            return
        with translated(), self._engine.connect() as connection:
            lock_connection = connection.execution_options(isolation_level="AUTOCOMMIT")
            is_locked = bool(lock_connection.exec_driver_sql(f"SELECT pg_try_advisory_lock({_TIDY_LOCK})").scalar_one())
            try:
                yield is_locked
            finally:
                if is_locked:
                    lock_connection.exec_driver_sql(f"SELECT pg_advisory_unlock({_TIDY_LOCK})")

    def now(self, connection: Connection) -> float:
        """Return the unix time by the database's clock, in seconds; SQLite's is that of this process."""
        if self._dialect == "sqlite":
            return time.time()
        return float(connection.execute(_NOW).scalar_one())

    def migrate(self) -> tuple[str | None, str]:
        """Migrate the tables; return their revision before (None = no tables) and after.

        Raises StoreError, also if the database cannot be reached.
        """
        self._check()
        try:
            with self.setup_transaction() as connection:
                before, now = maintenance.upgrade(connection)
                if before != now:
                    connection.execute(update(collector_heartbeat).values(version=__version__))
                return before, now
        except CommandError as error:
            found = self._last_version() or error
            raise StoreError(_NEWER.format(found=found, here=__version__)) from error
        except (StoreError, StoreUnavailable) as error:
            raise StoreError(f"The database cannot be migrated: {driver_message(error)}") from error

    def check_revision(self, connection: Connection) -> None:
        """Raise StoreError unless the tables are those of this version; nothing is changed."""
        found = maintenance.revision(connection)
        if found == maintenance.head_revision():
            return
        if found is None or found in maintenance.revisions():
            raise StoreError(_OLDER.format(found=found, here=__version__, head=maintenance.head_revision()))
        raise StoreError(_NEWER.format(found=self._last_version() or f"revision {found}", here=__version__))

    def log_size(self) -> int:
        """Return the bytes of SQLite's log file, copied or not; 0 on PostgreSQL."""
        if self._sqlite is None:
            return 0
        try:
            return _file(self._engine, "-wal").stat().st_size
        except FileNotFoundError:
            return 0  # SQLite deletes it with the last connection

    def checkpoint(self) -> bool:
        """Copy SQLite's log into the file while others read and write; return True if all of it was copied."""
        assert self._sqlite is not None  # noqa: S101 -- only SQLite has a checkpointer
        with translated(), self._sqlite.handling_errors(), self._reading(), self._engine.connect() as connection:
            for _ in range(CHECKPOINT_PASSES):
                result = checkpoint(connection, "PASSIVE")
                if result.is_complete:
                    break
        if result.logged_pages < RESTART_PAGES:
            return result.is_complete
        with translated(), self._sqlite.exclusive_connection() as connection:
            return checkpoint(connection, "RESTART", RESTART_WAIT_S).is_complete

    def release_free_pages(self) -> bool:
        """Return some free pages of SQLite to the disk; return True if there are more. PostgreSQL does it by itself."""
        if self._sqlite is None:
            return False
        with translated(), self._sqlite.exclusive_connection() as connection:
            free = int(connection.exec_driver_sql("PRAGMA freelist_count").scalar_one())
            pages = max(int(_RECLAIM_S / (_PAGE_S + _SEARCH_S * free)), 1)
            sqlite.run_script(connection, f"PRAGMA incremental_vacuum({pages});")
            checkpoint(connection, "TRUNCATE")
            return free > pages

    def size(self, connection: Connection) -> int:
        if self._dialect == "postgresql":
            if self.nodes is not None:
                return self.nodes.size(connection)
            return int(connection.exec_driver_sql("SELECT pg_database_size(current_database())").scalar_one())
        files = (_file(self._engine, suffix) for suffix in ("", "-wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    def free_size(self) -> int:
        """Return the bytes that SQLite's file may still grow by; raises OSError."""
        return shutil.disk_usage(_file(self._engine, "").parent).free

    def health(self) -> str | None:
        """Return why the store cannot be written for now, None if it can."""
        failed = None if self._sqlite is None else self._sqlite.failed
        return None if failed is None else f"{UNFLUSHED} ({failed})"

    def watch_nodes(self) -> None:
        """Set ``nodes``, and look for those that do not answer, if this store is on a cluster."""
        with self.read() as connection:
            is_spread = citus.is_spread(connection)
        if is_spread and self.nodes is None:
            from gradcanary_server.storage.postgresql import open_pool

            self.nodes = Nodes(self._engine, open_pool(self._engine.url, 1, 0))
            self.nodes.look()

    def missing(self) -> str | None:
        """Return the nodes of a cluster that do not answer, with the number of their runs; None if all answer."""
        return None if self.nodes is None else self.nodes.missing()

    def close(self) -> None:
        if self._dialect == "postgresql":
            from gradcanary_server.storage.postgresql import close_engine

            if self.nodes is not None:
                self.nodes.close()
            close_engine(self._engine)
            return
        with nullcontext() if self.health() is None else sqlite.without_close_checkpoint(self._engine):
            self._engine.dispose()

    def _reading(self) -> AbstractContextManager[None]:
        return nullcontext() if self._sqlite is None else self._sqlite.reading()

    def _last_version(self) -> str | None:
        """Return the version that last worked with this store; None if none did, or a newer one moved the column."""
        found: str | None = None
        with suppress(CollectorError), self.read() as connection:
            found = connection.scalar(_LAST_VERSION)
        return found

    def _check(self) -> None:
        """Raise StoreError unless the store can be reached, is undamaged and can be used by this version."""
        if self._dialect == "sqlite":
            sqlite.check_file(self._engine)
        try:
            with self.read() as connection:
                if self._dialect == "postgresql":
                    from gradcanary_server.storage.postgresql import check_server

                    check_server(connection)
                    if citus.is_spread(connection):
                        citus.check_nodes(connection)
        except StoreUnavailable as error:
            said = driver_message(error)
            hint = "GRADCANARY_DB_PASSWORD or its _FILE has its password" if "password" in said else "--db is right"
            raise StoreError(f"The database cannot be reached ({said}): see that it runs, and that {hint}.") from error


def _file(engine: Engine, suffix: str) -> Path:
    """Return the path of SQLite's file, or of its log; SQLite follows links, too."""
    return Path(f"{os.path.realpath(str(engine.url.database))}{suffix}")
