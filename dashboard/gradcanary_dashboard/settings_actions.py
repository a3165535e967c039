"""What clicks on the pages of silences and of tokens do, and what a silence would hide while it is put together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import Any, cast

from dash import ClientsideFunction, Dash, Input, Output, State

from gradcanary_dashboard import (
    forms,
    incident_callbacks,
    settings_frame,
    silence_forms,
    silences_page,
    tokens_page,
    wording,
)
from gradcanary_dashboard.client import Collector
from gradcanary_dashboard.errors import DashboardError
from gradcanary_dashboard.settings_frame import answered
from gradcanary_dashboard.silences_page import NEW
from gradcanary_dashboard.threads import Contents, changing, threaded

SCOPE = {"run": "value", "rule": "data", "layers": "data", "words": "value"}
"""Fields of a new silence that say what it hides, with the property that holds them."""


def register(app: Dash, collector: Collector) -> None:
    """Register the callbacks of the pages of silences and of tokens."""
    _register_plan(app, collector)
    _register_new_silence(app, collector)
    _register_end_of_silence(app, collector)
    _register_new_token(app, collector)
    _register_end_of_token(app, collector)


def _register_plan(app: Dash, collector: Collector) -> None:
    """Say what the silence that somebody puts together would hide, each time they rest."""
    held = [Input(f"{NEW}-{name}", prop) for name, prop in SCOPE.items()]
    wish = Output(f"{NEW}-wish", "data")
    register_callback: Callable[..., None] = app.clientside_callback
    register_callback(ClientsideFunction("forms", "rest"), wish, *held, prevent_initial_call=True)

    @threaded(app, {"plan": Output(f"{NEW}-plan", "children")}, Input(f"{NEW}-wish", "data"), refreshes=True)
    def preview(wished: Sequence[str | None] | None) -> Contents:
        if not wished or not (wished[0] or "").strip():
            return {"plan": silences_page.plan(None)}
        try:
            return {"plan": silences_page.plan(collector.ask("/silences/preview", **_scope(*wished)).body)}
        except (DashboardError, ValueError) as error:
            return {"plan": forms.wrong(str(error))}


def _register_new_silence(app: Dash, collector: Collector) -> None:
    held = {**SCOPE, "span": "data", "own": "value", "by": "value", "note": "value"}
    states = [State(f"{NEW}-{name}", prop) for name, prop in held.items()]
    outputs = {"answer": Output(f"{NEW}-answer", "children")}
    outputs |= {name: Output(f"{NEW}-{name}", "value") for name in ("run", "note")}
    clicked = Input(f"{NEW}-do", "n_clicks")

    @changing(app, outputs, clicked, *states)
    def create(clicks: object, *given: str | None) -> Contents:
        made: dict[str, Any] = {}

        def ask() -> list[Any]:
            span, own, by, note = given[len(SCOPE) :]
            wish = {
                **_scope(*given[: len(SCOPE)]),
                "until": silence_forms.until(span or "own", own, datetime.now(timezone.utc)),
                "by": incident_callbacks.signature(collector, by),
                "note": (note or "").strip(),
            }
            made.update(cast(dict[str, Any], collector.change("POST", "/silences", wish)))
            hidden = len(made["incidents"])
            count = wording.plural(hidden, "open incident") if hidden else "no open incident now"
            return forms.done(f"Silence {made['id']} is in force; it hides {count}.")

        said = answered(clicks, ask)
        return {"answer": said, **(dict.fromkeys(("run", "note"), "") if made else {})}


def _scope(run: str | None, rule: str | None, layers: str | None, words: str | None) -> dict[str, str | None]:
    """Return which runs, rule and layers a silence is about; raises ValueError in words."""
    name = (run or "").strip()
    if not name:
        raise ValueError("Say which runs: a name, lora-* for all that begin so, or * for every run.")
    return {"run": name, "rule": rule or None, "match": silence_forms.match(layers or "all", words)}


def _register_end_of_silence(app: Dash, collector: Collector) -> None:
    told = Input(silences_page.ENDED, "data")

    @changing(app, {"answer": Output("silence-answer", "children")}, told)
    def end(clicked: dict[str, Any] | None) -> Contents:
        number = forms.about(clicked)

        def ask() -> list[Any]:
            collector.change("DELETE", f"/silences/{number}")
            return forms.done(f"Silence {number} is over: what is still true is told.")

        return {"answer": answered(number, ask)}


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

        said = answered(clicks, ask)
        return {"answer": said, **({"name": ""} if made else {})}


def _register_end_of_token(app: Dash, collector: Collector) -> None:
    told = Input(tokens_page.REVOKED, "data")

    @changing(app, {"answer": Output("token-answer", "children")}, told)
    def revoke(clicked: dict[str, Any] | None) -> Contents:
        number = forms.about(clicked)

        def ask() -> list[Any]:
            collector.change("DELETE", f"/tokens/{number}")
            return forms.done("Revoked.")

        return {"answer": answered(number, ask)}


def _days(text: str | None) -> float | str | None:
    """Return the days of a field, None where it is empty, else what is wrong."""
    if not (text or "").strip():
        return None
    try:
        return float(str(text).replace(",", "."))
    except ValueError:
        return "Days are a number, such as 90; leave it empty for a token that holds until it is revoked."
