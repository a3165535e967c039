"""The page of one incident: its frame and the contents of its slots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dash import dcc, html
from dash.development.base_component import Component

from gradcanary.display.verdict import is_unrecovered
from gradcanary_dashboard.address.incidents import Members
from gradcanary_dashboard.address.run import View, parse, run_url
from gradcanary_dashboard.analysis import picture, timeline
from gradcanary_dashboard.analysis.launches import Steps
from gradcanary_dashboard.analysis.timeline import Entry
from gradcanary_dashboard.components import elements, incident_text, member_table, share_bar, static
from gradcanary_dashboard.components.incident_card import actions, member_url
from gradcanary_dashboard.components.static import TREES
from gradcanary_dashboard.figures import incident as figure_of_incident
from gradcanary_dashboard.text import numbers
from gradcanary_dashboard.text.names import Common

FIGURES = {
    "curves": "The worst parameters around the first sign, over the steps",
    "loss": "Loss over the same steps",
    "rates": "Learning rates over the same steps",
}
"""The figures of the picture from the top down, in words."""

SLOTS = {
    "incident-verdict": "children",
    "incident-beside": TREES,
    "incident-state": TREES,
    "incident-drawn": "children",
    "incident-seen": TREES,
    "incident-legend": TREES,
    **{f"incident-{name}": elements.FIGURE for name in FIGURES},
    **{f"incident-has-{name}": "hidden" for name in FIGURES},
    "incident-cause": TREES,
    "incident-story": TREES,
    "incident-has-members": "hidden",
    **member_table.SLOTS,
}
"""Id and property of each slot that a refresh fills."""

LEAST_STEPS = 200
"""Steps on each side of the beginning of an incident, in the link to its run."""


def frame(place: Mapping[str, str], contents: Mapping[str, Any]) -> list[Any]:
    """Return the page with its first contents (none while the collector does not answer)."""
    name = f"#{place['incident']}"
    said = contents.get("incident-verdict", html.H1(f"Incident {name}"))
    cause, story, beside, state = (
        static.slot(slot, contents.get(slot))
        for slot in ("incident-cause", "incident-story", "incident-beside", "incident-state")
    )
    members = html.Div(
        member_table.card(contents), id="incident-has-members", hidden=contents.get("incident-has-members", True)
    )
    shown = [_picture(contents), members]
    told = [elements.card("cause", cause, title="What happened"), elements.card("story", story, title="Timeline")]
    columns = [html.Div(shown, className="figures"), html.Div(told, className="beside")]
    crumbs = elements.crumbs([("Incidents", "/incidents")], name)
    return [
        html.Div([crumbs, share_bar.of_incident(place["incident"], beside)], className="run-head"),
        html.Div(said, id="incident-verdict"),
        state,
        html.Div(columns, className="columns"),
        elements.page_state("incident", contents.get("shown")),
    ]


def _picture(contents: Mapping[str, Any]) -> html.Section:
    drawn = [
        html.Div(
            elements.graph(f"incident-{name}", contents.get(f"incident-{name}"), words),
            id=f"incident-has-{name}",
            hidden=contents.get(f"incident-has-{name}", True),
        )
        for name, words in FIGURES.items()
    ]
    legend = static.slot("incident-legend", contents.get("incident-legend"), tag=html.Ol)
    title = html.Span(contents.get("incident-drawn", "Around the first sign"), id="incident-drawn")
    seen = static.slot("incident-seen", contents.get("incident-seen"), tag=html.Span)
    return elements.card("picture", *drawn, legend, title=title, aside=seen)


def unknown(number: str) -> list[Any]:
    """Return the page of an unknown incident."""
    text = ["The collector knows no incident ", html.Code(number), ". Its run may have been deleted."]
    return [elements.missing("No such incident", text, ("See all incidents", "/incidents"))]


def pictured(incident: Mapping[str, Any], run: Mapping[str, Any], search: str) -> View:
    """Return the steps of the picture: those of the address, else those around the first sign."""
    view = parse(search).steps()
    first, last = picture.steps(incident, run)
    return View(from_step=first, to_step=last) if view.from_step is None or view.to_step is None else view


def fill(
    incident: Mapping[str, Any],
    told: picture.Curves,
    view: View,
    there: Steps | None = None,
    chosen: Members | None = None,
) -> dict[str, Any]:
    """Return the contents of every slot: ``told`` is what is drawn over the steps of the view, ``there`` are the run's
    first and last step, ``chosen`` are the listed parameters.
    """
    around = steps_around(incident, there)
    return {
        "title": f"#{incident['id']} {_rule(incident)} in {incident['run']}",
        "incident-verdict": [_title(incident)],
        "incident-beside": static.encode(_neighbours(incident)),
        "incident-state": static.encode(_state(incident, around)),
        "incident-cause": static.encode(_cause(incident)),
        "incident-story": static.encode(_story(incident)),
        "incident-has-members": not picture.members(incident),
        **_drawn(incident, told, view),
        **member_table.filled(incident, around, chosen or Members()),
    }


def _drawn(incident: Mapping[str, Any], told: picture.Curves, view: View) -> dict[str, Any]:
    """Return the picture: its title, its steps, its figures, and which line is which parameter."""
    figures = figure_of_incident.draw(incident, told, view)
    is_zoomed = (view.from_step, view.to_step) != picture.steps(incident, told.run)
    steps = numbers.steps(view.from_step or 0, view.to_step or 0)
    back = html.Button("Zoom out", type="button", className="do", **elements.attributes(data_zoom="reset"))
    return {
        "incident-drawn": figure_of_incident.title(incident, told),
        "incident-seen": static.encode([steps, back] if is_zoomed else steps),
        "incident-legend": static.encode(_legend(incident, view) if told.series or told.members else None),
        **{f"incident-{name}": figures.get(name, elements.NO_FIGURE) for name in FIGURES},
        **{f"incident-has-{name}": name not in figures for name in FIGURES},
    }


def _legend(incident: Mapping[str, Any], view: View) -> list[html.Li]:
    return [
        html.Li(
            [
                incident_text.chip(place),
                elements.parameter_link(
                    member["name"], member_url(incident, member, view), Common(**incident["names"])
                ),
                html.Span(picture.values(incident["rule"], member), className="dim"),
            ]
        )
        for place, member in enumerate(picture.worst(incident))
    ]


def _title(incident: Mapping[str, Any]) -> html.H1:
    words = html.Span(incident_text.headline(incident), **elements.attributes(aria_live="polite"))
    tone = incident["severity"]
    is_loud = incident["state"] == "open" or is_unrecovered(incident)
    return html.H1([elements.badge(tone, tone, is_solid=is_loud), words], className=f"verdict tone-{tone}")


def _rule(incident: Mapping[str, Any]) -> str:
    return str(incident["rule"].replace("_", " "))


def _neighbours(incident: Mapping[str, Any]) -> list[html.A]:
    """Return the links to the incidents before and after, those of the same run first."""
    links = (("previous", "prev", "left", "["), ("next", "next", "right", "]"))
    return [
        html.A(
            [elements.icon(icon), f"#{incident[key]}"],
            href=f"/incidents/{incident[key]}",
            rel=rel,
            className="do",
            title=f"The {key} incident, of this run first: key {pressed}",
            **elements.attributes(data_way="", aria_label=f"{key.capitalize()} incident", aria_keyshortcuts=pressed),
        )
        for key, rel, icon, pressed in links
        if incident[key] is not None
    ]


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
    run = incident["run"]
    facts: list[Any] = [
        f"since step {numbers.integer(incident['since_step'])}",
        html.Span(["in ", dcc.Link(run, href=run_url(run, View(incident=incident["id"])))]),
        incident_text.outcome(incident),
        elements.moment(incident["opened"], "opened "),
        *incident_text.related(incident),
        *incident_text.quiet(incident),
        incident_text.told(incident),
    ]
    words = f"See steps {numbers.integer(around.from_step)} to {numbers.integer(around.to_step)} of the run"
    link = dcc.Link([elements.icon("trend"), words], href=run_url(run, around), className="do")
    line = html.P([html.Span(fact) for fact in facts], className="facts")
    return [line, html.Div([*actions(incident), link], className="can")]


def _cause(incident: Mapping[str, Any]) -> list[Component]:
    cause, parts = incident["likely_cause"], incident["explanation"]
    shown: list[Component] = [
        html.P(elements.prose(parts["what"])),
        html.H3("Since"),
        html.P(parts["since"]),
        *incident_text.explanation(incident, html.H3),
    ]
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
