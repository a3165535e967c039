"""What a reader can choose about the figures; every choice goes into the address, by ``assets/js/address.js``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson
from dash import dcc, html

from gradcanary_dashboard.address.run import CHOICES, MAX_SOUGHT, WEIGHTS, View
from gradcanary_dashboard.analysis.clock import Clock
from gradcanary_dashboard.analysis.launches import Steps
from gradcanary_dashboard.analysis.layers import Layer
from gradcanary_dashboard.analysis.stats import MEASURED_WITH, STATS
from gradcanary_dashboard.components import elements
from gradcanary_dashboard.figures import palette
from gradcanary_dashboard.figures.metrics import Panel
from gradcanary_dashboard.text import numbers

CELLS = {
    "no-gradient": "no gradient",
    "zero": "exact 0",
    "nonfinite": "non-finite",
    "frozen": "frozen",
    "unsampled": "not sampled",
    "no-data": "no data",
}
"""The kinds of cells without a value, the loudest first; each has a class in ``gradcanary.css``."""

VALUES = {"min": "min", "mean": "mean", "max": "max"}
AXES = {"step": "steps", "time": "time"}
ORDERS = {"model": "model order", "worst": "worst first", "block": "by block"}

FEW_METRICS = 12
"""More metrics than these have a field to find some."""

FEW_LINES = 12
"""More lines of a metric than these have a field to find some."""

ALWAYS = ("absmax", "norm", "nonfinite")

MOVES = (
    ("in", "plus", "Zoom in"),
    ("out", "minus", "Zoom out"),
    ("earlier", "left", "Earlier steps"),
    ("later", "right", "Later steps"),
)


STEPS = "data-steps"
"""The attribute that holds the first and the last step there are: nobody moves beyond them."""


def reached(steps: Steps | None) -> str | None:
    """Return the first and the last step there are, for the browser; None before there is one."""
    return None if steps is None else f"{steps[0]} {steps[1]}"


def bar(contents: Mapping[str, Any]) -> html.Div:
    """Return the controls of the heatmap; they stay while the page is open, so that an open list stays open.

    Each knows the parameter that it sets; the browser shows what the address says.
    """
    field = dcc.Input(
        id="rows",
        type="search",
        placeholder="rows, a regex: lora_A|mlp",
        autoComplete="off",
        spellCheck=False,
    )
    label = html.Label("Rows whose name matches", htmlFor="rows", className="unseen")
    return html.Div(
        [
            html.Div([_stats(contents), _group("value", VALUES), _group("order", ORDERS)], className="choices"),
            html.Div([label, field], className="field", **elements.attributes(data_key="rows")),
            html.P(contents.get("refusal"), id="refusal", className="refusal", role="alert"),
        ],
        className="controls",
    )


def offered(view: View, layers: Sequence[Layer]) -> dict[str, bool]:
    """Return which stats are left out of the list: those that nothing was measured of, as far as the table tells."""
    return {
        f"option-{stat}": stat not in (*ALWAYS, view.stat)
        and all(layer.get(MEASURED_WITH.get(stat, stat)) is None for layer in layers)
        for stat in STATS
    }


def zoom_bar(page: str, contents: Mapping[str, Any], *, has_clock: bool = True) -> html.Div:
    """Return how fine the figures are, the axis where it may be time, the way in, along and out for fingers, keys."""
    buttons = [
        html.Button(
            elements.icon(icon), type="button", title=words, **elements.attributes(data_zoom=move, aria_label=words)
        )
        for move, icon, words in MOVES
    ]
    held: dict[str, Any] = {"aria-label": "Steps in sight", STEPS: contents.get(f"{page}-moves")}
    reset = html.Button("Reset zoom", type="button", className="do reset", **elements.attributes(data_zoom="reset"))
    return html.Div(
        [
            html.Span(contents.get(f"{page}-zoom-note"), id=f"{page}-zoom-note"),
            *([_group("x", AXES)] if has_clock else []),
            html.Span(buttons, id=f"{page}-moves", className="group", role="group", **held),
            html.Span(reset, id=f"{page}-reset", hidden=contents.get(f"{page}-reset", True)),
        ],
        className="zoom",
    )


def zoom_note(
    view: View, widths: Sequence[int], unit: str, clock: Clock | None = None, *, is_of_samples: bool = False
) -> list[Any]:
    """Return how many steps one column or point holds, and why there is no axis of time where one was asked for.

    There are several ``widths`` where the interval of the samples changed.
    """
    widest = max(widths)
    size = "single steps" if widest <= 1 else f"{', then '.join(map(numbers.integer, widths))} steps per {unit}"
    if is_of_samples and widest > 1:
        size = f"each sample (every {numbers.integer(widest)}th step)" if len(widths) == 1 else "each sample"
    if view.x == "time" and clock is None:
        return [html.Span("by steps: they are not in the order of time here", className="refusal"), f" · {size}"]
    return [size] if view.is_zoomed else [html.Span("drag to zoom · ", className="hint"), size]


def legend(figure: Mapping[str, Any]) -> list[Any]:
    """Return the colours of a heatmap over its width, with their numbers, and those of cells without a value."""
    scale = figure["layout"].get("meta", {}).get("scale")
    if scale is None:
        return []
    solid = {"zero": scale["zero"], "nonfinite": palette.MAGENTA, "no-data": palette.NO_DATA}
    styles = {kind: {"background": colour} for kind, colour in solid.items()}
    swatches = [
        html.Span([html.Span(className=f"swatch cell-{kind}", style=styles.get(kind)), word])
        for kind, word in CELLS.items()
    ]
    shades = ", ".join(f"{colour} {share:.1%}" for share, colour in scale["shades"])
    ramp = html.Span(className="ramp", style={"background": f"linear-gradient(90deg, {shades})"})
    ticks = [
        html.Span(text, className="threshold" if "threshold" in text else "", style={"left": f"{share:.1%}"})
        for share, text in scale["ticks"]
    ]
    margin = figure["layout"]["margin"]
    return [
        html.Div(swatches, className="swatches"),
        html.Div([ramp, *ticks], className="scale", style={"marginLeft": margin["l"], "marginRight": margin["r"]}),
    ]


def _stats(contents: Mapping[str, Any]) -> html.Select:
    options = [
        html.Option(stat.title, value=_sent("stat", name), id=f"option-{name}", hidden=contents.get(f"option-{name}"))
        for name, stat in STATS.items()
    ]
    return html.Select(options, **elements.attributes(data_key="stat", aria_label="Stat"))


def of_metrics(contents: Mapping[str, Any]) -> html.Div:
    """Return the axis of the metrics, how far they are smoothed (the heatmap and the layer's curve never are), and the
    field that finds some of many."""
    named = {"auto": "axis as values need it", "log": "log axis", "linear": "linear axis"}
    scales = [html.Option(told, value=_sent("y", scale)) for scale, told in named.items()]
    note = "As values need it: a log axis for those that reach over more than a decade, none of them 0 or less"
    scale = html.Select(scales, title=note, **elements.attributes(data_key="y", aria_label="Axis of metrics"))
    words = {"0": "as measured", **{weight: f"smoothed, {weight}" for weight in WEIGHTS[1:]}}
    options = [html.Option(told, value=_sent("smooth", weight)) for weight, told in words.items()]
    title = "An exponential moving average; its weight of what was before"
    chosen = html.Select(
        options, title=title, **elements.attributes(data_key="smooth", aria_label="Smoothing of metrics")
    )
    return html.Div([html.Span("Metrics"), scale, chosen, _sought(contents)], className="choices of-metrics")


def metric_cards(panels: Iterable[Panel], more: str) -> str:
    """Return the cards of metrics for a slot of ``static.TREES``, with the text below them.

    They are lists, for there are a hundred at each refresh. ``assets/js/panels.js`` requests the figure of a card when
    it comes into sight, and writes the legend.
    """
    below = [["p", {"class": "dim more"}, more]] if more else []
    return orjson.dumps([*map(_metric_card, panels), *below]).decode()


def _metric_card(panel: Panel) -> list[Any]:
    key, title = panel.key, panel.kind.title
    icon = ["span", {"class": "icon icon-save", "aria-hidden": "true"}]
    plot = ["div", {"class": "plot", "data-says": "Loading ...", "style": f"min-height: {panel.kind.height}px"}]
    held = "Every point of these lines, of the steps in sight"
    table = ["a", {"class": "save", "title": held, "download": "", "aria-label": f"CSV: {title}"}, icon, "CSV"]
    words = {"title": "Save as PNG", "aria-label": f"Save as a picture: {title}"}
    picture = ["button", {"type": "button", "class": "save", "data-share": "picture", **words}, icon]
    lines = ["div", {"class": "list", "role": "group", "aria-label": "Lines"}]
    described = {"class": "plotted", "tabindex": "0", "aria-label": f"{title} over the steps"}
    return [
        "section",
        {
            "class": f"card panel{' large' if panel.kind.is_large else ''}",
            "aria-labelledby": f"{key}-title",
            "data-key": key,
        },
        [
            "div",
            {"class": "head"},
            ["h2", {"id": f"{key}-title"}, title],
            ["div", {"class": "aside", "data-words": panel.words}, panel.words],
        ],
        ["figure", described, ["div", {"id": key}, plot], ["div", {"class": "saves"}, table, picture]],
        ["div", {"class": "whose"}, *([_line_finder(title)] if panel.entries > FEW_LINES else []), lines],
    ]


def _line_finder(title: str) -> list[Any]:
    held = {"placeholder": "find lines: host=node-01", "autocomplete": "off", "spellcheck": "false"}
    return ["input", {"type": "search", "aria-label": f"Find lines of {title}", **held}]


_BORDERS = {"solid": "solid", "dash": "dashed", "dot": "dotted", "dashdot": "double"}
"""The border that comes nearest to a dash of Plotly."""


def legend_line(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return a line of a legend with its ``tree``; one that can be switched on and off is a button."""
    pen = {"style": f"border-top: 3px {_BORDERS[line['dash']]} {line['colour']}"} if "colour" in line else {}
    swatch = ["span", {"class": "stroke", "aria-hidden": "true", **pen}]
    last = line.get("last") or ""
    words = [["span", {"class": "name"}, line["text"]], ["span", {"class": "value", "data-last": last}, last]]
    held = {"class": "line", **({"data-line": line["id"]} if "id" in line else {})}
    if "drawn" not in line:
        return {**line, "tree": ["span", held, *([swatch] if pen else []), *words]}
    held |= {"type": "button", "aria-pressed": str(line["drawn"]).lower(), "title": "Shift and click: only this line"}
    return {**line, "tree": ["button", held, swatch, *words]}


def _sought(contents: Mapping[str, Any]) -> html.Div:
    field = dcc.Input(
        id="metrics",
        type="search",
        placeholder="find metrics: clip_score",
        maxLength=MAX_SOUGHT,
        autoComplete="off",
        spellCheck=False,
    )
    label = html.Label("Metrics whose name has in it", htmlFor="metrics", className="unseen")
    tally = html.Span(contents.get("metrics-tally"), id="metrics-tally", **elements.attributes(aria_live="polite"))
    is_hidden = contents.get("metrics-found", True)
    sets = elements.attributes(data_key="metrics")
    return html.Div([label, field, tally], id="metrics-found", className="field", hidden=is_hidden, **sets)


def _group(key: str, options: Mapping[str, str]) -> html.Div:
    buttons = [
        html.Button(words, type="button", **elements.attributes(data_key=key, data_choice=_sent(key, option)))
        for option, words in options.items()
    ]
    label = {
        "value": "Value of a cell that holds several steps",
        "order": "Order of the rows",
        "x": "Axis of all figures",
    }[key]
    return html.Div(buttons, className="group", role="group", **elements.attributes(aria_label=label))


def _sent(key: str, option: str) -> str:
    """Return what goes into the address: nothing for what is meant anyway."""
    return "" if option == CHOICES[key][0] else option
