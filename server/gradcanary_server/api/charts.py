"""Series, heatmap and metrics of a run as JSON, and all samples as an iterator.

A heatmap has a row per layer or group of layers and a column per bucket of steps; its cells are int16 milli-decades.
"""

import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError
from sqlalchemy import Connection, Select, bindparam, select

from gradcanary import wire
from gradcanary_server.api import cell_states, runs
from gradcanary_server.api.http import Json, encode_array
from gradcanary_server.errors import RequestError, invalid
from gradcanary_server.incidents import service
from gradcanary_server.matchers import Matcher, MatcherError
from gradcanary_server.rules.config import Rules
from gradcanary_server.rules.state import RuleState
from gradcanary_server.storage import layers, rule_states
from gradcanary_server.storage import runs as run_store
from gradcanary_server.storage.database import Database, Record
from gradcanary_server.storage.schema import metric
from gradcanary_server.tsdb.batch import canonical_tags
from gradcanary_server.tsdb.log import LoggedBatch
from gradcanary_server.tsdb.query import BucketGrid, StepRange, query, query_metrics
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
    Groups,
    Plane,
    Planes,
    SparseAggregates,
    means,
    sample_sums,
)
from gradcanary_server.tsdb.samples import merge_streams
from gradcanary_server.tsdb.tables import EACH_STEP

Value = Literal["min", "mean", "max"]
Order = Literal["model", "worst", "block"]

NO_DATA = -32768
EXACT_ZERO = -32767
WITHOUT_GRADIENT = -32766
FROZEN = -32765
ANY_NONFINITE = 32767
LIMIT = 32760
"""The largest value of a cell in milli-decades; beyond it are the codes above."""

_CHUNK_CELLS = 100_000
"""Cells that are merged or encoded together: each takes some 50 bytes meanwhile."""

_BLOCK = re.compile(r"^\D*\d+")

_NEEDED: dict[Value, tuple[str, ...]] = {
    "min": (MINIMUM, NONFINITE),
    "mean": (MEAN, COUNT, NONFINITE),
    "max": (MAXIMUM, NONFINITE),
}
_RANKED = frozenset((MINIMUM, NONFINITE))
"""The planes of the order of the worst."""

_STATE_RANKS = {"firing": 0, "recovering": 1, "suspect": 2}

MAX_SERIES = 100
"""Layers or metrics of one answer."""

MAX_CELLS = 4_000_000

CHUNK_LEVEL = 4
CHUNK_STEPS = FACTOR**CHUNK_LEVEL
"""Steps of metrics that are read together, those of an aggregate of this level."""

_TAGS = TypeAdapter(dict[str, str])

_PLANE_KEYS = {MINIMUM: "min", MAXIMUM: "max"}

ColumnRanks = tuple[NDArray[np.bool_], NDArray[np.floating]]
"""Per column of an envelope: True if all its values are finite, and its last minimum."""


@dataclass(frozen=True)
class HeatmapOptions:
    """The values, order and rows of a heatmap; ``match`` is an expression found in names of layers."""

    value: Value
    order: Order
    match: str | None
    rows: int


@dataclass(frozen=True)
class MetricSelector:
    """Metrics with one of these names and one of these tags in their stored form; all if both are empty."""

    names: Sequence[str]
    tags: Sequence[str]

    @classmethod
    def parse(cls, names: Sequence[str], tags: Sequence[str]) -> "MetricSelector":
        """Return the selector for tags given as JSON objects; raises RequestError 422."""
        try:
            return cls(names, [canonical_tags(_TAGS.validate_json(text)) for text in tags])
        except ValidationError as error:
            raise invalid('Tags are a JSON object of texts: {"split": "val"}.', "tags") from error


@dataclass(frozen=True)
class Row:
    """The layers that share a row of a heatmap, as columns of the envelope."""

    columns: tuple[int, ...]
    name: str
    block: str


def block_name(name: str) -> str:
    """Return a layer's name up to and including its first number; without a number, its module."""
    match = _BLOCK.match(name)
    return match.group() if match else name.rpartition(".")[0] or name


