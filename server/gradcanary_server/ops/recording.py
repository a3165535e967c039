"""A recording of a run: the measurements of its agents in order, as lines; rules are tried on it elsewhere.

The first line is a JSON object about the run. Then come pairs of lines: launch and layers of the next batch, and the
batch in the format of the wire, with the loss and the learning rates of its steps. The accumulators, which only the
layer table has, come with the first batch of each launch and set of layers.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, select

from gradcanary import wire
from gradcanary_server.ingest.messages import END_STATES
from gradcanary_server.storage import layers, runs
from gradcanary_server.storage.database import Database, Record
from gradcanary_server.storage.schema import metric, session
from gradcanary_server.tsdb.batch import MAX_METRICS, MetricColumn, encode_batch
from gradcanary_server.tsdb.log import LoggedBatch
from gradcanary_server.tsdb.reader import Reader, Segment
from gradcanary_server.tsdb.samples import MAX_STEP_EXCLUSIVE, STEP_COLUMNS, merge_streams
from gradcanary_server.tsdb.tiles import ABSENT
from gradcanary_server.validation import LIMITS

_OF_STEPS = re.compile(r"(loss|lr\d+|scaler_scale|skipped_total)\{\}")
"""Series without tags that come with the samples of their steps, not before them."""

LAUNCH_COLUMNS = ("first_step", "late", "absmax_below", "norm_below", "collapse_below")


@dataclass(frozen=True)
class _Points:
    """The points of a metric of a launch by step; ``tags`` is canonical JSON."""

    name: str
    tags: str
    steps: NDArray[np.int64]
    values: NDArray[np.float64]

    def slice_steps(self, begin: int, end: int) -> MetricColumn:
        rows = slice(*np.searchsorted(self.steps, [begin, end]).tolist())
        return MetricColumn(self.name, self.tags, self.steps[rows], self.values[rows])


def recording_lines(database: Database, measurements: Reader, run: Record, state: str) -> Iterator[bytes]:
    """Yield the lines of a run's recording, each part in a transaction of its own: a reader may be slow."""
    with database.read() as connection:
        launches = runs.launches_in_order(connection, run.run_id)
        rows = layers.read_layers(connection, run.run_id)
        segments = measurements.segments(connection, run.run_id, None, None, overlapping=True)
        yield _line(_head(connection, run, state, launches, rows, segments))
    for launch in launches:
        with database.read() as connection:
            points = _metrics(connection, measurements, run.run_id, launch.launch_no)
        launch_segments = [segment for segment in segments if segment.stream.launch_no == launch.launch_no]
        bounded = [replace(segment, begin=segment.first, end=segment.last + 1) for segment in launch_segments]
        parts = [(segment.begin, measurements.samples(database, run.run_id, segment)) for segment in bounded]
        yield from _launch_lines(merge_streams(parts), points, rows)


