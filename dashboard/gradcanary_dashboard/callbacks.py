"""What runs when a page opens, when there is news, and at a click: the edge between Dash and the pure pages."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, State, no_update
from dash.exceptions import PreventUpdate

from gradcanary_dashboard import layer_data, layer_page, news, run_data, run_page, runs_page, shell, silent_endpoints
from gradcanary_dashboard.client import Collector
from gradcanary_dashboard.errors import DashboardError, NotFoundError
from gradcanary_dashboard.news import Shown
from gradcanary_dashboard.stats import STATS
from gradcanary_dashboard.view import Place, parse, place_of

Contents = Mapping[str, Any]
Handler = Callable[..., Contents]

MAX_NAME = 100
"""Characters in the name of a run."""


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
    what the page was opened with.
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
                return {"main": runs_page.frame(_runs(collector, "", {})), "title": "Runs", "outage": None}
            contents = _of_run(collector, place, search, {})
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
    def of_runs(wanted: str | None, shown: Shown) -> Contents:
        return _runs(collector, wanted or "", shown)

    def of_run(search: str | None, name: str, shown: Shown) -> Contents:
        return _of_run(collector, Place(name), search, shown)

    def of_layer(search: str | None, place: Contents, shown: Shown) -> Contents:
        return _of_run(collector, Place(**place), search, shown)

    run = (Input("run-url", "search"), State("run-name", "data"))
    layer = (Input("layer-url", "search"), State("layer-place", "data"))
    _register_refresh(app, "runs", runs_page.SLOTS, of_runs, Input("runs-filter", "value"))
    _register_refresh(app, "run", run_page.SLOTS, of_run, *run)
    _register_refresh(app, "layer", layer_page.SLOTS, of_layer, *layer)


def _register_refresh(app: Dash, page: str, slots: Mapping[str, str], ask: Handler, *asked: Input | State) -> None:
    """Fill the page's slots when there is news or the reader chooses something else."""
    heart = f"{page}-heart"
    outputs = {slot: Output(slot, prop) for slot, prop in slots.items()}
    outputs |= {"shown": Output(heart, "data-shown"), "outage": Output("outage", "children", allow_duplicate=True)}

    @threaded(app, outputs, Input(heart, "data-news"), State(heart, "data-shown"), *asked, refreshes=True)
    def refresh(_news: object, held: str | None, *chosen: object) -> Contents:
        shown = news.read(held)
        return _healing(shown, lambda: ask(*chosen, shown))


def _healing(shown: Shown, ask: Callable[[], Contents]) -> Contents:
    """Return what ``ask`` returns, with the outage banner put up when it fails and taken down when it is back."""
    try:
        contents = ask()
    except DashboardError as error:
        return {"outage": shell.outage(str(error)), "shown": json.dumps({**shown, "down": True})}
    if contents:
        return {**contents, "outage": None}
    if not shown.get("down"):
        raise PreventUpdate
    return {"outage": None, "shown": json.dumps({**shown, "down": False})}


def _runs(collector: Collector, wanted: str, shown: Shown) -> Contents:
    """Return the runs page's contents, nothing when it shows them already."""
    version = news.runs_version(collector)
    if (shown.get("version"), shown.get("wanted")) == (version, wanted):
        return {}
    listed, incidents = collector.runs().body, collector.incidents().body["incidents"]
    has_older = listed["next"] is not None
    if has_older and wanted.strip():
        listed = collector.runs(named=wanted.strip()[:MAX_NAME]).body
    found, asks_token = listed["runs"], collector.as_reader
    unheard = silent_endpoints.load(collector)
    address = collector.public_url
    contents = runs_page.fill(found, incidents, wanted, address, unheard, asks_token=asks_token, has_older=has_older)
    return {**contents, "shown": json.dumps({"version": version, "wanted": wanted})}


def _of_run(collector: Collector, place: Place, search: str | None, shown: Shown) -> Contents:
    """Return the contents of a run's or a layer's page, nothing when it shows them already."""
    view = parse(search)
    if shown and news.is_shown(collector, place, search, shown):
        return {}
    state: dict[str, Any] = {"version": collector.run(place.run).version, "search": search}
    data: run_data.RunData | layer_data.LayerData
    if place.layer is None:
        data = run_data.load(collector, place.run, view, shown.get("layer"))
        contents = run_page.fill(data, view)
        state["layer"] = data.layer and data.layer["layer"]
    else:
        data = layer_data.load(collector, place.run, place.layer, view)
        contents = layer_page.fill(data, view)
    state["incidents"] = data.incidents_version if run_data.is_unsettled(data.incidents) else None
    return {**contents, "shown": json.dumps(state)}


def _register_browser(app: Dash) -> None:
    """Register what the browser does alone; the functions are in ``assets/gradcanary.js``."""

    def browser(function: str, *arguments: Output | Input | State, at_click: bool = False) -> None:
        register_callback: Callable[..., None] = app.clientside_callback
        register_callback(ClientsideFunction("gradcanary", function), *arguments, prevent_initial_call=at_click)

    figures = {"run": ("heatmap", "trend", "loss", "rates", "agent"), "layer": tuple(f"stat-{stat}" for stat in STATS)}
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
