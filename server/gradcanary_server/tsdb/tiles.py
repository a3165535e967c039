"""Tiles and streams in the store: keys, reads, writes, cache.

A *stream* is the samples of one launch at one interval. Its level 0 holds samples, 256 in a tile; level k holds
aggregates of 8 ** k samples each. A ``steps`` tile has the steps; the planes of ``state`` and of each stat, 128 layers
in a tile, have the same rows. Metrics are a stream of their own, without planes. Tiles are written once.
"""

import json
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, Select, bindparam, delete, func, insert, or_, select

from gradcanary_server.caches import Cache, split_cache_budget
from gradcanary_server.storage.schema import stream as stream_table
from gradcanary_server.storage.schema import tile, update_row
from gradcanary_server.tsdb.rollup import FACTOR
from gradcanary_server.tsdb.tile_codec import Arrays, compact, pack, unpack

TILE_ROWS = 256
"""Samples or aggregates of a tile, at most."""

TILE_LAYERS = 128
"""Layers of a tile, at most."""

TOP = 7
"""The highest level: its aggregates cover two million samples."""

STEPS, STATE, METRICS = "steps", "state", "metrics"
ABSENT = 255
"""The state of a layer that a step's layer set did not have."""

METRIC_STREAM = 0
"""The ``every`` of the stream of metrics."""

_MAX_SINGLE_READS = 2
"""Tiles missing in the cache that are read by their keys; for more, one query reads the whole range."""

_MAX_RANGE_NO = 2**31 - 1


@dataclass(frozen=True)
class SampleStream:
    """A stream, and its end in tiles and in each rollup, in steps."""

    launch_no: int
    every: int
    sealed_until: int = 0
    raw_start: int = 0
    rollup_ends: tuple[int, ...] = ()

    def width(self, level: int) -> int:
        return max(self.every, 1) * int(FACTOR**level)

    def span(self, level: int) -> int:
        return TILE_ROWS * self.width(level)

    def end(self, level: int) -> int:
        """Return the end step of a level."""
        if level == 0:
            return self.sealed_until
        return self.rollup_ends[level - 1] if level <= len(self.rollup_ends) else 0

    def level_for(self, width: int) -> int:
        """Return the highest level whose aggregates fit into buckets of a width."""
        level = 0
        while level < TOP and width % self.width(level + 1) == 0:
            level += 1
        return level


class TileKey(NamedTuple):
    """The key of a tile within its run."""

    level: int
    kind: str
    launch_no: int
    every: int
    range_no: int
    layer_group: int
    part: int


def _tiles(*columns: Any, by: Collection[str]) -> Select[Any]:  # noqa: ANN401 -- columns of any type
    """Return a query for tiles whose columns named in ``by`` have the values that it is executed with."""
    return select(*columns).where(*(tile.c[name] == bindparam(name) for name in by))


# Built once: building a query took longer than executing it.
_LEVEL = ("run_id", "level", "launch_no", "every")
_RANGE = (
    _tiles(tile.c.kind, tile.c.range_no, tile.c.layer_group, tile.c.part, tile.c.stored, by=_LEVEL)
    .where(tile.c.kind.in_(bindparam("kinds", expanding=True)))
    .where(tile.c.range_no.between(bindparam("lowest"), bindparam("highest")))
    .order_by(tile.c.range_no, tile.c.part)
)
_GROUPS = _RANGE.where(or_(tile.c.kind == STEPS, tile.c.layer_group.in_(bindparam("layer_groups", expanding=True))))
_RANGE_BODIES, _GROUPS_BODIES = _RANGE.add_columns(tile.c.body), _GROUPS.add_columns(tile.c.body)
_BODY = _tiles(tile.c.body, by=("run_id", *TileKey._fields))
_FIRST = _tiles(func.min(tile.c.range_no), by=(*_LEVEL, "kind")).where(tile.c.range_no >= bindparam("lowest"))
_LAST = _tiles(func.max(tile.c.range_no), by=(*_LEVEL, "kind")).where(tile.c.range_no <= bindparam("highest"))

_STREAMS = select(stream_table).where(stream_table.c.run_id == bindparam("run_id"))
_STREAMS = _STREAMS.order_by(stream_table.c.launch_no, stream_table.c.every)
_LOCKED_STREAMS = _STREAMS.with_for_update()


