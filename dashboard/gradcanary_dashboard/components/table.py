"""Tables of layers, whose rows the browser draws by itself (``components.static``): rows that stay keep their elements.

A Dash component for each cell took the browser longer than all figures together. Rows are lists for JSON, for there are
hundreds at each refresh. The first column is the layer's name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import orjson
from dash import html
from dash.development.base_component import Component

from gradcanary_dashboard.components import elements, static
from gradcanary_dashboard.text.names import NOTHING_COMMON, Common
from gradcanary_dashboard.text.numbers import KEPT, NOTHING

Name: TypeAlias = Literal["link", "button", "button link"]
"""A name leads to the layer's page, draws the layer on this page, or stands beside a button that does."""

Cell: TypeAlias = "str | Mapping[str, Any]"
"""A text, or ``{"text": or "parts":, "mark":, "title":}``: parts are as in ``components.static``, ``mark`` is a further
class, ``title`` is shown on hover.
"""

_ICON = ["span", {"class": "icon icon-trend", "aria-hidden": "true"}]


@dataclass(frozen=True)
class Column:
    """A head and the class of the cells below it; the kind of the first column is a ``Name``."""

    head: str
    kind: str
    title: str | None = None


@dataclass(frozen=True)
class Row:
    """A layer and its cells; ``tone`` is a class of the whole row, ``is_chosen`` that of the layer that is drawn.

    What the layers of its model have in ``common`` is left out of the name that is seen.
    """

    name: str
    cells: Sequence[Cell]
    href: str | None = None
    tone: str = ""
    is_chosen: bool = False
    common: Common = NOTHING_COMMON


def table(
    slot: str, heads: Component, contents: Mapping[str, Any], *, labelled_by: str, shows_heads: bool = True
) -> html.Table:
    """Return the table whose body is ``slot``, filled by its attribute ``static.TREES``."""
    return html.Table(
        [
            html.Thead(heads, className=None if shows_heads else "unseen"),
            static.slot(slot, contents.get(slot), tag=html.Tbody),
        ],
        # A narrow layout is a grid, which would take a table's meaning away.
        role="table",
        **elements.attributes(aria_labelledby=labelled_by),
    )


def heads(columns: Sequence[Column]) -> html.Tr:
    """Return the heads of the columns."""
    return html.Tr([head(column) for column in columns], role="row")


def head(column: Column, button: html.Button | None = None, order: str | None = None) -> html.Th:
    """Return the head of a column, with the button that sorts by it and the ``order`` that it has."""
    held = {} if order is None else elements.attributes(aria_sort=order)
    words = elements.explained(column.head, column.title) if column.title else column.head
    return html.Th(button or words, scope="col", role="columnheader", **held)


def written(columns: Sequence[Column], rows: Iterable[Row]) -> str:
    """Return the rows as the value of ``static.TREES``."""
    return orjson.dumps(trees(columns, rows)).decode()


def trees(columns: Sequence[Column], rows: Iterable[Row]) -> list[Any]:
    """Return the rows as trees.

    Rows are known by the name of what they show, so that a refresh neither moves the focus nor loses a click.
    """
    seen: Counter[str] = Counter()
    found = []
    # A text needs no attributes of its own: hundreds of rows share those of their column.
    plain = [(column, _held(column), _held(column, "none")) for column in columns[1:]]
    for row in rows:
        seen[row.name] += 1
        key = f"{row.name} {seen[row.name]}"
        held = {"class": _classes(row.tone, "chosen" if row.is_chosen else ""), "role": "row", "data-key": key}
        cells = (
            ["td", empty if cell == NOTHING else usual, cell] if isinstance(cell, str) else _cell(column, cell)
            for (column, usual, empty), cell in zip(plain, row.cells, strict=True)
        )
        found.append(["tr", held, ["td", _OF_NAME, *_name(columns[0].kind, row)], *cells])
    return found


_OF_NAME = {"class": "name", "role": "cell"}


def _held(column: Column, *marks: str) -> dict[str, str]:
    return {"class": _classes(column.kind, *marks), "role": "cell", "data-name": column.head}


def _cell(column: Column, given: Mapping[str, Any]) -> list[Any]:
    held = _held(column, given.get("mark", ""), "none" if given.get("text") == NOTHING else "")
    if "title" in given:
        held["title"] = given["title"]
    return ["td", held, *given.get("parts", (given.get("text"),))]


def _classes(*names: str) -> str:
    return " ".join(filter(None, names))


def _name(kind: str, row: Row) -> list[Any]:
    if kind == "link":
        return [_link(row)]
    words = {"title": f"{row.name}: draw its trend here", "aria-label": f"Draw the trend of {row.name}"}
    held = {"type": "button", "data-layer": row.name, "aria-pressed": str(row.is_chosen).lower(), **words}
    if kind == "button":
        return [["button", held, *_parts(row.name, row.common)]]
    return [["button", {**held, "class": "draw"}, _ICON], _link(row)]


def _link(row: Row) -> list[Any]:
    return ["a", {"class": "layer", "title": row.name, "href": row.href, "data-way": ""}, *_parts(row.name, row.common)]


@lru_cache(maxsize=KEPT)
def _parts(name: str, common: Common) -> Sequence[Any]:
    """Return the name of a layer as ``elements.parameter`` does."""
    before, pieces, after = common.split(name)
    parts = [part for piece in pieces for part in (piece, ["wbr", {}])]
    return [*_shared(before), *parts, *_shared(after)]


def _shared(text: str) -> list[Any]:
    return [["span", {"class": "shared"}, text]] if text else []
