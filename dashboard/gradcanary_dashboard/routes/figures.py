"""Routes of figures on demand: metrics that become visible, and the exact values of a cell."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, Any

import numpy as np
from fastapi import FastAPI, Query, Response
from fastapi.responses import JSONResponse

from gradcanary_dashboard.address.run import View
from gradcanary_dashboard.analysis.arrays import decode
from gradcanary_dashboard.analysis.events import Events
from gradcanary_dashboard.collector import run as run_data
from gradcanary_dashboard.collector.client import Collector
from gradcanary_dashboard.collector.errors import DashboardError, NotFoundError
from gradcanary_dashboard.components import figure_controls
from gradcanary_dashboard.figures import axes
from gradcanary_dashboard.figures import metrics as metric_figures
from gradcanary_dashboard.figures.metrics import Panel
from gradcanary_dashboard.text import numbers as number_text
from gradcanary_dashboard.web.threads import PAGES, in_thread

MOST_SERIES = 100
"""Most series of one answer of the collector."""

MOST_POINTS = 5_000
"""Most points of one answer."""

_SUMS = ("min", "mean", "max", "count")

Keys = Annotated[list[str], Query(alias="key", max_length=metric_figures.MOST_PANELS)]
Layers = Annotated[list[int], Query(alias="layer", min_length=1, max_length=MOST_SERIES)]


def register(server: FastAPI, collector: Collector) -> None:
    """Serve ``/_metrics`` and ``/_cell``. To be called before Dash, whose routes answer every path."""

    @server.get("/_metrics", include_in_schema=False)
    async def panels_in_sight(run: str, key: Keys, search: str = "") -> Response:
        return await in_thread(PAGES, _json_answer, lambda: {"panels": draw_panels(collector, run, key, search)})

    @server.get("/_cell", include_in_schema=False)
    async def exact_cell(run: str, stat: str, layer: Layers, first: int, last: int) -> Response:
        return await in_thread(
            PAGES, _json_answer, lambda: {"text": read_cell(collector, run, stat, layer, first, last)}
        )


def draw_panels(collector: Collector, run: str, keys: Sequence[str], search: str) -> list[dict[str, Any]]:
    """Return figures and legends of some panels of a run, over the steps of its heatmap; raises DashboardError."""
    told = collector.run(run).body
    view, _ = run_data.view_of(told, search)
    picture = run_data.axis(collector, run, view)
    span = axes.Span.of(run, view, picture).timed(run_data.clock(view, picture))
    events = Events.of(told, picture["marks"])
    wanted = [panel for panel in metric_figures.of(told["metrics"]) if panel.key in keys]
    beside = _panels_of_other(collector, told, keys, view)
    return [
        _with_trees(metric_figures.draw(panel, answer, span, events, view, beside.get(panel.key)))
        for panel, answer in _answers(collector, run, wanted, view)
    ]


def _panels_of_other(
    collector: Collector, run: Mapping[str, Any], keys: Sequence[str], view: View
) -> dict[str, metric_figures.OtherPanel]:
    """Return the plain panels of the run beside this one, by key."""
    found = run_data.find_other(collector, run["run"], view)
    if found is None:
        return {}
    name, events = found.body["run"], Events.of(found.body, ())
    wanted = [each for each in metric_figures.of(found.body["metrics"]) if each.key in keys and each.is_plain]
    try:
        return {
            panel.key: metric_figures.OtherPanel(name, panel, answer, events)
            for panel, answer in _answers(collector, name, wanted, run_data.same_steps(run, view))
        }
    except NotFoundError:  # deleted in the meantime
        return {}


def _answers(
    collector: Collector, run: str, wanted: Sequence[Panel], view: View
) -> Iterator[tuple[Panel, Mapping[str, Any]]]:
    """Yield panels of a run, each with an answer that has the lines to draw."""
    for some, query in _queries(wanted, view):
        answer = collector.run(run, "metrics", points=run_data.POINTS, **query, **run_data.bounds(view)).body
        yield from ((panel, answer) for panel in some)


def _with_trees(drawn: Mapping[str, Any]) -> dict[str, Any]:
    """Return a panel whose legend the browser can draw."""
    return {**drawn, "legend": [figure_controls.legend_line(line) for line in drawn["legend"]]}


def read_cell(collector: Collector, run: str, stat: str, layers: Sequence[int], first: int, last: int) -> str:
    """Return a stat of layers over some steps with all digits; raises DashboardError.

    It is read sample by sample, as aggregates are rounded outward. With only aggregates left, or with more steps than
    one answer has, minimum and maximum have fewer digits.
    """
    numbers, steps = [str(layer) for layer in layers], {"from": first, "to": last}
    points = max(1, min(MOST_POINTS, last - first + 1))
    found = collector.run(run, "series", stat=stat, layer=numbers, points=points, **steps).body["series"]
    low, mean, high, count = (np.concatenate([decode(each[key]) for each in found]) for key in _SUMS)
    known = count > 0
    if not known.any():
        return ""
    least, most = float(low[known].min()), float(high[known].max())
    told = number_text.exact if (count <= 1).all() else number_text.scientific
    if least == most:
        return told(least)
    average = float(np.average(mean[known], weights=count[known]))
    return f"{told(least)} to {told(most)}, mean {told(average)}"


def _queries(wanted: Sequence[Panel], view: View) -> Iterator[tuple[list[Panel], dict[str, Any]]]:
    """Yield panels with the query for their metrics: as few queries as the limit of an answer allows."""
    some: list[Panel] = []
    for panel in wanted:
        if len(panel.series) > metric_figures.USUAL_LINES and panel.key != metric_figures.RATES:
            # A figure with all lines off needs no data, but its query needs a series.
            tags = [json.dumps(each.tags) for each in panel.chosen(view) or panel.series[:1]]
            yield [panel], {"name": panel.names, "tags": tags}
            continue
        if sum(each.entries for each in [*some, panel]) > MOST_SERIES:
            yield some, _query_of(some)
            some = []
        some.append(panel)
    if some:
        yield some, _query_of(some)


def _query_of(some: Sequence[Panel]) -> dict[str, Any]:
    return {"name": [name for panel in some for name in panel.asked]}


def _json_answer(build: Callable[[], Mapping[str, Any]]) -> Response:
    """Answer the result of ``build``; 424 if the collector fails, as a 5xx means a failure of this server."""
    try:
        return JSONResponse(build(), headers={"Cache-Control": "no-store"})
    except DashboardError as error:
        return JSONResponse({"error": str(error)}, HTTPStatus.FAILED_DEPENDENCY)
