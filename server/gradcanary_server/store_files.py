"""Where a store lies, for commands that work on it beside its collector, and must not make another one instead."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from gradcanary_server.errors import StoreError

NAMED = "name the collector's folder with --data DIR, or its database with --db URL"


def file_of(url: str) -> Path | None:
    """Return the file of an SQLite store, there or not, None for PostgreSQL; raises StoreError."""
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise StoreError("--db is not a database URL: sqlite:////srv/gradcanary.db, for example.") from error
    return Path(str(parsed.database)) if parsed.get_backend_name() == "sqlite" else None


def shown(url: str) -> str:
    """Return where a store is, without a password: a file, or an address that can be typed."""
    file = file_of(url)
    if file is not None:
        return str(file)
    parsed = make_url(url)
    query = {key: value for key, value in parsed.query.items() if key != "password"}
    host, port, name = parsed.host, parsed.port, parsed.database
    known = URL.create("postgresql", parsed.username, None, host, port, name, query)  # set() would keep the password
    return known.render_as_string()


def missing(url: str) -> StoreError:
    """Return the error for a place where no store is."""
    return StoreError(f"There is no store at {shown(url)}: {NAMED}.")
