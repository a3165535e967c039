"""Incidents of a run, as the panel beside the heatmap lists them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from dash import dcc, html

from gradcanary.display.verdict import is_unrecovered
from gradcanary_dashboard.address.run import View, layer_url, run_url
from gradcanary_dashboard.analysis import picture
from gradcanary_dashboard.components import elements, incident_text
from gradcanary_dashboard.text import deliveries, numbers
from gradcanary_dashboard.text.names import NOTHING_COMMON, Common

NAMED_LAYERS = 4

ICONS = {"ack": "check", "silence": "hush", "unsilence": "bell"}


def panel(
    incidents: Sequence[Mapping[str, Any]], view: View, layer: int | None = None, common: Common = NOTHING_COMMON
) -> list[Any]:
    """Return a card per incident; the one that the URL names is marked, and ``layer`` comes first of its layers.

    ``common`` is what the names of the run share.
    """
    if not incidents:
        return [html.P("No incident so far.", className="dim")]
    return [card(incident, view, layer, common, folded=place > 0) for place, incident in enumerate(incidents)]


def tally(incidents: Sequence[Mapping[str, Any]]) -> str:
    """Return ``1 open, 2 resolved, 1 ended``."""
    counts = Counter(each["state"] for each in incidents)
    return ", ".join(f"{counts[state]} {state}" for state in ("open", "resolved", "ended") if counts[state])


def card(
    incident: Mapping[str, Any],
    view: View,
    layer: int | None = None,
    common: Common = NOTHING_COMMON,
    *,
    folded: bool = False,
) -> html.Article:
    """Return one incident: what, since when, why probably, what to do, who was told.

    ``folded``: why and what to do are there for who asks, unless one came for this incident.
    """
    number = int(incident["id"])
    named = number == view.incident
    is_alarm = incident["state"] == "open" or is_unrecovered(incident)
    is_told = named or is_alarm
    children = [
        html.H3(
            dcc.Link(
                [html.Span(f"#{number}", className="number"), incident["rule"].replace("_", " ")],
                href=f"/incidents/{number}",
            ),
            id=f"incident-{number}",
        ),
        html.Div(
            [
                elements.badge(incident["severity"], incident["severity"]),
                incident_text.outcome(incident),
            ],
            className="marks",
        ),
        html.P(elements.prose(incident["summary"]), className="summary"),
        html.P(_when(incident), className="dim"),
        *(html.P(said, className="dim") for said in incident_text.related(incident)),
        *(html.P(said, className="dim") for said in incident_text.quiet(incident)),
        *actions(incident),
        *(_why(incident, view, layer, common, folded=folded and not named) if is_told else []),
        *_told(incident),
    ]
    classes = ["incident", "open" if is_alarm else "resolved", incident["severity"], *(["named"] if named else [])]
    return html.Article(
        children, className=" ".join(classes), **elements.attributes(aria_labelledby=f"incident-{number}")
    )


def _when(incident: Mapping[str, Any]) -> str:
    since = min((layer["since_step"] for layer in incident.get("layers", ())), default=None)
    texts = [] if since is None else [f"since step {numbers.integer(since)}"]
    texts.append(f"opened at step {numbers.integer(incident['opened_step'])}")
    if incident["resolved_step"] is not None:
        texts.append(f"{incident['state']} at step {numbers.integer(incident['resolved_step'])}")
    if incident["reopened"]:
        texts.append(f"reopened {numbers.plural(incident['reopened'], 'time')}")
    return " · ".join(texts)


def _why(incident: Mapping[str, Any], view: View, layer: int | None, common: Common, *, folded: bool) -> list[Any]:
    said = _explanation(incident, view, layer, common)
    summary = html.Summary(f"Cause, fix, {picture.noun(incident)[1]}")
    return [html.Details([summary, *said])] if folded and said else said


def _explanation(incident: Mapping[str, Any], view: View, layer: int | None, common: Common) -> list[Any]:
    """Return what to do first, then the reasons: folded on a narrow page, where the heatmap follows."""
    reasons = [*incident_text.reasons(incident, html.H4), *_members(incident, view, layer, common)]
    fold = html.Details([html.Summary(f"Why, evidence, {picture.noun(incident)[1]}"), *reasons], className="reasons")
    return [*incident_text.do_first(incident, html.H4), *([fold] if reasons else [])]


def _members(incident: Mapping[str, Any], view: View, first: int | None, common: Common) -> list[Any]:
    members = picture.members({"layers": (), **incident})
    if not members:
        return []
    members.sort(key=lambda member: member["layer"] != first)
    lines = [
        html.Li([_link(incident, member, view, common), _fell(incident, member)]) for member in members[:NAMED_LAYERS]
    ]
    more = len(members) - NAMED_LAYERS
    all_of_them = dcc.Link(f"and {numbers.integer(more)} more", href=f"/incidents/{incident['id']}")
    rest = [html.Li(all_of_them)] if more > 0 else []
    return [html.H4(picture.noun(incident)[1].capitalize()), html.Ul([*lines, *rest], className="members")]


def _link(incident: Mapping[str, Any], member: Mapping[str, Any], view: View, common: Common) -> dcc.Link:
    return elements.parameter_link(member["name"], member_url(incident, member, view), common)


def member_url(incident: Mapping[str, Any], member: Mapping[str, Any], view: View) -> str:
    """Return the address of a parameter, or of the run with the metric of a series."""
    run, name = str(incident["run"]), str(member["name"])
    if member.get("metric"):
        shown = View(
            from_step=view.from_step,
            to_step=view.to_step,
            incident=incident["id"],
            metrics=member["metric"]["name"],
        )
        return run_url(run, shown)
    return layer_url(run, name, member["layer"], view)


def _fell(incident: Mapping[str, Any], member: Mapping[str, Any]) -> html.Span:
    return html.Span(picture.values(incident["rule"], member), className="dim")


def _told(incident: Mapping[str, Any]) -> list[Any]:
    """Return what each endpoint was last told."""
    latest = {delivery["endpoint"]: delivery for delivery in incident.get("deliveries", ())}
    lines = []
    for delivery in latest.values():
        attempts = delivery["attempts"]
        trouble = next((attempt["error"] or attempt["status"] for attempt in reversed(attempts)), None)
        failed = delivery["state"] != "delivered" and trouble is not None
        said = f"{deliveries.whom(delivery)}: {deliveries.message(delivery)}"
        text = f"{said}; last attempt: {trouble}" if failed else said
        lines.append(html.P([elements.icon("send"), text], className="dim told"))
    return lines


def actions(incident: Mapping[str, Any]) -> list[html.Div]:
    """Return what can be done about an incident now; nothing about one that is over."""
    if incident["state"] != "open" and not is_unrecovered(incident):
        return []
    words = {"ack": "Ack again" if incident["acked"] else "Ack", "silence": "Silence"}
    if incident["silenced"]:
        words["unsilence"] = "Unsilence"
    buttons = [_button(do, text, incident) for do, text in words.items()]
    return [html.Div(buttons, className="actions")]


def _button(do: str, words: str, incident: Mapping[str, Any]) -> html.Button:
    number = str(incident["id"])
    held = {"data-do": do, "data-incident": number, **elements.attributes(aria_label=f"{words} #{number}")}
    return html.Button([elements.icon(ICONS[do]), words], type="button", className="do", **held)
