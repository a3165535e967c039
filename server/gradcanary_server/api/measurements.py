"""Routes of the measurements of a run: JSON with an ETag for pages and scripts, and every sample as CSV or arrays."""

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import numpy as np
import orjson
from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse
from numpy.typing import NDArray
from sqlalchemy import Connection

from gradcanary import wire
from gradcanary_server.api import charts, models
from gradcanary_server.api.charts import HeatmapOptions, MetricSelector, Order, Value
from gradcanary_server.api.http import Json, encode_array
from gradcanary_server.api.layer_table import build_layer_table
from gradcanary_server.api.run_reader import ReaderDep, RunReader
from gradcanary_server.clock import timestamp
from gradcanary_server.errors import RequestError
from gradcanary_server.incidents import liveness
from gradcanary_server.incidents.liveness import RunStatus
from gradcanary_server.ops.recording import recording_lines
from gradcanary_server.ops.replay_source import FORMULA
from gradcanary_server.storage import layers
from gradcanary_server.storage import runs as run_store
from gradcanary_server.tsdb.query import StepRange
from gradcanary_server.tsdb.tables import Table, full_tables, point_tables, sample_tables
from gradcanary_server.tsdb.tiles import TILE_LAYERS, read_streams
from gradcanary_server.validation import MAX_STEP

CSV: dict[int | str, dict[str, Any]] = {200: {"content": {"text/csv": {}}}}
NDJSON: dict[int | str, dict[str, Any]] = {200: {"content": {"application/x-ndjson": {}}}}

router = APIRouter(prefix="/api/v1")

if TYPE_CHECKING:
    Stat: TypeAlias = str
else:
    Stat = Literal[wire.STATS]

From = Annotated[int | None, Query(alias="from", ge=0, le=MAX_STEP)]
To = Annotated[int | None, Query(ge=0, le=MAX_STEP)]
Points = Annotated[int, Query(ge=1, le=5_000)]
Layers = Annotated[list[str], Query(alias="layer")]
Names = Annotated[tuple[str, ...], Query()]
Stats = Annotated[tuple[Stat, ...], Query(min_length=1)]


@router.get("/runs/{run}/layers", response_model=models.LayerTable)
def list_layers(reader: ReaderDep, run: str) -> Response:
    """Answer the layers of a run with their last values."""

    def build(connection: Connection, status: RunStatus) -> Json:
        table = build_layer_table(connection, reader.measurements, status.row.run_id)
        return {"revision": status.row.revision, "layers": table}

    return reader.run_response(run, build)


@router.get("/runs/{run}/layers/{layer:path}", response_model=models.LayerStats)
def show_layer(
    reader: ReaderDep, run: str, layer: str, begin: From = None, to: To = None, points: Points = 600
) -> Response:
    """Answer the envelopes of all stats of a layer, by number or name."""
    span = StepRange(begin, to, points)

    def build(connection: Connection, status: RunStatus) -> Json:
        return charts.build_layer(connection, reader.measurements, reader.rules, status.row, layer, span)

    return reader.run_response(run, build)


@router.get("/runs/{run}/series", response_model=models.StatSeries)
def show_series(
    reader: ReaderDep,
    run: str,
    layer: Layers,
    stat: Stat = "absmax",
    begin: From = None,
    to: To = None,
    points: Points = 600,
) -> Response:
    """Answer the envelope of a stat for some layers, by number or name."""
    span = StepRange(begin, to, points)

    def build(connection: Connection, status: RunStatus) -> Json:
        return charts.build_series(connection, reader.measurements, reader.rules, status.row, stat, layer, span)

    return reader.run_response(run, build)


