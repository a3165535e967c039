"""A copy of a store in one file, taken while the collector runs."""

from __future__ import annotations

import contextlib
import os
import shlex
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gradcanary_server import store_files
from gradcanary_server.errors import StoreError

DUMP = """\
PostgreSQL has its own program for this, which may run while collectors do:

    pg_dump --format=custom --file={file} {url}

and into an empty database: pg_restore --no-owner --dbname=URL {file}"""


@dataclass(frozen=True)
class Backup:
    """What a copy holds: so many runs, in tables of a revision."""

    file: Path
    size: int
    runs: int
    revision: str


def back_up(url: str, file: Path) -> Backup:
    """Copy the SQLite store at an address to a new file, see that it can be read, and return what it holds.

    It is the store of one moment, whatever is written meanwhile; nobody waits. Raises StoreError, also with the line to
    type for PostgreSQL; the file is there whole or not at all.
    """
    source = _source(url, file)
    if file.exists():
        raise StoreError(f"{file} is there already: name a new file.")
    part = file.with_name(f"{file.name}.part")
    try:
        os.close(os.open(part, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600))  # secrets of webhooks are in it
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
    """Return the file of the store; raises StoreError where there is none, or no file."""
    path = store_files.file_of(url)
    if path is None:
        raise StoreError(DUMP.format(file=shlex.quote(str(file)), url=shlex.quote(store_files.shown(url))))
    if not path.is_file():
        raise store_files.missing(url)
    return path


def _copy(source: Path, part: Path) -> None:
    with _opened(f"{source.resolve().as_uri()}?mode=rw") as store, _opened(part.resolve().as_uri()) as copy:
        store.execute("PRAGMA query_only = ON")
        store.backup(copy)
    with part.open("rb") as written:
        os.fsync(written.fileno())


def _read(part: Path) -> tuple[int, str]:
    """Return how many runs a copy has, and the revision of its tables; raises StoreError where it is not sound."""
    with _opened(f"{part.resolve().as_uri()}?mode=ro&immutable=1") as copy:
        said = copy.execute("PRAGMA quick_check(1)").fetchone()[0]
        if said != "ok":
            raise StoreError(f"The store is damaged ({said}), and so would be its copy: nothing was kept.")
        (runs,) = copy.execute("SELECT count(*) FROM run").fetchone()
        (revision,) = copy.execute("SELECT version_num FROM alembic_version").fetchone()
    return int(runs), str(revision)


@contextlib.contextmanager
def _opened(uri: str) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
        yield connection