def split_by_layers(piece: LoggedBatch) -> Iterator[LoggedBatch]:
    """Yield a batch in parts of one set of layers each, and of few enough points for a message."""
    is_present = piece.columns.state != ABSENT
    bounds = np.flatnonzero((is_present[1:] != is_present[:-1]).any(axis=1)) + 1
    max_rows = max(1, LIMITS.max_points // (is_present.shape[1] * max(1, len(piece.columns.values))))
    for begin, end in pairwise([0, *bounds.tolist(), len(is_present)]):
        columns = np.flatnonzero(is_present[begin])
        for low in range(begin, end, max_rows):
            yield _part(piece, slice(low, min(low + max_rows, end)), columns)


def _part(piece: LoggedBatch, rows: slice, layers: NDArray[np.intp]) -> LoggedBatch:
    columns = piece.columns
    part = replace(
        columns,
        **{name: getattr(columns, name)[rows] for name in STEP_COLUMNS},
        state=columns.state[rows][:, layers],
        values={stat: plane[rows][:, layers] for stat, plane in columns.values.items()},
        phases={stat: phases[rows] for stat, phases in columns.phases.items()},
        accumulators=(),
        metrics=(),
    )
    return replace(piece, numbers=piece.numbers[layers], columns=part)


def _launch_lines(batches: Iterator[LoggedBatch], points: Sequence[_Points], rows: Sequence[Record]) -> Iterator[bytes]:
    """Yield the lines of a launch; points after its last sample come with a batch that has no samples."""
    numbers, until, last = b"", 0, None
    for piece in (part for batch in batches for part in split_by_layers(batch)):
        is_new = piece.numbers.tobytes() != numbers
        numbers, begin, until = piece.numbers.tobytes(), until, int(piece.columns.steps[-1]) + 1
        accumulators = _accumulators(rows, piece.numbers) if is_new else ()
        metrics = _sliced(points, begin, until)
        last = replace(piece, columns=replace(piece.columns, accumulators=accumulators, metrics=metrics))
        yield from _batch_lines(last)
    if last is not None:
        empty = {name: getattr(last.columns, name)[:0] for name in (*STEP_COLUMNS, "state")}
        metrics = _sliced(points, until, MAX_STEP_EXCLUSIVE)
        columns = replace(last.columns, **empty, values={}, phases={}, accumulators=(), metrics=metrics)
        yield from _batch_lines(replace(last, columns=columns))


def _sliced(points: Sequence[_Points], begin: int, end: int) -> tuple[MetricColumn, ...]:
    """Return the points of some steps, without series that have none."""
    sliced = (series.slice_steps(begin, end) for series in points)
    return tuple(series for series in sliced if len(series.steps))


def _batch_lines(piece: LoggedBatch) -> Iterator[bytes]:
    """Yield the lines of a batch; series that are too many for one come before it, in batches without samples."""
    columns = piece.columns
    empty = {name: getattr(columns, name)[:0] for name in (*STEP_COLUMNS, "state")}
    for begin in range(MAX_METRICS, len(columns.metrics), MAX_METRICS):
        some = columns.metrics[begin : begin + MAX_METRICS]
        part = replace(columns, **empty, values={}, phases={}, accumulators=(), metrics=some)
        yield from _lines(replace(piece, columns=part))
    yield from _lines(replace(piece, columns=replace(columns, metrics=columns.metrics[:MAX_METRICS])))


def _lines(piece: LoggedBatch) -> Iterator[bytes]:
    yield _line({"launch": piece.launch_no, "layers": piece.numbers.tolist()})
    yield wire.dump(encode_batch(piece.columns)) + b"\n"


def _line(content: dict[str, object]) -> bytes:
    return json.dumps(content).encode() + b"\n"


def _head(
    connection: Connection,
    run: Record,
    state: str,
    launches: Sequence[Record],
    rows: Sequence[Record],
    segments: Sequence[Segment],
) -> dict[str, object]:
    configurations = runs.read_configurations(connection, run.run_id)
    raw_starts = [segment.stream.raw_start for segment in segments if segment.first < segment.stream.raw_start]
    return {
        "run": run.name,
        "state": state,
        "facts": json.loads(run.facts),
        "raw_start_step": max(raw_starts, default=None),
        "ended": sorted(_ended_launches(connection, run.run_id)),
        "launches": [
            {
                "number": row.launch_no,
                **{name: getattr(row, name) for name in LAUNCH_COLUMNS},
                "optimizers": of.optimizer_kinds(),
                "metrics": [vars(bound) for bound in of.metrics],
            }
            for row in launches
            for of in [configurations.get(row.launch_no, runs.NO_CONFIGURATION)]
        ],
        "layers": [
            {
                "number": row.layer_no,
                "name": row.name,
                "shape": json.loads(row.shape),
                "param_dtype": row.param_dtype,
                "module_class": row.module_class,
                "group": row.group_no,
            }
            for row in rows
        ],
    }


def _ended_launches(connection: Connection, run_id: int) -> set[int]:
    """Return the launches that ended with their training: every session ended, and one at least was not detached."""
    query = select(session.c.launch_no, session.c.ended).where(session.c.run_id == run_id, session.c.rank >= 0)
    states: dict[int, set[str | None]] = {}
    for row in connection.execute(query):
        states.setdefault(row.launch_no, set()).add(row.ended)
    return {number for number, ends in states.items() if ends <= {*END_STATES} and ends != {"detached"}}


def _metrics(connection: Connection, measurements: Reader, run_id: int, launch_no: int) -> list[_Points]:
    """Return the points of a launch, which bounds may be about; a value that is not finite is NaN."""
    stored = connection.execute(select(metric.c.name, metric.c.tags).where(metric.c.run_id == run_id))
    names = sorted(
        ((row.name, row.tags) for row in stored),
        key=lambda series: (not _OF_STEPS.fullmatch("".join(series)), series),
    )
    numbers = {name: number for number, name in enumerate(names)}
    parts = []
    for segment in measurements.metric_segments(connection, run_id, None, None, overlapping=True):
        if segment.stream.launch_no == launch_no:
            raw = replace(segment, begin=max(segment.begin, segment.stream.raw_start))
            parts.append(measurements.read_metrics(connection, run_id, raw, numbers, 0))
    points = []
    for part in parts:
        order = np.argsort(part.series, kind="stable")
        bounds = np.searchsorted(part.series[order], np.arange(len(names) + 1)).tolist()
        values = np.where(part.nonfinite > 0, np.nan, part.mean)
        for name, (begin, end) in zip(names, pairwise(bounds), strict=True):
            rows = order[begin:end]
            points += [_Points(name[0], name[1], part.start[rows], values[rows])] if len(rows) else []
    return points


def _accumulators(rows: Sequence[Record], numbers: NDArray[np.int32]) -> tuple[wire.Accumulator, ...]:
    """Return how the gradients of these layers are summed, as far as that is known."""
    dtypes = {row.layer_no: (row.declared, row.stored, row.effective) for row in rows}
    layers_of: dict[tuple[str | None, ...], list[int]] = {}
    for index, number in enumerate(numbers.tolist()):
        layers_of.setdefault(dtypes.get(number, (None, None, None)), []).append(index)
    return tuple(wire.Accumulator(tuple(indices), *kind) for kind, indices in layers_of.items() if any(kind))
