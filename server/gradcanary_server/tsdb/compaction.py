"""Plans and writes of compaction: batches to tiles, tiles to rollups.

A tile of a rollup level is made when the eight tiles below it are complete.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np
from sqlalchemy import BigInteger, Connection, Row, Select, and_, bindparam, delete, func, or_, select, update

from gradcanary import wire
from gradcanary_server.storage.schema import batch, iter_runs, session
from gradcanary_server.storage.schema import stream as stream_table
from gradcanary_server.tsdb import tiles
from gradcanary_server.tsdb.log import BatchLog, LoggedBatch
from gradcanary_server.tsdb.rollup import COUNT, FACTOR, MAXIMUM, MEAN, MINIMUM, NONFINITE, StepIndex
from gradcanary_server.tsdb.samples import PHASE, build_sample_tiles
from gradcanary_server.tsdb.sources import (
    Series,
    SparseSource,
    StatSource,
    StepIndexSource,
    StreamView,
    encode_series,
    metric_steps,
    metrics_of_tile,
    points_of,
)
from gradcanary_server.tsdb.tile_codec import Arrays
from gradcanary_server.tsdb.tiles import (
    METRIC_STREAM,
    METRICS,
    STATE,
    STEPS,
    TILE_LAYERS,
    TOP,
    SampleStream,
    TileKey,
    TileStore,
)

MOST_BATCHES = 512
"""Of a session in one plan. At least two tiles of one sample per batch, so that small batches fill whole tiles."""

MOST_BYTES = 64 * 2**20
"""Decoded batches of a session in one plan, and one batch more: a plan holds them in memory."""

OVER_S = 6 * 3600.0
"""Seconds without a request after which a session counts as ended: a killed one sends no end."""

STAT_PLANES = (MINIMUM, MEAN, MAXIMUM, COUNT)
"""The planes of aggregates in the tile of a stat."""


@dataclass(frozen=True)
class Plan:
    """Tiles of a run to write, maybe none, and the streams before and after."""

    run_id: int
    tiles: list[tuple[TileKey, Arrays]]
    before: list[SampleStream]
    after: list[SampleStream]


@dataclass(frozen=True)
class SealPlan(Plan):
    """The tiles of a session's batches from ``sealed_seq`` to before ``end_seq``, which leave the log."""

    session: str
    sealed_seq: int
    end_seq: int


class Waiting(NamedTuple):
    """A session with batches to seal; the next plan takes at most ``size`` bytes of the log."""

    run_id: int
    session: str
    size: int


