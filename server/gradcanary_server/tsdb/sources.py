"""Aggregates of a stream, read from its tiles and its batches in the log.

The result does not show which samples are in the log, in tiles, or only in rollups.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from gradcanary_server.rules import types
from gradcanary_server.tsdb.batch import NO_PHASE
from gradcanary_server.tsdb.log import LoggedBatch
from gradcanary_server.tsdb.rollup import MINIMUM, NONFINITE, PLANES, Aggregates, Plane, SparseAggregates, StepIndex
from gradcanary_server.tsdb.samples import PHASE, as_slice, slice_steps
from gradcanary_server.tsdb.tile_codec import Arrays
from gradcanary_server.tsdb.tiles import METRICS, STATE, STEPS, TILE_LAYERS, SampleStream, TileKey, TileStore

Series = tuple[str, str]
"""The name and the tags of a metric."""

_Columns = slice | NDArray[np.integer]

Part = TypeVar("Part", StepIndex, Aggregates, SparseAggregates)


@dataclass(frozen=True)
class StreamView:
    """A stream in one transaction; ``batches`` are its batches in the log."""

    tiles: TileStore
    connection: Connection
    run_id: int
    stream: SampleStream
    batches: Sequence[LoggedBatch] = ()

    def read_tiles(
        self, kinds: Collection[str], level: int, begin: int, end: int, layer_groups: Collection[int] | None = None
    ) -> list[tuple[TileKey, Arrays]]:
        """Return the tiles of these kinds with steps from ``begin`` to before ``end``."""
        return self.tiles.read(self.connection, self.run_id, self.stream, kinds, level, (begin, end), layer_groups)


class Source(ABC, Generic[Part]):
    """Reads one kind of aggregates of a stream, in the order of steps."""

    def __init__(self, view: StreamView) -> None:
        self.view = view

    @abstractmethod
    def from_tiles(self, level: int, begin: int, end: int) -> Part: ...

    @abstractmethod
    def from_log(self, begin: int, end: int) -> Part: ...

    @abstractmethod
    def concat(self, parts: Sequence[Part]) -> Part: ...

    def read(self, level: int, begin: int, end: int) -> Part:
        """Return the aggregates of a level from ``begin`` to before ``end``; at the edges, those of the part inside.

        Where raw samples are gone, neither edge may cut an aggregate of level 1, as in every segment of the reader.
        """
        if level == 0:
            return self.concat(list(self._samples(begin, end)))
        stream = self.view.stream
        width = stream.width(level)
        low, high = -(-begin // width) * width, min(end // width * width, stream.end(level))
        if low >= high:
            return self.read(level - 1, begin, end).downsample(width)
        parts = []
        if begin < low:
            parts.append(self.read(level - 1, begin, low).downsample(width))
        parts.append(self.from_tiles(level, low, high))
        if high < end:
            parts.append(self.read(level - 1, high, end).downsample(width))
        return self.concat(parts)

    def _samples(self, begin: int, end: int) -> Iterator[Part]:
        sealed_until = self.view.stream.sealed_until
        raw = max(begin, self.view.stream.raw_start)
        if begin < raw:
            yield self.from_tiles(1, begin, min(end, raw))
        if raw < min(end, sealed_until):
            yield self.from_tiles(0, raw, min(end, sealed_until))
        yield self.from_log(max(raw, sealed_until), end)


class StepIndexSource(Source[StepIndex]):
    """Reads the steps of a stream."""

    def from_tiles(self, level: int, begin: int, end: int) -> StepIndex:
        return self.concat(
            [_step_index(level, head, begin, end) for _, head in self.view.read_tiles([STEPS], level, begin, end)]
        )

    def from_log(self, begin: int, end: int) -> StepIndex:
        slices = [slice_steps(batch, begin, end).columns for batch in self.view.batches]
        slices = [part for part in slices if len(part.steps)]
        if not slices:
            return self.concat([])
        blanks = [np.full(len(part.steps), NO_PHASE, np.uint8) for part in slices]
        phases = {
            stat: np.concatenate([part.phases.get(stat, blank) for part, blank in zip(slices, blanks, strict=True)])
            for stat in sorted({stat for part in slices for stat in part.phases})
        }
        steps, times = (np.concatenate([getattr(part, name) for part in slices]) for name in ("steps", "times"))
        return StepIndex.of_samples(steps, times, _phase_bits(phases))

    def concat(self, parts: Sequence[StepIndex]) -> StepIndex:
        return StepIndex.concat(parts)


class _LayerGroup:
    """The requested layers of one group: their columns in the result, and in the tiles of the group."""

    def __init__(self, layers: NDArray[np.int32], is_member: NDArray[np.bool_], first: int) -> None:
        """``first`` is the column of ``layers[0]`` in the result."""
        self._result, self._tile = first + np.flatnonzero(is_member), layers[is_member] % TILE_LAYERS
        self._slices = as_slice(self._result), as_slice(self._tile)

    def copy(self, target: Plane, plane: NDArray[np.generic]) -> None:
        """Copy the columns of a tile to the result; older tiles lack layers that came later."""
        is_stored = self._tile < plane.shape[1]
        if is_stored.all():
            target[:, self._slices[0]] = plane[:, self._slices[1]]
        else:
            target[:, self._result[is_stored]] = plane[:, self._tile[is_stored]]


class StatSource(Source[Aggregates]):
    """Reads some stats of some layers, int32[L], as the ``wanted`` planes of aggregates.

    The columns of the first stat are before those of the second: stat i of ``layers[j]`` is column i * L + j.
    """

    def __init__(
        self, view: StreamView, stats: Sequence[str], layers: NDArray[np.int32], wanted: Collection[str] = PLANES
    ) -> None:
        super().__init__(view)
        self._layers, self._wanted = layers, wanted
        self._firsts = {stat: place * len(layers) for place, stat in enumerate(stats)}
        self._width = len(stats) * len(layers)
        self._has_values, self._has_state = any(name != NONFINITE for name in wanted), NONFINITE in wanted
        # One longer than needed: all greater layer numbers have the last entry, which is -1.
        self._columns = np.full(int(layers.max(initial=-1)) + 2, -1, np.intp)
        self._columns[layers] = np.arange(len(layers))
        groups = layers // TILE_LAYERS
        self._groups = {
            number: {stat: _LayerGroup(layers, groups == number, first) for stat, first in self._firsts.items()}
            for number in np.unique(groups).tolist()
        }

    def selection(self) -> Hashable:
        """Return a key of the stats, layers and planes that are read."""
        layers = hashlib.sha256(self._layers.tobytes()).digest()
        return tuple(self._firsts), layers, frozenset(self._wanted)

    def from_tiles(self, level: int, begin: int, end: int) -> Aggregates:
        kinds = [STEPS, *([STATE] if self._has_state else []), *(self._firsts if self._has_values else [])]
        heads: list[tuple[TileKey, Arrays]] = []
        planes: dict[tuple[int, int], list[tuple[TileKey, Arrays]]] = {}
        for key, arrays in self.view.read_tiles(kinds, level, begin, end, self._groups):
            of_kind = heads if key.kind == STEPS else planes.setdefault((key.range_no, key.part), [])
            of_kind.append((key, arrays))
        steps, slices = [np.empty(0, np.int64)], []
        for _, head in heads:
            starts = head["start" if level else "steps"].astype(np.int64, copy=False)
            slices.append(slice(*np.searchsorted(starts, [begin, end]).tolist()))
            steps.append(starts[slices[-1]])
        of_samples = ((MINIMUM, self._has_values), (NONFINITE, self._has_state))
        filled = self._wanted if level else [name for name, is_wanted in of_samples if is_wanted]
        result = Aggregates.without_samples(np.concatenate(steps), self._width, filled)
        row = 0
        for (head_key, _), rows in zip(heads, slices, strict=True):
            target = slice(row, row + rows.stop - rows.start)
            row = target.stop
            for key, arrays in planes.get((head_key.range_no, head_key.part), ()):
                self._copy_tile(result, target, key, arrays, rows)
        if level:
            return result
        values, nonfinite = (result.planes.get(name) for name, _ in of_samples)
        return Aggregates.of_samples(result.start, values, nonfinite, self._wanted)

    def from_log(self, begin: int, end: int) -> Aggregates:
        slices = [slice_steps(batch, begin, end) for batch in self.view.batches]
        return self._aggregates([part for part in slices if len(part.columns.steps)])

    def concat(self, parts: Sequence[Aggregates]) -> Aggregates:
        if parts:
            return Aggregates.concat(parts)
        return Aggregates.without_samples(np.empty(0, np.int64), self._width, self._wanted)

    def _copy_tile(self, result: Aggregates, target: slice, key: TileKey, arrays: Arrays, rows: slice) -> None:
        for stored_name, plane in arrays.items():
            name = NONFINITE if key.kind == STATE else MINIMUM if stored_name == "plane" else stored_name
            if name in result.planes:
                values = plane[rows] == types.NONFINITE if key.kind == STATE and key.level == 0 else plane[rows]
                groups = self._groups[key.layer_group]
                for group in groups.values() if key.kind == STATE else [groups[key.kind]]:
                    group.copy(result.planes[name][target], values)

    def _aggregates(self, batches: Sequence[LoggedBatch]) -> Aggregates:
        steps = np.concatenate([np.empty(0, np.int64), *(batch.columns.steps for batch in batches)])
        shape = (len(steps), self._width)
        values = np.full(shape, np.nan, np.float32) if self._has_values else None
        nonfinite = np.zeros(shape, np.bool_) if self._has_state else None
        begin, numbers, places = 0, None, self._places(np.empty(0, np.int32))
        for batch in batches:
            columns = batch.columns
            rows = slice(begin, begin + len(columns.steps))
            begin = rows.stop
            if batch.numbers is not numbers:  # nearly always those of the batch before
                numbers, places = batch.numbers, self._places(batch.numbers)
            for stat, (targets, sources) in places.items():
                if nonfinite is not None:
                    nonfinite[rows, targets] = columns.state[:, sources] == types.NONFINITE
                if values is not None and stat in columns.values:
                    values[rows, targets] = columns.values[stat][:, sources]
        return Aggregates.of_samples(steps, values, nonfinite, self._wanted)

    def _places(self, numbers: NDArray[np.int32]) -> dict[str, tuple[_Columns, _Columns]]:
        """Return for each stat its columns in the result, and those of a batch with these layers."""
        wanted = self._columns[np.minimum(numbers, len(self._columns) - 1)]
        sources = np.flatnonzero(wanted >= 0)
        targets = wanted[sources]
        return {stat: (as_slice(first + targets), as_slice(sources)) for stat, first in self._firsts.items()}


class SparseSource(Source[SparseAggregates]):
    """Reads some metrics, given with their numbers. Points may come late, so level 0 joins tiles and log."""

    def __init__(self, view: StreamView, numbers: Mapping[Series, int]) -> None:
        super().__init__(view)
        self._numbers = numbers

    def from_tiles(self, level: int, begin: int, end: int) -> SparseAggregates:
        """Return the aggregates of these steps in tiles of a level, with the points of the log."""
        tiles = self.view.read_tiles([METRICS], level, begin, end)
        parts = [self._select(*metrics_of_tile(level, arrays)) for _, arrays in tiles]
        if level == 0 and self.view.batches:
            names: dict[Series, int] = {}
            logged = zip(*(points_of(batch, names) for batch in self.view.batches), strict=True)
            points = SparseAggregates.of_points(*map(np.concatenate, logged))
            parts.append(self._select(list(names), points))
        stored = self.concat(parts)
        inside = stored.select((stored.start >= begin) & (stored.start < end))
        return inside if level == 0 else self._with_late_points(inside, level, begin, end)

    def from_log(self, begin: int, end: int) -> SparseAggregates:  # noqa: ARG002 -- of Source
        """Return nothing: :meth:`from_tiles` has returned it."""
        return SparseAggregates.empty()

    def concat(self, parts: Sequence[SparseAggregates]) -> SparseAggregates:
        return SparseAggregates.concat(parts)

    def _with_late_points(self, stored: SparseAggregates, level: int, begin: int, end: int) -> SparseAggregates:
        """Recompute the aggregates for which the log has late points."""
        steps = metric_steps(self.view.batches)
        width = self.view.stream.width(level)
        starts = np.unique(steps[(steps >= begin) & (steps < end)] // width * width)
        if not len(starts):
            return stored
        parts = [self.from_tiles(level - 1, start, start + width).downsample(width) for start in starts.tolist()]
        return self.concat([stored.select(~np.isin(stored.start, starts)), *parts])

    def _select(self, names: Sequence[Series], stored: SparseAggregates) -> SparseAggregates:
        numbers = np.array([self._numbers.get(key, -1) for key in names], np.int64)
        selected = stored.select(numbers[stored.series] >= 0)
        columns = {field.name: getattr(selected, field.name) for field in fields(selected)}
        return SparseAggregates(**columns | {"series": numbers[selected.series]})


def metric_steps(batches: Iterable[LoggedBatch]) -> NDArray[np.int64]:
    """Return the steps of all points of metrics."""
    steps = [metric.steps for batch in batches for metric in batch.columns.metrics]
    return np.concatenate([np.empty(0, np.int64), *steps])


def points_of(batch: LoggedBatch, names: dict[Series, int]) -> tuple[NDArray[np.generic], ...]:
    """Return the points of a batch's metrics: number of the series in ``names``, which grows; step, value, time."""
    columns = batch.columns
    numbers = [names.setdefault((metric.name, metric.tags), len(names)) for metric in columns.metrics]
    steps = metric_steps([batch])
    times = np.full(len(steps), np.nan)  # of a step that was not sampled
    if len(columns.steps):
        rows = np.minimum(np.searchsorted(columns.steps, steps), len(columns.steps) - 1)
        times = np.where(columns.steps[rows] == steps, columns.times[rows], np.nan)
    return (
        np.repeat(np.array(numbers, np.int64), [len(metric.steps) for metric in columns.metrics]),
        steps,
        np.concatenate([np.empty(0), *(metric.values for metric in columns.metrics)]),
        times,
    )


