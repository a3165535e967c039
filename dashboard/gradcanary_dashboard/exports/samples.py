"""The CSV files of a run and of a comparison: samples, points of metrics, layers, curves."""

from __future__ import annotations

import csv
import heapq
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import groupby
from typing import Any

from gradcanary_dashboard.address.comparison import CompareView
from gradcanary_dashboard.address.run import View
from gradcanary_dashboard.analysis import layers
from gradcanary_dashboard.analysis.compared_runs import Compared, CompareData
from gradcanary_dashboard.analysis.comparison import dtype
from gradcanary_dashboard.analysis.layers import Layer
from gradcanary_dashboard.analysis.stats import MEASURED_WITH, STATS
from gradcanary_dashboard.collector import comparison as comparison_data
from gradcanary_dashboard.collector import layer as layer_data
from gradcanary_dashboard.collector import run as run_data
from gradcanary_dashboard.collector.client import Collector
from gradcanary_dashboard.collector.errors import NotFoundError
from gradcanary_dashboard.exports.csv import Pieces, Table, file_name, to_csv
from gradcanary_dashboard.figures import metrics as metric_figures

OF_LAYER = ("name", "block", "param_dtype", "micro_steps", "step", "state")
LAST = tuple(stat for stat in STATS if stat not in MEASURED_WITH)


def of_heatmap(collector: Collector, stack: ExitStack, run: str, view: View) -> tuple[str, Pieces]:
    """Return the samples of the view: its stat, its steps, the layers whose rows it shows."""
    asked = {"stat": view.stat, "match": view.rows, **run_data.bounds(view)}
    return file_name(run, view.stat, view), stack.enter_context(collector.download(run, "export.csv", **asked))


def of_panel(collector: Collector, stack: ExitStack, run: str, key: str, view: View) -> tuple[str, Pieces]:
    """Return all points of the lines of a metric's figure."""
    panel = next((each for each in metric_figures.of(collector.run(run).body["metrics"]) if each.key == key), None)
    if panel is None:
        raise NotFoundError(f"The run {run} has no metric {key}.")
    is_rate = panel.key == metric_figures.RATES
    tags = (
        ["{}"]
        if is_rate
        else [json.dumps(each.tags) for each in panel.chosen(view) or panel.series[: metric_figures.USUAL_LINES]]
    )
    asked = {"name": panel.asked, "tags": tags, **run_data.bounds(view)}
    what = "learning-rate" if is_rate else panel.names[0]
    return file_name(run, what, view), stack.enter_context(collector.download(run, "metrics.csv", **asked))


def of_layer(
    collector: Collector, stack: ExitStack, run: str, wanted: str, stat: str | None, view: View
) -> tuple[str, Pieces]:
    """Return all samples of a layer, by name or number: of one stat, or of all stats with a value."""
    found = layers.find(collector.run(run, "layers").body["layers"], wanted)
    if found is None:
        raise NotFoundError(f"The run {run} has no parameter {wanted}.")
    stats = [stat] if stat in STATS else layer_data.measured_stats(collector, run, found["layer"])
    asked = {"stat": stats, "layer": str(found["layer"]), **run_data.bounds(view)}
    what = [found["name"], *([stat] if stat in STATS else [])]
    return file_name(run, *what, view), stack.enter_context(collector.download(run, "export.csv", **asked))


def of_layers(collector: Collector, run: str, view: View) -> tuple[str, Pieces]:
    """Return the layers of the heatmap's rows, worst first, with all digits of their last values."""
    known = collector.run(run, "layers").body["layers"]
    if view.rows:
        drawn, refusal = run_data.picture(collector, run, view)
        known = run_data.matching(known, drawn, is_refused=refusal is not None)
    return file_name(run, "layers"), to_csv(_layers(layers.worst_first(known)))


def of_curves(collector: Collector, stack: ExitStack, wanted: CompareView) -> tuple[str, Pieces]:
    """Return the curves of a comparison: a row per step, a column per run and curve."""
    data = _compared(collector, wanted)
    read = [_read(collector, stack, run, data.layer, wanted) for run in data.runs]
    heads = ["step" if wanted.align == "step" else "steps since the first of each run"]
    heads += [f"{run.name} {what}" for run, (whats, _) in zip(data.runs, read, strict=True) for what in whats]
    name = file_name("compare", *(run.name for run in data.runs), wanted.view.stat, wanted.view)
    return name, to_csv(_joined(heads, [(len(whats), rows) for whats, rows in read]))