def _seal_candidates() -> Select[int, str, int]:
    joined = (stream_table.c.run_id == session.c.run_id) & (stream_table.c.launch_no == session.c.launch_no)
    span = bindparam("rows", type_=BigInteger) * session.c.every
    is_over = session.c.ended.is_not(None) | (session.c.last_seen < bindparam("last_seen"))
    fills_a_tile = session.c.last_step + 1 >= (func.coalesce(stream_table.c.sealed_until, 0) // span + 1) * span
    is_long = session.c.next_seq - session.c.sealed_seq >= bindparam("most", type_=BigInteger)
    runs = bindparam("runs", type_=BigInteger, expanding=True)
    of_session = (batch.c.run_id == session.c.run_id) & (batch.c.session == session.c.session)
    # The constant once more: for what is in a select list Citus finds the nodes by no other.
    logged = of_session & (batch.c.seq >= session.c.sealed_seq) & batch.c.run_id.in_(runs)
    first = (
        select(func.length(batch.c.body).label("size")).where(logged).limit(MOST_BATCHES).correlate(session).subquery()
    )
    size = select(func.coalesce(func.sum(first.c.size), 0)).correlate(session).scalar_subquery()
    return (
        select(session.c.run_id, session.c.session, size)
        .outerjoin(stream_table, and_(joined, stream_table.c.every == session.c.every))
        .where(session.c.run_id.in_(runs))
        .where(session.c.is_sharded.is_(False), session.c.next_seq > session.c.sealed_seq)
        .where(or_(is_over, fills_a_tile, is_long))
    )


_SEAL_CANDIDATES = _seal_candidates()  # built once: it runs every other second, and mostly finds nothing


def waiting_sessions(connection: Connection, now: float) -> list[Waiting]:
    """Return the sessions of all runs with batches to seal."""
    return [each for runs in iter_runs(connection, batch) for each in seal_candidates(connection, runs, now)]


def seal_candidates(connection: Connection, runs: Sequence[int], now: float) -> list[Waiting]:
    """Return the sessions that fill a tile or have many batches, or that are over with batches in the log.

    Merged shards are deleted from the log by ingest.
    """
    values = {"runs": runs, "last_seen": now - OVER_S, "rows": tiles.TILE_ROWS, "most": MOST_BATCHES}
    return [Waiting(run_id, name, int(size)) for run_id, name, size in connection.execute(_SEAL_CANDIDATES, values)]


def plan_seal(
    connection: Connection, log: BatchLog, store: TileStore, run_id: int, session_id: str, now: float
) -> SealPlan | None:
    """Return the plan to seal the next batches of a session, None if none can be sealed."""
    where = (session.c.run_id == run_id) & (session.c.session == session_id)
    row = connection.execute(select(session).where(where)).one_or_none()
    batches = [] if row is None else log.read_session(connection, row, MOST_BATCHES, MOST_BYTES)
    if row is None or not batches:
        return None
    if not row.is_primary:
        return _discard_rank_batches(connection, row, batches, now)
    is_full = len(batches) == MOST_BATCHES or sum(logged.columns.nbytes() for logged in batches) >= MOST_BYTES
    is_over = (row.ended is not None or row.last_seen < now - OVER_S) and not is_full
    streams = {
        stream.every: stream for stream in tiles.read_streams(connection, run_id) if stream.launch_no == row.launch_no
    }
    intervals = sorted({logged.columns.every for logged in batches if len(logged.columns.steps)})
    before = [streams.get(every) or SampleStream(row.launch_no, every) for every in intervals]
    ends = {stream.every: _seal_end(stream, batches, is_over=is_over, is_full=is_full) for stream in before}
    built = [tile for stream in before for tile in build_sample_tiles(batches, stream, ends[stream.every])]
    end_seq = next((logged.seq for logged in batches if _has_open_samples(logged, ends)), batches[-1].seq + 1)
    if not built and end_seq == row.sealed_seq:
        return None
    after = [replace(stream, sealed_until=ends[stream.every]) for stream in before]
    sealed = [logged for logged in batches if logged.seq < end_seq]
    if sealed:
        metric_stream = streams.get(METRIC_STREAM) or SampleStream(row.launch_no, METRIC_STREAM)
        extended, metric_tiles = build_metric_tiles(sealed, metric_stream, row.sealed_seq)
        view = StreamView(store, connection, run_id, metric_stream, sealed)
        built += [*metric_tiles, *_late_tiles(view)]
        before.append(metric_stream)
        after.append(extended)
    return SealPlan(run_id, built, before, after, session_id, row.sealed_seq, end_seq)


def _discard_rank_batches(
    connection: Connection, row: Row[Any], batches: Sequence[LoggedBatch], now: float
) -> SealPlan | None:
    """Return the plan to delete the batches of another rank of steps that the primary session has evaluated."""
    where = (session.c.run_id == row.run_id) & (session.c.launch_no == row.launch_no) & session.c.is_primary
    last_step = connection.execute(select(func.max(session.c.last_step)).where(where)).scalar_one()
    if row.last_seen < now - OVER_S:
        last_step = np.inf
    until = -1 if last_step is None else last_step
    done = list(takewhile(lambda logged: logged.columns.steps[-1:].max(initial=-1) <= until, batches))
    if not done:
        return None
    return SealPlan(row.run_id, [], [], [], row.session, row.sealed_seq, done[-1].seq + 1)


def _seal_end(stream: SampleStream, batches: Sequence[LoggedBatch], *, is_over: bool, is_full: bool) -> int:
    """Return the end of the stream's tiles: complete tiles, or all samples if none can follow.

    If a full plan completes no tile, a part of a tile is sealed: the log must not grow without bound.
    """
    sampled = [logged.columns for logged in batches if len(logged.columns.steps)]
    end = int(sampled[-1].steps[-1]) + 1
    complete = end // stream.span(0) * stream.span(0)
    if is_over or sampled[-1].every != stream.every:
        return max(end, stream.sealed_until)
    steps = np.concatenate([columns.steps for columns in sampled if columns.every == stream.every])
    first_open = steps[np.searchsorted(steps, stream.sealed_until) :][:1]
    is_partial = is_full and len(first_open) and complete <= int(first_open[0])
    return max(end if is_partial else complete, stream.sealed_until)


def _has_open_samples(logged: LoggedBatch, ends: dict[int, int]) -> bool:
    steps = logged.columns.steps
    return len(steps) > 0 and int(steps[-1]) >= ends[logged.columns.every]


def build_metric_tiles(
    batches: Sequence[LoggedBatch], stream: SampleStream, part: int
) -> tuple[SampleStream, list[tuple[TileKey, Arrays]]]:
    """Return the stream of metrics extended by the points of these batches, and their tiles."""
    names: dict[Series, int] = {}
    parts = [points_of(logged, names) for logged in batches]
    series, steps, values, times = (np.concatenate(column) for column in zip(*parts, strict=True))
    if not len(steps):
        return stream, []
    span, built = stream.span(0), []
    for range_no in np.unique(steps // span).tolist():
        rows = steps // span == range_no
        arrays: Arrays = {"names": encode_series(names)}
        arrays |= {"series": series[rows], "steps": steps[rows], "values": values[rows], "times": times[rows]}
        built.append((TileKey(0, METRICS, stream.launch_no, METRIC_STREAM, range_no, 0, part), arrays))
    ends = [int(logged.columns.steps[-1]) + 1 for logged in batches if len(logged.columns.steps)]
    sealed_until = max([stream.sealed_until, *(end // span * span for end in ends)])
    return replace(stream, sealed_until=sealed_until), built


def _late_tiles(view: StreamView) -> Iterator[tuple[TileKey, Arrays]]:
    """Yield the rollup tiles of metrics that have to be built again, because the batches have late points."""
    steps = metric_steps(view.batches)
    logged = [(metric.name, metric.tags) for batch in view.batches for metric in batch.columns.metrics]
    for level, end in enumerate(view.stream.rollup_ends, start=1):
        span = view.stream.span(level)
        for range_no in np.unique(steps[steps < end] // span).tolist():
            yield _build_metric_rollup(view, level, range_no, level, logged)


def _build_metric_rollup(
    view: StreamView, level: int, range_no: int, source_level: int, logged: Sequence[Series] = ()
) -> tuple[TileKey, Arrays]:
    """Return a rollup tile of metrics, made of the tiles of another level or, with late points, of its own."""
    begin, end = range_no * view.stream.span(level), (range_no + 1) * view.stream.span(level)
    stored = view.read_tiles([METRICS], source_level, begin, end)
    series = [*logged, *(name for _, arrays in stored for name in metrics_of_tile(source_level, arrays)[0])]
    names = {name: number for number, name in enumerate(dict.fromkeys(series))}
    aggregates = SparseSource(view, names).from_tiles(source_level, begin, end)
    if source_level < level:
        aggregates = aggregates.downsample(view.stream.width(level))
    key = TileKey(level, METRICS, view.stream.launch_no, METRIC_STREAM, range_no, 0, 0)
    return key, {"names": encode_series(names), **vars(aggregates)}


def rollup_candidates(connection: Connection, runs: Collection[int]) -> list[tuple[int, int, int]]:
    """Return run, launch and interval of the streams of these runs that fill a tile of a rollup."""
    streams = tiles.streams_of(connection, runs)
    return [(run_id, stream.launch_no, stream.every) for run_id, stream in streams if _next_level(stream) is not None]


def plan_rollup(connection: Connection, store: TileStore, run_id: int, launch_no: int, every: int) -> Plan | None:
    """Return the plan for the next range of a stream's lowest incomplete level; None if all are complete.

    A job that jumped leaves empty ranges, which are passed over.
    """
    stream = tiles.read_stream(connection, run_id, launch_no, every)
    incomplete = None if stream is None else _next_level(stream)
    if stream is None or incomplete is None:
        return None
    level, begin, end = incomplete
    span = stream.span(level)
    first = store.first(connection, run_id, stream, METRICS if every == METRIC_STREAM else STEPS, level - 1, begin)
    range_no = end // span if first is None else min(end // span, first // FACTOR)
    if range_no * span >= end:
        return Plan(run_id, [], [stream], [_with_rollup_end(stream, level, end)])
    view = StreamView(store, connection, run_id, stream)
    if every == METRIC_STREAM:
        built = [_build_metric_rollup(view, level, range_no, level - 1)]
    else:
        built = list(_build_sample_rollups(view, level, range_no))
    return Plan(run_id, built, [stream], [_with_rollup_end(stream, level, (range_no + 1) * span)])


def _next_level(stream: SampleStream) -> tuple[int, int, int] | None:
    """Return the lowest level that lacks complete tiles, and the steps that it lacks."""
    for level in range(1, TOP + 1):
        span = stream.span(level)
        begin, end = stream.end(level), stream.end(level - 1) // span * span
        if begin < end:
            return level, begin, end
    return None


def _with_rollup_end(stream: SampleStream, level: int, end: int) -> SampleStream:
    ends = [*stream.rollup_ends, *[0] * (level - len(stream.rollup_ends))]
    ends[level - 1] = end
    return replace(stream, rollup_ends=tuple(ends))


def _build_sample_rollups(view: StreamView, level: int, range_no: int) -> Iterator[tuple[TileKey, Arrays]]:
    stream = view.stream
    begin, end, width = range_no * stream.span(level), (range_no + 1) * stream.span(level), stream.width(level)
    key = TileKey(level, STEPS, stream.launch_no, stream.every, range_no, 0, 0)
    yield key, _pack_steps(StepIndexSource(view).from_tiles(level - 1, begin, end).downsample(width))
    sizes: dict[tuple[str, int], int] = {}
    for below, arrays in view.read_tiles((STATE, *wire.STATS), level - 1, begin, end):
        size = max(plane.shape[1] for plane in arrays.values())
        sizes[below.kind, below.layer_group] = max(size, sizes.get((below.kind, below.layer_group), 0))
    for (kind, group), size in sizes.items():
        layers = (group * TILE_LAYERS + np.arange(size)).astype(np.int32)
        stat, wanted = (wire.STATS[0], (NONFINITE,)) if kind == STATE else (kind, STAT_PLANES)
        aggregates = StatSource(view, (stat,), layers, wanted).from_tiles(level - 1, begin, end).downsample(width)
        yield key._replace(kind=kind, layer_group=group), {name: aggregates.planes[name] for name in wanted}


def _pack_steps(index: StepIndex) -> Arrays:
    phases = {PHASE + stat: bits for stat, bits in index.phases.items()}
    return {"start": index.start, "first": index.first, "last": index.last, "time": index.time, **phases}


def apply_plan(connection: Connection, plan: Plan, packed: Sequence[tuple[TileKey, bytes]], now: float) -> bool:
    """Store the packed tiles of a plan unless its streams or its session were changed since; return True if stored."""
    streams = tiles.read_streams(connection, plan.run_id, lock=True)
    stored = {(stream.launch_no, stream.every): stream for stream in streams}
    for stream in plan.before:
        key = (stream.launch_no, stream.every)
        if stream != stored.get(key, SampleStream(*key)):
            return False
    if isinstance(plan, SealPlan) and not _delete_sealed(connection, plan):
        return False
    tiles.write_tiles(connection, plan.run_id, packed, now)
    for stream in plan.after:
        tiles.write_stream(connection, plan.run_id, stream)
    return True


def _delete_sealed(connection: Connection, plan: SealPlan) -> bool:
    """Delete the sealed batches, and the rollup tiles to replace; return False if the session was sealed since.

    The batches go before anything is written, so that the tiles take their space.
    """
    where = (session.c.run_id == plan.run_id) & (session.c.session == plan.session)
    unchanged = where & (session.c.sealed_seq == plan.sealed_seq)
    if connection.execute(update(session).where(unchanged).values(sealed_seq=plan.end_seq)).rowcount != 1:
        return False
    of_session = (batch.c.run_id == plan.run_id) & (batch.c.session == plan.session)
    connection.execute(delete(batch).where(of_session, batch.c.seq < plan.end_seq))
    for key, _ in plan.tiles:
        if key.level > 0:
            stream = SampleStream(key.launch_no, key.every)
            begin = key.range_no * stream.span(key.level)
            tiles.delete_tiles(connection, plan.run_id, stream, key.level, begin, begin + stream.span(key.level))
    return True
