"""Callbacks of the opening and the refresh of pages, and registration of those of clicks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from dash import ClientsideFunction, Dash, Input, Output, State

from gradcanary_dashboard.actions import endpoints, incidents, run, silences, tokens
from gradcanary_dashboard.collector.client import Collector, one_answer_per_question
from gradcanary_dashboard.collector.errors import DashboardError, NotFoundError
from gradcanary_dashboard.components import banners
from gradcanary_dashboard.pages import registry
from gradcanary_dashboard.pages.registry import PAGES, Page
from gradcanary_dashboard.web.threads import Contents, threaded


def register(app: Dash, collector: Collector) -> None:
    """Register every callback of the dashboard on the app."""
    _register_opening(app, collector)
    for page in PAGES:
        _register_refresh(app, page)
    incidents.register(app, collector)
    endpoints.register(app, collector)
    run.register(app, collector)
    silences.register(app, collector)
    tokens.register(app, collector)
    _register_browser(app)


def _register_opening(app: Dash, collector: Collector) -> None:
    outputs = {
        "main": Output("main", "children"),
        "title": Output("title", "data"),
        "outage": Output("outage", "children"),
    }

    @threaded(app, outputs, Input("url", "pathname"), State("url", "search"))
    def show(pathname: str | None, search: str | None) -> Contents:
        page, arguments = registry.find(pathname or "/")
        title = " ".join(arguments.values()) or page.title
        try:
            with one_answer_per_question():
                contents = page.ask(collector, arguments, search or "", {})
            return {"main": page.frame(arguments, contents), "title": contents.get("title", title), "outage": None}
        except NotFoundError:
            return {"main": page.unknown(collector, arguments), "title": "Not found", "outage": None}
        except DashboardError as error:
            return {"main": page.frame(arguments, {}), "title": title, "outage": banners.trouble(error)}


def _register_refresh(app: Dash, page: Page) -> None:
    """Register the refresh of a page, which runs in the browser: after a change, and at a choice of the reader."""
    heart = f"{page.name}-heart"
    register_callback: Callable[..., None] = app.clientside_callback
    register_callback(
        ClientsideFunction("gradcanary", "refresh"),
        *(Output(slot, prop) for slot, prop in page.slots.items()),
        Output(heart, "data-shown"),
        Output("outage", "children", allow_duplicate=True),
        Input(heart, "data-news"),
        Input(f"{page.name}-url", "search"),
        State(heart, "data-shown"),
        State("url", "pathname"),
        prevent_initial_call=True,
    )


def _register_browser(app: Dash) -> None:
    """Register the callbacks that run in the browser (``gradcanary.js``)."""

    def browser(
        function: str, *arguments: Output | Input | State, at_click: bool | Literal["initial_duplicate"] = False
    ) -> None:
        register_callback: Callable[..., None] = app.clientside_callback
        register_callback(ClientsideFunction("gradcanary", function), *arguments, prevent_initial_call=at_click)

    browser("show_choices", Output("rows", "value"), Input("run-url", "search"))
    browser("show_sought", Output("metrics", "value"), Input("run-url", "search"))
    browser("show_axis", Input("layer-url", "search"))
    again = Output("rows", "value", allow_duplicate=True)
    browser("show_choices", again, Input("compare-url", "search"), at_click="initial_duplicate")
    browser("title", Input("title", "data"))