@router.get("/runs/{run}/heatmap", response_model=models.HeatmapShape)
def show_heatmap(
    reader: ReaderDep,
    run: str,
    stat: Stat = "absmax",
    begin: From = None,
    to: To = None,
    columns: Points = 600,
    rows: Annotated[int, Query(ge=1, le=20_000)] = 400,
    value: Value = "min",
    order: Order = "model",
    match: str | None = None,
) -> Response:
    """Answer the heatmap of a stat, layer x step."""
    options, span = HeatmapOptions(value, order, match, rows), StepRange(begin, to, columns)

    def build(connection: Connection, status: RunStatus) -> Json:
        return charts.build_heatmap(connection, reader.measurements, reader.rules, status.row, stat, options, span)

    return reader.run_response(run, build)


@router.get("/runs/{run}/metrics", response_model=models.MetricsShape)
def show_metrics(
    reader: ReaderDep,
    run: str,
    name: Names = (),
    tags: Names = (),
    begin: From = None,
    to: To = None,
    points: Points = 600,
) -> Response:
    """Answer the envelopes of the metrics with one of these names and tags, of all metrics without them.

    Tags are a JSON object of all tags of a metric: ``{}`` is a metric without tags.
    """
    selector, span = MetricSelector.parse(name, tags), StepRange(begin, to, points)

    def build(connection: Connection, status: RunStatus) -> Json:
        return charts.build_metrics(connection, reader.measurements, status.row, selector, span)

    return reader.run_response(run, build)


@router.get("/runs/{run}/export.csv", response_class=StreamingResponse, responses=CSV)
def export_csv(
    reader: ReaderDep,
    run: str,
    stat: Stats = ("absmax",),
    layer: Names = (),
    match: str | None = None,
    begin: From = None,
    to: To = None,
) -> Response:
    """Answer every sample of some stats between two steps, both included, as CSV with a column per layer.

    The layers are all, or those given by number or name, in whose name ``match`` is found. A step without a value of
    ``stat`` has no row, unless that is absmax, norm or nonfinite.
    """
    export = _export_samples(reader, run, stat, layer, match, StepRange(begin, to, 0))
    stats = dict.fromkeys(stat)
    return _csv_response(_sample_lines(export), f"{run}-{'-'.join(stats)}", begin, to)


@router.get("/runs/{run}/samples", response_class=StreamingResponse, responses=NDJSON)
def show_samples(
    reader: ReaderDep,
    run: str,
    stat: Stats = ("absmax",),
    layer: Names = (),
    match: str | None = None,
    begin: From = None,
    to: To = None,
) -> Response:
    """Answer the same as ``export.csv`` in arrays, as lines of JSON.

    The first line has the columns, each with its ``title`` in ``export.csv``, and ``raw_start_step``: samples before
    that step are not stored any more, null = all are. Lines of some rows follow: ``steps``, ``times`` (unix seconds,
    NaN = unknown), ``launches`` (numbered from 1, in the order of ``launches`` of the run), ``values`` with a row per
    column, and ``is_valid``, the bits of those: a row per column, in each byte the lowest bit first. A valid NaN was
    not finite. The last line has the number of all ``rows``, or an ``error``; without it the answer was cut off.
    """
    export = _export_samples(reader, run, stat, layer, match, StepRange(begin, to, 0))
    return StreamingResponse(_table_lines(export), media_type="application/x-ndjson")


@router.get("/runs/{run}/metrics.csv", response_class=StreamingResponse, responses=CSV)
def metrics_csv(
    reader: ReaderDep, run: str, name: Names = (), tags: Names = (), begin: From = None, to: To = None
) -> Response:
    """Answer every point of the metrics of these names and tags between two steps, both included, as CSV."""
    export = _export_points(reader, run, MetricSelector.parse(name, tags), StepRange(begin, to, 0))
    return _csv_response(_point_lines(export), f"{run}-metrics", begin, to)


@router.get("/runs/{run}/points", response_class=StreamingResponse, responses=NDJSON)
def show_points(
    reader: ReaderDep, run: str, name: Names = (), tags: Names = (), begin: From = None, to: To = None
) -> Response:
    """Answer the same as ``metrics.csv`` in arrays, as lines of JSON like those of ``samples``, without launches."""
    export = _export_points(reader, run, MetricSelector.parse(name, tags), StepRange(begin, to, 0))
    return StreamingResponse(_table_lines(export), media_type="application/x-ndjson")


