"""What is said of an incident, the same on every page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dash import dcc, html

from gradcanary_dashboard.analysis import picture
from gradcanary_dashboard.components import elements
from gradcanary_dashboard.figures import overlay
from gradcanary_dashboard.text import numbers
from gradcanary_dashboard.text.deliveries import message, whom


def headline(incident: Mapping[str, Any]) -> str:
    """Return rule and count: ``Collapse: 8 of 48 parameters``; of the whole run the rule, ``Crash: RuntimeError``."""
    counts, rule = incident["counts"], incident["rule"].replace("_", " ").capitalize()
    count = counts["firing" if incident["state"] == "open" else "ever"]
    if count:
        return f"{rule}: {numbers.integer(count)} of {picture.tally(incident, counts['layers'])}"
    return f"{rule}: {incident['crash']['type']}" if incident.get("crash") else rule


def chip(place: int) -> html.Span:
    """Return the number of a parameter in the picture, with its line."""
    line = html.Span(className="pattern", style={"background": overlay.COLOURS[place]})
    return html.Span([html.B(f"{place + 1}"), line], className="chip")


def outcome(incident: Mapping[str, Any]) -> html.Span:
    """Return the state of an incident with an icon: ``open``, ``ended``, ``resolved``, ``resolved: rule changed``."""
    is_open = incident["state"] == "open"
    icon = elements.icon("pulse" if is_open else "check")
    return html.Span([icon, numbers.outcome(incident)], className=f"outcome {'open' if is_open else 'resolved'}")


def related(incident: Mapping[str, Any]) -> list[Any]:
    """Return links to the incident that explains one, and to those that its messages name."""
    found: list[Any] = []
    for words, others in (
        ("caused by", [incident.get("caused_by")]),
        ("same fault:", incident.get("also", ())),
    ):
        links = [dcc.Link(f"#{number}", href=f"/incidents/{number}") for number in others if number is not None]
        if links:
            apart = [part for link in links for part in (" ", link)]
            found.append(html.Span([f"{words}", *apart], className="knows"))
    return found


def explanation(incident: Mapping[str, Any], heading: type[html.H3 | html.H4]) -> list[Any]:
    """Return what to do first, why, the evidence, and the general text, folded."""
    return [*do_first(incident, heading), *reasons(incident, heading)]


def do_first(incident: Mapping[str, Any], heading: type[html.H3 | html.H4]) -> list[Any]:
    """Return what to do first."""
    parts, fix = incident.get("explanation"), incident.get("fix")
    if not parts or not fix:
        return []
    title = heading(f"Do first{', for ' + fix['framework'] if fix['framework'] else ''}")
    return [title, html.P(parts["do_first"]), *([elements.code(fix["code"])] if fix["code"] else [])]


def reasons(incident: Mapping[str, Any], heading: type[html.H3 | html.H4]) -> list[Any]:
    """Return why, the evidence that it does not say already, and the general text, folded."""
    parts, fix = incident.get("explanation"), incident.get("fix")
    if not parts or not fix:
        return []
    evidence = [html.Li(elements.prose(text)) for text in parts["evidence"] if text not in parts["why"]]
    more = parts["more"].removesuffix(fix["code"]).strip()
    return [
        heading("Why"),
        html.P(elements.prose(parts["why"])),
        *([heading("Evidence"), html.Ul(evidence, className="evidence")] if evidence else []),
        *frames(incident),
        *([html.Details([html.Summary("More"), html.P(more)])] if more else []),
        html.P(dcc.Link(f"Runbook of {incident['rule']}", href=f"/runbooks/{incident['rule']}")),
    ]


def frames(incident: Mapping[str, Any]) -> list[Any]:
    """Return the frames of the exception that ended the training, as a block of code."""
    crash = incident.get("crash")
    return [elements.code("\n".join(crash["frames"]))] if crash and crash["frames"] else []


def quiet(incident: Mapping[str, Any]) -> list[Any]:
    """Return who knows of an incident, and until when nobody is told of it."""
    ack, silenced = incident["acked"], incident["silenced"]
    found: list[Any] = []
    if ack:
        words = f"acked by {ack['by']}" + (f": {ack['note']}" if ack["note"] else "")
        said = html.Span([f"{words}, ", elements.moment(ack["at"])])
        found.append(html.Span([elements.icon("check"), said], className="knows"))
    if silenced:
        some = (
            ""
            if silenced["members"] == silenced["firing"]
            else f"{silenced['members']} of {picture.tally(incident, silenced['firing'])} "
        )
        said = html.Span([f"{some}silenced, ends ", elements.moment(silenced["until"])])
        found.append(html.Span([elements.icon("hush"), said], className="knows"))
    return found


def told(incident: Mapping[str, Any]) -> html.Span:
    """Return what whom was told last."""
    heard: dict[str, list[str]] = {}
    for each in incident["last_deliveries"]:
        heard.setdefault(message(each), []).append(whom(each))
    said = "; ".join(f"{', '.join(names)}: {words}" for words, names in heard.items())
    return html.Span([elements.icon("send"), said or "no message was sent"], className="knows")
