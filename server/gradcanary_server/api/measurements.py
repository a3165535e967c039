"""Routes of the measurements of a run: JSON with an ETag for pages and scripts, and every sample as CSV."""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import numpy as np
from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse
from sqlalchemy import Connection

from gradcanary import wire
from gradcanary_server.api import charts, models
from gradcanary_server.api.charts import HeatmapOptions, MetricSelector, Order, Value
from gradcanary_server.api.http import Json
from gradcanary_server.api.layer_table import build_layer_table
from gradcanary_server.api.run_reader import ReaderDep
from gradcanary_server.clock import timestamp
from gradcanary_server.incidents import liveness
from gradcanary_server.incidents.liveness import RunStatus
from gradcanary_server.ops.recording import recording_lines
from gradcanary_server.ops.replay_source import FORMULA
from gradcanary_server.storage import layers
from gradcanary_server.storage import runs as run_store
from gradcanary_server.storage.database import Record
from gradcanary_server.tsdb.log import LoggedBatch
from gradcanary_server.tsdb.query import StepRange
from gradcanary_server.tsdb.rollup import SparseAggregates
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

    The layers are all, or those given by number or name, in whose name ``match`` is found.
    """
    with reader.database.read() as connection:
        run_id = run_store.get_run(connection, run).run_id
        rows = layers.read_layers(connection, run_id)
    chosen = charts.filter_layers(charts.select_layers(rows, layer) if layer else rows, match)
    batches = charts.iter_samples(reader.database, reader.measurements, run_id, begin, to)
    stats = list(dict.fromkeys(stat))
    return _csv_response(_sample_lines(batches, stats, chosen), f"{run}-{'-'.join(stats)}", begin, to)


@router.get("/runs/{run}/metrics.csv", response_class=StreamingResponse, responses=CSV)
def metrics_csv(
    reader: ReaderDep, run: str, name: Names = (), tags: Names = (), begin: From = None, to: To = None
) -> Response:
    """Answer every point of the metrics of these names and tags between two steps, both included, as CSV."""
    selector = MetricSelector.parse(name, tags)
    with reader.database.read() as connection:
        run_id = run_store.get_run(connection, run).run_id
        series = charts.select_metrics(connection, run_id, selector)
    points = charts.iter_points(reader.database, reader.measurements, run_id, series, begin, to)
    return _csv_response(_point_lines(points, series), f"{run}-metrics", begin, to)


@router.get("/runs/{run}/recording", response_class=StreamingResponse, responses=NDJSON)
def show_recording(reader: ReaderDep, run: str) -> Response:
    """Answer the stored messages of the agents of a run as lines of JSON."""
    with reader.database.read() as connection:
        status = liveness.read_status(connection, run, reader.database.now(connection), reader.rules.silent)
    lines = recording_lines(reader.database, reader.measurements, status.row, status.state)
    return StreamingResponse(lines, media_type="application/x-ndjson")


def _csv_response(lines: Iterator[str], name: str, begin: int | None, to: int | None) -> Response:
    bounds = "" if begin is None and to is None else f"-{begin or 0}-{'end' if to is None else to}"
    headers = {"Content-Disposition": f'attachment; filename="{name}{bounds}.csv"'}
    return StreamingResponse(lines, media_type="text/csv", headers=headers)


def _sample_lines(batches: Iterable[LoggedBatch], stats: Sequence[str], layers: Sequence[Record]) -> Iterator[str]:
    """Yield CSV: step, time, then a column per layer; a cell without a finite value is empty.

    A column of another stat than absmax, and each one of several stats, has the stat before the name of its layer.
    """
    is_plain = tuple(stats) == ("absmax",)
    names = [layer.name if is_plain else f"{stat} {layer.name}" for layer in layers for stat in stats]
    yield _header_line(names)
    for batch in batches:
        planes = [_plane(batch, stat, layers) for stat in stats]
        if all(plane is None for plane in planes):
            continue
        blank = np.full((len(batch.columns.steps), len(layers)), np.nan, np.float32)
        table = np.stack([blank if plane is None else plane for plane in planes], axis=2).reshape(len(blank), -1)
        for row, step in enumerate(batch.columns.steps):
            cells = ["" if cell == "nan" else cell for cell in map(str, table[row])]
            yield ",".join([str(step), timestamp(batch.columns.times[row]), *cells]) + "\n"


def _point_lines(parts: Iterable[SparseAggregates], series: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield CSV of points in the order of steps: step, time, then a column per metric.

    A cell without a point is empty, a value that is not finite is ``nan``. A step without points has no row.
    """
    yield _header_line([_metric_title(name, tags) for name, tags in series])
    for part in parts:
        points = zip(part.start.tolist(), part.time.tolist(), part.series.tolist(), part.mean.tolist(), strict=True)
        for step, row in groupby(sorted(points), key=lambda point: point[0]):
            cells, when = [""] * len(series), ""
            for _, time, number, value in row:
                cells[number] = repr(value)
                when = when or (timestamp(time) if np.isfinite(time) else "")
            yield ",".join([str(step), when, *cells]) + "\n"


def _plane(batch: LoggedBatch, stat: str, layers: Sequence[Record]) -> np.ndarray | None:
    """Return a stat of these layers [step, layer], NaN for layers that the batch does not hold."""
    plane = batch.columns.values.get(stat)
    if plane is None:
        return None
    padded = np.hstack([plane, np.full((len(plane), 1), np.nan, plane.dtype)])  # the last column: missing layers
    column_of = {number: column for column, number in enumerate(batch.numbers.tolist())}
    selected: np.ndarray = padded[:, np.array([column_of.get(layer.layer_no, -1) for layer in layers], np.intp)]
    return selected


def _metric_title(name: str, tags: str) -> str:
    """Return ``clip_score{category=bottles, provider=a}``."""
    pairs = ", ".join(f"{tag}={value}" for tag, value in sorted(json.loads(tags).items()))
    return f"{name}{{{pairs}}}" if pairs else name


def _header_line(names: Sequence[str]) -> str:
    # Names come from strangers: an apostrophe keeps a spreadsheet from running one as a formula.
    safe = [f"'{name}" if name.startswith(FORMULA) else name for name in names]
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(["step", "time", *safe])
    return line.getvalue()
