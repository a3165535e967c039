"""Clicks on the page of silences, and the preview of a new silence."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any, cast

from dash import Dash, Input, Output, State

from gradcanary_dashboard.actions import answers
from gradcanary_dashboard.actions.answers import answer_click
from gradcanary_dashboard.collector.client import Collector
from gradcanary_dashboard.collector.errors import DashboardError
from gradcanary_dashboard.components import forms, silence_form
from gradcanary_dashboard.pages.settings import silences as silences_page
from gradcanary_dashboard.pages.settings.silences import NEW
from gradcanary_dashboard.text import numbers
from gradcanary_dashboard.web.threads import Contents, changing, threaded

SCOPE = {"run": "value", "rule": "data", "layers": "data", "words": "value"}
"""Fields of a new silence that select what it hides, with their property."""


def register(app: Dash, collector: Collector) -> None:
    """Register the callbacks of the page of silences."""
    _register_plan(app, collector)
    _register_new_silence(app, collector)
    _register_end_of_silence(app, collector)


def _register_plan(app: Dash, collector: Collector) -> None:
    """Register the preview: what the silence would hide, after each pause in typing."""
    held = [Input(f"{NEW}-{name}", prop) for name, prop in SCOPE.items()]

    @threaded(app, {"plan": Output(f"{NEW}-plan", "children")}, *held, refreshes=True)
    def preview(run: str | None, *others: str | None) -> Contents:
        if not (run or "").strip():
            return {"plan": silences_page.plan(None)}
        try:
            return {"plan": silences_page.plan(collector.ask("/silences/preview", **_scope(run, *others)).body)}
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
                "until": silence_form.until(span or "own", own, datetime.now(timezone.utc)),
                "by": answers.signature(collector, by),
                "note": (note or "").strip(),
            }
            made.update(cast(dict[str, Any], collector.change("POST", "/silences", wish)))
            hidden = len(made["incidents"])
            count = numbers.plural(hidden, "open incident") if hidden else "no open incident at the moment"
            return forms.done(f"Silence {made['id']} is active. It mutes {count}.")

        said = answer_click(clicks, ask)
        return {"answer": said, **(dict.fromkeys(("run", "note"), "") if made else {})}


def _scope(run: str | None, rule: str | None, layers: str | None, words: str | None) -> dict[str, str | None]:
    """Return runs, rule and layers of a silence; raises ValueError with a sentence."""
    name = (run or "").strip()
    if not name:
        raise ValueError("Say which runs: a name, lora-* for all that begin so, or * for every run.")
    return {"run": name, "rule": rule or None, "match": silence_form.match(layers or "all", words)}


def _register_end_of_silence(app: Dash, collector: Collector) -> None:
    told = Input(silences_page.ENDED, "data")

    @changing(app, {"answer": Output("silence-answer", "children")}, told)
    def end(clicked: dict[str, Any] | None) -> Contents:
        number = forms.subject(clicked)

        def ask() -> list[Any]:
            collector.change("DELETE", f"/silences/{number}")
            return forms.done(f"Silence {number} is over: one notification is sent for each incident still open.")

        return {"answer": answer_click(number, ask)}
