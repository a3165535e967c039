"""What runs when a page opens, each second, and at a click: the edge between Dash and the pure pages."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, State, no_update
from dash.exceptions import PreventUpdate

from gradcanary_dashboard import layer_data, layer_page, run_data, run_page, runs_page, shell
from gradcanary_dashboard.client import Collector
from gradcanary_dashboard.errors import DashboardError, NotFoundError
from gradcanary_dashboard.stats import STATS
from gradcanary_dashboard.view import Place, parse, place_of

Contents = Mapping[str, Any]
Handler = Callable[..., Contents]

RUNNING = [(Output("busy", "data"), True, False)]
"""While an answer is awaited no tick asks again: a slow collector gets fewer questions, not a queue of them."""


def register(app: Dash, collector: Collector) -> None:
    """Register every callback of the dashboard on the app."""
    _register_pages(app, collector)
    _register_refreshes(app, collector)
    _register_browser(app)


def threaded(
    app: Dash, outputs: Mapping[str, Output], *inputs: Input | State, refreshes: bool = False
) -> Callable[[Handler], None]:
    """Register a callback that runs in a thread and returns ``{name: value}`` for some of the outputs.

    Dash runs a plain function on the event loop, where it would stall ingest, and deadlock when it asks the collector
    that is served by the same loop: every server-side callback goes through here. One that ``refreshes`` leaves alone
    what the page was opened with, and says that it is busy.
    """

    def decorate(handler: Handler) -> None:
        @functools.wraps(handler)
        async def callback(*values: object) -> dict[str, Any]:
            contents = await asyncio.to_thread(handler, *values)
            return {name: contents.get(name, no_update) for name in outputs}

        register_callback: Callable[[Callable[..., Coroutine[Any, Any, Any]]], Any] = app.callback(
            output=dict(outputs),
            inputs=list(inputs),
            prevent_initial_call=refreshes,
            running=RUNNING if refreshes else None,
        )
        register_callback(callback)

    return decorate


def _register_pages(app: Dash, collector: Collector) -> None:
    outputs = {
        "main": Output("main", "children"),
        "title": Output("title", "data"),
        "outage": Output("outage", "children"),
    }

    @threaded(app, outputs, Input("url", "pathname"), State("url", "search"))
    def show(pathname: str | None, search: str | None) -> Contents:
        place = place_of(pathname or "/")
        try:
            if place is None:
                return {"main": runs_page.frame(_runs(collector, "", None)), "title": "Runs", "outage": None}
            contents = _of_run(collector, place, search, None)
            return {"main": _frame(place, contents), "title": contents.get("name", place.run), "outage": None}
        except NotFoundError:
            return {"main": _unknown(collector, place or Place("")), "title": "Not found", "outage": None}
        except DashboardError as error:
            main = runs_page.frame({}) if place is None else _frame(place, {})
            return {"main": main, "title": place.run if place else "Runs", "outage": shell.outage(str(error))}


def _frame(place: Place, contents: Contents) -> list[Any]:
    return run_page.frame(place.run, contents) if place.layer is None else layer_page.frame(place, contents)


def _unknown(collector: Collector, place: Place) -> list[Any]:
    """Return the page that says what is missing: the run, or only the layer."""
    try:
        collector.run(place.run)
    except DashboardError:
        return run_page.unknown(place.run)
    return layer_page.unknown(place)


def _register_refreshes(app: Dash, collector: Collector) -> None:
    outage = Output("outage", "children", allow_duplicate=True)
    runs_outputs = {
        "runs": Output("runs", "children"),
        "head": Output("runs-head", "className"),
        "shown": Output("runs-shown", "data"),
        "outage": outage,
    }

    @threaded(
        app,
        runs_outputs,
        Input("runs-pulse", "data"),
        Input("runs-filter", "value"),
        State("runs-shown", "data"),
        refreshes=True,
    )
    def refresh_runs(_pulse: object, wanted: str | None, shown: Contents | None) -> Contents:
        return _healing(shown, lambda: _runs(collector, wanted or "", shown))

    run_outputs = {slot: Output(slot, prop) for slot, prop in run_page.SLOTS.items()}

    @threaded(
        app,
        {**run_outputs, "shown": Output("run-shown", "data"), "outage": outage},
        Input("run-pulse", "data"),
        Input("run-url", "search"),
        State("run-name", "data"),
        State("run-shown", "data"),
        refreshes=True,
    )
    def refresh_run(_pulse: object, search: str | None, name: str, shown: Contents | None) -> Contents:
        return _healing(shown, lambda: _of_run(collector, Place(name), search, shown))

    layer_outputs = {slot: Output(slot, prop) for slot, prop in layer_page.SLOTS.items()}

    @threaded(
        app,
        {**layer_outputs, "shown": Output("layer-shown", "data"), "outage": outage},
        Input("layer-pulse", "data"),
        Input("layer-url", "search"),
        State("layer-place", "data"),
        State("layer-shown", "data"),
        refreshes=True,
    )
    def refresh_layer(_pulse: object, search: str | None, place: Contents, shown: Contents | None) -> Contents:
        return _healing(shown, lambda: _of_run(collector, Place(**place), search, shown))


def _healing(shown: Contents | None, ask: Callable[[], Contents]) -> Contents:
    """Return what ``ask`` returns, with the outage banner put up when it fails and taken down when it is back."""
    was_down = bool(shown and shown.get("down"))
    try:
        contents = ask()
    except DashboardError as error:
        return {"outage": shell.outage(str(error)), "shown": {**(shown or {}), "down": True}}
    if not contents:
        if not was_down:
            raise PreventUpdate
        return {"outage": None, "shown": {**(shown or {}), "down": False}}
    return {**contents, "outage": None}


def _runs(collector: Collector, wanted: str, shown: Contents | None) -> Contents:
    """Return the runs page's contents, nothing when it shows them already."""
    runs, incidents = collector.runs(), collector.incidents()
    version = f"{runs.version} {incidents.version}"
    if shown and (shown.get("version"), shown.get("wanted")) == (version, wanted):
        return {}
    contents = runs_page.fill(runs.body["runs"], incidents.body["incidents"], wanted, collector.url)
    return {**contents, "shown": {"version": version, "wanted": wanted}}


