"""Clicks on the pages of endpoints: each sends a change with the reader's credentials, and shows the result."""

from __future__ import annotations

from typing import Any, cast

from dash import Dash, Input, Output, State, ctx, dcc
from dash.exceptions import PreventUpdate

from gradcanary_dashboard.actions.answers import answer_click
from gradcanary_dashboard.collector.client import Collector
from gradcanary_dashboard.collector.errors import DashboardError
from gradcanary_dashboard.components import endpoint_text, forms
from gradcanary_dashboard.pages.settings import endpoints as endpoint_pages
from gradcanary_dashboard.pages.settings import frame as settings_frame
from gradcanary_dashboard.web.threads import Contents, changing

Told = dict[str, Any]


def register(app: Dash, collector: Collector) -> None:
    """Register the callbacks of the pages of endpoints."""
    _register_new(app, collector)
    _register_doing(app, collector)
    _register_change(app, collector)
    _register_removal(app, collector)


def _register_new(app: Dash, collector: Collector) -> None:
    fields = ("new-endpoint-url", "new-endpoint-name")
    states = [*(State(field, "value") for field in fields), State("new-endpoint-severity", "data")]
    outputs = {"answer": Output("new-endpoint-answer", "children")}
    outputs |= {field: Output(field, "value") for field in fields}

    @changing(app, outputs, Input("new-endpoint-do", "n_clicks"), *states)
    def create(clicks: object, url: str | None, name: str | None, severity: str) -> Contents:
        made: Told = {}

        def ask() -> list[Any]:
            body = {"url": (url or "").strip(), "name": (name or "").strip(), "min_severity": severity}
            made.update(cast(Told, collector.change("POST", "/endpoints", body)))
            way = dcc.Link("Send it a test message", href=f"/settings/endpoints/{made['id']}")
            words = "Created. Its secret, for the receiver to check signatures with, is shown this once:"
            return [*settings_frame.once(made["secret"], words), way]

        said = answer_click(clicks, ask)
        return {"answer": said, **(dict.fromkeys(fields, "") if made else {})}


def _register_doing(app: Dash, collector: Collector) -> None:
    """Register test, redelivery, enable, disable and rotate, which answer in one slot."""
    answer, place = "endpoint-answer", State("url", "pathname")
    waiting = [(Output("endpoint-waits", "hidden"), False, True)]
    asks = Input("endpoint-test-do", "n_clicks"), Input(endpoint_text.SENT_AGAIN, "data")

    @changing(app, {"answer": Output(answer, "children")}, *asks, place, running=waiting)
    def ask(*values: object) -> Contents:
        path, clicks = f"/endpoints/{_number(str(values[-1]))}", ctx.triggered[0]["value"]
        deeds = {
            endpoint_text.SENT_AGAIN: lambda: _redeliver(collector, forms.subject(clicks)),
            "endpoint-test-do": lambda: endpoint_text.outcome(_post(collector, f"{path}/test")),
        }
        return {"answer": answer_click(clicks, deeds[str(ctx.triggered_id)])}

    buttons = [Input(f"endpoint-{name}-do", "n_clicks") for name in ("enable", "disable", "rotate")]

    @changing(app, {"answer": Output(answer, "children", allow_duplicate=True)}, *buttons, place)
    def do(*values: object) -> Contents:
        path, clicks = f"/endpoints/{_number(str(values[-1]))}", ctx.triggered[0]["value"]
        deeds = {
            "endpoint-enable-do": lambda: _enable(collector, path, wanted=True),
            "endpoint-disable-do": lambda: _enable(collector, path, wanted=False),
            "endpoint-rotate-do": lambda: _rotate(collector, path),
        }
        return {"answer": answer_click(clicks, deeds[str(ctx.triggered_id)])}


def _register_change(app: Dash, collector: Collector) -> None:
    fields = [State(name, "value") for name in ("endpoint-url-field", "endpoint-name")]
    states = [*fields, State("endpoint-severity", "data")]
    outputs = {"answer": Output("endpoint-saved", "children")}

    @changing(app, outputs, Input("endpoint-save-do", "n_clicks"), *states, State("url", "pathname"))
    def save(clicks: object, url: str | None, name: str | None, severity: str | None, path: str) -> Contents:
        def ask() -> list[Any]:
            place = f"/endpoints/{_number(path)}"
            wished = {"url": (url or "").strip(), "name": (name or "").strip(), "min_severity": severity}
            known = cast(Told, collector.ask(place).body)
            changed = {key: value for key, value in wished.items() if value is not None and value != known[key]}
            if not changed:
                return forms.done("Nothing to save: it is so already.")
            collector.change("PATCH", place, changed)
            return forms.done("Saved.")

        return {"answer": answer_click(clicks, ask)}


def _register_removal(app: Dash, collector: Collector) -> None:
    outputs = {
        "url": Output(f"{endpoint_pages.ONE}-leaving", "pathname"),
        "answer": Output("endpoint-answer", "children", allow_duplicate=True),
    }

    @changing(app, outputs, Input("endpoint-delete-do", "n_clicks"), State("url", "pathname"))
    def remove(clicks: object, path: str) -> Contents:
        if not clicks:
            raise PreventUpdate
        try:
            collector.change("DELETE", f"/endpoints/{_number(path)}")
        except DashboardError as error:
            return {"answer": forms.wrong(str(error))}
        return {"url": "/settings"}


def _post(collector: Collector, path: str) -> Told:
    return cast(Told, collector.change("POST", path, {}))


def _redeliver(collector: Collector, delivery: str) -> list[Any]:
    return endpoint_text.outcome(_post(collector, f"/deliveries/{delivery}/redeliver"))


def _enable(collector: Collector, path: str, *, wanted: bool) -> list[Any]:
    collector.change("PATCH", path, {"enabled": wanted})
    return forms.done("Enabled: it hears of what is open." if wanted else "Disabled: it is told nothing.")


def _rotate(collector: Collector, path: str) -> list[Any]:
    words = "A new secret, shown this once; messages carry a signature of the old one, too, for 24 hours:"
    return settings_frame.once(_post(collector, f"{path}/rotate")["secret"], words)


def _number(pathname: str) -> str:
    return pathname.rstrip("/").rpartition("/")[2]
