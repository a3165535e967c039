"""``gradcanary token``: tokens made, listed and revoked in the store itself, so that there can be a first one."""

from __future__ import annotations

import contextlib
import getpass
from collections.abc import Callable, Iterator

from sqlalchemy import Connection, inspect
from sqlalchemy.exc import DBAPIError

from gradcanary_server import audit, store_files, tokens
from gradcanary_server.database import Database
from gradcanary_server.errors import RequestError, StoreError
from gradcanary_server.outages import unavailable
from gradcanary_server.schema import token
from gradcanary_server.timestamps import timestamp
from gradcanary_server.tokens import Token

Tell = Callable[[str], None]


def create(db: str, scope: str, name: str, days: float | None, tell: Tell, remark: Tell) -> None:
    """Make a token and tell its secret, alone on a line, and remark what it opens; raises CollectorError.

    A store that is not there is made: the first token may come before the first collector.
    """
    with _opened(db, may_make=True) as (database, connection, is_new):
        now = database.now(connection)
        made, secret = tokens.create(connection, name, scope, days, now)
        _note(connection, now, "POST /tokens", f"{made.id} {made.name} ({made.scope})")
    store = f"the store at {store_files.shown(db)}"
    remark(
        f"{store} is new; of a collector that runs elsewhere, {store_files.NAMED}" if is_new else f"it opens {store}"
    )
    tell(secret)


def show(db: str, tell: Tell) -> None:
    """Tell of every token in a line; raises CollectorError."""
    with _opened(db) as (database, connection, _):
        now, found = database.now(connection), tokens.every(connection)
    if not found:
        tell(f"No tokens in {store_files.shown(db)}: gradcanary token create --scope admin --name YOU")
        return
    rows = [("ID", "NAME", "SCOPE", "CREATED (UTC)", "LAST USED", "UNTIL"), *(_row(each, now) for each in found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        tell("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def revoke(db: str, number: int, tell: Tell) -> None:
    """End a token; raises CollectorError."""
    with _opened(db) as (database, connection, _):
        now = database.now(connection)
        ended = tokens.revoke(connection, number, now)
        _note(connection, now, f"DELETE /tokens/{number}", f"{ended.name} ({ended.scope})")
    tell(f"{ended.name} ({ended.scope}) opens nothing any more; collectors that run know it within 5 seconds.")


@contextlib.contextmanager
def _opened(db: str, *, may_make: bool = False) -> Iterator[tuple[Database, Connection, bool]]:
    """Yield a store, beside the collector that may have it open, with a transaction, and whether it is new."""
    file = store_files.file_of(db)
    if file is not None and not file.exists() and not may_make:
        raise store_files.missing(db)
    with contextlib.closing(Database(db)) as database:
        try:
            is_new = _is_new(database)
            if is_new and not may_make:
                raise store_files.missing(db)
            if is_new:
                with database.claimed():
                    database.migrate()
            with database.write() as connection:
                yield database, connection, is_new
        except DBAPIError as error:
            raise unavailable(error) or StoreError(f"The database failed: {error.orig}") from error
        except RequestError as error:
            raise StoreError(error.message) from error


def _is_new(database: Database) -> bool:
    """Tell whether there are no tables yet. Those of an older version are made by the next collector that starts."""
    with database.read() as connection:
        found = inspect(connection)
        if found.has_table(token.name):
            return False
        if found.has_table("run"):
            older = "This store was written by an older gradcanary: start 'gradcanary up' once, then try again."
            raise StoreError(older)
    return True


def _note(connection: Connection, now: float, what: str, on_what: str) -> None:
    try:
        who = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container's user may have no name
        who = "?"
    audit.write(connection, now, f"{who} at a terminal", "", what, on_what)


def _row(token: Token, now: float) -> tuple[str, ...]:
    until = "revoked" if token.revoked else "for ever" if token.expires is None else _day(token.expires)
    if until != "revoked" and not token.holds(now):
        until = "expired"
    used = "never" if token.last_used is None else timestamp(token.last_used)[:16].replace("T", " ")
    return str(token.id), token.name, token.scope, _day(token.created), used, until


def _day(moment: float) -> str:
    return timestamp(moment)[:10]