class TileStore:
    """Reads tiles through a cache of decoded ones.

    A late metric replaces a tile, maybe in another collector, so the time of storage is a part of the cache's key.
    """

    def __init__(self, cache_bytes: int = split_cache_budget().tiles) -> None:
        self._decoded: Cache[Hashable, Arrays] = Cache(cache_bytes, _size)

    def read(
        self,
        connection: Connection,
        run_id: int,
        stream: SampleStream,
        kinds: Collection[str],
        level: int,
        steps: tuple[int, int],
        layer_groups: Collection[int] | None = None,
        *,
        is_cached: bool = True,
    ) -> list[tuple[TileKey, Arrays]]:
        """Return the tiles of ``steps`` (begin, end exclusive) by range and part; those of kind STEPS have no group.

        What is not ``is_cached`` is read once: it does not push out of the cache what pages read again and again.
        """

        def unpacked(key: TileKey, stored: float, body: bytes) -> Arrays:
            arrays = unpack(body)
            return self._decoded.keep((run_id, key, stored), arrays) if is_cached else arrays

        span, (begin, end) = stream.span(level), steps
        values = _level_values(run_id, stream, level)
        values |= {"lowest": begin // span, "highest": (end - 1) // span, "kinds": list(kinds)}
        keys, bodies = _RANGE, _RANGE_BODIES
        if layer_groups is not None:
            keys, bodies, values = _GROUPS, _GROUPS_BODIES, values | {"layer_groups": list(layer_groups)}
        stored = {_key_of_row(stream, level, row): row.stored for row in connection.execute(keys, values)}
        cached = {key: self._decoded.get((run_id, key, at)) for key, at in stored.items()}
        tiles = {key: arrays for key, arrays in cached.items() if arrays is not None}
        missing = stored.keys() - tiles
        if len(missing) > _MAX_SINGLE_READS:
            for row in connection.execute(bodies, values):
                key = _key_of_row(stream, level, row)
                if key in missing:
                    tiles[key] = unpacked(key, row.stored, row.body)
        else:
            for key in missing:
                body = connection.execute(_BODY, {"run_id": run_id, **key._asdict()}).scalar_one()
                tiles[key] = unpacked(key, stored[key], body)
        return [(key, tiles[key]) for key in stored]

    def first(
        self, connection: Connection, run_id: int, stream: SampleStream, kind: str, level: int, begin: int
    ) -> int | None:
        """Return the first range with a tile of a kind at or after a step."""
        values = _level_values(run_id, stream, level) | {"kind": kind, "lowest": begin // stream.span(level)}
        range_no: int | None = connection.execute(_FIRST, values).scalar_one()
        return range_no

    def last(
        self, connection: Connection, run_id: int, stream: SampleStream, kind: str, highest: int = _MAX_RANGE_NO
    ) -> int | None:
        """Return the last range with a tile of samples of a kind, up to ``highest``."""
        values = _level_values(run_id, stream, 0) | {"kind": kind, "highest": highest}
        range_no: int | None = connection.execute(_LAST, values).scalar_one()
        return range_no

    def end(self, connection: Connection, run_id: int, stream: SampleStream, kind: str) -> int:
        """Return the step after the last tile of samples of a kind, 0 without any."""
        last = self.last(connection, run_id, stream, kind)
        return 0 if last is None else (last + 1) * stream.span(0)

    def derive(self, key: Hashable, build: Callable[[], Arrays]) -> Arrays:
        """Return the result of ``build``, which reads only samples in tiles; it is cached among the decoded tiles."""
        cached = self._decoded.get(key)
        return self._decoded.keep(key, compact(build())) if cached is None else cached

    def cache(self, run_id: int, stored: float, tiles: Iterable[tuple[TileKey, Arrays]]) -> None:
        """Cache tiles that were just committed, so that the next rollup need not read them."""
        for key, arrays in tiles:
            self._decoded.keep((run_id, key, stored), compact(arrays))


def pack_tiles(tiles: Iterable[tuple[TileKey, Arrays]]) -> list[tuple[TileKey, bytes]]:
    return [(key, pack(arrays)) for key, arrays in tiles]


def write_tiles(connection: Connection, run_id: int, packed: Iterable[tuple[TileKey, bytes]], now: float) -> None:
    rows = [{"run_id": run_id, "stored": now, "body": body, **key._asdict()} for key, body in packed]
    if rows:
        connection.execute(insert(tile), rows)


def delete_tiles(connection: Connection, run_id: int, stream: SampleStream, level: int, begin: int, end: int) -> None:
    """Delete the tiles of a level between two steps."""
    span = stream.span(level)
    where = (tile.c[name] == value for name, value in _level_values(run_id, stream, level).items())
    in_range = tile.c.range_no.between(begin // span, (end - 1) // span)
    connection.execute(delete(tile).where(*where, in_range))


def read_streams(connection: Connection, run_id: int, *, lock: bool = False) -> list[SampleStream]:
    """Return the streams of a run by launch and interval."""
    rows = connection.execute(_LOCKED_STREAMS if lock else _STREAMS, {"run_id": run_id})
    return [_stream_of_row(row) for row in rows]


def read_stream(
    connection: Connection, run_id: int, launch_no: int, every: int, *, lock: bool = False
) -> SampleStream | None:
    streams = read_streams(connection, run_id, lock=lock)
    return next((stream for stream in streams if (stream.launch_no, stream.every) == (launch_no, every)), None)


def streams_of(connection: Connection, runs: Collection[int]) -> list[tuple[int, SampleStream]]:
    """Return the streams of some runs, each with its run_id."""
    query = select(stream_table).where(stream_table.c.run_id.in_(runs))
    return [(row.run_id, _stream_of_row(row)) for row in (connection.execute(query) if runs else ())]


def write_stream(connection: Connection, run_id: int, stream: SampleStream) -> None:
    key = {"run_id": run_id, "launch_no": stream.launch_no, "every": stream.every}
    ends = json.dumps(stream.rollup_ends)
    values = {"sealed_until": stream.sealed_until, "raw_start": stream.raw_start, "rollup_ends": ends}
    if update_row(connection, stream_table, key, values) == 0:
        connection.execute(insert(stream_table).values(**key, **values))


def _stream_of_row(row: Row[Any]) -> SampleStream:
    return SampleStream(row.launch_no, row.every, row.sealed_until, row.raw_start, tuple(json.loads(row.rollup_ends)))


def _level_values(run_id: int, stream: SampleStream, level: int) -> dict[str, Any]:
    return {"run_id": run_id, "level": level, "launch_no": stream.launch_no, "every": stream.every}


def _key_of_row(stream: SampleStream, level: int, row: Row[Any]) -> TileKey:
    return TileKey(level, row.kind, stream.launch_no, stream.every, row.range_no, row.layer_group, row.part)


def _size(arrays: Arrays) -> int:
    # A constant array is a view of one value.
    return sum(values.nbytes if values.strides != (0,) * values.ndim else 0 for values in arrays.values())
