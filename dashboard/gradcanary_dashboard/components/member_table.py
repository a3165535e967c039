"""The members of an incident: a table that stays quick with thousands of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dash import dcc, html

from gradcanary_dashboard.address.incidents import FEW, Members
from gradcanary_dashboard.address.run import View, layer_url
from gradcanary_dashboard.components import elements, static, table
from gradcanary_dashboard.components.table import Column
from gradcanary_dashboard.text import numbers

COLUMNS = (
    Column("Parameter", "link"),
    Column("since", "since", "The first step at which it was bad"),
    Column("until", "until", "The step at which it was well again"),
    Column("baseline", "number", "What the parameter had before"),
    Column("value", "number value", "What it had when it fired"),
    Column("siblings", "number", "What parameters of the same kind had"),
    Column("evidence", "evidence", "What the rule went by"),
    Column("rank", "rank", "The process that it came from"),
)

ORDERED_BY = ("name", "since_step", "until_step", "baseline", "value", "siblings", "evidence", "rank")
"""What each column is sorted by."""

SLOTS = {
    "members": static.TREES,
    "members-heads": static.TREES,
    "members-shown": "children",
    "members-more": static.TREES,
    "members-tally": "children",
}


def card(contents: Mapping[str, Any]) -> html.Section:
    """Return the card; a refresh fills ``SLOTS``."""
    heads = static.slot("members-heads", contents.get("members-heads"), tag=html.Tr, role="row")
    tally = html.Span(contents.get("members-tally"), id="members-tally")
    return elements.card(
        "members",
        _finder(),
        html.Div(table.table("members", heads, contents, labelled_by="members-title")),
        html.P(contents.get("members-shown"), id="members-shown", className="dim", role="status"),
        static.slot("members-more", contents.get("members-more")),
        title="Parameters",
        aside=tally,
    )


def _finder() -> html.Div:
    words = "Parameters with this in their name"
    field = dcc.Input(id="members-filter", type="search", placeholder="part of a name", autoComplete="off")
    label = html.Label(words, htmlFor="members-filter", className="unseen")
    held = elements.attributes(data_key="find", data_clears="most")
    return html.Div([label, html.Div(field, className="field", **held)], className="choices")


def filled(incident: Mapping[str, Any], view: View, chosen: Members) -> dict[str, Any]:
    """Return the contents of ``SLOTS``: the members that are chosen, in the order that is chosen."""
    layers = _layers(incident)
    part = chosen.find.lower()
    found = _ordered([member for member in layers if part in member["name"].lower()], chosen)
    rows = [_row(incident, member, view) for member in found[: chosen.most]]
    return {
        "members": table.written(COLUMNS, rows),
        "members-heads": static.encode([_head(place, column, chosen) for place, column in enumerate(COLUMNS)]),
        "members-shown": _shown(len(rows), len(found), len(layers)),
        "members-more": static.encode(_more(chosen) if len(rows) < len(found) else None),
        "members-tally": tally(incident),
    }


def _ordered(found: list[Mapping[str, Any]], chosen: Members) -> list[Mapping[str, Any]]:
    """Return the members by the chosen column, those without a value last."""
    if chosen.by is None or chosen.by >= len(ORDERED_BY):
        return found
    key = ORDERED_BY[chosen.by]
    having = [member for member in found if member[key] is not None]
    having.sort(key=lambda member: _natural(member[key]), reverse=chosen.descends)
    return having + [member for member in found if member[key] is None]


def _natural(value: str | float) -> list[str | float]:
    """Return what orders a text by the numbers in it, and a number by itself."""
    if not isinstance(value, str):
        return [value]
    pieces = re.split(r"([0-9]+)", value.casefold())
    return [int(piece) if place % 2 else piece for place, piece in enumerate(pieces)]


def _head(place: int, column: Column, chosen: Members) -> html.Th:
    """Return the head of a column, whose button sorts by it; pressed again, the other way round."""
    is_sorted = place == chosen.by
    order = ("descending" if chosen.descends else "ascending") if is_sorted else "none"
    choice = f"-{place}" if is_sorted and not chosen.descends else f"{place}"
    held = elements.attributes(data_key="by", data_choice=choice, data_once="")
    button = html.Button(column.head, type="button", title=column.title, **held)
    return table.head(column, button, order)


def _shown(few: int, matching: int, everything: int) -> str:
    if few == everything:
        return ""
    of = "" if matching == everything else f", of {numbers.integer(everything)} in all"
    return f"{numbers.integer(few)} of {numbers.integer(matching)} shown{of}"


def _more(chosen: Members) -> html.Button:
    held = elements.attributes(data_key="most", data_choice=str(chosen.most + 5 * FEW), data_once="")
    return html.Button("Show more", type="button", className="do", **held)


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


def _row(incident: Mapping[str, Any], member: Mapping[str, Any], view: View) -> table.Row:
    href = layer_url(incident["run"], member["name"], member["layer"], view)
    is_firing = member["until_step"] is None
    until = _unended(incident) if is_firing else numbers.integer(member["until_step"])
    values = [numbers.scientific(member[key]) for key in ("baseline", "value", "siblings")]
    evidence = (member["evidence"] or numbers.NOTHING).replace("_", " ")
    rank = numbers.integer(member["rank"])
    cells = [numbers.integer(member["since_step"]), until, *values, evidence, rank]
    return table.Row(member["name"], cells, href=href, tone="firing" if is_firing else "")
