"""Queries over a range of steps, as at most n buckets.

Buckets begin at multiples of their width, so that a growing run keeps its picture. They are made of the widest
aggregates that fit into them, and no minimum is lost. Where a run sampled at several intervals, and a bucket of the
widest one would merge many samples of the others, the buckets of each interval have a width of their own.
"""

import hashlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from gradcanary import wire
from gradcanary_server.tsdb.reader import Reader, Segment
from gradcanary_server.tsdb.rollup import (
    COUNT,
    FACTOR,
    MAXIMUM,
    MEAN,
    MINIMUM,
    NONFINITE,
    PLANES,
    REDUCTIONS,
    Aggregates,
    Groups,
    Plane,
    Planes,
    SparseAggregates,
    StepIndex,
    means,
    reduce_planes,
)
from gradcanary_server.tsdb.samples import as_slice
from gradcanary_server.tsdb.sources import StatSource, StepIndexSource
from gradcanary_server.tsdb.tile_codec import Arrays
from gradcanary_server.tsdb.tiles import TILE_LAYERS, TILE_ROWS

Part = TypeVar("Part", StepIndex, SparseAggregates)

Bounds = tuple[int, int]
"""A first and a last step."""

_START = "start"
"""The name of the first steps among cached planes."""

CELLS = 2**19
"""Aggregates x layers in memory at a time: the memory of a query does not grow with the layers of the run. Runs of up
to 512 layers are read at once."""

_MIN_ROWS = 4 * TILE_ROWS
"""Aggregates that are read at a time, at least: a tile that a border cuts is read twice."""


@dataclass(frozen=True)
class StepRange:
    """Steps from ``begin`` to ``end``, both included, None = no bound; at most ``points`` buckets."""

    begin: int | None
    end: int | None
    points: int


@dataclass(frozen=True)
class BucketSpan:
    """``count`` buckets of ``width`` steps from step ``first`` on, of samples that are ``every`` steps apart."""

    first: int
    width: int
    count: int
    every: int

    @property
    def last(self) -> int:
        """The last step of the last bucket."""
        return self.first + self.count * self.width - 1


