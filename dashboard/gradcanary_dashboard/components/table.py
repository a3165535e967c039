"""Tables whose rows the browser draws: ``assets/js/table.js`` keeps the rows that stay, and sorts and filters them.

A Dash component for each cell took the browser longer than all figures together. A table describes its columns once,
and each row as JSON. The first column is the layer's name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from dash import dcc, html

from gradcanary_dashboard.components import elements

ROWS = "data-rows"
"""The attribute of the body that holds the rows; a refresh fills it."""

Name: TypeAlias = Literal["link", "button", "button link"]
"""A name leads to the layer's page, draws the layer on this page, or stands beside a button that does."""

Cell: TypeAlias = "str | Mapping[str, Any]"
"""A text, or ``{"text": or "parts":, "mark":}``: parts are as in ``components.static``, ``mark`` is a further class."""


@dataclass(frozen=True)
class Column:
    """A head and the class of the cells below it; the kind of the first column is a ``Name``."""

    head: str
    kind: str
    title: str | None = None


def table(
    slot: str,
    columns: Sequence[Column],
    contents: Mapping[str, Any],
    *,
    labelled_by: str,
    shows_heads: bool = True,
    few: int | None = None,
) -> html.Table:
    """Return the table whose body is ``slot``, filled by its attribute ``ROWS``.

    With ``few`` it shows that many rows at first, and its heads are buttons that sort; see ``finder`` and ``more``.
    """
    described = [{"head": column.head, "kind": column.kind} for column in columns]
    held = {ROWS: contents.get(slot, "[]"), "data-columns": json.dumps(described, separators=(",", ":"))}
    held |= {} if few is None else {"data-few": str(few)}
    heads = [_head(place, column, sorts=few is not None) for place, column in enumerate(columns)]
    return html.Table(
        [
            html.Thead(html.Tr(heads, role="row"), className=None if shows_heads else "unseen"),
            html.Tbody(id=slot, **held),
        ],
        # A narrow layout is a grid, which would take a table's meaning away.
        role="table",
        **elements.attributes(aria_labelledby=labelled_by),
    )


def _head(place: int, column: Column, *, sorts: bool) -> html.Th:
    if not sorts:
        return html.Th(column.head, scope="col", role="columnheader", title=column.title)
    button = html.Button(column.head, type="button", title=column.title, **elements.attributes(data_sort=str(place)))
    return html.Th(button, scope="col", role="columnheader")


def finder(slot: str, words: str) -> html.Div:
    """Return the field that filters the rows of a table by a part of the name; the address keeps it as ``find``."""
    field = dcc.Input(id=f"{slot}-filter", type="search", placeholder="part of a name", autoComplete="off")
    label = html.Label(words, htmlFor=f"{slot}-filter", className="unseen")
    held = elements.attributes(data_key="find", data_finds=slot)
    return html.Div([label, html.Div(field, className="field", **held)], className="choices")


def more(slot: str) -> list[html.P | html.Button]:
    """Return how many rows are shown, and the button that shows more of them."""
    held = elements.attributes(data_more=slot)
    button = html.Button("Show more", type="button", id=f"{slot}-more", className="do", hidden=True, **held)
    return [html.P(id=f"{slot}-shown", className="dim", role="status"), button]


def row(
    name: str, cells: Sequence[Cell], *, href: str | None = None, tone: str = "", is_chosen: bool | None = None
) -> dict[str, Any]:
    """Return a row as the browser knows it; ``tone`` is a class of the whole row."""
    held = {"name": name, "cells": list(cells), "href": href, "tone": tone or None, "chosen": is_chosen}
    return {key: value for key, value in held.items() if value is not None}


def written(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as the value of ``ROWS``."""
    return json.dumps(rows, separators=(",", ":"))
