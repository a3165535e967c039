"""The members of an incident: a table that stays quick with thousands of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dash import dcc, html

from gradcanary_dashboard.address.run import View, layer_url
from gradcanary_dashboard.components import elements
from gradcanary_dashboard.text import numbers

HEADS = ("Layer", "since", "until", "baseline", "value", "siblings", "evidence", "rank")
TITLES = {
    "since": "The first step at which it was bad",
    "until": "The step at which it was well again",
    "baseline": "What the layer had before",
    "value": "What it had when it fired",
    "siblings": "What layers of the same kind had",
    "evidence": "What the rule went by",
    "rank": "The process that it came from",
}

ROWS = "data-members"
"""The attribute that holds the rows; ``assets/incident_members.js`` sorts, filters and draws some of them."""


def table(contents: Mapping[str, Any]) -> html.Section:
    """Return the card; a refresh fills ``members`` by the attribute ``ROWS``, and ``members-tally``."""
    heads = [html.Th(_sorter(place, head), scope="col", role="columnheader") for place, head in enumerate(HEADS)]
    body = html.Tbody(id="members", **{ROWS: contents.get("members", "[]")})
    drawn = html.Table([html.Thead(html.Tr(heads, role="row")), body], role="table", **_named())
    field = dcc.Input(id="members-filter", type="search", placeholder="part of a name", autoComplete="off")
    label = html.Label("Layers with this in their name", htmlFor="members-filter", className="unseen")
    more = html.Button("Show more", type="button", id="members-more", className="do", hidden=True)
    shown = html.P(id="members-shown", className="dim", role="status")
    tally = html.Span(contents.get("members-tally"), id="members-tally")
    bar = html.Div([label, html.Div(field, className="field")], className="choices")
    return elements.card("members", bar, html.Div(drawn), shown, more, title="Layers", aside=tally)


def rows(incident: Mapping[str, Any], view: View) -> str:
    """Return a row per member as JSON: where its name leads, and the texts of the cells."""
    return json.dumps([_row(incident, member, view) for member in _layers(incident)], separators=(",", ":"))


def tally(incident: Mapping[str, Any]) -> str:
    """Return ``18 firing, 2 over``, or ``18 not recovered, 2 over`` of an incident on which the run ended."""
    layers = _layers(incident)
    firing = sum(member["until_step"] is None for member in layers)
    counts = {_unended(incident): firing, "over": len(layers) - firing}
    said = ", ".join(f"{numbers.integer(count)} {word}" for word, count in counts.items() if count)
    return said or "none: it is about the run as a whole"


def _layers(incident: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [member for member in incident["layers"] if member["layer"] is not None]


def _unended(incident: Mapping[str, Any]) -> str:
    """Return the words for a layer without an end: after the end of the run no layer fires."""
    return "firing" if incident["state"] == "open" else "not recovered"


def _row(incident: Mapping[str, Any], member: Mapping[str, Any], view: View) -> list[Any]:
    href = layer_url(incident["run"], member["name"], member["layer"], view)
    until = _unended(incident) if member["until_step"] is None else numbers.integer(member["until_step"])
    values = [numbers.scientific(member[key]) for key in ("baseline", "value", "siblings")]
    evidence = (member["evidence"] or numbers.NOTHING).replace("_", " ")
    rank = numbers.integer(member["rank"])
    return [href, member["name"], numbers.integer(member["since_step"]), until, *values, evidence, rank]


def _sorter(place: int, head: str) -> html.Button:
    title = TITLES.get(head)
    return html.Button(head, type="button", title=title, **elements.attributes(data_sort=str(place)))


def _named() -> dict[str, Any]:
    return elements.attributes(aria_labelledby="members-title")
