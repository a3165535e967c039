"""The members of an incident: a table that stays quick with thousands of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dash import html

from gradcanary_dashboard.address.run import View, layer_url
from gradcanary_dashboard.components import elements, table
from gradcanary_dashboard.components.table import Column
from gradcanary_dashboard.text import numbers

COLUMNS = (
    Column("Layer", "link"),
    Column("since", "since", "The first step at which it was bad"),
    Column("until", "until", "The step at which it was well again"),
    Column("baseline", "number", "What the layer had before"),
    Column("value", "number value", "What it had when it fired"),
    Column("siblings", "number", "What layers of the same kind had"),
    Column("evidence", "evidence", "What the rule went by"),
    Column("rank", "rank", "The process that it came from"),
)

FEW = 100
"""Rows that are drawn at first."""


def card(contents: Mapping[str, Any]) -> html.Section:
    """Return the card; a refresh fills ``members`` by the attribute ``table.ROWS``, and ``members-tally``."""
    drawn = table.table("members", COLUMNS, contents, labelled_by="members-title", few=FEW)
    tally = html.Span(contents.get("members-tally"), id="members-tally")
    bar = table.finder("members", "Layers with this in their name")
    return elements.card("members", bar, html.Div(drawn), *table.more("members"), title="Layers", aside=tally)


def rows(incident: Mapping[str, Any], view: View) -> str:
    """Return a row per member as JSON."""
    return table.written([_row(incident, member, view) for member in _layers(incident)])


def tally(incident: Mapping[str, Any]) -> str:
    """Return ``18 firing, 2 resolved``, or ``18 ended, 2 resolved`` of an incident on which the run ended."""
    layers = _layers(incident)
    firing = sum(member["until_step"] is None for member in layers)
    counts = {_unended(incident): firing, "resolved": len(layers) - firing}
    said = ", ".join(f"{numbers.integer(count)} {word}" for word, count in counts.items() if count)
    return said or "none: it is about the run as a whole"


def _layers(incident: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [member for member in incident["layers"] if member["layer"] is not None]


def _unended(incident: Mapping[str, Any]) -> str:
    """Return the words for a layer without an end: after the end of the run no layer fires."""
    return "firing" if incident["state"] == "open" else "ended"


def _row(incident: Mapping[str, Any], member: Mapping[str, Any], view: View) -> dict[str, Any]:
    href = layer_url(incident["run"], member["name"], member["layer"], view)
    is_firing = member["until_step"] is None
    until = _unended(incident) if is_firing else numbers.integer(member["until_step"])
    values = [numbers.scientific(member[key]) for key in ("baseline", "value", "siblings")]
    evidence = (member["evidence"] or numbers.NOTHING).replace("_", " ")
    rank = numbers.integer(member["rank"])
    cells = [numbers.integer(member["since_step"]), until, *values, evidence, rank]
    return table.row(member["name"], cells, href=href, tone="firing" if is_firing else "")
