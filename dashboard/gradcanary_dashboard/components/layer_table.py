"""The table of layers: of a run worst first, of a layer its siblings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dash import html
from dash.development.base_component import Component

from gradcanary_dashboard.address.run import View, layer_url
from gradcanary_dashboard.analysis import layers
from gradcanary_dashboard.analysis.layers import Layer
from gradcanary_dashboard.components import elements
from gradcanary_dashboard.text import numbers

HEADS = ("Layer", "absmax", "norm", "state", "decl. / stored / eff.", "K", "rules")
TITLES = {
    "decl. / stored / eff.": "The dtype that gradients are summed in: as somebody asked for, as the tensor has it, "
    "and as its values show",
    "K": "Micro-steps that were summed up",
}

ROWS = "data-layers"
"""The attribute that holds the rows; ``assets/js/layer_table.js`` draws them, keeping those of layers still listed."""


def table(slot: str, contents: Mapping[str, Any], title: str, *more: Component, draws: bool = False) -> html.Section:
    """Return the card; a refresh fills ``slot``, by the attribute ``ROWS``, and ``slot-tally``.

    ``more`` stands beside the tally. With ``draws`` each row has a button that draws the layer's trend on this page.
    """
    heads = html.Tr(
        [html.Th(head, scope="col", role="columnheader", title=TITLES.get(head)) for head in HEADS], role="row"
    )
    held = {ROWS: contents.get(slot, "[]"), "data-draws": str(draws).lower()}
    drawn = html.Table(
        [html.Thead(heads), html.Tbody(id=slot, **held)],
        # The narrow layout is a grid, which would take a table's meaning away.
        role="table",
        **elements.attributes(aria_labelledby="layers-title"),
    )
    around = elements.attributes(aria_label="Rows of the table")
    scrolled = html.Div(drawn, className="scroll", tabIndex=0, role="region", **around)
    tally = html.Span(contents.get(f"{slot}-tally"), id=f"{slot}-tally")
    return elements.card("layers", scrolled, title=title, aside=[tally, *more])


def rows(run: str, listed: Sequence[Layer], chosen: Layer | None, view: View) -> str:
    """Return a row per layer as JSON: its name, where that leads, its tone, and the texts of the other cells."""
    return json.dumps([_row(run, layer, layer is chosen, view) for layer in listed], separators=(",", ":"))


def tally(everything: int, shown: int, ranked: str = "worst") -> str:
    """Return ``144``, or ``the 200 worst of 4,000``."""
    if shown == everything:
        return numbers.integer(everything)
    return f"the {numbers.integer(shown)} {ranked} of {numbers.integer(everything)}"


def _row(run: str, layer: Layer, is_chosen: bool, view: View) -> dict[str, Any]:
    texts = layers.row(layer)
    rule = texts["rule"] or ("low" if texts["below_threshold"] else "")
    return {
        "name": texts["name"],
        "href": layer_url(run, layer["name"], layer["layer"], view),
        "tone": texts["tone"],
        "chosen": is_chosen,
        "texts": [*(texts[key] for key in ("absmax", "norm", "state", "accumulator", "k")), rule],
    }
