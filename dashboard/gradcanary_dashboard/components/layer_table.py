"""The table of layers: of a run worst first, of a layer its siblings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dash import html
from dash.development.base_component import Component

from gradcanary_dashboard.address.run import View, layer_urls
from gradcanary_dashboard.analysis import layers
from gradcanary_dashboard.analysis.layers import Layer
from gradcanary_dashboard.components import elements, static, table
from gradcanary_dashboard.components.table import Column
from gradcanary_dashboard.text import numbers
from gradcanary_dashboard.text.glossary import explain
from gradcanary_dashboard.text.names import Common

COLUMNS = {
    "absmax": Column("absmax", "number absmax", explain("absmax")),
    "norm": Column("norm", "number norm"),
    "state": Column("state", "state"),
    "accumulator": Column("decl. / stored / eff.", "accumulator", explain("declared", "stored", "effective")),
    "k": Column("K", "number k", explain("K")),
    "rule": Column("rules", "rule", explain("firing", "not recovered", "low")),
}
"""Those after the name, by the key of their text in :func:`layers.row`."""


def card(
    slot: str, contents: Mapping[str, Any], title: elements.Children, *more: Component, draws: bool = False
) -> html.Section:
    """Return the card; a refresh fills ``slot``, by the attribute ``static.TREES``, ``slot-tally``, ``slot-frozen``.

    ``more`` stands beside the tally. With ``draws`` each row has a button that draws the layer's trend on this page.
    """
    name = _name(draws=draws)
    drawn = table.table(slot, table.heads((name, *COLUMNS.values())), contents, labelled_by="layers-title")
    around = elements.attributes(aria_label="Rows of the table")
    scrolled = html.Div(drawn, className="scroll", tabIndex=0, role="region", **around)
    tally = html.Span(contents.get(f"{slot}-tally"), id=f"{slot}-tally")
    below = static.slot(f"{slot}-frozen", contents.get(f"{slot}-frozen"), className="frozen")
    return elements.card("layers", scrolled, below, title=title, aside=[tally, *more])


def rows(
    run: Mapping[str, Any],
    listed: Sequence[Layer],
    chosen: Layer | None,
    view: View,
    common: Common,
    *,
    draws: bool = False,
) -> str:
    """Return a row per layer as JSON; ``draws`` is that of the card, ``common`` what the names of the run share."""
    url = layer_urls(run["run"], view)
    has_ended = run["state"] in numbers.ENDED
    made = (_row(layer, url, common, has_ended=has_ended, is_chosen=layer is chosen) for layer in listed)
    return table.written((_name(draws=draws), *COLUMNS.values()), made)


def frozen(text: str, names: Sequence[str]) -> list[Component]:
    """Return what is said of frozen parameters, which are no layers, and their names, folded."""
    if not names:
        return []
    said, _, rest = text.partition(": ")
    return [
        html.Details(
            [
                html.Summary(said),
                html.P(rest),
                html.Ul([html.Li(html.Code(elements.parameter(name))) for name in names]),
            ]
        )
    ]


def tally(everything: int, shown: int, ranked: str = "worst") -> str:
    """Return ``144``, or ``the 200 worst of 4,000``."""
    if shown == everything:
        return numbers.integer(everything)
    return f"the {numbers.integer(shown)} {ranked} of {numbers.integer(everything)}"


def _name(*, draws: bool) -> Column:
    return Column("Parameter", "button link" if draws else "link")


def _row(
    layer: Layer, url: Callable[[str, int], str], common: Common, *, has_ended: bool, is_chosen: bool
) -> table.Row:
    texts = layers.row(layer, has_ended=has_ended)
    rule = texts["rule"] or ("low" if texts["below_threshold"] else "")
    state = next((word for word in ("firing", "not recovered", "low") if rule.endswith(word)), None)
    texts["rule"] = rule if state is None else {"text": rule, "title": explain(state)}
    cells: list[table.Cell] = [texts[key] for key in COLUMNS]
    href = url(layer["name"], layer["layer"])
    return table.Row(texts["name"], cells, href, f"tone-{texts['tone']}", is_chosen, common)