def of_differences(collector: Collector, wanted: CompareView) -> tuple[str, Pieces]:
    """Return all layers of a comparison, the largest difference first."""
    data = _compared(collector, wanted)
    name = file_name("compare", *(run.name for run in data.runs), wanted.view.stat, "differences", wanted.view)
    return name, to_csv(_differences(data, wanted.view.stat))


def _compared(collector: Collector, wanted: CompareView) -> CompareData:
    data = comparison_data.load(collector, wanted, None)
    if not data.is_comparison:
        raise NotFoundError("A comparison takes two runs.")
    return data


def _layers(listed: Iterable[Layer]) -> Table:
    sums = [f"{kind}_accumulator" for kind in ("declared", "stored", "effective")]
    yield [*OF_LAYER, "shape", *sums, *LAST, "baseline", "rules", "below_threshold"]
    for layer in listed:
        rules = ", ".join(f"{rule} {state}" for rule, state in sorted(layer["rules"].items()))
        yield [
            *(layer[key] for key in OF_LAYER),
            "x".join(map(str, layer["shape"])),
            *layer["accumulator"].values(),
            *(layer[key] for key in LAST),
            layer["baseline"],
            rules,
            "yes" if layer["below_threshold"] else "no",
        ]


def _differences(data: CompareData, stat: str) -> Table:
    begun = [run for run in data.runs if run.steps is not None]
    sums = [{layer["name"]: layer["accumulator"] for layer in run.layers} for run in begun]
    gap = "decades" if STATS[stat].is_log else "difference"
    levels, dtypes = [f"{run.name} {stat}" for run in begun], [f"{run.name} accumulator" for run in begun]
    yield ["layer", gap, "of", "first_step", "last_step", *levels, *dtypes]
    for row in data.found.rows:
        # A level is in milli-decades: more digits have no meaning.
        told = ["" if math.isnan(value) else f"{value:.4g}" for value in row.values]
        whose = [dtype(known.get(row.name)) for known in sums]
        yield [row.name, f"{row.gap:.3f}", begun[row.of].name, row.first, row.last, *told, *whose]


Row = tuple[int, int, list[str]]
"""A step of the axis, the column of its first cell, and its cells."""


def _read(
    collector: Collector, stack: ExitStack, run: Compared, layer: str | None, wanted: CompareView
) -> tuple[list[str], Iterator[Row]]:
    """Return the titles of a run's columns, and its rows in the order of steps."""
    view, number = wanted.view, next((each["layer"] for each in run.layers if each["name"] == layer), None)
    bounds = {key: None if step is None else step + run.origin for key, step in run_data.bounds(view).items()}
    asked: list[tuple[str, dict[str, Any]]] = [("metrics.csv", {"name": run.metric_names, "tags": "{}", **bounds})]
    if number is not None:
        asked.insert(0, ("export.csv", {"stat": view.stat, "layer": str(number), **bounds}))
    whats: list[str] = []
    tables: list[Iterator[Row]] = []
    for part, query in asked:
        rows = csv.reader(_lines(stack.enter_context(collector.download(run.name, part, **query))))
        heads = next(rows, [])[2:]  # an interrupted answer may have no line
        tables.append(_placed(rows, len(whats), run.origin))
        whats += [f"{view.stat} {layer}"] if part == "export.csv" else heads
    return whats, heapq.merge(*tables, key=lambda row: row[0])


def _placed(rows: Iterable[list[str]], place: int, origin: int) -> Iterator[Row]:
    for step, _time, *cells in rows:
        yield int(step) - origin, place, cells


def _joined(heads: Sequence[str], runs: Sequence[tuple[int, Iterator[Row]]]) -> Table:
    """Yield a row for each step of any run."""
    yield heads
    first, tables = 1, []
    for width, rows in runs:
        tables.append(_shifted(rows, first))
        first += width
    for step, found in groupby(heapq.merge(*tables, key=lambda row: row[0]), key=lambda row: row[0]):
        line: list[object] = [step, *[""] * (first - 1)]
        for _, place, cells in found:
            line[place : place + len(cells)] = cells
        yield line


def _shifted(rows: Iterable[Row], by: int) -> Iterator[Row]:
    for step, place, cells in rows:
        yield step, place + by, cells


def _lines(pieces: Pieces) -> Iterator[str]:
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        yield from (line.decode() for line in whole)
    if rest:
        yield rest.decode()
