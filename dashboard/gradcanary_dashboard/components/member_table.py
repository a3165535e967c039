"""The members of an incident, folded by block or in one table: quick with thousands of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from dash import dcc, html

from gradcanary.display.verdict import METRIC
from gradcanary_dashboard.address.incidents import FEW, Members
from gradcanary_dashboard.address.run import View
from gradcanary_dashboard.analysis import picture
from gradcanary_dashboard.components import elements, static, table
from gradcanary_dashboard.components.incident_card import member_url
from gradcanary_dashboard.components.table import Column
from gradcanary_dashboard.text import numbers
from gradcanary_dashboard.text.glossary import explain
from gradcanary_dashboard.text.names import Common

COLUMNS = (
    Column("Parameter", "link"),
    Column("since", "since", "The first step at which it was bad"),
    Column("until", "until", f"The step at which it had recovered. Firing: {explain('firing')}"),
    Column("baseline", "number", explain("baseline")),
    Column("value", "number value", "What it had when it fired"),
    Column("siblings", "number", explain("siblings")),
    Column("evidence", "evidence", "What the rule went by"),
    Column("rank", "rank", "The process that it came from"),
)

ORDERED_BY = ("name", "since_step", "until_step", "baseline", "value", "siblings", "evidence", "rank")
"""What each column is sorted by."""

VALUES = ("baseline", "value", "siblings")

SLOTS = {
    "members": static.TREES,
    "members-fold": static.TREES,
    "members-shown": "children",
    "members-more": static.TREES,
    "members-tally": "children",
}


def card(contents: Mapping[str, Any]) -> html.Section:
    """Return the card; a refresh fills ``SLOTS``."""
    tally = html.Span(contents.get("members-tally"), id="members-tally")
    return elements.card(
        "members",
        _finder(contents),
        static.slot("members", contents.get("members")),
        html.P(contents.get("members-shown"), id="members-shown", className="dim", role="status"),
        static.slot("members-more", contents.get("members-more")),
        title=contents.get("members-noun", "Parameters"),
        aside=tally,
    )


def _finder(contents: Mapping[str, Any]) -> html.Div:
    words = "Parameters with this in their name"
    field = dcc.Input(id="members-filter", type="search", placeholder="part of a name", autoComplete="off")
    label = html.Label(words, htmlFor="members-filter", className="unseen")
    held = elements.attributes(data_key="find", data_clears="most")
    fold = static.slot("members-fold", contents.get("members-fold"))
    return html.Div([label, html.Div(field, className="field", **held), fold], className="choices")


def filled(incident: Mapping[str, Any], view: View, chosen: Members) -> dict[str, Any]:
    """Return the contents of ``SLOTS``: the members that are chosen, by block or in the order that is chosen."""
    layers, part = picture.members(incident), chosen.find.lower()
    found = [member for member in layers if part in member["name"].lower()]
    blocks = _blocks(found)
    is_folded = chosen.by is None and bool(blocks)
    rows = _Rows(incident, view)
    if is_folded:
        parts, shown = _folded(rows, found, blocks, chosen)
    else:
        listed = _ordered(found, chosen)[: chosen.most]
        heads = html.Tr([_head(place, column, chosen) for place, column in enumerate(rows.columns)], role="row")
        parts, shown = [rows.table(listed, heads)], len(listed)
    return {
        "members": orjson.dumps(parts).decode(),
        "members-fold": static.encode(_fold(is_folded=is_folded) if blocks else None),
        "members-shown": _shown(shown, len(found), len(layers)),
        "members-more": static.encode(_more(chosen) if shown < len(found) else None),
        "members-tally": tally(incident),
        "members-noun": picture.noun(incident)[1].capitalize(),
    }


def _blocks(found: Sequence[picture.Member]) -> dict[str, list[picture.Member]]:
    """Return the blocks of several members, in the order of their first ones."""
    blocks: dict[str, list[picture.Member]] = {}
    for member in found:
        blocks.setdefault(member["block"], []).append(member)
    return {block: members for block, members in blocks.items() if len(members) > 1}


def _folded(
    rows: _Rows, found: Sequence[picture.Member], blocks: Mapping[str, list[picture.Member]], chosen: Members
) -> tuple[list[Any], int]:
    """Return the blocks, below them the members that are alone in theirs, and the number of rows in all.

    A block takes a line of those that are sent, beside its rows.
    """
    parts: list[Any] = []
    left, shown = chosen.most, 0
    for block, members in blocks.items():
        listed = members[: max(0, left - 1)]
        if listed:
            parts.append(rows.block(block, members, listed, is_open=bool(chosen.find) or len(blocks) == 1))
            left, shown = left - 1 - len(listed), shown + len(listed)
    alone = [member for member in found if member["block"] not in blocks][: max(0, left)]
    if alone:
        parts.append(rows.table(alone, table.heads(rows.columns)))
    return parts, shown + len(alone)


@dataclass(frozen=True)
class _Rows:
    """The members of an incident as trees (``components.static``), their links with the steps of the view."""

    incident: Mapping[str, Any]
    view: View

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns, of parameters or of series of a metric."""
        if self.incident["rule"] != METRIC:
            return COLUMNS
        level = "The level of the series: the largest or the smallest median of five good values in a row"
        named = {"Parameter": Column("Series", "link"), "baseline": Column("level", "number", level)}
        return tuple(named.get(column.head, column) for column in COLUMNS)

    def table(self, members: Sequence[picture.Member], heads: html.Tr) -> list[Any]:
        """Return a table."""
        trees = table.trees(COLUMNS, [_row(self.incident, member, self.view) for member in members])
        held = {"role": "table", "aria-labelledby": "members-title"}
        return ["table", held, ["thead", {}, *static.trees(heads)], ["tbody", {}, *trees]]

    def block(
        self, name: str, members: Sequence[picture.Member], listed: Sequence[picture.Member], *, is_open: bool
    ) -> list[Any]:
        """Return a block with its table, folded: ``blocks.4: 6 parameters, 0.0026 → 7.9e-7``."""
        middle = {key: picture.level(members, key) for key in ("value", "baseline", "siblings")}
        firing = sum(member["until_step"] is None for member in members)
        words = [
            picture.tally(self.incident, len(members)),
            picture.values(self.incident["rule"], middle),
            f"since step {numbers.integer(min(member['since_step'] for member in members))}",
            *([f"{firing} {_unended(self.incident)}"] if firing < len(members) else []),
        ]
        summary = [
            "summary",
            {},
            ["b", {"title": name}, Common(self.incident["names"]["prefix"]).short(name)],
            f": {', '.join(filter(None, words))}",
        ]
        opened = {"open": ""} if is_open else {}
        return ["details", {"data-key": name, **opened}, summary, self.table(listed, table.heads(self.columns))]