def encode_series(names: Iterable[Series]) -> NDArray[np.uint8]:
    """Return the series of a tile of metrics as an array."""
    return np.frombuffer(json.dumps(list(names)).encode(), np.uint8)


def metrics_of_tile(level: int, arrays: Arrays) -> tuple[list[Series], SparseAggregates]:
    """Return the series of a tile of metrics, and its aggregates, whose ``series`` are indexes in that list."""
    names = [(name, tags) for name, tags in json.loads(arrays["names"].tobytes())]
    columns = {name: values for name, values in arrays.items() if name != "names"}
    if level == 0:
        points = (columns[name] for name in ("series", "steps", "values", "times"))
        return names, SparseAggregates.of_points(*points)  # type: ignore[arg-type]  # as they were packed
    return names, SparseAggregates(**columns)  # type: ignore[arg-type]  # likewise


def _step_index(level: int, head: Arrays, begin: int, end: int) -> StepIndex:
    starts = head["start" if level else "steps"]
    rows = slice(*np.searchsorted(starts, [begin, end]).tolist())
    phases = {name.removeprefix(PHASE): phase[rows] for name, phase in head.items() if name.startswith(PHASE)}
    if level == 0:
        return StepIndex.of_samples(starts[rows], head["times"][rows], _phase_bits(phases))  # type: ignore[arg-type]  # as they were packed
    columns = {name: head[name][rows] for name in ("start", "first", "last", "time")}
    return StepIndex(**columns, phases=phases)  # type: ignore[arg-type]  # likewise


def _phase_bits(phases: Mapping[str, NDArray[np.generic]]) -> dict[str, NDArray[np.uint8]]:
    bits = {stat: 1 << np.minimum(phase, 7) for stat, phase in phases.items()}
    return {stat: np.where(phase == NO_PHASE, 0, bits[stat]).astype(np.uint8) for stat, phase in phases.items()}
