"""How much room the runs of a store take: what each one's measurements weigh, looked up once in a while."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, func, select

from gradcanary_server.database import Database
from gradcanary_server.notifications import timestamp
from gradcanary_server.schema import batch, fold_state, run, tile

FOR_S = 60.0
"""How long a count holds: it looks at every row of the measurements, of which a page asks each second."""


@dataclass(frozen=True)
class Room:
    """What was counted ``at`` (unix seconds): bytes of the store on disk, and of each run's measurements by run_id."""

    at: float
    store: int
    runs: dict[int, int]


class Storage:
    """Counts a store's room, and remembers it for a minute; safe to share between threads."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._counted: tuple[float, Room] | None = None

    def room(self) -> Room:
        """Return what the runs take, as it was about a minute ago; while somebody counts, others get the last count."""
        counted = self._counted
        if counted is not None and (time.monotonic() - counted[0] < FOR_S or self._lock.locked()):
            return counted[1]
        with self._lock:
            if self._counted is counted:
                room = self._count()
                self._counted = (time.monotonic(), room)
                return room
        return self.room()

    def _count(self) -> Room:
        with self._database.read() as connection:
            found = dict.fromkeys(connection.scalars(select(run.c.run_id)), 0)
            for query in _QUERIES:
                for row in connection.execute(query):
                    found[row[0]] = found.get(row[0], 0) + int(row[1])
            return Room(self._database.now(connection), self._database.size(connection), found)


# The length of a value is told by its row: neither database reads the bytes for it.
_QUERIES: tuple[Select[Any], ...] = tuple(
    select(table.c.run_id, func.sum(func.length(body))).group_by(table.c.run_id)
    for table, body in ((tile, tile.c.body), (batch, batch.c.body), (fold_state, fold_state.c.packed))
)


@dataclass(frozen=True)
class Weight:
    """A run as the API lists it; ``bytes`` is None of one that was not counted yet, ``step`` before the first one."""

    run: str
    bytes: int | None
    step: int | None
    last_seen: str
    archived: bool


def weights(connection: Connection, room: Room) -> list[Weight]:
    """Return all runs, the heaviest first."""
    columns = (run.c.run_id, run.c.name, run.c.step, run.c.last_seen, run.c.archived)
    found = [
        Weight(
            run=row.name,
            bytes=room.runs.get(row.run_id),
            step=row.step,
            last_seen=timestamp(row.last_seen),
            archived=row.archived,
        )
        for row in connection.execute(select(*columns))
    ]
    return sorted(found, key=lambda each: (-(each.bytes or 0), each.run))
