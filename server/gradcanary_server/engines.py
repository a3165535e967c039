"""From the address of a database to connections that are set up for it; only :mod:`gradcanary_server.database` asks."""

import contextlib
import math
import os
import re
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, DatabaseError, NoSuchModuleError, OperationalError

from gradcanary_server.errors import StoreError

if TYPE_CHECKING:
    import psycopg

    from gradcanary_server.contact import Line

BUSY_S = 5.0
"""How long a transaction waits for another writer, or for a connection, before the sender is told to come back."""

CLAIM_S = 3.0
"""How long a collector that starts waits for one on the same file that is just being killed."""

CHECKED_BYTES = 2**30
"""Of an SQLite file that is read through before it is used, at 0.4 s of CPU a gigabyte: not of one that is larger."""

OLDEST_POSTGRESQL = 15

STATEMENT_S = 30
"""How long PostgreSQL works on a statement before it gives up."""

IDLE_S = 60
"""How long PostgreSQL keeps the locks of a collector that hangs."""

LOST_S = STATEMENT_S + 10
"""After which the answer to a statement is lost, though the server speaks to others."""

WAL_LIMIT = 48 * 2**20
"""Bytes that SQLite's write-ahead log keeps on disk after a checkpoint: to write over them takes the disk less than to
make a file longer."""

CHECKPOINT_PAGES = 1000
"""From how many pages in the log on a commit puts them into the file; SQLite's own number."""

_EXAMPLES = "sqlite:////srv/gradcanary.db or postgresql://USER:PASSWORD@HOST/NAME"

_POSTGRESQL = ("postgresql", "postgres", "postgresql+psycopg")

_PRAGMAS = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=NORMAL",  # the rest of FULL is what :mod:`gradcanary_server.wal` does
    "PRAGMA foreign_keys=ON",
    f"PRAGMA busy_timeout={int(BUSY_S * 1000)}",
    f"PRAGMA journal_size_limit={WAL_LIMIT}",
    "PRAGMA secure_delete=FAST",
)

# Said on the connection and not in its address, where poolers refuse it. Where the server would acknowledge before a
# commit is on disk, it is told not to.
_SETTINGS = f"""
SET lock_timeout = {int(BUSY_S * 1000)};
SET statement_timeout = {STATEMENT_S * 1000};
SET idle_in_transaction_session_timeout = {IDLE_S * 1000};
SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"""

# A server that vanished without a word is noticed within 15 s instead of TCP's two hours; one that hangs, by contact.
_REACH = {
    "application_name": "gradcanary",
    "client_encoding": "utf8",
    "connect_timeout": "3",
    "keepalives_idle": "5",
    "keepalives_interval": "5",
    "keepalives_count": "2",
    "tcp_user_timeout": "15000",
}


def open_engine(url: str, checkpoint_pages: int = CHECKPOINT_PAGES) -> Engine:
    """Return the engine for an address, which connects when it is first used; raises StoreError.

    SQLite's commits put a log of so many pages into the file.
    """
    try:
        parsed = make_url(url)
        if parsed.drivername in _POSTGRESQL:
            return _open_postgresql(parsed)
        if parsed.get_backend_name() == "sqlite":
            return _open_sqlite(parsed, checkpoint_pages)
    except (ArgumentError, NoSuchModuleError, ValueError) as error:
        raise StoreError(f"--db {_shown(url)} is not a database URL: {_EXAMPLES}, for example.") from error
    raise StoreError(f"--db {_shown(url)}: this version stores in SQLite and PostgreSQL, {_EXAMPLES}.")


