"""The CSV files of the pages, sent in pieces: a run may be larger than memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from http import HTTPStatus

from fastapi import FastAPI, Response
from fastapi.responses import StreamingResponse

from gradcanary_dashboard.address import incidents as incidents_address
from gradcanary_dashboard.address import runs as runs_address
from gradcanary_dashboard.address.comparison import parse_compare
from gradcanary_dashboard.address.run import parse
from gradcanary_dashboard.collector.client import Collector
from gradcanary_dashboard.collector.errors import DashboardError
from gradcanary_dashboard.exports import lists
from gradcanary_dashboard.exports.csv import Pieces
from gradcanary_dashboard.exports.samples import of_curves, of_differences, of_heatmap, of_layer, of_layers, of_panel
from gradcanary_dashboard.web.streaming import open_stream
from gradcanary_dashboard.web.threads import FILES

Made = Callable[[ExitStack], tuple[str, Pieces]]
"""Opens a file in a stack that is closed at the end; returns its name and its pieces."""


def register(server: FastAPI, collector: Collector) -> None:
    """Serve ``/_download`` and the paths below. To be called before Dash, whose routes answer every path."""

    @server.get("/_download", include_in_schema=False)
    async def samples_of_rows(run: str, search: str = "") -> Response:
        return await _file_answer(lambda stack: of_heatmap(collector, stack, run, parse(search)))

    @server.get("/_download/metrics", include_in_schema=False)
    async def points_of_metric(run: str, key: str, search: str = "") -> Response:
        return await _file_answer(lambda stack: of_panel(collector, stack, run, key, parse(search)))

    @server.get("/_download/layer", include_in_schema=False)
    async def samples_of_layer(run: str, layer: str, stat: str | None = None, search: str = "") -> Response:
        return await _file_answer(lambda stack: of_layer(collector, stack, run, layer, stat, parse(search)))

    @server.get("/_download/layers", include_in_schema=False)
    async def table_of_layers(run: str, search: str = "") -> Response:
        return await _file_answer(lambda _: of_layers(collector, run, parse(search)))

    @server.get("/_download/compare", include_in_schema=False)
    async def compared_curves(search: str) -> Response:
        return await _file_answer(lambda stack: of_curves(collector, stack, parse_compare(search)))

    @server.get("/_download/differences", include_in_schema=False)
    async def compared_layers(search: str) -> Response:
        return await _file_answer(lambda _: of_differences(collector, parse_compare(search)))

    @server.get("/_download/runs", include_in_schema=False)
    async def listed_runs(search: str = "") -> Response:
        return await _file_answer(lambda _: lists.of_runs(collector, runs_address.parse(search)))

    @server.get("/_download/incident", include_in_schema=False)
    async def members_of_incident(number: int) -> Response:
        return await _file_answer(lambda _: lists.of_members(collector, number))

    @server.get("/_download/incidents", include_in_schema=False)
    async def listed_incidents(search: str = "") -> Response:
        return await _file_answer(lambda _: lists.of_incidents(collector, incidents_address.parse(search)))


async def _file_answer(made: Made) -> Response:
    """Answer a file; 424 if the collector fails, as a 5xx means a failure of this server."""
    try:
        name, pieces = await open_stream(FILES, made)
    except DashboardError as error:
        return Response(str(error), HTTPStatus.FAILED_DEPENDENCY, media_type="text/plain")
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(pieces, media_type="text/csv", headers=headers)