def _fold(*, is_folded: bool) -> html.Button:
    """Return the button for the other way to list members."""
    words, choice = ("One table, to sort", "0") if is_folded else ("Fold by block", "")
    held = elements.attributes(data_key="by", data_choice=choice, data_once="")
    return html.Button(words, type="button", className="do", **held)


def _ordered(found: list[picture.Member], chosen: Members) -> list[picture.Member]:
    """Return the members by the chosen column, those without a value last."""
    if chosen.by is None or chosen.by >= len(ORDERED_BY):
        return found
    key = ORDERED_BY[chosen.by]

    def value(member: picture.Member) -> Any:  # noqa: ANN401 -- a text or a number, by the column
        return picture.gradient(member, key) if key in VALUES else member[key]

    having = [member for member in found if value(member) is not None]
    having.sort(key=lambda member: _natural(value(member)), reverse=chosen.descends)
    return having + [member for member in found if value(member) is None]


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
    mark = "explained" if column.title else None
    button = html.Button(column.head, type="button", title=column.title, className=mark, **held)
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
    """Return ``18 firing, 2 resolved``, or ``18 not recovered, 2 resolved`` of an incident on which the run ended."""
    layers = picture.members(incident)
    firing = sum(member["until_step"] is None for member in layers)
    counts = {_unended(incident): firing, "resolved": len(layers) - firing}
    said = ", ".join(f"{numbers.integer(count)} {word}" for word, count in counts.items() if count)
    return said or "none: it is about the run as a whole"


def _unended(incident: Mapping[str, Any]) -> str:
    """Return the words for a layer without an end: after the end of the run no layer fires."""
    return "firing" if incident["state"] == "open" else "not recovered"


def _row(incident: Mapping[str, Any], member: Mapping[str, Any], view: View) -> table.Row:
    href = member_url(incident, member, view)
    is_firing = member["until_step"] is None
    until = _unended(incident) if is_firing else numbers.integer(member["until_step"])
    values = [numbers.scientific(picture.gradient(member, key)) for key in VALUES]
    if member["evidence"] == "sporadic" and member["value"] is not None:  # counts of samples
        values[:2] = (
            f"every {numbers.integer(member['baseline'])} samples",
            f"none in {numbers.integer(member['value'])}",
        )
    evidence = (member["evidence"] or numbers.NOTHING).replace("_", " ")
    rank = numbers.integer(member["rank"])
    cells = [numbers.integer(member["since_step"]), until, *values, evidence, rank]
    tone = "firing" if is_firing else ""
    return table.Row(member["name"], cells, href=href, tone=tone, common=Common(**incident["names"]))
