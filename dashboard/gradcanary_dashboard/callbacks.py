"""Callbacks of the opening of pages, and registration of those of clicks."""

from __future__ import annotations

from collections.abc import Callable

from dash import ClientsideFunction, Dash, Input, Output, State

from gradcanary_dashboard.actions import endpoints, incidents, run, silences, tokens
from gradcanary_dashboard.collector.client import Collector, one_answer_per_question
from gradcanary_dashboard.collector.errors import DashboardError, NotFoundError
from gradcanary_dashboard.components import banners
from gradcanary_dashboard.pages import registry
from gradcanary_dashboard.web.threads import Contents, threaded


def register(app: Dash, collector: Collector) -> None:
    """Register every callback of the dashboard on the app."""
    _register_opening(app, collector)
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


def _register_browser(app: Dash) -> None:
    """Register the callback that runs in the browser (``gradcanary.js``)."""
    register_callback: Callable[..., None] = app.clientside_callback
    register_callback(ClientsideFunction("gradcanary", "title"), Input("title", "data"))