def _of_run(collector: Collector, place: Place, search: str | None, shown: Contents | None) -> Contents:
    """Return the contents of a run's or a layer's page, nothing when it shows them already."""
    view = parse(search)
    version = collector.run(place.run).version
    before = shown or {}
    same = (before.get("version"), before.get("search")) == (version, search)
    if same and not _was_told(collector, place, before):
        return {}
    state: dict[str, Any] = {"version": version, "search": search}
    data: run_data.RunData | layer_data.LayerData
    if place.layer is None:
        data = run_data.load(collector, place.run, view, before.get("layer"))
        contents = run_page.fill(data, view)
        state["layer"] = data.layer and data.layer["layer"]
    else:
        data = layer_data.load(collector, place.run, place.layer, view)
        contents = layer_page.fill(data, view)
    state["incidents"] = data.incidents_version if run_data.is_unsettled(data.incidents) else None
    return {**contents, "shown": state}


def _was_told(collector: Collector, place: Place, before: Contents) -> bool:
    """Return whether a delivery moved on since the page was filled; asks only while one is on its way."""
    if before.get("incidents") is None:
        return False
    load = run_data if place.layer is None else layer_data
    _, version = load.load_incidents(collector, place.run, parse(before.get("search")).incident)
    return bool(version != before["incidents"])


def _register_browser(app: Dash) -> None:
    """Register what the browser does alone; the functions are in ``assets/gradcanary.js``."""

    def browser(function: str, *arguments: Output | Input | State, at_click: bool = False) -> None:
        register_callback: Callable[..., None] = app.clientside_callback
        register_callback(ClientsideFunction("gradcanary", function), *arguments, prevent_initial_call=at_click)

    figures = {"run": ("heatmap", "trend", "loss"), "layer": tuple(f"stat-{stat}" for stat in STATS)}
    for page in ("runs", *figures):
        browser("pulse", Output(f"{page}-pulse", "data"), Input(f"{page}-tick", "n_intervals"), State("busy", "data"))
    for page, drawn in figures.items():
        zooms = [Input(figure, "relayoutData") for figure in drawn]
        browser("zoom", Output(f"{page}-url", "search"), *zooms, at_click=True)
    browser(
        "choose",
        Output("run-url", "search", allow_duplicate=True),
        Input("heatmap", "clickData"),
        State("heatmap", "figure"),
        at_click=True,
    )
    browser("read_out", Output("readout", "children"), Input("heatmap", "hoverData"), State("heatmap", "figure"))
    browser("show_choices", Output("rows", "value"), Input("run-url", "search"))
    browser("title", Input("title", "data"))
