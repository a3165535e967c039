"""How much a store is asked: for what must not grow with what is in it."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import event

from gradcanary_server.storage.database import Database
from gradcanary_server.storage.prepared import Prepared


@dataclass
class Asked:
    """The statements of a block, the rows that they returned or changed, the most parameters of one, and the texts of
    those that SQLAlchemy executed."""

    statements: int = 0
    rows: int = 0
    parameters: int = 0
    texts: list[str] = field(default_factory=list)


@contextmanager
def counted(database: Database) -> Iterator[Asked]:
    """Count what a store is asked inside the block, whatever the thread."""
    asked = Asked()

    def returned(_cursor: object, row: Any) -> Any:
        asked.rows += 1
        return row

    def before(_connection: object, cursor: Any, statement: str, parameters: Any, *_others: object) -> None:
        asked.statements += 1
        asked.texts.append(statement)
        asked.parameters = max(asked.parameters, len(parameters))
        if isinstance(cursor, sqlite3.Cursor):  # it does not know how many rows there are
            cursor.row_factory = returned

    def after(_connection: object, cursor: Any, *_others: object) -> None:
        asked.rows += max(cursor.rowcount, 0)

    run = Prepared._run

    def driven(statement: Prepared, *arguments: Any) -> Any:
        result = run(statement, *arguments)
        asked.statements += 1
        asked.rows += len(result) if isinstance(result, list) else max(result, 0)
        return result

    event.listen(database._engine, "before_cursor_execute", before)
    event.listen(database._engine, "after_cursor_execute", after)
    Prepared._run = driven  # type: ignore[method-assign]  # what SQLite's driver executes has no events
    try:
        yield asked
    finally:
        Prepared._run = run  # type: ignore[method-assign]
        event.remove(database._engine, "before_cursor_execute", before)
        event.remove(database._engine, "after_cursor_execute", after)
