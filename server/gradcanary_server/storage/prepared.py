"""Statements of every batch, which SQLite's driver executes itself: SQLAlchemy's own work takes four times as long."""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

from sqlalchemy import Boolean, Connection, Executable
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.compiler import SQLCompiler

Parameters = Mapping[str, object]


class _Compiled(NamedTuple):
    """The text of a statement, the names of its parameters in their order, those with a value of their own, and the
    places of its boolean columns, which SQLite stores as numbers."""

    text: str
    names: tuple[str, ...]
    own: Parameters
    booleans: tuple[int, ...]

    def values(self, parameters: Parameters) -> list[object]:
        own = self.own
        return [parameters[name] if name in parameters else own[name] for name in self.names]


class Prepared:
    """A statement of SQLAlchemy Core without defaults and types that Python computes, for many executions.

    An update sets the columns that its parameters name. PostgreSQL gets it from SQLAlchemy.
    """

    def __init__(self, statement: Executable) -> None:
        self._statement = statement
        self._by_names: dict[tuple[str, ...], _Compiled] = {}

    def rows(self, connection: Connection, parameters: Parameters) -> Sequence[Sequence[Any]]:
        """Return all rows of a query, without the names of their columns."""
        if connection.dialect.name != "sqlite":
            return connection.execute(self._statement, dict(parameters)).all()
        compiled = self._compiled(parameters)
        with _raised(compiled.text):
            rows = _driver(connection).execute(compiled.text, compiled.values(parameters)).fetchall()
        return [_with_booleans(row, compiled.booleans) for row in rows] if compiled.booleans else rows

    def change(self, connection: Connection, *parameters: Parameters) -> int:
        """Execute it once with each of these parameters; return the number of changed rows."""
        if connection.dialect.name != "sqlite":
            one = dict(parameters[0]) if len(parameters) == 1 else [*map(dict, parameters)]
            return connection.execute(self._statement, one).rowcount
        compiled = self._compiled(parameters[0])
        with _raised(compiled.text):
            if len(parameters) == 1:
                return _driver(connection).execute(compiled.text, compiled.values(parameters[0])).rowcount
            return _driver(connection).executemany(compiled.text, map(compiled.values, parameters)).rowcount

    def _compiled(self, parameters: Parameters) -> _Compiled:
        names = tuple(parameters)
        compiled = self._by_names.get(names)
        if compiled is None:
            compiled = self._by_names[names] = self._compile(names)
        return compiled

    def _compile(self, names: tuple[str, ...]) -> _Compiled:
        compiled = cast("SQLCompiler", self._statement.compile(dialect=sqlite.dialect(), column_keys=[*names]))  # type: ignore[attr-defined]
        columns = enumerate(getattr(self._statement, "selected_columns", ()))
        booleans = tuple(place for place, column in columns if isinstance(column.type, Boolean))
        own = {name: value for name, value in compiled.params.items() if value is not None and name not in names}
        return _Compiled(compiled.string, tuple(compiled.positiontup or ()), own, booleans)


def _driver(connection: Connection) -> sqlite3.Connection:
    return cast("sqlite3.Connection", connection.connection.driver_connection)


@contextmanager
def _raised(text: str) -> Iterator[None]:
    """Raise the driver's errors as SQLAlchemy does."""
    try:
        yield
    except sqlite3.Error as error:
        raise DBAPIError.instance(text, None, error, sqlite3.Error, hide_parameters=True) from error


def _with_booleans(row: Sequence[Any], places: Sequence[int]) -> Sequence[Any]:
    values = list(row)
    for place in places:
        values[place] = values[place] if values[place] is None else bool(values[place])
    return values
