"""Store URLs, migrations with Alembic, and backups."""

from __future__ import annotations

import contextlib
import os
import shlex
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, make_url
from sqlalchemy.exc import ArgumentError

from gradcanary_server.errors import StoreError, without_password

NAMED = "name the collector's folder with --data DIR, or its database with --db URL"


def sqlite_file(url: str) -> Path | None:
    """Return the file of an SQLite store, which may be missing, or None for PostgreSQL; raises StoreError."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:  # ValueError: of a port that is no number
        raise StoreError("--db is not a database URL: sqlite:////srv/gradcanary.db, for example.") from error
    return Path(str(parsed.database)) if parsed.get_backend_name() == "sqlite" else None


def display_address(url: str) -> str:
    """Return the file of a store, or its URL without the password."""
    file = sqlite_file(url)
    if file is not None:
        return str(file)
    return f"postgresql://{without_password(url).partition('://')[2]}"  # PostgreSQL's programs know no "+psycopg"


def can_be_intercepted(url: str, environ: Mapping[str, str]) -> bool:
    """Return True if a store is on another machine, and nothing checks that it is that machine.

    ``sslmode=disable`` is a decision of the operator: a network of this machine's containers.
    """
    if sqlite_file(url) is not None:
        return False
    parsed = make_url(url)
    options = parsed.normalized_query
    hosts = [*([parsed.host] if parsed.host else []), *options.get("host", ())]
    modes = options.get("sslmode") or (environ.get("PGSSLMODE"),)
    return modes[-1] not in ("verify-full", "disable") and not all(map(_is_here, hosts))


def _is_here(host: str) -> bool:
    """Return True for this machine's own names, and for the folder of a socket."""
    try:
        return host.startswith("/") or host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def missing_store_error(url: str) -> StoreError:
    return StoreError(f"There is no store at {display_address(url)}: {NAMED}.")


def revision(connection: Connection) -> str | None:
    """Return the revision of the tables, None without tables."""
    return MigrationContext.configure(connection).get_current_revision()


@lru_cache(maxsize=1)
def head_revision() -> str:
    return revisions()[0]


def revisions() -> list[str]:
    """Return the revisions that this version knows, its own first."""
    return [script.revision for script in ScriptDirectory.from_config(alembic_config()).walk_revisions()]


def upgrade(connection: Connection, target: str = "head") -> tuple[str | None, str]:
    """Migrate the tables to a revision; return their revision before (None = no tables) and after.

    Raises Alembic's CommandError if a newer version wrote them.
    """
    settings = alembic_config()
    settings.attributes["connection"] = connection
    before = revision(connection)
    command.upgrade(settings, target)
    return before, str(revision(connection))


def alembic_config() -> Config:
    settings = Config()
    settings.set_main_option("script_location", "gradcanary_migrations:")
    settings.set_main_option("path_separator", "os")
    return settings


DUMP = """\
PostgreSQL has its own program for this, which may run while collectors do:

    pg_dump --format=custom --file={file} {url}

and into an empty database: pg_restore --no-owner --dbname=URL {file}"""


@dataclass(frozen=True)
class Backup:
    """The file of a backup, its bytes, its runs and the revision of its tables."""

    file: Path
    size: int
    runs: int
    revision: str


def backup_sqlite(url: str, file: Path) -> Backup:
    """Copy an SQLite store to a new file and check the copy.

    The copy is one snapshot, and no writer waits for it. The file appears complete or not at all. Raises StoreError,
    for PostgreSQL with the command to use instead.
    """
    source = _source(url, file)
    if file.exists():
        raise StoreError(f"{file} is there already: name a new file.")
    part = file.with_name(f"{file.name}.part")
    try:
        os.close(os.open(part, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600))  # it contains the secrets of webhooks
        _copy(source, part)
        runs, revision = _read(part)
        part.replace(file)
    except sqlite3.Error as error:
        raise StoreError(f"{source} cannot be copied to {file} ({error}): nothing was kept.") from error
    except OSError as error:
        raise StoreError(f"{file} cannot be written ({error.strerror}): choose another place.") from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink()
    return Backup(file, file.stat().st_size, runs, revision)


def _source(url: str, file: Path) -> Path:
    """Return the file of the store; raises StoreError for PostgreSQL and for a missing file."""
    path = sqlite_file(url)
    if path is None:
        raise StoreError(DUMP.format(file=shlex.quote(str(file)), url=shlex.quote(display_address(url))))
    if not path.is_file():
        raise missing_store_error(url)
    return path


def _copy(source: Path, part: Path) -> None:
    with _opened(f"{source.resolve().as_uri()}?mode=rw") as store, _opened(part.resolve().as_uri()) as copy:
        store.execute("PRAGMA query_only = ON")
        store.backup(copy)
    with part.open("rb") as written:
        os.fsync(written.fileno())


def _read(part: Path) -> tuple[int, str]:
    """Return the number of runs and the revision of a copy; raises StoreError if it is damaged."""
    with _opened(f"{part.resolve().as_uri()}?mode=ro&immutable=1") as copy:
        result = copy.execute("PRAGMA quick_check(1)").fetchone()[0]
        if result != "ok":
            raise StoreError(f"The store is damaged ({result}), and so would be its copy: nothing was kept.")
        (runs,) = copy.execute("SELECT count(*) FROM run").fetchone()
        (revision,) = copy.execute("SELECT version_num FROM alembic_version").fetchone()
    return int(runs), str(revision)


@contextlib.contextmanager
def _opened(uri: str) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
        yield connection
