"""What clicks on the pages of silences and of tokens do."""

from __future__ import annotations

from typing import Any, cast

from dash import ALL, Dash, Input, Output, State, ctx

from gradcanary_dashboard import forms, settings_frame
from gradcanary_dashboard.client import Collector
from gradcanary_dashboard.settings_frame import answered
from gradcanary_dashboard.threads import Contents, threaded


def register(app: Dash, collector: Collector) -> None:
    """Register the callbacks of the pages of silences and of tokens."""
    _register_end_of_silence(app, collector)
    _register_new_token(app, collector)
    _register_end_of_token(app, collector)


def _register_end_of_silence(app: Dash, collector: Collector) -> None:
    button = Input({"do": "end-silence", "silence": ALL}, "n_clicks")

    @threaded(app, {"answer": Output("silence-answer", "children")}, button, refreshes=True)
    def end(_clicks: object) -> Contents:
        def ask() -> list[Any]:
            collector.change("DELETE", f"/silences/{_clicked('silence')}")
            return forms.done("Ended: what is still true is told.")

        return {"answer": answered(ctx.triggered[0]["value"], ask)}


def _register_new_token(app: Dash, collector: Collector) -> None:
    states = [State("new-token-name", "value"), State("new-token-scope", "data"), State("new-token-days", "value")]
    outputs = {"answer": Output("new-token-answer", "children"), "name": Output("new-token-name", "value")}

    @threaded(app, outputs, Input("new-token-do", "n_clicks"), *states, refreshes=True)
    def create(clicks: object, name: str | None, scope: str, days: str | None) -> Contents:
        made: dict[str, Any] = {}

        def ask() -> list[Any]:
            for_days = _days(days)
            if isinstance(for_days, str):
                return forms.wrong(for_days)
            body = {"name": (name or "").strip(), "scope": scope, "days": for_days}
            made.update(cast(dict[str, Any], collector.change("POST", "/tokens", body)))
            return settings_frame.once(made["secret"], f"Token {made['id']}, shown this once:")

        said = answered(clicks, ask)
        return {"answer": said, **({"name": ""} if made else {})}


def _register_end_of_token(app: Dash, collector: Collector) -> None:
    button = Input({"do": "revoke", "token": ALL}, "n_clicks")

    @threaded(app, {"answer": Output("token-answer", "children")}, button, refreshes=True)
    def revoke(_clicks: object) -> Contents:
        def ask() -> list[Any]:
            collector.change("DELETE", f"/tokens/{_clicked('token')}")
            return forms.done("Revoked.")

        return {"answer": answered(ctx.triggered[0]["value"], ask)}


def _clicked(of: str) -> object:
    """Return what the button that was clicked is about."""
    return cast(dict[str, Any], ctx.triggered_id)[of]


def _days(text: str | None) -> float | str | None:
    """Return the days of a field, None where it is empty, else what is wrong."""
    if not (text or "").strip():
        return None
    try:
        return float(str(text).replace(",", "."))
    except ValueError:
        return "Days are a number, such as 90; leave it empty for a token that holds until it is revoked."