@router.get("/runs/{run}/recording", response_class=StreamingResponse, responses=NDJSON)
def show_recording(reader: ReaderDep, run: str) -> Response:
    """Answer the stored messages of the agents of a run as lines of JSON."""
    with reader.database.read() as connection:
        status = liveness.read_status(connection, run, reader.database.now(connection), reader.rules.silent)
    lines = recording_lines(reader.database, reader.measurements, status.row, status.state)
    return StreamingResponse(lines, media_type="application/x-ndjson")


@dataclass(frozen=True)
class _Export:
    """The columns of an export, each with its ``title`` in CSV, and its rows; ``head`` is more about all of them."""

    head: Json
    columns: Sequence[Json]
    tables: Iterator[Table]


def _export_samples(
    reader: RunReader, run: str, stat: Sequence[str], layer: Sequence[str], match: str | None, span: StepRange
) -> _Export:
    stats = tuple(dict.fromkeys(stat))
    with reader.database.read() as connection:
        run_id = run_store.get_run(connection, run).run_id
        rows = layers.read_layers(connection, run_id)
        segments = reader.measurements.segments(connection, run_id, span.begin, span.end)
        launches = run_store.launch_order(connection, run_id)
    chosen = charts.filter_layers(charts.select_layers(rows, layer) if layer else rows, match)
    numbers = np.array([row.layer_no for row in chosen], np.int32)
    groups = np.unique(numbers // TILE_LAYERS).tolist()
    batches = charts.iter_samples(reader.database, reader.measurements, run_id, segments, stats, groups)
    is_plain = stats == ("absmax",)
    columns: list[Json] = [
        {"title": row.name if is_plain else f"{each} {row.name}", "stat": each, "layer": row.layer_no, "name": row.name}
        for row in chosen
        for each in stats
    ]
    missing = [part.stream.raw_start for part in segments if part.first < part.stream.raw_start]
    tables = full_tables(sample_tables(batches, stats, numbers), len(columns))
    in_order = (replace(table, launches=_positions(table.launches, launches)) for table in tables)
    head: Json = {"run": run, "dtype": "float32", "launches": True, "raw_start_step": max(missing, default=None)}
    return _Export(head, columns, _unchanged(reader, run_id, in_order, span))


def _export_points(reader: RunReader, run: str, selector: MetricSelector, span: StepRange) -> _Export:
    with reader.database.read() as connection:
        run_id = run_store.get_run(connection, run).run_id
        series = charts.select_metrics(connection, run_id, selector)
    points = charts.iter_points(reader.database, reader.measurements, run_id, series, span.begin, span.end)
    columns: list[Json] = [
        {"title": _metric_title(name, tags), "name": name, "tags": json.loads(tags)} for name, tags in series
    ]
    tables = full_tables(point_tables(points, len(series)), len(series))
    head: Json = {"run": run, "dtype": "float64", "launches": False}
    return _Export(head, columns, _unchanged(reader, run_id, tables, None))


def _positions(launches: NDArray[np.int32], order: Mapping[int, int]) -> NDArray[np.int32]:
    """Return the positions of launches, from 1 in the order of their start, for their numbers in the store."""
    numbers, rows = np.unique(launches, return_inverse=True)
    return np.array([1 + order[number] for number in numbers.tolist()], np.int32)[rows]


def _unchanged(reader: RunReader, run_id: int, tables: Iterator[Table], samples: StepRange | None) -> Iterator[Table]:
    """Yield the tables; raises RequestError 409 after them if the run or one of its ``samples`` was deleted meanwhile.

    Samples before or after these may be deleted, and metrics, None, are deleted with their run only.
    """

    def raw_starts() -> dict[tuple[int, int], int] | None:
        with reader.database.read() as connection:
            if not run_store.is_stored(connection, run_id):
                return None
            if samples is None:
                return {}
            begin, beyond = samples.begin or 0, (MAX_STEP if samples.end is None else samples.end) + 1
            streams = read_streams(connection, run_id)
            return {(each.launch_no, each.every): min(max(each.raw_start, begin), beyond) for each in streams}

    before = raw_starts() or {}
    yield from tables
    after = raw_starts()
    if after is None or any(after.get(stream) != start for stream, start in before.items()):
        raise RequestError(409, "changed", "Measurements of this run were deleted while they were read: ask again.")


def _csv_response(lines: Iterator[str], name: str, begin: int | None, to: int | None) -> Response:
    bounds = "" if begin is None and to is None else f"-{begin or 0}-{'end' if to is None else to}"
    headers = {"Content-Disposition": f'attachment; filename="{name}{bounds}.csv"'}
    return StreamingResponse(lines, media_type="text/csv", headers=headers)


def _sample_lines(export: _Export) -> Iterator[str]:
    """Yield CSV: step, time, then a column per layer; a cell without a finite value is empty.

    A column of another stat than absmax, and each one of several stats, has the stat before the name of its layer.
    """
    yield _header_line(export.columns)
    separator = "," if export.columns else ""
    for table in export.tables:
        # Ten times as quick as numpy's own text; NaN is null there.
        text = orjson.dumps(table.values, option=orjson.OPT_SERIALIZE_NUMPY).decode().replace("null", "")
        rows = zip(table.steps.tolist(), map(timestamp, table.times.tolist()), text[2:-2].split("],["), strict=True)
        yield "".join(f"{step},{when}{separator}{cells}\n" for step, when, cells in rows)


def _point_lines(export: _Export) -> Iterator[str]:
    """Yield CSV of points in the order of steps: step, time, then a column per metric.

    A cell without a point is empty, a value that is not finite is ``nan``, ``inf`` or ``-inf``. A step without points
    has no row.
    """
    yield _header_line(export.columns)
    for table in export.tables:
        times = [timestamp(time) if isfinite(time) else "" for time in table.times.tolist()]
        cells = [
            [repr(value) if is_point else "" for value, is_point in zip(row, is_valid, strict=True)]
            for row, is_valid in zip(table.values.tolist(), table.is_valid.tolist(), strict=True)
        ]
        rows = zip(map(str, table.steps.tolist()), times, cells, strict=True)
        yield "".join(f"{','.join([step, when, *row])}\n" for step, when, row in rows)


def _table_lines(export: _Export) -> Iterator[bytes]:
    """Yield the lines of arrays, and a last one; see :func:`show_samples`."""
    yield _json_line({**export.head, "columns": export.columns})
    rows = 0
    try:
        for table in export.tables:
            arrays = {"steps": encode_array(table.steps), "times": encode_array(table.times)}
            if export.head["launches"]:
                arrays["launches"] = encode_array(table.launches)
            arrays["values"] = encode_array(table.values.T)
            arrays["is_valid"] = encode_array(np.packbits(table.is_valid.T, axis=1, bitorder="little"))
            rows += len(table)
            yield _json_line(arrays)
    except RequestError as error:
        yield _json_line({"error": {"code": error.code, "message": error.message}})
    else:
        yield _json_line({"rows": rows})


def _json_line(content: Mapping[str, object]) -> bytes:
    return orjson.dumps(content) + b"\n"


def _metric_title(name: str, tags: str) -> str:
    """Return ``clip_score{category=bottles, provider=a}``."""
    pairs = ", ".join(f"{tag}={value}" for tag, value in sorted(json.loads(tags).items()))
    return f"{name}{{{pairs}}}" if pairs else name


def _header_line(columns: Sequence[Json]) -> str:
    names = [str(column["title"]) for column in columns]
    # Names come from strangers: an apostrophe keeps a spreadsheet from running one as a formula.
    safe = [f"'{name}" if name.startswith(FORMULA) else name for name in names]
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(["step", "time", *safe])
    return line.getvalue()
