"""SQLite connections: pragmas, the lock on the store file, and the check for damage."""

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DatabaseError, OperationalError

from gradcanary_server.errors import StoreError

BUSY_S = 5.0
"""How long a transaction waits for another writer, before the sender is asked to retry."""

CLAIM_S = 3.0
"""How long a starting collector waits for one on the same file that is being killed."""

CHECKED_BYTES = 2**30
"""Larger files are not checked before use: a gigabyte takes 0.4 s of CPU."""

WAL_LIMIT = 48 * 2**20
"""Bytes of the write-ahead log that stay on disk after a checkpoint: overwriting is cheaper than growing a file."""

CHECKPOINT_PAGES = 1000
"""Pages in the log from which on a commit makes a checkpoint; SQLite's own default."""

_PRAGMAS = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",
    "PRAGMA foreign_keys=ON",
    f"PRAGMA busy_timeout={int(BUSY_S * 1000)}",
    f"PRAGMA journal_size_limit={WAL_LIMIT}",
    "PRAGMA secure_delete=FAST",
    # Not in files: the savepoint of a batch of 64 steps would create, fill and delete one each time.
    "PRAGMA temp_store=MEMORY",
)


@contextlib.contextmanager
def lock_store_file(engine: Engine) -> Iterator[None]:
    """Lock the store against other collectors during the block; raises StoreError if another one holds the lock.

    It is SQLite's lock on an empty file beside the store: the operating system releases it however the process ends.
    """
    path = Path(str(engine.url.database)).resolve()
    with contextlib.closing(sqlite3.connect(f"{path}.lock", CLAIM_S, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise _unwritable(path, str(error)) from error
            raise StoreError(
                f"{path} belongs to another collector that runs ({error}): stop that one, or choose another folder "
                "with --data DIR."
            ) from error
        yield


@contextlib.contextmanager
def without_close_checkpoint(engine: Engine) -> Iterator[None]:
    """Prevent the checkpoint that SQLite makes when its last connection is closed.

    It must not happen if the disk may lack parts of the log. A read-only connection that stays open prevents it.
    """
    path = Path(str(engine.url.database)).resolve()
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(sqlite3.Error):  # a failing disk: close as far as possible
            opened = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None)
            reader = stack.enter_context(contextlib.closing(opened))
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM sqlite_master")  # a transaction reads from its first query on
        yield


def check_file(engine: Engine) -> None:
    """Raise StoreError if the file is damaged; writes nothing, neither to the file nor to its log."""
    path = Path(str(engine.url.database)).resolve()
    if path.stat().st_size > CHECKED_BYTES:
        return
    has_log = path.with_name(f"{path.name}-wal").exists()  # the log is a part of the database
    options = "mode=ro" if has_log else "mode=ro&immutable=1"
    try:
        with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?{options}", uri=True)) as connection:
            result = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
    except sqlite3.OperationalError:
        return  # a file that cannot be opened this way is not always damaged
    except sqlite3.DatabaseError as error:
        result = str(error)
    if result != "ok":
        raise StoreError(
            f"{path} is damaged ({' '.join(result.split())}), and was left as it is: put a backup in its place, or "
            f"choose another folder with --data DIR. What can be read of it: sqlite3 {path} .recover"
        )


def open_engine(url: URL, checkpoint_pages: int) -> Engine:
    """Return the engine of a file, which is created if missing; its commits make a checkpoint from so many pages on."""
    if url.database in (None, "", ":memory:"):
        raise StoreError(f"--db {url}: name a file, sqlite:///FILE; readers need their own connections to it.")
    _create_private(Path(str(url.database)))
    engine = create_engine(url, pool_size=8, max_overflow=64, pool_use_lifo=True, hide_parameters=True)
    pragmas = (*_PRAGMAS, f"PRAGMA wal_autocheckpoint={checkpoint_pages}")
    event.listen(engine, "connect", lambda connection, _record: _prepare_sqlite(connection, pragmas))
    return engine


def _create_private(path: Path) -> None:
    """Create the folder and an empty file that only its owner may read; SQLite's other files copy the mode."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        if path.stat().st_size == 0:
            with contextlib.closing(sqlite3.connect(path)) as connection:
                # Only before the first page is written, which WAL mode does.
                connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
                connection.execute("PRAGMA journal_mode=WAL")
    except OSError as error:
        raise _unwritable(path, str(error.strerror)) from error


def _unwritable(path: Path, why: str) -> StoreError:
    return StoreError(f"{path} cannot be created or written ({why}): choose a folder of yours with --data DIR.")


def _prepare_sqlite(connection: DBAPIConnection, pragmas: Sequence[str]) -> None:
    # Python's sqlite3 would begin transactions itself, deferred and only before writes; begin() does it instead.
    connection.isolation_level = None
    # SQLite's own lower() changes only A to Z; PostgreSQL's changes all letters.
    cast("sqlite3.Connection", connection).create_function("lower", 1, _lower, deterministic=True)
    cursor = connection.cursor()
    for pragma in pragmas:
        cursor.execute(pragma)
    cursor.close()


def _lower(text: str | None) -> str | None:
    return None if text is None else text.lower()


def begin(connection: Connection, *, write: bool) -> None:
    # A deferred transaction that reads and then writes fails at once under WAL when another one wrote in between.
    # Not by an event listener of SQLAlchemy, which makes every statement of the connection a fifth slower.
    _run(connection, "BEGIN IMMEDIATE" if write else "BEGIN")


def run_script(connection: Connection, script: str) -> None:
    """Run statements without result columns to their end; SQLAlchemy would stop after their first row."""
    _run(connection, script, as_script=True)


def _run(connection: Connection, statement: str, *, as_script: bool = False) -> None:
    raw = cast("sqlite3.Connection", connection.connection.driver_connection)
    try:
        (raw.executescript if as_script else raw.execute)(statement)
    except sqlite3.DatabaseError as error:
        kind = OperationalError if isinstance(error, sqlite3.OperationalError) else DatabaseError
        raise kind(statement, None, error) from error
