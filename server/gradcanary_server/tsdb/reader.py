"""The reader of log and tiles: the visible segments of a run and their aggregates.

The result does not show whether samples are in the log, in tiles, or only in rollups.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, bindparam, select

from gradcanary import wire
from gradcanary_server.storage.database import Database
from gradcanary_server.storage.runs import ORDER, launch_order
from gradcanary_server.storage.schema import launch, session
from gradcanary_server.tsdb.log import BatchLog, LoggedBatch
from gradcanary_server.tsdb.rollup import SparseAggregates
from gradcanary_server.tsdb.samples import MAX_STEP_EXCLUSIVE, batch_of_tiles, slice_steps
from gradcanary_server.tsdb.sources import Series, SparseSource, StreamView, metric_steps
from gradcanary_server.tsdb.tiles import (
    METRIC_STREAM,
    METRICS,
    STATE,
    STEPS,
    TILE_LAYERS,
    SampleStream,
    TileStore,
    read_streams,
)

LATEST_SAMPLES = 256
"""Samples that :meth:`Reader.latest` returns: also of a stat that is sampled in turns, they contain every layer."""


@dataclass(frozen=True)
class Segment:
    """Steps from ``begin`` to before ``end`` of a stream; ``batches`` are its batches in the log.

    No sample is before ``first`` or after ``last``. Where raw samples are gone, a segment consists of complete
    aggregates: it may have a few steps more than requested, never fewer.
    """

    stream: SampleStream
    begin: int
    end: int
    first: int
    last: int
    batches: tuple[LoggedBatch, ...]

    def every(self) -> int:
        """Return the resolution in steps: that of aggregates where raw samples are gone."""
        return self.stream.width(1 if self.begin < self.stream.raw_start else 0)


class Reader:
    """Finds the visible segments of a run, and reads them."""

    def __init__(self, log: BatchLog, tiles: TileStore) -> None:
        self.log = log
        self.tiles = tiles

    def segments(
        self, connection: Connection, run_id: int, begin: int | None, end: int | None, *, overlapping: bool = False
    ) -> list[Segment]:
        """Return the segments of samples between two steps, both included, None = no bound.

        Where launches overlap, the later one counts from its first to its last measured step; with ``overlapping``
        each launch has all of its steps.
        """
        streams = _sample_streams(connection, run_id)
        logged: dict[tuple[int, int], list[LoggedBatch]] = {}
        for batch in self._sampled_batches(connection, run_id, begin, end):
            logged.setdefault((batch.launch_no, batch.columns.every), []).append(batch)
        segments = []
        for visible in _visible_ranges(connection, run_id, begin, end, overlapping=overlapping):
            keys = sorted(key for key in streams.keys() | logged.keys() if key[0] == visible.launch_no)
            for key in keys:
                segments += _segments(streams.get(key) or SampleStream(*key), visible, logged.get(key, ()))
        return segments

    def metric_segments(
        self, connection: Connection, run_id: int, begin: int | None, end: int | None, *, overlapping: bool = False
    ) -> list[Segment]:
        """Return the segments of metrics between two steps, as :meth:`segments`."""
        stored = read_streams(connection, run_id)
        streams = {stream.launch_no: stream for stream in stored if stream.every == METRIC_STREAM}
        logged = self.log.read_run(connection, run_id)
        segments = []
        for visible in _visible_ranges(connection, run_id, begin, end, overlapping=overlapping):
            batches = [batch for batch in logged if batch.launch_no == visible.launch_no]
            stream = streams.get(visible.launch_no) or SampleStream(visible.launch_no, METRIC_STREAM)
            last = self.tiles.end(connection, run_id, stream, METRICS) - 1
            last = max(last, int(metric_steps(batches).max(initial=-1)))
            stream = replace(stream, sealed_until=MAX_STEP_EXCLUSIVE)
            segments += _segments(stream, replace(visible, measured=(0, last)), batches)
        return segments

    def view(self, connection: Connection, run_id: int, segment: Segment) -> StreamView:
        """Return the view of a segment's stream, from which sources read."""
        return StreamView(self.tiles, connection, run_id, segment.stream, segment.batches)

    def read_metrics(
        self, connection: Connection, run_id: int, segment: Segment, numbers: Mapping[Series, int], level: int
    ) -> SparseAggregates:
        """Return some metrics, by their numbers, as aggregates of a level."""
        source = SparseSource(self.view(connection, run_id, segment), numbers)
        return source.read(level, segment.begin, segment.end)

    def samples(
        self,
        database: Database,
        run_id: int,
        segment: Segment,
        stats: Collection[str] = wire.STATS,
        layer_groups: Collection[int] | None = None,
    ) -> Iterator[LoggedBatch]:
        """Yield the raw samples of a segment, some hundred steps at a time; of tiles, these stats and groups of layers.

        Each part has its own transaction, so a slow consumer holds none.
        """
        stream, span = segment.stream, segment.stream.span(0)
        begin, end = max(segment.begin, stream.raw_start), min(segment.end, stream.sealed_until)
        for range_no in range(begin // span, -(-end // span)):
            with database.read() as connection:
                sealed = self._sealed(connection, run_id, stream, range_no, stats, layer_groups, is_cached=False)
                batches = list(sealed)
            for batch in batches:
                yield slice_steps(batch, begin, end)
        for batch in segment.batches:
            yield slice_steps(batch, max(segment.begin, stream.sealed_until), segment.end)

    def states(
        self, connection: Connection, run_id: int, segment: Segment, step: int
    ) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
        """Return layers and their states in the sample of a step; none where it is gone."""
        for batch in segment.batches:
            row = int(np.searchsorted(batch.columns.steps, step))
            if row < len(batch.columns.steps) and batch.columns.steps[row] == step:
                return batch.numbers, batch.columns.state[row]
        numbers, states = [np.empty(0, np.int32)], [np.empty(0, np.uint8)]
        stored = self.tiles.read(connection, run_id, segment.stream, (STEPS, STATE), 0, (step, step + 1))
        rows = {key.part: np.flatnonzero(arrays["steps"] == step) for key, arrays in stored if key.kind == STEPS}
        for key, arrays in stored:
            if key.kind == STATE and len(rows[key.part]):
                found = arrays["plane"][rows[key.part][0]]
                numbers.append((key.layer_group * TILE_LAYERS + np.arange(len(found))).astype(np.int32))
                states.append(found)
        return np.concatenate(numbers), np.concatenate(states)

    def latest(self, connection: Connection, run_id: int) -> list[LoggedBatch]:
        """Return the last samples of a run, also of earlier launches if the last one has few, in no order."""
        logged = self._sampled_batches(connection, run_id)
        streams = _sample_streams(connection, run_id)
        latest: list[LoggedBatch] = []
        order = launch_order(connection, run_id)
        for launch_no in sorted(order, key=lambda number: order[number], reverse=True):
            missing = LATEST_SAMPLES - _sample_count(latest)
            if missing <= 0:
                break
            batches = []
            for batch in logged:
                if batch.launch_no == launch_no:
                    stream = streams.get((launch_no, batch.columns.every))
                    batches.append(slice_steps(batch, stream.sealed_until if stream else 0, MAX_STEP_EXCLUSIVE))
            for stream in streams.values():
                if stream.launch_no == launch_no:
                    batches += self._latest_sealed(connection, run_id, stream)
            latest += _last_samples(batches, missing)
        return latest

    def _sampled_batches(
        self, connection: Connection, run_id: int, begin: int | None = None, end: int | None = None
    ) -> list[LoggedBatch]:
        logged = self.log.read_run(connection, run_id, begin, end)
        return [batch for batch in logged if len(batch.columns.steps)]

    def _latest_sealed(self, connection: Connection, run_id: int, stream: SampleStream) -> list[LoggedBatch]:
        batches: list[LoggedBatch] = []
        range_no = self.tiles.last(connection, run_id, stream, STEPS)
        while range_no is not None and _sample_count(batches) < LATEST_SAMPLES:
            batches += self._sealed(connection, run_id, stream, range_no)
            range_no = self.tiles.last(connection, run_id, stream, STEPS, range_no - 1)
        return batches

    def _sealed(
        self,
        connection: Connection,
        run_id: int,
        stream: SampleStream,
        range_no: int,
        stats: Collection[str] = wire.STATS,
        layer_groups: Collection[int] | None = None,
        *,
        is_cached: bool = True,
    ) -> Iterator[LoggedBatch]:
        """Yield the samples of the tiles of one range."""
        steps = (range_no * stream.span(0), (range_no + 1) * stream.span(0))
        kinds = (STEPS, STATE, *stats)
        stored = self.tiles.read(connection, run_id, stream, kinds, 0, steps, layer_groups, is_cached=is_cached)
        for part in sorted({key.part for key, _ in stored}):
            tiles = {(key.kind, key.layer_group): arrays for key, arrays in stored if key.part == part}
            yield batch_of_tiles(stream, tiles)


def _sample_count(batches: Sequence[LoggedBatch]) -> int:
    return sum(len(batch.columns.steps) for batch in batches)


def _last_samples(batches: Sequence[LoggedBatch], most: int) -> list[LoggedBatch]:
    """Return the last samples of a launch."""
    steps = np.sort(np.concatenate([np.empty(0, np.int64), *(batch.columns.steps for batch in batches)]))
    if not len(steps):
        return []
    begin = int(steps[-most:][0])
    slices = [slice_steps(batch, begin, MAX_STEP_EXCLUSIVE) for batch in batches]
    return [batch for batch in slices if len(batch.columns.steps)]


def _sample_streams(connection: Connection, run_id: int) -> dict[tuple[int, int], SampleStream]:
    """Return the streams of samples by launch and interval."""
    streams = read_streams(connection, run_id)
    return {(stream.launch_no, stream.every): stream for stream in streams if stream.every != METRIC_STREAM}


Span = tuple[int, int]
"""From a step to before another."""


@dataclass(frozen=True)
class _VisibleRange:
    """The steps of a launch that no later launch measured, and its first and last measured step."""

    launch_no: int
    spans: Sequence[Span]
    measured: Span | None


_MEASURED = (
    select(session.c.launch_no, session.c.first_sample, session.c.last_step)
    .join(launch, (launch.c.run_id == session.c.run_id) & (launch.c.launch_no == session.c.launch_no))
    .where(session.c.run_id == bindparam("run_id"), session.c.is_primary)
    .order_by(*ORDER)
)


def _visible_ranges(
    connection: Connection, run_id: int, begin: int | None, end: int | None, *, overlapping: bool
) -> list[_VisibleRange]:
    """Return the visible steps of each launch, in the order of their start; with ``overlapping`` all steps."""
    rows = connection.execute(_MEASURED, {"run_id": run_id}).all()
    ranges = []
    free = [(begin or 0, MAX_STEP_EXCLUSIVE if end is None else end + 1)]
    for row in reversed(rows):
        measured = None if row.first_sample is None else (row.first_sample, row.last_step)
        ranges.append(_VisibleRange(row.launch_no, free, measured))
        if measured is not None and not overlapping:
            free = [left for span in free for left in _without(span, row.first_sample, row.last_step + 1)]
    return ranges[::-1]


def _segments(stream: SampleStream, visible: _VisibleRange, batches: Sequence[LoggedBatch]) -> list[Segment]:
    """Return the segments of the spans that may have samples."""
    if visible.measured is None:
        return []
    first, last = visible.measured
    aligned: list[Span] = []
    for span in visible.spans:
        bounds = _align_to_rollup(stream, span, visible.measured)
        if bounds is None:
            continue
        if aligned and bounds[0] < aligned[-1][1]:  # both have a part of the same aggregate
            bounds = aligned.pop()[0], bounds[1]
        aligned.append(bounds)
    return [
        Segment(stream, begin, end, max(begin, first), min(end - 1, last), tuple(batches)) for begin, end in aligned
    ]


def _align_to_rollup(stream: SampleStream, span: Span, measured: Span) -> Span | None:
    """Return a span, extended to complete aggregates where raw samples are gone; None without samples.

    Leaving out the aggregate that an edge cuts would hide a minimum in it.
    """
    every, width = stream.width(0), stream.width(1)
    first = -(-max(span[0], measured[0]) // every) * every
    last = min(span[1] - 1, measured[1]) // every * every
    if first > last:
        return None
    begin = min(span[0], first // width * width) if first < stream.raw_start else span[0]
    return begin, max(span[1], (last // width + 1) * width) if last < stream.raw_start else span[1]


def _without(span: Span, begin: int, end: int) -> list[Span]:
    parts = [(span[0], min(span[1], begin)), (max(span[0], end), span[1])]
    return [part for part in parts if part[0] < part[1]]
