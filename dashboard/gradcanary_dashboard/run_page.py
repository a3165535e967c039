"""The page of one run: a frame that stays, and what is filled into it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from dash import dcc, html

from gradcanary_dashboard import axes, curves, heatmap, incident_cards, layers, parts, wording
from gradcanary_dashboard.columns import decode
from gradcanary_dashboard.run_data import RunData
from gradcanary_dashboard.verdict import firing, verdict
from gradcanary_dashboard.view import View

SLOTS = {
    "verdict": "children",
    "tiles": "children",
    "heatmap": "figure",
    "trend": "figure",
    "trend-title": "children",
    "trend-note": "children",
    "loss": "figure",
    "incidents": "children",
    "incident-tally": "children",
    "notes": "children",
    "layer-rows": "children",
    "layer-tally": "children",
    "zoom-note": "children",
}
"""Id and property of everything that a refresh fills."""

FIGURES = {
    "heatmap": "Heatmap of the gradient absmax, layers by steps; the table of layers holds its last values",
    "trend": "Gradient absmax of the chosen layer over the steps",
    "loss": "Loss over the steps",
}


def frame(run: str, contents: Mapping[str, Any]) -> list[Any]:
    """Return the page with its first contents (none while the collector does not answer)."""
    return [
        html.Nav(
            [
                dcc.Link("Runs", href="/"),
                html.Span("/", **parts.attributes(aria_hidden="true")),
                html.Span(run, className="run-name"),
            ],
            className="crumbs",
            **parts.attributes(aria_label="Breadcrumb"),
        ),
        html.Div(contents.get("verdict", html.H1(run)), id="verdict", **parts.attributes(aria_live="polite")),
        html.Div(contents.get("tiles"), id="tiles", className="tiles"),
        html.Div([_figures(contents), _aside(contents)], className="columns"),
        dcc.Location(id="run-url", refresh=False),
        dcc.Store(id="run-name", data=run),
        dcc.Store(id="run-shown", data=contents.get("shown")),
        dcc.Store(id="run-pulse"),
        dcc.Interval(id="run-tick", interval=1000),
    ]


def unknown(run: str) -> list[Any]:
    """Return the page of a run that the collector does not know."""
    return [
        html.Div(
            [
                html.H1("No such run"),
                html.P(["The collector knows no run ", html.Code(run), ". It may have another name, or was deleted."]),
                dcc.Link("See all runs", href="/", className="button"),
            ],
            className="empty",
        )
    ]


def fill(data: RunData, view: View) -> dict[str, Any]:
    """Return the contents of every slot."""
    run = data.run["run"]
    steps = decode(data.heatmap["steps"])
    span = axes.Span.of(run, view, steps, data.heatmap["bucket_steps"])
    number = data.layer["layer"] if data.layer else None
    rows = layers.worst_first(data.layers)[: layers.MAX_ROWS]
    return {
        "verdict": _verdict(data),
        "tiles": _tiles(data),
        "heatmap": heatmap.figure(data.heatmap, span, number),
        "loss": curves.loss(data.loss, span),
        "incidents": incident_cards.panel(data.incidents, view.incident),
        "incident-tally": incident_cards.tally(data.incidents),
        "notes": _notes(data.run),
        "layer-rows": [_layer_row(layer, layer is data.layer) for layer in rows],
        "layer-tally": _layer_tally(len(data.layers), len(rows)),
        "zoom-note": _zoom_note(view, data.heatmap["bucket_steps"]),
        **_trend(data, span),
    }


def _trend(data: RunData, span: axes.Span) -> dict[str, Any]:
    if data.layer is None or data.series is None:
        return {
            "trend": axes.nothing(span, curves.TREND_HEIGHT, "No layer yet."),
            "trend-title": "Layer",
            "trend-note": "",
        }
    phases = ", ".join(data.series["phases"])
    return {
        "trend": curves.trend(data.series, span, layers.is_firing(data.layer)),
        "trend-title": data.layer["name"],
        "trend-note": f"gradient absmax{f', {phases}' if phases else ''}: mean in its min to max",
    }


def _figures(contents: Mapping[str, Any]) -> html.Div:
    return html.Div(
        [
            parts.card(
                "heat",
                _legend(),
                _graph("heatmap", contents),
                html.P(id="readout", className="readout", **parts.attributes(aria_live="off")),
                title="Gradient absmax, every layer",
                aside=html.Span(contents.get("zoom-note"), id="zoom-note"),
            ),
            parts.card(
                "curve",
                _graph("trend", contents),
                title=html.Span(contents.get("trend-title", "Layer"), id="trend-title"),
                aside=html.Span(contents.get("trend-note"), id="trend-note"),
            ),
            parts.card("curve-loss", _graph("loss", contents), title="Loss", aside="same steps"),
            html.Div(contents.get("notes"), id="notes"),
        ],
        className="figures",
    )


def _graph(name: str, contents: Mapping[str, Any]) -> html.Figure:
    figure = contents.get(name, {"data": [], "layout": {"height": 200}})
    graph = dcc.Graph(id=name, figure=figure, config=axes.CONFIG, clear_on_unhover=True)
    return html.Figure(graph, **parts.attributes(aria_label=FIGURES[name]))


def _aside(contents: Mapping[str, Any]) -> html.Div:
    tally = html.Span(contents.get("incident-tally"), id="incident-tally")
    heads = ("Layer", "absmax", "norm", "state", "accumulator", "K", "rules")
    table = html.Table(
        [
            html.Thead(html.Tr([html.Th(head, scope="col", role="columnheader") for head in heads], role="row")),
            html.Tbody(contents.get("layer-rows"), id="layer-rows"),
        ],
        # The narrow layout is a grid, which would take a table's meaning away.
        role="table",
        **parts.attributes(aria_labelledby="layers-title"),
    )
    return html.Div(
        [
            parts.card(
                "incidents", *(contents.get("incidents") or []), title="Incidents", aside=tally, slot="incidents"
            ),
            parts.card(
                "layers",
                html.Div(
                    table,
                    className="scroll",
                    tabIndex=0,
                    role="region",
                    **parts.attributes(aria_labelledby="layers-title"),
                ),
                title="Layers, worst first",
                aside=html.Span(contents.get("layer-tally"), id="layer-tally"),
            ),
        ],
        className="beside",
    )


def _layer_row(layer: layers.Layer, is_chosen: bool) -> html.Tr:
    texts = layers.row(layer)
    name = html.Button(
        texts["name"],
        type="button",
        className="layer",
        title=texts["name"],
        **parts.attributes(data_layer=texts["name"], aria_current=str(is_chosen).lower()),
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
            html.Td(name, className="name", role="cell"),
            *(html.Td(text, className=kind, role="cell") for kind, text in cells.items()),
        ],
        key=texts["name"],
        className=f"tone-{texts['tone']}{' chosen' if is_chosen else ''}",
        role="row",
    )


def _legend() -> html.Div:
    """Return the colours in words; the gradient itself is in the style sheet, drawn from the same palette."""
    swatches = (("zero", "exact 0"), ("nodata", "no data"), ("nonfinite", "non-finite"))
    return html.Div(
        [
            html.Div(
                [
                    html.Span("below"),
                    html.Span(className="ramp", **parts.attributes(aria_hidden="true")),
                    html.Span("above threshold"),
                ],
                className="scale",
            ),
            *(html.Span([html.Span(className=f"swatch {name}"), word]) for name, word in swatches),
        ],
        className="legend",
    )


def _verdict(data: RunData) -> list[Any]:
    said = verdict(data.run, data.incidents)
    return [html.H1([parts.badge(said.tone, said.tone), html.Span(said.text)], className=f"verdict tone-{said.tone}")]


def _tiles(data: RunData) -> list[html.Div]:
    run = data.run
    fires = firing(run)
    low = f"{wording.integer(run['low'])} low" if run["low"] else "none low"
    ks = sorted({layer["micro_steps"] for layer in data.layers if layer["micro_steps"] is not None})
    k = f"K {', '.join(map(wording.integer, ks[:4]))}" if ks else ""
    seen = [parts.run_state(run["state"]), parts.moment(run["last_seen"], "last seen ")]
    return [
        _tile("Step", wording.integer(run["step"]), seen),
        _tile("Layers firing", f"{wording.integer(fires)} / {wording.integer(run['layers'])}", low, bad=fires > 0),
        _tile("Accumulators", wording.dtypes(run["accumulators"]), k),
        _loss(data),
    ]


def _loss(data: RunData) -> html.Div:
    logged = next((metric for metric in data.run["metrics"] if metric["name"] == "loss"), None)
    if logged is None:
        return _tile("Loss", wording.NOTHING, "not logged")
    if logged["last"] is None:
        return _tile("Loss", "not finite", _first_loss(data), bad=True)
    return _tile("Loss", wording.scientific(logged["last"]), _first_loss(data))


def _first_loss(data: RunData) -> str:
    """Return the first loss in sight, to compare with."""
    drawn = next((metric for metric in data.loss["metrics"] if metric["name"] == "loss"), None)
    known = decode(drawn["count"]) > 0 if drawn else np.zeros(0, bool)
    if drawn is None or not known.any():
        return ""
    first = int(known.argmax())
    value, step = float(decode(drawn["mean"])[first]), float(decode(data.loss["steps"])[first])
    return f"{wording.scientific(value)} at step {wording.integer(step)}"


def _tile(name: str, value: str, below: parts.Children, bad: bool = False) -> html.Div:
    return html.Div(
        [
            html.Div(name, className="name"),
            html.Div(value, className="value bad" if bad else "value"),
            html.Div(below, className="below"),
        ],
        className="tile",
    )


def _notes(run: Mapping[str, Any]) -> list[Any]:
    """Return what the agent found before the first step, and the steps that nobody has."""
    facts = [html.Li(fact["text"]) for fact in run["facts"]]
    gaps = [html.Li(_gap(gap)) for gap in run["gaps"]]
    found = [parts.card("facts", html.Ul(facts), title="Findings")] if facts else []
    return [*found, *([parts.card("gaps", html.Ul(gaps), title="Gaps")] if gaps else [])]


def _gap(gap: Mapping[str, Any]) -> str:
    why = {"dropped": "dropped by the agent", "missing": "never received"}.get(gap["why"], gap["why"])
    first, last = wording.integer(gap["from_step"]), wording.integer(gap["to_step"])
    return f"Step {first}: {why}" if first == last else f"Steps {first} to {last}: {why}"


def _layer_tally(everything: int, shown: int) -> str:
    if shown == everything:
        return wording.integer(everything)
    return f"the {wording.integer(shown)} worst of {wording.integer(everything)}"


def _zoom_note(view: View, bucket_steps: int) -> list[Any]:
    """Return how many steps one column holds, and the way back from a zoom."""
    columns = f"{wording.plural(max(1, bucket_steps), 'step')} per column"
    if view.from_step is None and view.to_step is None:
        return [html.Span("drag to zoom · ", className="hint"), columns]
    return [
        columns,
        html.Button("Show all steps", type="button", className="reset", **parts.attributes(data_reset="zoom")),
    ]
