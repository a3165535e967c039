"""Clicks on the page of tokens."""

from __future__ import annotations

from typing import Any, cast

from dash import Dash, Input, Output, State

from gradcanary_dashboard.actions.answers import answer_click
from gradcanary_dashboard.collector.client import Collector
from gradcanary_dashboard.components import forms
from gradcanary_dashboard.pages.settings import frame as settings_frame
from gradcanary_dashboard.pages.settings import tokens as tokens_page
from gradcanary_dashboard.web.threads import Contents, changing


def register(app: Dash, collector: Collector) -> None:
    """Register the callbacks of the page of tokens."""
    _register_new_token(app, collector)
    _register_end_of_token(app, collector)


def _register_new_token(app: Dash, collector: Collector) -> None:
    states = [State("new-token-name", "value"), State("new-token-scope", "data"), State("new-token-days", "value")]
    outputs = {"answer": Output("new-token-answer", "children"), "name": Output("new-token-name", "value")}

    @changing(app, outputs, Input("new-token-do", "n_clicks"), *states)
    def create(clicks: object, name: str | None, scope: str, days: str | None) -> Contents:
        made: dict[str, Any] = {}

        def ask() -> list[Any]:
            for_days = _days(days)
            if isinstance(for_days, str):
                return forms.wrong(for_days)
            body = {"name": (name or "").strip(), "scope": scope, "days": for_days}
            made.update(cast(dict[str, Any], collector.change("POST", "/tokens", body)))
            return settings_frame.once(made["secret"], f"Token {made['id']}, shown this once:")

        said = answer_click(clicks, ask)
        return {"answer": said, **({"name": ""} if made else {})}


def _register_end_of_token(app: Dash, collector: Collector) -> None:
    told = Input(tokens_page.REVOKED, "data")

    @changing(app, {"answer": Output("token-answer", "children")}, told)
    def revoke(clicked: dict[str, Any] | None) -> Contents:
        number = forms.subject(clicked)

        def ask() -> list[Any]:
            collector.change("DELETE", f"/tokens/{number}")
            return forms.done("Revoked.")

        return {"answer": answer_click(number, ask)}


def _days(text: str | None) -> float | str | None:
    """Return the days of a field, None if it is empty, or a sentence if it is not a number."""
    if not (text or "").strip():
        return None
    try:
        return float(str(text).replace(",", "."))
    except ValueError:
        return "Days are a number, such as 90; leave it empty for a token that holds until it is revoked."