def sort_columns(
    order: Order, names: Sequence[str], states: Sequence[int], ranks: Sequence[ColumnRanks]
) -> NDArray[np.intp]:
    """Return the columns of an envelope in the order of the rows.

    ``model``: as the run first named them; ``block``: blocks together, in the order of their first layer; ``worst``:
    non-finite first, then firing, recovering, suspect (``states``), then by the last value (``ranks``, in parts).
    """
    if order == "model" or not names:
        return np.arange(len(names))
    if order == "block":
        firsts: dict[str, int] = {}
        return np.argsort([firsts.setdefault(block_name(name), len(firsts)) for name in names], kind="stable")
    are_finite, lasts = (np.concatenate(parts) for parts in zip(*ranks, strict=True))
    return np.lexsort([lasts.astype(np.float64), np.array(states), are_finite])


def rank_columns(envelope: Planes) -> ColumnRanks:
    """Return for each column if it is finite, and its last minimum; a column without data sorts last."""
    filled = ~np.isnan(envelope[MINIMUM])
    at = len(filled) - 1 - np.argmax(filled[::-1], axis=0) if len(filled) else np.zeros(filled.shape[1], np.intp)
    values = envelope[MINIMUM][at, np.arange(filled.shape[1])] if len(filled) else np.full(filled.shape[1], np.nan)
    return (envelope[NONFINITE] > 0).sum(axis=0) == 0, np.where(filled.any(axis=0), values, np.inf)


