"""The page of one incident: its frame and the contents of its slots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dash import dcc, html
from dash.development.base_component import Component

from gradcanary_dashboard.address.incidents import Members
from gradcanary_dashboard.address.run import View, run_url
from gradcanary_dashboard.analysis import timeline
from gradcanary_dashboard.analysis.launches import Steps
from gradcanary_dashboard.analysis.timeline import Entry
from gradcanary_dashboard.analysis.verdict import Verdict
from gradcanary_dashboard.components import elements, incident_text, member_table, share_bar, static
from gradcanary_dashboard.components.incident_card import actions
from gradcanary_dashboard.components.static import TREES
from gradcanary_dashboard.text import numbers

SLOTS = {
    "incident-verdict": "children",
    "incident-state": TREES,
    "incident-tiles": "children",
    "incident-cause": TREES,
    "incident-story": TREES,
    **member_table.SLOTS,
}
"""Id and property of each slot that a refresh fills."""

LEAST_STEPS = 200
"""Steps on each side of the beginning of an incident."""


def frame(place: Mapping[str, str], contents: Mapping[str, Any]) -> list[Any]:
    """Return the page with its first contents (none while the collector does not answer)."""
    name = f"#{place['incident']}"
    said = contents.get("incident-verdict", html.H1(f"Incident {name}"))
    cause, story = (static.slot(slot, contents.get(slot)) for slot in ("incident-cause", "incident-story"))
    told = [elements.card("cause", cause, title="What to do, and why"), member_table.card(contents)]
    story_card = elements.card("story", story, title="What happened")
    columns = [html.Div(told, className="figures"), html.Div(story_card, className="beside")]
    return [
        html.Div(
            [elements.crumbs([("Incidents", "/incidents")], name), share_bar.of_incident(place["incident"])],
            className="run-head",
        ),
        html.Div(said, id="incident-verdict"),
        static.slot("incident-state", contents.get("incident-state")),
        html.Div(contents.get("incident-tiles"), id="incident-tiles", className="tiles"),
        html.Div(columns, className="columns"),
        elements.page_state("incident", contents.get("shown")),
    ]


def unknown(number: str) -> list[Any]:
    """Return the page of an unknown incident."""
    text = ["The collector knows no incident ", html.Code(number), ". Its run may have been deleted."]
    return [elements.missing("No such incident", text, ("See all incidents", "/incidents"))]


def fill(incident: Mapping[str, Any], there: Steps | None = None, chosen: Members | None = None) -> dict[str, Any]:
    """Return the contents of every slot; ``there`` are the run's first and last step, ``chosen`` are its layers."""
    around = steps_around(incident, there)
    rule = incident["rule"].replace("_", " ")
    return {
        "title": f"#{incident['id']} {rule} in {incident['run']}",
        "incident-verdict": [elements.verdict(Verdict(incident["severity"], incident["summary"]))],
        "incident-state": static.encode(_state(incident, around)),
        "incident-tiles": _tiles(incident),
        "incident-cause": static.encode(_cause(incident)),
        "incident-story": static.encode(_story(incident)),
        **member_table.filled(incident, around, chosen or Members()),
    }


def steps_around(incident: Mapping[str, Any], there: Steps | None = None) -> View:
    """Return the steps around the beginning of an incident, enough to see the fall that opened it.

    They are within the steps ``there``.
    """
    since, opened = incident["since_step"], incident["opened_step"]
    margin = max(LEAST_STEPS, 5 * (opened - since))
    first, last = there or (0, opened + margin)
    begin, end = (min(max(step, first), last) for step in (since - margin, opened + margin))
    return View(from_step=begin, to_step=end, incident=incident["id"])


def _state(incident: Mapping[str, Any], around: View) -> list[Any]:
    run, rule = incident["run"], incident["rule"].replace("_", " ")
    facts: list[Any] = [
        incident_text.outcome(incident),
        rule,
        html.Span(["in ", dcc.Link(run, href=run_url(run, View(incident=incident["id"])))]),
    ]
    facts += [
        elements.moment(incident["opened"], "opened "),
        *incident_text.related(incident),
        *incident_text.quiet(incident),
        incident_text.told(incident),
    ]
    words = f"See steps {numbers.integer(around.from_step)} to {numbers.integer(around.to_step)} of the run"
    link = dcc.Link([elements.icon("trend"), words], href=run_url(run, around), className="do")
    line = html.P([html.Span(fact) for fact in facts], className="facts")
    return [line, html.Div([*actions(incident), link], className="can")]


def _tiles(incident: Mapping[str, Any]) -> list[html.Div]:
    counts = incident["counts"]
    firing, ever = (numbers.integer(counts[key]) for key in ("firing", "ever"))
    layers = f"{firing} / {numbers.integer(counts['layers'])}" if counts["ever"] else "whole run"
    over = incident["resolved_step"]
    opened, resolved = incident["opened_step"], "open" if over is None else numbers.integer(over)
    again = f"reopened {numbers.plural(incident['reopened'], 'time')}" if incident["reopened"] else ""
    ended = [elements.moment(incident["resolved"]), html.Span(again)] if incident["resolved"] else again
    since = numbers.integer(incident["since_step"])
    is_bad = incident["state"] == "open" and counts["firing"] > 0
    return [
        elements.tile("Parameters with this incident", layers, f"{ever} ever" if counts["ever"] else "", bad=is_bad),
        elements.tile("Since step", since, "the first sign"),
        elements.tile("Opened at step", numbers.integer(opened), elements.moment(incident["opened"])),
        elements.tile("Ended at step" if incident["state"] == "ended" else "Resolved at step", resolved, ended),
    ]


def _cause(incident: Mapping[str, Any]) -> list[Component]:
    cause = incident["likely_cause"]
    shown: list[Component] = incident_text.explanation(incident, html.H3)
    if cause["incidents"]:
        links = [html.Li(dcc.Link(f"#{number}", href=f"/incidents/{number}")) for number in cause["incidents"]]
        shown += [html.Div([html.Span("Related incidents"), html.Ul(links)], className="linked")]
    return shown


def _story(incident: Mapping[str, Any]) -> list[html.Ol]:
    shown, left_out = timeline.shortened(timeline.entries(incident))
    items = [_entry(entry) for entry in shown]
    if left_out:
        items.insert(1, html.Li(f"and {numbers.integer(left_out)} more, and then", className="dim"))
    return [html.Ol(items, className="timeline")]


def _entry(entry: Entry) -> html.Li:
    head = [html.Span([elements.icon(entry.icon), html.Span(entry.words)], className="what"), elements.moment(entry.at)]
    return html.Li([html.Div(head, className="entry"), *_attempts(entry)], className=f"tone-{entry.tone}")


def _attempts(entry: Entry) -> list[Component]:
    """Return all attempts; many of them are folded."""
    lines = html.Ul([_attempt(each) for each in entry.attempts], className="attempts dim")
    if len(entry.attempts) > 1:
        last = entry.attempts[-1]
        words = f"{len(entry.attempts)} attempts, the last: {last['error'] or last['status']}"
        return [html.Details([html.Summary(words), lines], className="dim")]
    return [lines] if entry.attempts else []


def _attempt(attempt: Mapping[str, Any]) -> html.Li:
    status = "no answer" if attempt["status"] is None else f"{attempt['status']}"
    error = f": {attempt['error']}" if attempt["error"] else ""
    at = html.Time(attempt["at"][11:19], title=attempt["at"])
    return html.Li([at, html.Span(f"{status} after {numbers.integer(attempt['ms'])} ms{error}")])
