"""How much room the runs of a store take: what each one's measurements weigh, looked up once in a while."""

from __future__ import annotations

import logging
import math
import threading
import time
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, bindparam, func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from gradcanary_server.database import Database
from gradcanary_server.errors import RequestError
from gradcanary_server.run_names import IS_THERE
from gradcanary_server.schema import batch, fold_state, run, tile
from gradcanary_server.storage_shapes import WeightShape
from gradcanary_server.timestamps import timestamp

FOR_S = 60.0
"""How long a count holds: it looks at every row of the measurements, of which a page asks each second."""

FIRST_S = 3.0
"""How long the first who asks waits for it: of a store of gigabytes it takes longer, and comes when it is there."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Room:
    """What was counted ``at`` (unix seconds): bytes of the store on disk, and of each run's measurements by run_id."""

    at: float
    store: int
    runs: dict[int, int]


class Storage:
    """Counts a store's room in a thread of its own, and remembers it for a minute; safe to share between threads."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._counted: Room | None = None
        self._next = -math.inf
        self._ready = threading.Event()

    def room(self) -> Room:
        """Return what the runs take, as it was about a minute ago; before the first count no run is in it."""
        with self._lock:
            is_due = time.monotonic() >= self._next
            if is_due:
                self._next = math.inf  # until this count has ended
        if is_due:
            threading.Thread(target=self._count, name="gradcanary-storage", daemon=True).start()
        self._ready.wait(FIRST_S)
        if self._counted is not None:
            return self._counted
        with self._database.read() as connection:
            return Room(self._database.now(connection), self._database.size(connection), {})

    def _count(self) -> None:
        try:
            with self._database.read() as connection:
                runs = connection.scalars(select(run.c.run_id)).all()
            found = {run_id: self._weigh(run_id) for run_id in runs}
            with self._database.read() as connection:
                self._counted = Room(self._database.now(connection), self._database.size(connection), found)
        except (DBAPIError, PoolTimeoutError, RequestError) as error:
            logger.warning("the room of the runs could not be counted (%s)", type(error).__name__)
        finally:
            self._ready.set()
            self._next = time.monotonic() + FOR_S

    def _weigh(self, run_id: int) -> int:
        """Return the bytes of a run's measurements; in a reading transaction of its own, which holds up no checkpoint
        for longer than it takes."""
        with self._database.read() as connection:
            return sum(int(connection.execute(query, {"of": run_id}).scalar_one()) for query in _QUERIES)


# The length of a value is told by its row; its row, and not all of its bytes, is read for it.
_QUERIES: tuple[Select[Any], ...] = tuple(
    select(func.coalesce(func.sum(func.length(body)), 0)).where(table.c.run_id == bindparam("of"))
    for table, body in ((tile, tile.c.body), (batch, batch.c.body), (fold_state, fold_state.c.packed))
)


def weights(connection: Connection, room: Room) -> list[WeightShape]:
    """Return all runs, the heaviest first."""
    columns = (run.c.run_id, run.c.name, run.c.step, run.c.last_seen, run.c.archived)
    found: list[WeightShape] = [
        {
            "run": row.name,
            "bytes": room.runs.get(row.run_id),
            "step": row.step,
            "last_seen": timestamp(row.last_seen),
            "archived": row.archived,
        }
        for row in connection.execute(select(*columns).where(IS_THERE))
    ]
    return sorted(found, key=lambda each: (-(each["bytes"] or 0), each["run"]))