def group_rows(columns: NDArray[np.intp], names: Sequence[str], most: int) -> list[Row]:
    """Return at most ``most`` rows; of more layers neighbours share a row."""
    share = max(1, -(-len(columns) // most))
    rows = []
    for begin in range(0, len(columns), share):
        group = columns[begin : begin + share].tolist()
        first, last = names[group[0]], names[group[-1]]
        title = first if len(group) == 1 else f"{first} … {last} ({len(group)} parameters)"
        rows.append(Row(tuple(group), title, block_name(first)))
    return rows


class Cells:
    """The cells of a heatmap, merged from parts of the envelope: only the rows are in memory as a whole."""

    def __init__(self, rows: Sequence[Row], buckets: int, value: Value) -> None:
        """``rows`` hold each column once."""
        columns = [column for row in rows for column in row.columns]
        self._row = np.empty(len(columns), np.intp)
        self._row[columns] = np.repeat(np.arange(len(rows)), [len(row.columns) for row in rows])
        self._has_begun = np.zeros(len(rows), np.bool_)
        shape = (len(rows), buckets)
        self._value = value
        self._merged: dict[str, Plane] = (
            {MEAN: np.zeros(shape), COUNT: np.zeros(shape, np.int32)}
            if value == "mean"
            else {_NEEDED[value][0]: np.full(shape, np.nan, np.float32)}
        )
        self._nonfinite = np.zeros(shape, np.bool_)

    def add(self, columns: slice, envelope: Planes) -> None:
        """Merge the next columns of the envelope; those of one row follow each other."""
        rows = self._row[columns]
        begun = np.unique(rows[self._has_begun[rows]])
        keys = np.concatenate([begun, rows])
        order = np.argsort(keys, kind="stable")
        groups = Groups(keys[order])
        at = keys[order][groups.starts]

        width = self._nonfinite.shape[1]
        share = max(1, _CHUNK_CELLS // max(len(keys), 1))
        for begin in range(0, width, share):
            buckets = slice(begin, begin + share)
            part = {name: plane[buckets] for name, plane in envelope.items()}
            added = {name: sample_sums(part) if name == MEAN else part[name] for name in self._merged}
            merges = [(REDUCTIONS[name], merged, added[name]) for name, merged in self._merged.items()]
            for function, merged, plane in [*merges, (np.logical_or, self._nonfinite, part[NONFINITE] > 0)]:
                together = np.concatenate([merged[begun, buckets], plane.T])[order]
                merged[at, buckets] = groups.reduce(function, together)
        self._has_begun[rows] = True

    def encode(self) -> NDArray[np.int16]:
        """Return int16[rows, buckets]: round(1000 * log10(value)), or a code; see :mod:`cell_states` for others."""
        height, width = self._nonfinite.shape
        cells = np.empty((height, width), np.int16)
        share = max(1, _CHUNK_CELLS // max(width, 1))
        for begin in range(0, height, share):
            rows = slice(begin, begin + share)
            merged = {name: plane[rows] for name, plane in self._merged.items()}
            values = means(merged) if self._value == "mean" else merged[_NEEDED[self._value][0]].astype(np.float64)
            with np.errstate(divide="ignore"):
                milli = np.clip(np.round(1000 * np.log10(values)), -LIMIT, LIMIT)
            milli = np.where(np.isnan(values), NO_DATA, np.where(values == 0, EXACT_ZERO, milli))
            cells[rows] = np.where(self._nonfinite[rows], ANY_NONFINITE, milli)
        return cells


def build_series(
    connection: Connection,
    measurements: Reader,
    rules: Rules,
    run: Record,
    stat: str,
    layer_keys: Sequence[str],
    span: StepRange,
) -> Json:
    """Return the envelope of a stat for some layers, given by number or name."""
    chosen = select_layers(layers.find_layers(connection, run.run_id, layer_keys[:MAX_SERIES]), layer_keys)
    result = query(measurements, connection, run.run_id, (stat,), span)
    envelope = result.read(measurements, connection, _numbers(chosen))
    return {
        "run": run.name,
        "stat": stat,
        "phases": result.phases[stat],
        **_axis(run, result.buckets, result.times),
        "series": [
            {"layer": row.layer_no, "name": row.name, **_lines(envelope, column)} for column, row in enumerate(chosen)
        ],
        "threshold": _thresholds(connection, rules, run),
        "marks": service.incident_marks(connection, run.run_id),
    }


def _thresholds(connection: Connection, rules: Rules, run: Record) -> Json:
    collapse = rules.collapse.of_run(run_store.own_thresholds(connection, [run.run_id]).get(run.run_id))
    return {"enter": collapse.enter, "exit": collapse.exit}


def build_layer(
    connection: Connection, measurements: Reader, rules: Rules, run: Record, layer_key: str, span: StepRange
) -> Json:
    """Return the envelopes of the measured stats of a layer, given by number or name; absmax also without a value."""
    [row] = select_layers(layers.find_layers(connection, run.run_id, [layer_key]), [layer_key])
    result = query(measurements, connection, run.run_id, wire.STATS, span)
    envelope = result.read(measurements, connection, _numbers([row]))
    measured = _measured_stats(result.stats, envelope)
    absent = [stat for stat in wire.STATS if stat not in measured]
    if absent and not (span.begin is None and span.end is None):
        # A layer's page shows the same stats whatever its zoom: an empty figure for one without a value in these steps.
        whole = query(measurements, connection, run.run_id, absent, StepRange(None, None, 1))
        measured |= _measured_stats(absent, whole.read(measurements, connection, _numbers([row]), (COUNT,)))
    return {
        "run": run.name,
        "layer": row.layer_no,
        "name": row.name,
        **_axis(run, result.buckets, result.times),
        "series": [
            {"stat": stat, "phases": result.phases[stat], **_lines(envelope, column)}
            for column, stat in enumerate(wire.STATS)
            if stat in measured or stat == wire.STATS[0]
        ],
        "threshold": _thresholds(connection, rules, run),
        "marks": service.incident_marks(connection, run.run_id),
    }


def build_heatmap(
    connection: Connection,
    measurements: Reader,
    rules: Rules,
    run: Record,
    stat: str,
    options: HeatmapOptions,
    span: StepRange,
) -> Json:
    """Return the heatmap of a stat."""
    if options.rows * span.points > MAX_CELLS:
        raise invalid(f"rows x columns is at most {MAX_CELLS}.", "rows")
    chosen = filter_layers(layers.read_layers(connection, run.run_id), options.match)
    names = [row.name for row in chosen]
    numbers = _numbers(chosen)
    is_worst = options.order == "worst"
    result = query(measurements, connection, run.run_id, (stat,), span)
    slices = result.layer_slices(numbers)
    drawn, ranked = frozenset(_NEEDED[options.value]), _RANKED
    if is_worst and len(slices) == 1:
        drawn = ranked = drawn | ranked

    @lru_cache(maxsize=int(len(slices) == 1))  # a single slice is read once, for the order and the cells
    def read(number: int, planes: frozenset[str]) -> Planes:
        return result.read(measurements, connection, numbers[slices[number]], planes)

    states = _worst_states(rule_states.read_state(connection, run.run_id).state, chosen) if is_worst else []
    ranks = [rank_columns(read(number, ranked)) for number in range(len(slices))] if is_worst else []
    rows = group_rows(sort_columns(options.order, names, states, ranks), names, options.rows)
    cells = Cells(rows, result.buckets.count, options.value)
    for number, columns in enumerate(slices):
        cells.add(columns, read(number, drawn))
    encoded = cells.encode()
    missing = encoded == NO_DATA
    if stat in EACH_STEP and missing.any():
        layers_of = [numbers[list(row.columns)] for row in rows]
        codes = (WITHOUT_GRADIENT, FROZEN, EXACT_ZERO if stat == "nonfinite" else NO_DATA, NO_DATA)
        why = cell_states.explain(connection, measurements, result, missing, layers_of)
        encoded = np.where(missing, np.array(codes, np.int16)[why], encoded)
    return {
        "run": run.name,
        "stat": stat,
        "value": options.value,
        "phases": result.phases[stat],
        **_axis(run, result.buckets, result.times),
        "rows": [
            {"layers": [chosen[column].layer_no for column in row.columns], "name": row.name, "block": row.block}
            for row in rows
        ],
        "cells": encode_array(encoded),
        "threshold": {"enter": _thresholds(connection, rules, run)["enter"]},
        "gaps": runs.read_gaps(connection, run.run_id),
        "marks": service.incident_marks(connection, run.run_id),
    }


def build_metrics(
    connection: Connection, measurements: Reader, run: Record, selector: MetricSelector, span: StepRange
) -> Json:
    """Return the envelopes of the selected metrics."""
    keys = select_metrics(connection, run.run_id, selector)
    if len(keys) > MAX_SERIES:
        raise invalid(f"At most {MAX_SERIES} metrics in one answer: give name= and tags=.", "name")
    result = query_metrics(measurements, connection, run.run_id, keys, span)
    return {
        "run": run.name,
        **_axis(run, result.buckets, result.times),
        "metrics": [
            {"name": name, "tags": json.loads(tags), **_lines(result.envelope, row)}
            for row, (name, tags) in enumerate(keys)
        ],
    }


def select_metrics(connection: Connection, run_id: int, selector: MetricSelector) -> list[tuple[str, str]]:
    """Return the sorted names and tags of the selected metrics."""
    query = _metrics_query(bool(selector.names), bool(selector.tags))
    rows = connection.execute(query, {"run_id": run_id, "names": selector.names, "tags": selector.tags})
    return sorted((row.name, row.tags) for row in rows)


@lru_cache
def _metrics_query(has_names: bool, has_tags: bool) -> Select[Any]:
    query = select(metric.c.name, metric.c.tags).where(metric.c.run_id == bindparam("run_id"))
    query = query.where(metric.c.name.in_(bindparam("names", expanding=True))) if has_names else query
    return query.where(metric.c.tags.in_(bindparam("tags", expanding=True))) if has_tags else query


def iter_samples(
    database: Database,
    measurements: Reader,
    run_id: int,
    segments: Sequence[Segment],
    stats: Collection[str] = wire.STATS,
    layer_groups: Collection[int] | None = None,
) -> Iterator[LoggedBatch]:
    """Yield the stored samples of some segments in the order of steps; at least these stats and groups of layers."""
    bounded = [replace(part, begin=max(part.begin, part.first), end=min(part.end, part.last + 1)) for part in segments]
    samples = (measurements.samples(database, run_id, part, stats, layer_groups) for part in bounded)
    return merge_streams((part.begin, batches) for part, batches in zip(bounded, samples, strict=True))


def iter_points(
    database: Database,
    measurements: Reader,
    run_id: int,
    series: Sequence[tuple[str, str]],
    begin: int | None = None,
    end: int | None = None,
) -> Iterator[SparseAggregates]:
    """Yield the stored points of some metrics in the order of steps, some thousand steps at a time.

    Each chunk has a transaction of its own: the client may read slowly.
    """
    numbers = {key: number for number, key in enumerate(series)}
    with database.read() as connection:
        segments = measurements.metric_segments(connection, run_id, begin, end)
        # One point may be a billion steps after the others: chunks without points are skipped.
        chunks = [measurements.read_metrics(connection, run_id, segment, numbers, CHUNK_LEVEL) for segment in segments]
    for start in np.unique(SparseAggregates.concat(chunks).start // CHUNK_STEPS * CHUNK_STEPS).tolist():
        parts = [_clip(segment, start, start + CHUNK_STEPS) for segment in segments]
        with database.read() as connection:
            yield SparseAggregates.concat(
                [
                    measurements.read_metrics(connection, run_id, part, numbers, 0)
                    for part in parts
                    if part.begin < part.end
                ]
            )


def filter_layers(rows: Sequence[Record], expression: str | None) -> Sequence[Record]:
    """Return the layers in whose name an expression is found; raises RequestError 422."""
    if not expression:
        return rows
    try:
        compiled = Matcher(expression)
        return [row for row in rows if compiled.found_in(row.name)]
    except MatcherError as error:
        raise invalid(f"This expression does not work: {error}.", "match") from error


def select_layers(rows: Sequence[Record], layer_keys: Sequence[str]) -> list[Record]:
    """Return the layers of these numbers or names; raises RequestError 404 for an unknown one."""
    if not 1 <= len(layer_keys) <= MAX_SERIES:
        raise invalid(f"Give 1 to {MAX_SERIES} layers, by number or name.", "layer")
    layer_of = {row.name: row for row in rows} | {str(row.layer_no): row for row in rows}
    for key in layer_keys:
        if key not in layer_of:
            raise RequestError(404, "unknown_layer", f"This run has no layer {key!r}.", "layer")
    return [layer_of[key] for key in dict.fromkeys(layer_keys)]


def _clip(segment: Segment, begin: int, end: int) -> Segment:
    """Return the part of a segment between two steps whose points are still stored."""
    return replace(segment, begin=max(segment.begin, begin, segment.stream.raw_start), end=min(segment.end, end))


def _numbers(rows: Sequence[Record]) -> NDArray[np.int32]:
    return np.array([row.layer_no for row in rows], np.int32)


def _measured_stats(stats: Sequence[str], envelope: Planes) -> set[str]:
    """Return the stats of one layer with a finite value."""
    is_measured = (envelope[COUNT] > 0).any(axis=0)
    return {stats[column] for column in np.flatnonzero(is_measured).tolist()}


def _worst_states(state: RuleState, rows: Sequence[Record]) -> list[int]:
    """Return the rank of each layer's worst rule state; 0 is the worst."""
    verdicts = state.verdicts([row.layer_no for row in rows])
    return [min((_STATE_RANKS.get(name, 3) for name in verdict.rules.values()), default=3) for verdict in verdicts]


def _axis(run: Record, buckets: BucketGrid, times: NDArray[np.float64]) -> Json:
    spans = [{"step": span.first, "bucket_steps": span.width, "every": span.every} for span in buckets.spans]
    return {
        "revision": run.revision,
        "bucket_steps": buckets.width,
        "spans": spans if len(spans) > 1 else [],
        "steps": encode_array(buckets.steps()),
        "times": encode_array(times),
    }


def _lines(envelope: Planes, column: int) -> Json:
    return {_PLANE_KEYS.get(name, name): encode_array(envelope[name][:, column]) for name in PLANES}
