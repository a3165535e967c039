"""Callbacks for acknowledging, silencing and unsilencing an incident."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, cast

from dash import ALL, ClientsideFunction, Dash, Input, Output, State, ctx
from dash.exceptions import PreventUpdate

from gradcanary_dashboard.actions.answers import signature
from gradcanary_dashboard.collector.client import Collector
from gradcanary_dashboard.collector.errors import DashboardError, NotFoundError
from gradcanary_dashboard.components import forms, incident_dialog, silence_form
from gradcanary_dashboard.web.threads import Contents, changing, threaded

ANSWER = Output("dialog-answer", "children", allow_duplicate=True)
DONE = Output("done", "data", allow_duplicate=True)
ASKED, BY, NOTE = State("asked", "data"), State("asked-by", "value"), State("asked-note", "value")


def register(app: Dash, collector: Collector) -> None:
    """Register the callbacks of incidents."""
    _register_opening(app, collector)
    _register_ack(app, collector, "ack-send", learns=False)
    _register_ack(app, collector, "ack-baseline", learns=True)
    _register_silence(app, collector)
    _register_move(app, collector)
    _register_unsilence(app, collector)
    _register_browser(app)


def _register_opening(app: Dash, collector: Collector) -> None:
    @threaded(app, {"body": Output("dialog-body", "children")}, Input("asked", "data"), refreshes=True)
    def open_dialog(asked: dict[str, Any] | None) -> Contents:
        if not asked:
            raise PreventUpdate
        try:
            if asked["do"] == "move":
                return {"body": incident_dialog.move(_silence(collector, int(asked["silence"])))}
            return {"body": _form(collector, str(asked["do"]), int(asked["incident"]))}
        except DashboardError as error:
            return {"body": incident_dialog.refused(str(error))}


def _form(collector: Collector, do: str, number: int) -> list[Any]:
    incident = collector.incident(number).body
    if do == "unsilence":
        hiding = (incident["silenced"] or {"silences": []})["silences"]
        found = [each for each in collector.silences().body["silences"] if each["id"] in hiding]
        return incident_dialog.unsilence(incident, found)
    form = incident_dialog.ack if do == "ack" else incident_dialog.silence
    return form(incident, is_signed_in=collector.as_reader)


def _silence(collector: Collector, number: int) -> Mapping[str, Any]:
    for each in collector.silences().body["silences"]:
        if each["id"] == number:
            return cast(Mapping[str, Any], each)
    raise NotFoundError(f"Silence {number} is over.")


def _register_ack(app: Dash, collector: Collector, button: str, *, learns: bool) -> None:
    @changing(app, {"answer": ANSWER, "done": DONE}, Input(button, "n_clicks"), ASKED, BY, NOTE)
    def ack(clicks: int | None, asked: dict[str, Any], by: str | None, note: str | None) -> Contents:
        number = asked["incident"]

        def change() -> None:
            body = {"by": signature(collector, by), "note": (note or "").strip(), "new_baseline": learns}
            collector.change("POST", f"/incidents/{number}/ack", body)

        said = f"A new baseline is learnt, #{number} is over." if learns else f"#{number} is acked."
        return _answer(clicks, change, said)


def _register_silence(app: Dash, collector: Collector) -> None:
    held = {"layers": "data", "words": "value", "span": "data", "own": "value"}
    states = [State(f"silence-{name}", prop) for name, prop in held.items()]
    outputs = {"answer": ANSWER, "done": DONE}

    clicked = Input("silence-send", "n_clicks")

    @changing(app, outputs, clicked, ASKED, BY, NOTE, *states)
    def silence(
        clicks: int | None, asked: dict[str, Any], by: str | None, note: str | None, *chosen: str | None
    ) -> Contents:
        def change() -> None:
            layers, words, span, own = chosen
            incident = collector.incident(asked["incident"]).body
            wish = {
                "run": incident["run"],
                "rule": incident["rule"],
                "match": silence_form.match(layers or "all", words),
                "until": silence_form.until(span or "own", own, datetime.now(timezone.utc)),
                "by": signature(collector, by),
                "note": (note or "").strip(),
            }
            collector.change("POST", "/silences", wish)

        return _answer(clicks, change, f"#{asked['incident']} is silenced.")


def _register_move(app: Dash, collector: Collector) -> None:
    states = [State("silence-span", "data"), State("silence-own", "value")]
    outputs = {"answer": ANSWER, "done": DONE}
    clicked = Input("move-send", "n_clicks")

    @changing(app, outputs, clicked, ASKED, *states)
    def move(clicks: int | None, asked: dict[str, Any], span: str | None, own: str | None) -> Contents:
        def change() -> None:
            until = silence_form.until(span or "own", own, datetime.now(timezone.utc))
            collector.change("PATCH", f"/silences/{asked['silence']}", {"until": until})

        return _answer(clicks, change, f"Silence {asked['silence']} has another end.")


def _register_unsilence(app: Dash, collector: Collector) -> None:
    ends = Input({"do": "unsilence", "silence": ALL}, "n_clicks")

    @changing(app, {"answer": ANSWER, "done": DONE}, ends)
    def unsilence(clicks: Sequence[int | None]) -> Contents:
        chosen = ctx.triggered_id or {}
        said = f"Silence {chosen.get('silence')} is over."
        return _answer(any(clicks), lambda: collector.change("DELETE", f"/silences/{chosen['silence']}"), said)


def _answer(clicked: object, change: Callable[[], object], said: str) -> Contents:
    """Return the result of a click or its error; a new button was not clicked."""
    if not clicked:
        raise PreventUpdate
    try:
        change()
    except NotFoundError:
        return {"answer": forms.wrong("It is not there any more: somebody was faster, or it has ended by itself.")}
    except (DashboardError, ValueError) as error:
        return {"answer": forms.wrong(str(error))}
    return {"answer": [], "done": {"said": said, "at": time.time()}}


def _register_browser(app: Dash) -> None:
    """Register the callback that runs in the browser (``incidents.js``)."""
    register_callback: Callable[..., None] = app.clientside_callback
    finish = ClientsideFunction("incidents", "finish")
    register_callback(finish, Output("said", "children"), Input("done", "data"), prevent_initial_call=True)