@dataclass(frozen=True)
class BucketGrid:
    """Buckets in spans: one, or one for each stretch of steps with another interval."""

    spans: tuple[BucketSpan, ...]

    @property
    def count(self) -> int:
        return sum(span.count for span in self.spans)

    @property
    def width(self) -> int:
        """The width of the narrowest buckets."""
        return min(span.width for span in self.spans)

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """The first step of each bucket."""
        return np.concatenate([span.first + np.arange(span.count, dtype=np.int64) * span.width for span in self.spans])

    def steps(self) -> NDArray[np.float64]:
        """Return the first step of each bucket as a float."""
        return self.starts.astype(np.float64)

    def indexes(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        if len(self.spans) == 1:
            return (steps - self.spans[0].first) // self.spans[0].width
        return np.searchsorted(self.starts, steps, side="right") - 1


@dataclass(frozen=True)
class SegmentPart:
    """A segment, the width of its buckets, and the aggregates of the level that is read: their first steps, and the
    steps of their last samples.
    """

    segment: Segment
    width: int
    starts: NDArray[np.int64]
    lasts: NDArray[np.int64]

    @property
    def level(self) -> int:
        return self.segment.stream.level_for(self.width)

    def split(self, most: int) -> Iterator[Segment]:
        """Yield segments with about ``most`` aggregates each, cut between buckets, so that no aggregate is cut."""
        segment = self.segment
        reads = np.ones(len(self.starts), np.int64)
        for level in range(self.level, 0, -1):  # aggregates without a tile are made of those of the level below
            reads[self.starts >= segment.stream.end(level)] *= FACTOR
        is_border = np.diff(np.cumsum(reads) // most, prepend=0) > 0
        borders = np.unique(self.starts[is_border] // self.width * self.width)
        inner = borders[(borders > segment.begin) & (borders < segment.end)].tolist()
        for begin, end in pairwise([segment.begin, *inner, segment.end]):
            yield replace(segment, begin=begin, end=end)


@dataclass(frozen=True)
class BucketedStats:
    """Some stats of a run in buckets, before any layer is read.

    ``times`` float64[B] is the agent's time of a bucket's first sample, NaN = no sample. ``parts`` are its segments,
    ``phases`` those of each stat.
    """

    run_id: int
    stats: tuple[str, ...]
    phases: Mapping[str, tuple[str, ...]]
    buckets: BucketGrid
    times: NDArray[np.float64]
    parts: tuple[SegmentPart, ...]

    def layer_slices(self, layers: NDArray[np.int32]) -> list[slice]:
        """Return slices of these layers, int32[L], that fit into memory, cut between layer groups."""
        groups = max(1, CELLS // (TILE_LAYERS * len(self.stats) * max(self.buckets.count, _MIN_ROWS)))
        is_border = np.diff(layers // (TILE_LAYERS * groups)) > 0
        bounds = [0, *(1 + np.flatnonzero(is_border)).tolist(), len(layers)]
        return [slice(begin, end) for begin, end in pairwise(bounds) if begin < end]

    def read(
        self, reader: Reader, connection: Connection, layers: NDArray[np.int32], wanted: Collection[str] = PLANES
    ) -> Planes:
        """Return the ``wanted`` planes of these layers, [B, L]; of several stats one after the other, [B, S * L]."""
        width = len(self.stats) * len(layers)
        accumulator = _BucketAccumulator(self.buckets.count, width, wanted)
        most = max(1, CELLS // max(TILE_LAYERS, width))
        for part in self.parts:
            for segment in part.split(most):
                source = StatSource(reader.view(connection, self.run_id, segment), self.stats, layers, wanted)
                begin = self._sealed_end(part, segment)
                if segment.begin < begin:
                    sealed = self._read_sealed(source, segment, part.level, begin)
                    accumulator.add_reduced(self.buckets.indexes(sealed.start), slice(None), sealed.planes)
                if begin < segment.end:
                    stored = source.read(part.level, begin, segment.end)
                    accumulator.add(self.buckets.indexes(stored.start), slice(None), stored.planes)
        return accumulator.envelope(np.float32)

    def _sealed_end(self, part: SegmentPart, segment: Segment) -> int:
        """Return the end of the buckets of a segment whose samples are all in tiles: no sample can follow in them.

        No aggregate is cut there. Without such buckets it is the begin of the segment.
        """
        starts, until = self.buckets.starts, min(segment.stream.sealed_until, segment.end)
        if int(part.lasts[-1]) < until:
            return max(segment.begin, until)
        is_border = (starts <= until) & (starts % segment.stream.width(part.level) == 0)
        return max(segment.begin, int(starts[is_border].max(initial=0)))

    def _read_sealed(self, source: StatSource, segment: Segment, level: int, end: int) -> Aggregates:
        """Return the buckets of a segment before its sealed end, with planes as :func:`reduce_planes` returns them.

        Samples in tiles never change until they are deleted, which moves ``raw_start``. So these buckets are cached,
        and a refresh reads the samples after them only. They depend on the borders of the buckets in between.
        """
        stream, starts = segment.stream, self.buckets.starts
        borders = starts[(starts > segment.begin) & (starts < end)]

        def build() -> Arrays:
            stored = source.read(level, segment.begin, end)
            if not len(stored.start):
                return {_START: stored.start}
            groups = Groups(np.searchsorted(borders, stored.start, side="right"))
            return {_START: stored.start[groups.starts], **reduce_planes(stored.planes, groups)}

        of_stream = (self.run_id, stream.launch_no, stream.every, stream.raw_start)
        key = (*of_stream, level, segment.begin, end, hashlib.sha256(borders.tobytes()).digest(), source.selection())
        planes = dict(source.view.tiles.derive(key, build))
        return Aggregates(planes.pop(_START), planes)  # type: ignore[arg-type]  # as they were built


@dataclass(frozen=True)
class BucketedMetrics:
    """Some sparse series on the same buckets; column r of the envelope is series r."""

    buckets: BucketGrid
    times: NDArray[np.float64]
    envelope: Planes


def query(reader: Reader, connection: Connection, run_id: int, stats: Sequence[str], steps: StepRange) -> BucketedStats:
    """Return the buckets of some stats between two steps."""

    def read(segment: Segment, level: int) -> StepIndex:
        return StepIndexSource(reader.view(connection, run_id, segment)).read(level, segment.begin, segment.end)

    buckets, indexes = _fit_buckets(reader.segments(connection, run_id, steps.begin, steps.end), steps.points, read)
    times, bits = np.full(buckets.count, np.nan), dict.fromkeys(stats, 0)
    parts: list[SegmentPart] = []
    for segment, width, index in indexes:
        np.fmin.at(times, buckets.indexes(index.start), index.time)
        for stat in stats:
            bits[stat] |= int(np.bitwise_or.reduce(index.phases.get(stat, np.zeros(1, np.uint8))))
        parts.append(SegmentPart(segment, width, index.start, index.last))
    phases = {
        stat: tuple(name for bit, name in enumerate(wire.PHASES) if found >> bit & 1) for stat, found in bits.items()
    }
    return BucketedStats(run_id, tuple(stats), phases, buckets, times, tuple(parts))


def query_metrics(
    reader: Reader, connection: Connection, run_id: int, series: Sequence[tuple[str, str]], steps: StepRange
) -> BucketedMetrics:
    """Return the metrics of these names and tags between two steps."""
    numbers = {key: number for number, key in enumerate(series)}

    def read(segment: Segment, level: int) -> SparseAggregates:
        return reader.read_metrics(connection, run_id, segment, numbers, level)

    segments = reader.metric_segments(connection, run_id, steps.begin, steps.end)
    buckets, parts = _fit_buckets(segments, steps.points, read)
    accumulator, times = _BucketAccumulator(buckets.count, len(series), PLANES), np.full(buckets.count, np.nan)
    for _, _, part in parts:
        np.fmin.at(times, buckets.indexes(part.start), part.time)
        for number in np.unique(part.series).tolist():
            one = part.select(part.series == number)
            planes = {name: getattr(one, name)[:, None] for name in PLANES}
            accumulator.add(buckets.indexes(one.start), slice(number, number + 1), planes)
    return BucketedMetrics(buckets, times, accumulator.envelope(np.float64))


def _fit_buckets(
    segments: Sequence[Segment], points: int, read: Callable[[Segment, int], Part]
) -> tuple[BucketGrid, list[tuple[Segment, int, Part]]]:
    """Return the buckets of some segments, and for those with samples their width and what ``read`` returns.

    The buckets depend on the steps, and the level at which steps are read on the buckets: so it may be read twice.
    """
    rough = _buckets(segments, [(segment.first, segment.last) for segment in segments], points)
    parts = [(segment, read(segment, segment.stream.level_for(rough.width))) for segment in segments]
    parts = [(segment, part) for segment, part in parts if len(part.start)]
    bounds = [(int(part.first.min()), int(part.last.max())) for _, part in parts]
    buckets = _buckets([segment for segment, _ in parts], bounds, points)
    narrow, widths = _narrow(buckets, parts, points)

    def refit(width: int, segment: Segment, part: Part) -> Part:
        level = segment.stream.level_for(width)
        return part if level == segment.stream.level_for(rough.width) else read(segment, level)

    fitted = [(part[0], width, refit(width, *part)) for width, part in zip(widths, parts, strict=True)]
    # An aggregate is counted in the bucket of its start, which may be before its first sample.
    if all((narrow.indexes(part.start) == narrow.indexes(part.last)).all() for _, _, part in fitted):
        return narrow, fitted
    # A border between two intervals would cut an aggregate.
    return buckets, [(segment, buckets.width, refit(buckets.width, segment, part)) for segment, part in parts]


def _buckets(segments: Sequence[Segment], bounds: Sequence[Bounds], points: int) -> BucketGrid:
    """Return the narrowest buckets of one width, at most ``points``, that hold all steps and all aggregates.

    Their width is a power of two times an interval of at most four times the widest of the segments.
    """
    width, every = math.lcm(*(segment.every() for segment in segments)), _widest(segments)
    if not bounds:
        return BucketGrid((BucketSpan(0, width, 0, every),))
    low, high = min(begin for begin, _ in bounds), max(end for _, end in bounds)
    while high // width - low // width >= points:
        width *= 2
    return BucketGrid((BucketSpan(low // width * width, width, high // width - low // width + 1, every),))


def _narrow(
    buckets: BucketGrid, parts: Sequence[tuple[Segment, Part]], points: int
) -> tuple[BucketGrid, Sequence[int]]:
    """Return the buckets, narrower where samples are closer together than the widest interval, and those of each part.

    They are at least half as wide as ``points`` equal ones would be: more cannot be seen beside each other.
    """
    intervals = [segment.every() for segment, _ in parts]
    widest = buckets.width
    if len(set(intervals)) < 2 or widest > math.lcm(*intervals):
        return buckets, [widest] * len(parts)
    stretches = _stretches(parts)
    least = max(1, (stretches[-1].last - stretches[0].first) // (2 * points))
    while least < widest:
        width_of = {interval: min(widest, _doubled(interval, least)) for interval in set(intervals)}
        narrow = BucketGrid(_spans(stretches, width_of))
        if narrow.count <= points:
            return narrow, [width_of[interval] for interval in intervals]
        least *= 2
    return buckets, [widest] * len(parts)


@dataclass(frozen=True)
class _Stretch:
    """Neighbouring samples or aggregates that are ``interval`` steps apart, and their first and last step."""

    interval: int
    every: int
    first: int
    last: int


def _stretches(parts: Sequence[tuple[Segment, Part]]) -> list[_Stretch]:
    """Return the stretches of some parts in the order of steps."""
    first, last = (np.concatenate([getattr(part, name) for _, part in parts]) for name in ("first", "last"))
    numbers = np.repeat(np.arange(len(parts)), [len(part.start) for _, part in parts])
    order = np.argsort(first, kind="stable")
    intervals = np.array([segment.every() for segment, _ in parts])[numbers[order]]
    begins: list[int] = np.flatnonzero(np.diff(intervals, prepend=0)).tolist()
    return [
        _Stretch(
            int(intervals[begin]),
            _widest([parts[number][0] for number in np.unique(numbers[order[begin:end]]).tolist()]),
            int(first[order[begin]]),
            int(last[order[begin:end]].max()),
        )
        for begin, end in pairwise([*begins, len(order)])
    ]


def _spans(stretches: Sequence[_Stretch], width_of: Mapping[int, int]) -> tuple[BucketSpan, ...]:
    """Return the buckets of stretches, with these widths by interval; where two of them meet the later one begins."""
    spans: list[BucketSpan] = []
    for stretch in stretches:
        width, every, last = width_of[stretch.interval], stretch.every, stretch.last
        first = stretch.first // width * width
        while spans and (first <= spans[-1].first or spans[-1].width == width):
            before = spans.pop()
            first, every = min(first, before.first) // width * width, max(every, before.every)
            last = max(last, before.last)
        if spans:
            before = spans[-1]
            spans[-1] = replace(before, count=min(before.count, -(-(first - before.first) // before.width)))
        spans.append(BucketSpan(first, width, last // width - first // width + 1, every))
    # The last bucket of a wide span reaches further than its samples; made narrow, it would leave empty ones.
    final, end = spans[-1], max(stretch.last for stretch in stretches)
    return *spans[:-1], replace(final, count=min(final.count, end // final.width - final.first // final.width + 1))


def _doubled(interval: int, least: int) -> int:
    """Return an interval, doubled until it has at least so many steps."""
    while interval < least:
        interval *= 2
    return interval


def _widest(segments: Sequence[Segment]) -> int:
    return max((segment.stream.every for segment in segments), default=1) or 1


class _BucketAccumulator:
    """Accumulates aggregates in buckets."""

    def __init__(self, buckets: int, series: int, wanted: Collection[str]) -> None:
        shape = (buckets, series)
        counts = {name: np.zeros(shape, np.int32) for name in wanted if name in (COUNT, NONFINITE)}
        extremes = {name: np.full(shape, np.nan) for name in wanted if name in (MINIMUM, MAXIMUM)}
        self._planes: dict[str, Plane] = {MEAN: np.zeros(shape)} if MEAN in wanted else {}
        self._planes |= counts | extremes

    def add(self, indexes: NDArray[np.int64], series: slice, planes: Planes) -> None:
        """Add aggregates; number i belongs to bucket ``indexes[i]``, in rising order."""
        if not len(indexes):
            return
        groups = Groups(indexes)
        with np.errstate(over="ignore", invalid="ignore"):  # a mean of metrics near 1e308 is inf
            self.add_reduced(indexes[groups.starts], series, reduce_planes(planes, groups))

    def add_reduced(self, indexes: NDArray[np.int64], series: slice, planes: Planes) -> None:
        """Add planes of :func:`reduce_planes`, one row for each bucket."""
        target = (as_slice(indexes), series)
        for name, plane in planes.items():
            accumulated = self._planes[name]
            accumulated[target] = REDUCTIONS[name](accumulated[target], plane)

    def envelope(self, dtype: type[np.floating]) -> Planes:
        planes = self._planes | ({MEAN: means(self._planes)} if MEAN in self._planes else {})
        return {name: plane if plane.dtype == np.int32 else plane.astype(dtype) for name, plane in planes.items()}
