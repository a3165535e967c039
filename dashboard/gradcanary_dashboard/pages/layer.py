"""The page of one layer: its stats, incidents and siblings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dash import html

from gradcanary.display.verdict import Verdict
from gradcanary_dashboard.address.run import View, run_url
from gradcanary_dashboard.analysis import launches as run_launches
from gradcanary_dashboard.analysis import layers
from gradcanary_dashboard.analysis.buckets import widths
from gradcanary_dashboard.analysis.curve import is_of_samples
from gradcanary_dashboard.analysis.events import Events
from gradcanary_dashboard.analysis.stats import STATS, Stat, phases
from gradcanary_dashboard.analysis.verdict import of_layer
from gradcanary_dashboard.collector import run as run_data
from gradcanary_dashboard.collector.layer import LayerData
from gradcanary_dashboard.components import (
    elements,
    figure_controls,
    incident_card,
    layer_table,
    notes,
    share_bar,
    static,
)
from gradcanary_dashboard.figures import axes, curves
from gradcanary_dashboard.text import numbers
from gradcanary_dashboard.text.glossary import EXPLAINED, explain

HEIGHT = 190

LABELS = {"quiet": "OK"}
"""The labels of verdicts whose label is not their tone."""

SLOTS = {
    "layer-crumbs": static.TREES,
    "layer-verdict": "children",
    "layer-csv": "href",
    "layer-tiles": "children",
    "layer-zoom-note": "children",
    "layer-reset": "hidden",
    "layer-moves": figure_controls.STEPS,
    "layer-incidents": static.TREES,
    "layer-incidents-tally": "children",
    "siblings": static.TREES,
    "siblings-tally": "children",
    "layer-notes": "children",
    **{f"stat-{stat}": elements.FIGURE for stat in STATS},
    **{f"note-{stat}": "children" for stat in STATS},
    **{f"shown-{stat}": "hidden" for stat in STATS},
}
"""Id and property of each slot that a refresh fills."""


def frame(place: Mapping[str, str], contents: Mapping[str, Any]) -> list[Any]:
    """Return the page with its first contents (none while the collector does not answer)."""
    name = place["layer"]
    crumbs = contents.get("layer-crumbs", static.encode(_crumbs(place["run"], name, View())))
    return [
        html.Div(
            [static.slot("layer-crumbs", crumbs), share_bar.of_layer(contents)],
            className="run-head",
        ),
        html.Div(contents.get("layer-verdict", html.H1(name)), id="layer-verdict"),
        html.Div(contents.get("layer-tiles"), id="layer-tiles", className="tiles"),
        html.Div([_figures(contents), _aside(contents)], className="columns"),
        elements.page_state("layer", contents.get("shown")),
    ]


def unknown(run: str, layer: str) -> list[Any]:
    """Return the page of a layer that the run does not have."""
    text = ["The run ", html.Code(run), " has no parameter ", html.Code(layer), "."]
    return [elements.missing("No such parameter", text, ("See the run", run_url(run)))]


def fill(data: LayerData, view: View) -> dict[str, Any]:
    """Return the contents of every slot."""
    run, layer = data.run["run"], data.layer
    has_ended = data.run["state"] in numbers.ENDED
    absmax = data.series["absmax"]
    clock = run_data.clock(view, absmax)
    span = axes.Span.of(f"{run}|{layer['layer']}", view, absmax).timed(clock)
    mine = {incident["id"] for incident in data.incidents}
    events = Events.of(data.run, [mark for mark in absmax["marks"] if mark["incident"] in mine])
    siblings = layers.siblings(data.layers, layer)
    listed, common = layers.around(siblings, layer), layers.common(data.layers)
    figures: dict[str, Any] = {}
    for name, stat in STATS.items():
        figures |= _stat(data, stat, span, events)
        figures[f"shown-{name}"] = name not in data.series
    return {
        "title": layer["name"],
        "layer-crumbs": static.encode(_crumbs(run, layer["name"], view)),
        "layer-verdict": _titled(layer["name"], of_layer(layer, data.incidents, has_ended=has_ended)),
        "layer-tiles": _tiles(data),
        "layer-csv": share_bar.csv_url(run, view.steps(), "layer", layer=str(layer["layer"])),
        "layer-zoom-note": figure_controls.zoom_note(
            view, widths(absmax), "point", clock, is_of_samples=is_of_samples(absmax, events)
        ),
        "layer-reset": not view.is_zoomed,
        "layer-moves": figure_controls.reached(run_launches.measured(events.launches)),
        "layer-incidents": static.encode(incident_card.panel(data.incidents, view, layer["layer"], common)),
        "layer-incidents-tally": incident_card.tally(data.incidents),
        "siblings": layer_table.rows(data.run, listed, layer, view, common),
        "siblings-tally": layer_table.tally(len(siblings), len(listed), "nearest") if siblings else "none",
        "layer-notes": notes.cards({**data.run, "facts": _facts(data)}),
        **figures,
    }


def _titled(name: str, said: Verdict) -> list[Any]:
    """Return the name of the layer, and the verdict below it."""
    return [html.H1(elements.parameter(name)), elements.verdict_below(said, LABELS.get(said.tone, said.tone))]


def _crumbs(run: str, layer: str, view: View) -> html.Nav:
    """Return the breadcrumbs; the run's link keeps the steps and draws this layer's trend."""
    back = run_url(run, replace(view.steps(), layer=layer))
    return elements.crumbs([("Runs", "/"), (run, back)], None)


def _stat(data: LayerData, stat: Stat, span: axes.Span, events: Events) -> dict[str, Any]:
    answer = data.series.get(stat.name)
    if answer is None:
        return {}
    is_first = stat.has_threshold  # the browser reads the clock of all figures there
    drawn = curves.trend(
        answer,
        span,
        stat,
        events,
        firing=layers.is_firing(data.layer),
        baseline=data.layer["baseline"],
        height=curves.TREND_HEIGHT if is_first else HEIGHT,
    )
    if is_first and span.clock is not None:
        drawn["layout"]["meta"] = {"clock": span.clock.knots()}
    measured = phases(answer["phases"], clips=data.clips)
    return {f"stat-{stat.name}": drawn, f"note-{stat.name}": f"{stat.words}{measured}"}


def _figures(contents: Mapping[str, Any]) -> html.Div:
    cards = [_card(stat, contents) for stat in STATS.values()]
    bar = html.Div(
        [html.H2("Every stat, over the same steps"), figure_controls.zoom_bar("layer", contents)], className="head"
    )
    return html.Div(
        [bar, *cards, html.Div(contents.get("layer-notes"), id="layer-notes", className="notes")], className="figures"
    )


def _card(stat: Stat, contents: Mapping[str, Any]) -> html.Div:
    name = f"stat-{stat.name}"
    drawn = elements.graph(name, contents.get(name), f"{stat.title} of this parameter over the steps")
    note = html.Span(contents.get(f"note-{stat.name}"), id=f"note-{stat.name}")
    hidden = contents.get(f"shown-{stat.name}", True)
    word = stat.name.replace("_", " ")
    title = elements.explained(stat.title, explain(word)) if word in EXPLAINED else stat.title
    card = elements.card(f"curve-{stat.name}", drawn, title=title, aside=note)
    return html.Div(card, id=f"shown-{stat.name}", hidden=hidden)


def _aside(contents: Mapping[str, Any]) -> html.Div:
    tally = html.Span(contents.get("layer-incidents-tally"), id="layer-incidents-tally")
    incidents = static.slot("layer-incidents", contents.get("layer-incidents"))
    return html.Div(
        [
            elements.card("incidents", incidents, title="Its incidents", aside=tally),
            layer_table.card("siblings", contents, elements.explained("Siblings", explain("siblings"))),
        ],
        className="beside",
    )


def _tiles(data: LayerData) -> list[html.Div]:
    layer = data.layer
    accumulator, shape = layer["accumulator"], layer["shape"]
    baseline = layer["baseline"]
    level = "no baseline yet" if baseline is None else f"baseline {numbers.scientific(baseline)}"
    against = elements.explained(level, explain("baseline"))
    at = "" if layer["step"] is None else f"at step {numbers.integer(layer['step'])}"
    firing = layers.is_firing(layer)
    return [
        elements.tile("State", numbers.state(layer["state"]), at, bad=layer["state"] == "nonfinite"),
        elements.tile(
            elements.explained("absmax", explain("absmax")), numbers.scientific(layer["absmax"]), against, bad=firing
        ),
        elements.tile("Accumulator", accumulator["stored"] or numbers.NOTHING, _dtypes(layer)),
        elements.tile("Shape", _shape(shape), [*_k(layer), f"{numbers.integer(math.prod(shape))} elements"]),
    ]


def _shape(shape: list[int]) -> str:
    return " \N{MULTIPLICATION SIGN} ".join(map(str, shape)) if shape else "scalar"


def _k(layer: layers.Layer) -> list[html.Span]:
    return (
        []
        if layer["micro_steps"] is None
        else [elements.explained(f"K {numbers.integer(layer['micro_steps'])}", explain("K"))]
    )


def _dtypes(layer: layers.Layer) -> list[html.Span]:
    accumulator = layer["accumulator"]
    told = {"declared": accumulator["declared"], "effective": accumulator["effective"], "weights": layer["param_dtype"]}
    return [elements.explained(f"{name} {dtype}", explain(name)) for name, dtype in told.items() if dtype is not None]


def _facts(data: LayerData) -> list[Mapping[str, Any]]:
    return [fact for fact in data.run["facts"] if data.layer["name"] in fact["layers"]]
