"""The table of layers: of a run worst first, of a layer its siblings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dash import dcc, html

from gradcanary_dashboard import layers, parts, wording
from gradcanary_dashboard.layers import Layer
from gradcanary_dashboard.view import View, layer_url

HEADS = ("Layer", "absmax", "norm", "state", "accumulator", "K", "rules")


def table(slot: str, contents: Mapping[str, Any], title: str) -> html.Section:
    """Return the card; a refresh fills ``slot`` with rows and ``slot-tally`` with how many there are."""
    heads = html.Tr([html.Th(head, scope="col", role="columnheader") for head in HEADS], role="row")
    drawn = html.Table(
        [html.Thead(heads), html.Tbody(contents.get(slot), id=slot)],
        # The narrow layout is a grid, which would take a table's meaning away.
        role="table",
        **parts.attributes(aria_labelledby="layers-title"),
    )
    around = parts.attributes(aria_labelledby="layers-title")
    scrolled = html.Div(drawn, className="scroll", tabIndex=0, role="region", **around)
    tally = html.Span(contents.get(f"{slot}-tally"), id=f"{slot}-tally")
    return parts.card("layers", scrolled, title=title, aside=tally)


def rows(run: str, listed: Sequence[Layer], chosen: Layer | None, view: View, *, draws: bool) -> list[html.Tr]:
    """Return a row per layer, its name a link; with ``draws`` each has a button that draws its trend on this page."""
    return [_row(run, layer, layer is chosen, view, draws) for layer in listed]


def tally(everything: int, shown: int, ranked: str = "worst") -> str:
    """Return ``144``, or ``the 200 worst of 4,000``."""
    if shown == everything:
        return wording.integer(everything)
    return f"the {wording.integer(shown)} {ranked} of {wording.integer(everything)}"


def _row(run: str, layer: Layer, is_chosen: bool, view: View, draws: bool) -> html.Tr:
    texts = layers.row(layer)
    link = dcc.Link(
        texts["name"], href=layer_url(run, layer["name"], layer["layer"], view), className="layer", title=texts["name"]
    )
    cells = {
        "number absmax": texts["absmax"],
        "number norm": texts["norm"],
        "state": texts["state"],
        "stored": texts["stored"],
        "number k": texts["k"],
        "rule": texts["rule"] or ("low" if texts["low"] else ""),
    }
    return html.Tr(
        [
            html.Td([*([_drawing(texts["name"], is_chosen)] if draws else []), link], className="name", role="cell"),
            *(html.Td(text, className=kind, role="cell") for kind, text in cells.items()),
        ],
        key=texts["name"],
        className=f"tone-{texts['tone']}{' chosen' if is_chosen else ''}",
        role="row",
    )


def _drawing(name: str, is_chosen: bool) -> html.Button:
    words = f"Draw the trend of {name}"
    pressed = str(is_chosen).lower()
    described = parts.attributes(data_layer=name, aria_label=words, aria_pressed=pressed)
    return html.Button(parts.icon("trend"), type="button", className="draw", title="Draw its trend here", **described)
