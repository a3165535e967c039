"""Statements of every batch, which SQLite's driver executes itself: SQLAlchemy's own work takes four times as long."""

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar, cast

from sqlalchemy import Boolean, Connection, Executable, Insert
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.compiler import SQLCompiler

Parameters = Mapping[str, object]
Value = TypeVar("Value")


class Prepared:
    """A statement of SQLAlchemy Core without defaults and types that Python computes, for many executions.

    An update sets the columns that its parameters name. PostgreSQL gets it from SQLAlchemy. Raises ValueError for an
    insert into a table whose columns have defaults in Python, which the driver does not know.
    """

    def __init__(self, statement: Executable) -> None:
        self._statement = statement
        if isinstance(statement, Insert) and any(each.default is not None for each in statement.table.columns):
            raise ValueError(f"{statement.table.name} has defaults that only SQLAlchemy fills in")
        columns = enumerate(getattr(statement, "selected_columns", ()))
        self._booleans = [place for place, column in columns if isinstance(column.type, Boolean)]
        self._compiled = lru_cache(maxsize=64)(self._compile)

    def rows(self, connection: Connection, parameters: Parameters) -> Sequence[Sequence[Any]]:
        """Return all rows of a query, without the names of their columns."""
        if connection.dialect.name != "sqlite":
            return connection.execute(self._statement, dict(parameters)).all()
        rows = [list(row) for row in self._run(connection, [parameters], lambda cursor: cursor.fetchall())]
        for row in rows:
            for place in self._booleans:  # numbers in SQLite
                row[place] = None if row[place] is None else bool(row[place])
        return rows

    def change(self, connection: Connection, *parameters: Parameters) -> int:
        """Execute it once with each of these parameters; return the number of changed rows."""
        if connection.dialect.name != "sqlite":
            one_or_all = dict(parameters[0]) if len(parameters) == 1 else [*map(dict, parameters)]
            return connection.execute(self._statement, one_or_all).rowcount
        return self._run(connection, parameters, lambda cursor: cursor.rowcount)

    def _run(
        self, connection: Connection, parameters: Sequence[Parameters], read: Callable[[sqlite3.Cursor], Value]
    ) -> Value:
        """Execute it by the driver, read its cursor, and raise the errors of both as SQLAlchemy does."""
        text, names, own = self._compiled(tuple(parameters[0]))
        driver = cast("sqlite3.Connection", connection.connection.driver_connection)
        execute: Callable[..., sqlite3.Cursor] = driver.execute if len(parameters) == 1 else driver.executemany
        values = [[each[name] if name in each else own[name] for name in names] for each in parameters]
        try:
            return read(execute(text, values[0] if len(values) == 1 else values))
        except sqlite3.Error as error:
            raise DBAPIError.instance(text, None, error, sqlite3.Error, hide_parameters=True) from error

    def _compile(self, names: tuple[str, ...]) -> tuple[str, Sequence[str], Parameters]:
        """Return the text for parameters of these names, the names of all in their order, and its own values."""
        compiled = self._statement.compile(dialect=sqlite.dialect(), column_keys=[*names])  # type: ignore[attr-defined]
        if "POSTCOMPILE" in compiled.string:
            raise ValueError("a list as a parameter is expanded by SQLAlchemy only")
        own = {name: value for name, value in compiled.params.items() if value is not None}
        return compiled.string, cast("SQLCompiler", compiled).positiontup or (), own