@contextlib.contextmanager
def claimed(engine: Engine) -> Iterator[None]:
    """Keep other collectors away from an SQLite file while the block lasts; raises StoreError where one is at it.

    SQLite's own lock on an empty file beside it, which the operating system takes back however the process ends.
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
def left_alone(engine: Engine) -> Iterator[None]:
    """Keep an SQLite file as it is while its connections are closed.

    With the last one SQLite writes its log into the file, which is of no good where the disk may not have that log. One
    that may only read holds it back, and is the last one.
    """
    path = Path(str(engine.url.database)).resolve()
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(sqlite3.Error):  # on such a disk: then it is closed as it can be
            opened = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None)
            last = stack.enter_context(contextlib.closing(opened))
            last.execute("BEGIN")
            last.execute("SELECT count(*) FROM sqlite_master")  # only then is it a reader
        yield


def check_file(engine: Engine) -> None:
    """Raise StoreError where an SQLite file is damaged; nothing is written, neither to it nor to its log."""
    path = Path(str(engine.url.database)).resolve()
    if path.stat().st_size > CHECKED_BYTES:
        return
    has_log = path.with_name(f"{path.name}-wal").exists()  # what is in it belongs to the file
    how = "mode=ro" if has_log else "mode=ro&immutable=1"
    try:
        with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?{how}", uri=True)) as connection:
            found = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
    except sqlite3.OperationalError:
        return  # it could not be opened like this, which does not say that it is damaged
    except sqlite3.DatabaseError as error:
        found = str(error)
    if found != "ok":
        raise StoreError(
            f"{path} is damaged ({' '.join(found.split())}), and was left as it is: put a backup in its place, or "
            f"choose another folder with --data DIR. What can be read of it: sqlite3 {path} .recover"
        )


def check_server(connection: Connection) -> None:
    """Raise StoreError where this version cannot use a PostgreSQL."""
    version = connection.exec_driver_sql("SHOW server_version").scalar_one()
    number = connection.exec_driver_sql("SHOW server_version_num").scalar_one()
    encoding = connection.exec_driver_sql("SHOW server_encoding").scalar_one()
    if int(number) < OLDEST_POSTGRESQL * 10_000:
        raise StoreError(f"PostgreSQL {version} is too old: this version needs {OLDEST_POSTGRESQL} or newer.")
    if encoding != "UTF8":
        raise StoreError(
            f"The database has the encoding {encoding}: make one with CREATE DATABASE ... TEMPLATE template0 "
            "ENCODING 'UTF8'."
        )


def _shown(url: str) -> str:
    """Return an address as it may be printed: what may be a password is in no log."""
    return re.sub(r"//.*@", "//...@", url.partition("?")[0])


def _open_postgresql(url: URL) -> Engine:
    # Errors are logged, and among the parameters of a statement may be a secret: they are hidden, here and below.
    # Of a pool, only a connection that answers is used: a restart of the server is not seen by any request after it.
    try:
        from gradcanary_server.contact import ANSWER_S, Contact  # its driver comes with an extra

        engine = create_engine(
            url.set(drivername="postgresql+psycopg"),
            pool_size=8,
            max_overflow=12,
            pool_timeout=BUSY_S,
            pool_pre_ping=True,
            hide_parameters=True,
            use_native_hstore=False,
            connect_args={key: value for key, value in _REACH.items() if key not in url.query},
        )
    except ModuleNotFoundError:
        raise
    except ImportError as error:
        raise StoreError("psycopg finds no PostgreSQL client library: pip install 'psycopg[binary]'.") from error
    event.listen(engine, "do_connect", Contact(_prepare_postgresql).connect)
    event.listen(engine, "checkout", lambda line, _record, _proxy: _limit(line, LOST_S))
    event.listen(engine, "checkin", lambda line, _record: _limit(line, ANSWER_S))  # it is asked whether it lives next
    return engine


def _prepare_postgresql(connection: "psycopg.Connection[Any]") -> None:
    connection.execute(_SETTINGS)
    connection.commit()  # else the first rollback takes the settings back


def _limit(line: object, longest_s: float) -> None:
    if line is not None:  # as it is once it was given up
        cast("Line", line).limit_s = longest_s


def take_time(connection: Connection) -> None:
    """Let statements of a transaction on PostgreSQL take as long as they do, while the server answers others."""
    _limit(connection.connection.driver_connection, math.inf)


def _open_sqlite(url: URL, checkpoint_pages: int) -> Engine:
    if url.database in (None, "", ":memory:"):
        raise StoreError(f"--db {url}: name a file, sqlite:///FILE; readers need their own connections to it.")
    _create_private(Path(str(url.database)))
    engine = create_engine(url, pool_size=8, max_overflow=64, pool_use_lifo=True, hide_parameters=True)
    pragmas = (*_PRAGMAS, f"PRAGMA wal_autocheckpoint={checkpoint_pages}")
    event.listen(engine, "connect", lambda connection, _record: _prepare_sqlite(connection, pragmas))
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
        raise _unwritable(path, str(error.strerror)) from error


def _unwritable(path: Path, why: str) -> StoreError:
    return StoreError(f"{path} cannot be created or written ({why}): choose a folder of yours with --data DIR.")


def _prepare_sqlite(connection: DBAPIConnection, pragmas: Sequence[str]) -> None:
    # Python's sqlite3 would begin on its own, deferred and only before writes; begin_sqlite says it instead.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in pragmas:
        cursor.execute(pragma)
    cursor.close()


def begin_sqlite(connection: Connection, *, write: bool) -> None:
    """Begin a transaction for which SQLAlchemy has a connection of SQLite."""
    # A deferred transaction that reads and then writes fails at once under WAL when another one wrote in between.
    # Beside SQLAlchemy: one listener of a connection's events makes each of its statements a fifth slower.
    statement = "BEGIN IMMEDIATE" if write else "BEGIN"
    try:
        cast("sqlite3.Connection", connection.connection.driver_connection).execute(statement)
    except sqlite3.DatabaseError as error:
        kind = OperationalError if isinstance(error, sqlite3.OperationalError) else DatabaseError
        raise kind(statement, None, error) from error
