"""Which runs a list shows, in which order, and where its next page begins."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import ColumnElement, Select, func, or_, select, tuple_

from gradcanary_server.database import Record
from gradcanary_server.errors import invalid
from gradcanary_server.run_names import IS_THERE
from gradcanary_server.schema import MAX_ID, run

State = Literal["live", "stale", "silent", "finished", "crashed"]
Sort = Literal["heard", "begun", "name"]

OF_THE_CLOCK = ("live", "stale", "silent")
"""States that no column holds: they are told from when a run was heard of."""


@dataclass(frozen=True)
class Key:
    """What a list is ordered by, and then by the number of the run; ``read`` makes a value of its text."""

    column: ColumnElement[Any]
    is_rising: bool
    read: Callable[[str], Any]


KEYS: dict[Sort, Key] = {
    "heard": Key(run.c.last_seen, is_rising=False, read=float),
    "begun": Key(run.c.created, is_rising=False, read=float),
    "name": Key(func.lower(run.c.name), is_rising=True, read=str),
}


@dataclass(frozen=True)
class Choice:
    """Which runs: those that are in the archive or the others, by a part of their names, by words that are each in the
    name, a tag or the note, by ``state``; ``limit`` of them after a place that :meth:`place` returned."""

    archived: bool = False
    named: str = ""
    limit: int = 200
    after: str | None = None
    text: str = ""
    state: State | None = None
    sort: Sort = "heard"

    def keys(self) -> Select[Any]:
        """Return the query for ``key`` and ``run_id`` of the runs in their order, after the place.

        Of a state of the clock the ones that have not ended are meant: which of them have it is for the caller to tell.
        Raises RequestError 422 for a place that is none.
        """
        key = KEYS[self.sort]
        pair = key.column, run.c.run_id
        query = select(key.column.label("key"), run.c.run_id).where(*self._conditions())
        if self.after is not None:
            here, there = tuple_(*pair), tuple_(*self._read(self.after))
            query = query.where(here > there if key.is_rising else here < there)
        return query.order_by(*(each.asc() if key.is_rising else each.desc() for each in pair))

    def place(self, row: Record) -> str:
        """Return the place behind a row of :meth:`keys`."""
        return f"{row.key}~{row.run_id}"

    def _conditions(self) -> list[ColumnElement[bool]]:
        found = [
            IS_THERE,
            run.c.archived.is_(self.archived),
            *(_holds(word) for word in self.text.lower().replace("\0", " ").split()),
        ]
        if self.named:
            found.append(func.lower(run.c.name).contains(self.named.lower(), autoescape=True))
        if self.state is not None:
            found.append(run.c.ended.is_(None) if self.state in OF_THE_CLOCK else run.c.ended == self.state)
        return found

    def _read(self, text: str) -> tuple[object, int]:
        value, _, number = text.rpartition("~")
        try:
            key, run_id = KEYS[self.sort].read(value), int(number)
        except ValueError:
            key, run_id = math.nan, 0
        if not (math.isfinite(key) if isinstance(key, float) else "\0" not in key) or not 0 <= run_id <= MAX_ID:
            raise invalid("after is what a list of runs has as next.", "after")
        return key, run_id


def _holds(word: str) -> ColumnElement[bool]:
    """Return whether a word is in a run's name, one of its tags or its note, in capitals or not."""
    as_json = json.dumps(word, ensure_ascii=False)[1:-1]
    texts = ((run.c.name, word), (run.c.tags, as_json), (run.c.note, word))
    return or_(*(func.lower(column).contains(text, autoescape=True) for column, text in texts))
