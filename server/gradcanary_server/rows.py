"""One row written by its key, in the words of each SQL dialect."""

from collections.abc import Callable, Mapping
from functools import lru_cache

from sqlalchemy import Connection, Table, Update, bindparam, update
from sqlalchemy.dialects import postgresql, sqlite

_INSERT: dict[str, Callable[[Table], sqlite.Insert | postgresql.Insert]] = {
    "sqlite": sqlite.insert,
    "postgresql": postgresql.insert,
}


def insert_new(connection: Connection, table: Table, values: Mapping[str, object]) -> bool:
    """Insert a row unless there is one of its key; tell whether it is new.

    Waits for another transaction that is inserting the same, which it then sees.
    """
    row = _INSERT[connection.dialect.name](table).values(**values).on_conflict_do_nothing()
    return connection.execute(row.returning(*table.primary_key)).first() is not None


def change(connection: Connection, table: Table, key: Mapping[str, object], values: Mapping[str, object]) -> int:
    """Set columns of the rows that a key names; return how many rows there are."""
    named = {f"at_{column}": value for column, value in key.items()}
    return connection.execute(_change(table, tuple(key)), {**named, **values}).rowcount


@lru_cache(maxsize=64)
def _change(table: Table, key: tuple[str, ...]) -> Update:
    # Made once: to put statements together anew for each batch took longer than to carry them out.
    return update(table).where(*(table.c[column] == bindparam(f"at_{column}") for column in key))
