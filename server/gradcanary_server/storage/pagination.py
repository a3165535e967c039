"""Pagination by an opaque cursor: the sort key of the last row of a page.

A cursor is a position in the order, not a row: if that row moves or is deleted, no other row is skipped.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, Select, tuple_

from gradcanary_server.errors import invalid

MAX_CURSOR = 2_000
"""Characters: the longest sort key is the name of a run."""

_MAX_INT = 2**63 - 1
"""The largest integer that both databases can compare."""

_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


@dataclass(frozen=True)
class PageOrder:
    """The order of a list by ``columns``, all descending or all ascending, unique for each row.

    ``parameter`` is the name of the cursor in the request.
    """

    columns: tuple[ColumnElement[Any], ...]
    parameter: str = "before"
    is_ascending: bool = False

    def select(self, query: Select[Any], cursor: str | None) -> Select[Any]:
        """Return the query in this order, after a cursor; raises RequestError 422 if the cursor is of another list."""
        names = self._names()
        query = query.add_columns(*(column.label(name) for column, name in zip(self.columns, names, strict=True)))
        query = query.order_by(*(column.asc() if self.is_ascending else column.desc() for column in self.columns))
        if cursor is None:
            return query
        row, last = tuple_(*self.columns), tuple_(*self._read(cursor))
        return query.where(row > last if self.is_ascending else row < last)

    def page(
        self, connection: Connection, query: Select[Any], cursor: str | None, limit: int
    ) -> tuple[Sequence[RowMapping], str | None]:
        """Return the rows of a page and the cursor of the next page, None on the last one."""
        rows = connection.execute(self.select(query, cursor).limit(limit + 1)).mappings().all()
        return rows[:limit], self.cursor(rows[limit - 1]) if len(rows) > limit else None

    def cursor(self, row: RowMapping) -> str:
        """Return the cursor after a row of :meth:`select`."""
        text = json.dumps([row[name] for name in self._names()], separators=(",", ":"))
        return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")

    def _names(self) -> list[str]:
        return [f"sort_{number}" for number in range(len(self.columns))]

    def _read(self, cursor: str) -> list[object]:
        try:
            padded = cursor[:MAX_CURSOR].encode("ascii") + b"=" * (-len(cursor) % 4)
            values = json.loads(base64.urlsafe_b64decode(padded))
        except (ValueError, RecursionError):
            values = None
        kinds = [column.type.python_type for column in self.columns]
        is_complete = isinstance(values, list) and len(values) == len(kinds)
        if not is_complete or not all(_fits(value, kind) for value, kind in zip(values, kinds, strict=True)):
            raise invalid(f"{self.parameter} is the 'next' of an answer with the same order.", self.parameter)
        return list(values)


def _fits(value: object, kind: type) -> bool:
    if kind is str:
        return isinstance(value, str) and _UNSTORABLE.search(value) is None
    if kind is int:
        return type(value) is int and 0 <= value <= _MAX_INT
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]  # a number by now
