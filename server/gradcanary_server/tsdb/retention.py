"""Disk space of the measurements: purge of deleted runs, raw retention, bytes per run.

The measurements of a deleted run may be gigabytes, so they are deleted in chunks and delay no writer. Raw samples are
deleted when they are too old, but a clock that is years ahead must delete nothing: if nothing has run for a day, by the
clock, no sample is deleted for another day and until a run was active. The store keeps that across restarts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection, Table, and_, delete, func, select, tuple_, union_all

from gradcanary_server.storage.database import Database
from gradcanary_server.storage.heartbeat import Heartbeat
from gradcanary_server.storage.runs import DELETION
from gradcanary_server.storage.schema import HEAVY, batch, counter, deleted_run, iter_runs, rule_state, run, tile
from gradcanary_server.storage.schema import stream as stream_table
from gradcanary_server.tsdb import tiles
from gradcanary_server.tsdb.tiles import STEPS, SampleStream

DOUBT_S = 86_400.0
"""Seconds: after a gap as long as this the clock is doubted as long."""

CHECKS = Heartbeat(2, DOUBT_S)


def doubted_until(connection: Connection, now: float) -> float | None:
    """Return the time before which no samples are deleted, None if the clock is not doubted."""
    since = CHECKS.since(connection, now)
    since = now if since is None else since
    last_seen = connection.execute(select(func.max(run.c.last_seen))).scalar_one()
    is_trusted = now >= since + DOUBT_S and last_seen is not None and last_seen >= since
    return None if is_trusted else since + DOUBT_S


CHUNK_ROWS = 500
"""Rows that one transaction deletes."""

_DELETIONS = select(counter.c.last).where(counter.c.name == DELETION)


def count_deletions(connection: Connection) -> int:
    """Return a number that rises with each deletion of a run: only then is a search for orphans worth its time."""
    return connection.execute(_DELETIONS).scalar_one_or_none() or 0


def orphaned_tables(connection: Connection) -> list[tuple[Table, int]]:
    """Return each table that may have measurements of deleted runs, and the run_id; that names the run is the last.

    A plan of the compactor is stored under the locked streams of its run, and only if they are as they were: so
    ``stream`` comes before ``tile``, which is then written no more.
    """
    deleted = connection.scalars(select(deleted_run.c.run_id)).all()
    return [(table, run_id) for table in (*HEAVY, deleted_run) for run_id in deleted]


def purge_chunk(connection: Connection, table: Table, run_id: int) -> bool:
    """Delete a chunk of a deleted run in a table; return True if there may be more."""
    keys = [column for column in table.primary_key.columns if column is not table.c.run_id]
    where = table.c.run_id == run_id
    rows = connection.execute(select(*keys or [table.c.run_id]).where(where).limit(CHUNK_ROWS)).all()
    if keys:
        where &= tuple_(*keys).in_([tuple(row) for row in rows])
    connection.execute(delete(table).where(where))
    return len(rows) == CHUNK_ROWS


def expired_streams(connection: Connection, older_than: float) -> list[tuple[int, int, int, int]]:
    """Return the streams with raw samples stored before a time: run_id, launch, interval, last such tile."""
    return [each for runs in iter_runs(connection, stream_table) for each in _expired(connection, runs, older_than)]


def _expired(connection: Connection, runs: Sequence[int], older_than: float) -> Iterator[tuple[int, int, int, int]]:
    keys = (tile.c.run_id, tile.c.launch_no, tile.c.every)
    old = and_(tile.c.run_id.in_(runs), tile.c.level == 0, tile.c.kind == STEPS, tile.c.stored < older_than)
    query = select(*keys, func.max(tile.c.range_no).label("last")).where(old).group_by(*keys)
    last_ranges = {(row.run_id, row.launch_no, row.every): row.last for row in connection.execute(query)}
    for run_id, stream in tiles.streams_of(connection, {run_id for run_id, _, _ in last_ranges}):
        last = last_ranges.get((run_id, stream.launch_no, stream.every))
        if last is not None and stream.raw_start < _raw_end(stream, last):
            yield run_id, stream.launch_no, stream.every, last


def drop_raw_chunk(connection: Connection, run_id: int, launch_no: int, every: int, last: int) -> bool:
    """Delete a chunk of the rolled-up raw samples of a stream up to a tile; return True if there are more."""
    stream = tiles.read_stream(connection, run_id, launch_no, every, lock=True)
    if stream is None:
        return False
    span, until = stream.span(0), _raw_end(stream, last)
    if until <= stream.raw_start:
        return False
    where = (tile.c.run_id == run_id) & (tile.c.level == 0) & (tile.c.launch_no == launch_no) & (tile.c.every == every)
    range_no = stream.raw_start // span
    rows_of_range = connection.execute(select(func.count()).where(where, tile.c.range_no == range_no)).scalar_one()
    end = min(until, (range_no + max(CHUNK_ROWS // max(rows_of_range, 1), 1)) * span)
    tiles.delete_tiles(connection, run_id, stream, 0, stream.raw_start, end)
    tiles.write_stream(connection, run_id, replace(stream, raw_start=end))
    return end < until


def _raw_end(stream: SampleStream, last: int) -> int:
    """Return the step before which raw samples are deleted; the last tile stays, because pages show its values."""
    span = stream.span(0)
    return min((last + 1) * span, stream.end(1), (stream.sealed_until - 1) // span * span)


USAGE_CACHE_S = 60.0
"""A count reads every row of the measurements, and an open page needs it each second."""

_BODIES = ((tile, tile.c.body), (batch, batch.c.body), (rule_state, rule_state.c.packed))

# A row has the length of its value: the database does not read the bytes.
_BYTES = union_all(
    *(select(table.c.run_id, func.sum(func.length(body))).group_by(table.c.run_id) for table, body in _BODIES)
)


@dataclass(frozen=True)
class StorageUse:
    """A count ``at`` unix seconds: bytes of the store on disk, and of each run's measurements by run_id."""

    at: float
    store: int
    runs: dict[int, int]


class DiskUsage:
    """Counts the bytes of a store; safe to share between threads."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._cached: StorageUse | None = None
        self._expires = 0.0

    def use(self) -> StorageUse:
        """Return a count of the last minute; concurrent callers wait for one count."""
        with self._lock:
            if self._cached is None or time.monotonic() >= self._expires:
                with self._database.read() as connection:
                    self._cached = StorageUse(
                        self._database.now(connection), self._database.size(connection), _count_bytes(connection)
                    )
                self._expires = time.monotonic() + USAGE_CACHE_S
            return self._cached


def _count_bytes(connection: Connection) -> dict[int, int]:
    sizes = dict.fromkeys(connection.scalars(select(run.c.run_id)), 0)
    for run_id, size in connection.execute(_BYTES):
        sizes[run_id] = sizes.get(run_id, 0) + int(size)
    return sizes
