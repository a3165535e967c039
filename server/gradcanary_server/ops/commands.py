"""The commands that work in a store at a terminal: ``gradcanary token``, ``backup`` and ``migrate``."""

import contextlib
import getpass
from collections.abc import Callable, Iterator
from pathlib import Path

from sqlalchemy import Connection, inspect, select

from gradcanary.wording import count
from gradcanary_server.auth import tokens
from gradcanary_server.auth.tokens import Token
from gradcanary_server.clock import timestamp
from gradcanary_server.errors import RequestError, StoreError
from gradcanary_server.storage import citus, maintenance
from gradcanary_server.storage.database import Database
from gradcanary_server.storage.schema import collector_heartbeat, token

PrintLine = Callable[[str], None]


def backup_command(url: str, file: Path) -> str:
    """Copy an SQLite store to a new file; raises StoreError, for PostgreSQL with the command to use instead."""
    made = maintenance.backup_sqlite(url, file)
    runs = count(made.runs, "run")
    return f"{made.file} holds {runs} in {made.size / 2**20:,.1f} MiB; its tables are of revision {made.revision}"


def migrate_command(url: str, *, with_citus: bool) -> str:
    """Migrate the tables of a store to this version, and distribute them over a cluster; raises StoreError."""
    with contextlib.closing(Database(url)) as database, database.exclusive():
        before, now = database.migrate()
        summary = f"the tables are of revision {now}" + ("" if before == now else f", and were of {before or 'none'}")
        if not with_citus:
            return summary
        with database.setup_transaction() as connection:
            spread = citus.distribute(connection)
        with database.write() as connection:
            citus.set_up_nodes(connection)
        return f"{summary}; spread over the cluster: {', '.join(spread) or 'nothing that was not before'}"


def create_token(
    db: str, scope: str, name: str, days: float | None, print_line: PrintLine, print_remark: PrintLine
) -> None:
    """Create a token, print its secret alone on a line, and a remark about its store; raises CollectorError.

    A store that does not exist is created: the first token may come before the first collector.
    """
    with _open_store(db, may_create=True) as (database, is_new):
        if is_new:
            with database.exclusive():
                database.migrate()
        with database.write() as connection:
            now = database.now(connection)
            created, secret = tokens.create_token(connection, name, scope, days, now)
            _audit(connection, now, "POST /tokens", f"{created.id} {created.name} ({created.scope})")
    store = f"the store at {maintenance.display_address(db)}"
    elsewhere = f"{store} is new; of a collector that runs elsewhere, {maintenance.NAMED}"
    print_remark(elsewhere if is_new else f"it opens {store}")
    print_line(secret)


def is_used(db: str) -> bool:
    """Return True if a collector has ever had this store open; raises CollectorError."""
    if not _exists(db):
        return False
    with _open_store(db, may_create=True) as (database, is_new):
        if is_new:
            return False
        with database.read() as connection:
            return connection.execute(select(collector_heartbeat.c.heartbeat_id)).first() is not None


def explain_unused(db: str) -> str:
    """Return the reason why no token is created in a store that no option names and no collector has used."""
    place = maintenance.display_address(db)
    return f"No collector has used a store at {place}, so none would take a token made there: {maintenance.NAMED}."


def list_tokens(db: str, print_line: PrintLine) -> None:
    """Print each token on a line; raises CollectorError."""
    with _open_store(db) as (database, _), database.read() as connection:  # a list does not keep writers waiting
        now, stored = database.now(connection), tokens.all_tokens(connection)
    if not stored:
        print_line(f"No tokens in {maintenance.display_address(db)}: gradcanary token create --scope admin --name YOU")
        return
    rows = [("ID", "NAME", "SCOPE", "CREATED (UTC)", "LAST USED", "EXPIRES"), *(_cells(row, now) for row in stored)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print_line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def revoke_token(db: str, number: int, print_line: PrintLine) -> None:
    """Revoke a token; raises CollectorError."""
    with _open_store(db) as (database, _), database.write() as connection:
        now = database.now(connection)
        ended = tokens.revoke_token(connection, number, now)
        _audit(connection, now, f"DELETE /tokens/{number}", f"{ended.name} ({ended.scope})")
    print_line(f"{ended.name} ({ended.scope}) opens nothing any more; collectors that run know it within 5 seconds.")


@contextlib.contextmanager
def _open_store(db: str, *, may_create: bool = False) -> Iterator[tuple[Database, bool]]:
    """Yield a store of this version, and True if it has no tables yet.

    Raises CollectorError, also for errors in the block.
    """
    if not may_create and not _exists(db):
        raise maintenance.missing_store_error(db)
    with contextlib.closing(Database(db)) as database:
        try:
            with database.read() as connection:
                is_new = not inspect(connection).has_table(token.name)
                if not is_new:
                    database.check_revision(connection)
            if is_new and not may_create:
                raise maintenance.missing_store_error(db)
            yield database, is_new
        except RequestError as error:
            raise StoreError(error.message) from error


def _exists(db: str) -> bool:
    """Return False if the SQLite file does not exist: opening it would create it."""
    file = maintenance.sqlite_file(db)
    return file is None or file.exists()


def _audit(connection: Connection, now: float, action: str, target: str) -> None:
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container's user may have no name
        user = "?"
    tokens.write_audit_record(connection, now, f"{user} at a terminal", "", action, target)


def _cells(row: Token, now: float) -> tuple[str, ...]:
    created = timestamp(row.created)[:10]
    until = "revoked" if row.revoked else "never" if row.expires is None else timestamp(row.expires)[:10]
    if until != "revoked" and not row.is_valid(now):
        until = "expired"
    used = "never" if row.last_used is None else timestamp(row.last_used)[:16].replace("T", " ")
    return str(row.id), row.name, row.scope, created, used, until
