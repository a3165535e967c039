"""The page of one run: a frame that stays, and what is filled into it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dash import dcc, html

from gradcanary_dashboard import (
    accumulators,
    axes,
    controls,
    curves,
    drawing,
    heatmap,
    history,
    incident_cards,
    layer_table,
    layers,
    loss_words,
    notes,
    panels,
    parts,
    run_data,
    run_settings_page,
    sharing,
    wording,
)
from gradcanary_dashboard.columns import decode
from gradcanary_dashboard.curve import is_of_samples
from gradcanary_dashboard.marks import Events
from gradcanary_dashboard.run_data import RunData
from gradcanary_dashboard.stats import STATS, phases
from gradcanary_dashboard.verdict import firing, verdict
from gradcanary_dashboard.view import View, layer_url

SLOTS = {
    "verdict": "children",
    "tiles": "children",
    "heat-words": "children",
    "refusal": "children",
    "legend": "children",
    "heatmap": parts.FIGURE,
    "chosen": "children",
    "run-zoom-note": "children",
    "run-reset": "hidden",
    "run-moves": controls.STEPS,
    "trend": parts.FIGURE,
    "trend-title": "children",
    "trend-note": "children",
    "panels": "data-panels",
    "metrics-found": "hidden",
    "metrics-tally": "children",
    "csv": "href",
    "trend-csv": "href",
    "layers-csv": "href",
    "accumulators": drawing.DRAWN,
    "accumulators-tally": "children",
    "incidents": drawing.DRAWN,
    "incident-tally": "children",
    "notes": "children",
    "layer-rows": layer_table.ROWS,
    "layer-rows-tally": "children",
    **{f"option-{stat}": "hidden" for stat in STATS},
}
"""Id and property of everything that a refresh fills."""

FIGURES = {
    "heatmap": "Heatmap, layers by steps; the table of layers holds the last values",
    "trend": "A stat of the chosen layer over the steps",
}


def frame(place: Mapping[str, str], contents: Mapping[str, Any]) -> list[Any]:
    """Return the page with its first contents (none while the collector does not answer)."""
    run = place["run"]
    return [
        html.Div(
            [parts.crumbs([("Runs", "/")], run), sharing.of_run(run, contents, run_settings_page.way(run))],
            className="run-head",
        ),
        html.Div(contents.get("verdict", html.H1(run)), id="verdict"),
        html.Div(contents.get("tiles"), id="tiles", className="tiles"),
        html.Div([_figures(contents), _aside(contents)], className="columns"),
        dcc.Location(id="run-url", refresh=False),
        parts.heart("run", contents.get("shown")),
    ]


def unknown(run: str) -> list[Any]:
    """Return the page of a run that the collector does not know."""
    text = ["The collector knows no run ", html.Code(run), ". It may have another name, or was deleted."]
    return [parts.missing("No such run", text, ("See all runs", "/"))]


def fill(data: RunData, view: View) -> dict[str, Any]:
    """Return the contents of every slot."""
    run = data.run["run"]
    clock = run_data.clock(view, data.heatmap)
    span = axes.Span.of(run, view, decode(data.heatmap["steps"]), data.heatmap["bucket_steps"]).timed(clock)
    events = Events.of(data.run, data.heatmap["marks"])
    drawn = heatmap.figure(data.heatmap, span, data.layer["layer"] if data.layer else None, events, data.layers)
    listed, sums = _matching(data, view), accumulators.groups(data.layers)
    rows = layers.worst_first(listed)[: layers.MAX_ROWS]
    return {
        "verdict": _verdict(data),
        "tiles": _tiles(data),
        "heat-words": f"{STATS[view.stat].title}, every layer",
        **controls.offered(view, data.layers),
        "refusal": data.refusal and f"{data.refusal} All rows are shown.",
        "legend": controls.legend(drawn, STATS[view.stat]),
        "heatmap": _unmatched(span, view) if view.rows and not data.heatmap["rows"] else drawn,
        "run-zoom-note": controls.zoom_note(
            view, data.heatmap["bucket_steps"], "column", clock, is_of_samples=_is_of_samples(data, events)
        ),
        "run-reset": not view.is_zoomed,
        "run-moves": controls.reached(history.measured(events.launches)),
        **_metrics(data, view),
        "csv": sharing.csv_url(run, view),
        "layers-csv": sharing.csv_url(run, view, "layers"),
        "accumulators": drawing.drawn(
            [*accumulators.card(sums, data.run["framework"], view.rows), *accumulators.facts(data.run)]
        ),
        "accumulators-tally": accumulators.tally(sums),
        "incidents": drawing.drawn(incident_cards.panel(data.incidents, view)),
        "incident-tally": incident_cards.tally(data.incidents),
        "notes": notes.cards({**data.run, "facts": []}),
        "layer-rows": layer_table.rows(run, rows, data.layer, view),
        "layer-rows-tally": _tally(data, listed, len(rows)),
        **_trend(data, view, span, events),
    }


def _is_of_samples(data: RunData, events: Events) -> bool:
    """Whether a column holds one sample: a heatmap has no counts, the curve below it has those of a layer."""
    drawn = data.series
    is_as_wide = drawn is not None and drawn["bucket_steps"] == data.heatmap["bucket_steps"]
    return drawn is not None and is_as_wide and is_of_samples(drawn, events)


def _matching(data: RunData, view: View) -> list[layers.Layer]:
    """Return the layers of the table: those whose rows the heatmap shows."""
    is_whole = not view.rows or data.refusal is not None
    return run_data.matching(data.layers, data.heatmap, is_refused=is_whole)


def _tally(data: RunData, listed: list[layers.Layer], shown: int) -> str:
    matching = "" if len(listed) == len(data.layers) else f" matching, of {wording.integer(len(data.layers))}"
    return layer_table.tally(len(listed), shown) + matching


def _unmatched(span: axes.Span, view: View) -> axes.Figure:
    return axes.nothing(span, heatmap.HEIGHT[0], f"No layer has a name that {view.rows} matches.")


def _metrics(data: RunData, view: View) -> dict[str, Any]:
    found = panels.of(data.run["metrics"])
    return {
        "panels": panels.listed(found, data.run["run"], data.run["revision"], view.metrics),
        "metrics-found": len(found) <= controls.FEW_METRICS and view.metrics is None,
        "metrics-tally": panels.tally(found, view.metrics),
    }


def _trend(data: RunData, view: View, span: axes.Span, events: Events) -> dict[str, Any]:
    if data.layer is None or data.series is None:
        return {
            "trend": axes.nothing(span, curves.TREND_HEIGHT, "No layer yet."),
            "trend-title": "Layer",
            "trend-note": "",
            "trend-csv": None,
            "chosen": "",
        }
    name, stat = data.layer["name"], STATS[view.stat]
    href = layer_url(data.run["run"], name, data.layer["layer"], view)
    measured = phases(data.series["phases"], clips=data.clips)
    drawn = curves.trend(
        data.series,
        span,
        stat,
        events,
        firing=layers.is_firing(data.layer),
        baseline=data.layer["baseline"],
    )
    return {
        "trend": drawn,
        "trend-title": dcc.Link(name, href=href, className="layer"),
        "trend-note": f"{stat.title.lower()}{measured}: mean in its min to max",
        "trend-csv": sharing.csv_url(data.run["run"], view, "layer", layer=str(data.layer["layer"]), stat=stat.name),
        "chosen": [
            html.Span("\N{BLACK LEFT-POINTING TRIANGLE} ", **parts.attributes(aria_hidden="true")),
            dcc.Link(f"{name}: all its stats", href=href, className="layer"),
        ],
    }


def _figures(contents: Mapping[str, Any]) -> html.Div:
    return html.Div(
        [
            parts.card(
                "heat",
                controls.bar(contents),
                html.Div(contents.get("legend"), id="legend", className="legend"),
                # A double click leads to the layer.
                parts.graph("heatmap", contents.get("heatmap"), FIGURES["heatmap"], zooms_back=False),
                html.P(id="readout", className="readout", **parts.attributes(aria_live="off")),
                html.P(contents.get("chosen"), id="chosen", className="chosen-layer"),
                title=html.Span(contents.get("heat-words", "Every layer"), id="heat-words"),
                aside=controls.zoom_bar("run", contents),
            ),
            parts.card(
                "curve",
                parts.graph("trend", contents.get("trend"), FIGURES["trend"], _trend_csv(contents)),
                title=html.Span(contents.get("trend-title", "Layer"), id="trend-title"),
                aside=html.Span(contents.get("trend-note"), id="trend-note"),
            ),
            controls.of_metrics(contents),
            html.Div(id="panels", className="panels", **{"data-panels": contents.get("panels")}),
            html.Div(contents.get("notes"), id="notes", className="notes"),
        ],
        className="figures",
    )


def _trend_csv(contents: Mapping[str, Any]) -> html.A:
    return sharing.csv_link("trend-csv", contents.get("trend-csv"), "Every sample of this curve", "save")


def _aside(contents: Mapping[str, Any]) -> html.Div:
    tally = html.Span(contents.get("incident-tally"), id="incident-tally")
    incidents = drawing.slot("incidents", contents.get("incidents"))
    return html.Div(
        [
            parts.card("incidents", incidents, title="Incidents", aside=tally),
            parts.card(
                "accumulators",
                drawing.slot("accumulators", contents.get("accumulators")),
                title="Accumulators",
                aside=html.Span(contents.get("accumulators-tally"), id="accumulators-tally"),
            ),
            layer_table.table("layer-rows", contents, "Layers, worst first", _layers_csv(contents), draws=True),
        ],
        className="beside",
    )


def _layers_csv(contents: Mapping[str, Any]) -> html.A:
    words = "The last values of all layers whose rows are shown, with every digit"
    return sharing.csv_link("layers-csv", contents.get("layers-csv", ""), words, "take")


def _verdict(data: RunData) -> list[Any]:
    said = verdict(data.run)
    loss = loss_words.words(data.loss, data.loss_since)
    return [parts.verdict(said if loss is None else replace(said, beside=f"; {loss}"))]


def _tiles(data: RunData) -> list[html.Div]:
    run = data.run
    fires = firing(run)
    low = f"{wording.integer(run['below_threshold'])} low" if run["below_threshold"] else "none low"
    ks = sorted({layer["micro_steps"] for layer in data.layers if layer["micro_steps"] is not None})
    k = f"K {', '.join(map(wording.integer, ks[:4]))}" if ks else ""
    return [
        parts.tile("Step", wording.integer(run["step"]), _pulse(data)),
        parts.tile("Layers firing", f"{wording.integer(fires)} / {wording.integer(run['layers'])}", low, bad=fires > 0),
        parts.tile("Accumulators", wording.dtypes(run["accumulators"]), [html.Span(k), _way_to_sums()]),
        _loss(data),
    ]


def _way_to_sums() -> html.A:
    """Return the link to the grid, which on a narrow page is not beside the tile."""
    return html.A("how summed", href="#accumulators-title")


def _pulse(data: RunData) -> list[Any]:
    """Return the state of the run, when it made its last step and was last heard of, and how long a step takes."""
    run = data.run
    stepped = run["last_step_at"]
    took = next((metric["last"] for metric in run["metrics"] if metric["name"] == "step_time_s"), None)
    return [
        parts.run_state(run["state"]),
        *([parts.moment(stepped, "last step ")] if stepped else []),
        parts.moment(run["last_seen"], "last seen "),
        *([html.Span(f"{wording.seconds(took)} a step")] if took is not None else []),
    ]


def _loss(data: RunData) -> html.Div:
    logged = next((metric for metric in data.run["metrics"] if metric["name"] == "loss" and not metric["tags"]), None)
    begin = data.loss or data.loss_since
    if logged is None or begin is None:
        return parts.tile("Loss", wording.NOTHING, "not logged")
    first = loss_words.first(begin)
    if logged["last"] is None:
        return parts.tile("Loss", "not finite", first, bad=True)
    now, last = loss_words.level(data.loss_since or data.loss), wording.scientific(logged["last"])
    if now is None:
        return parts.tile("Loss", last, first)
    told = (f"median of the last {wording.plural(now.steps, 'step')}", f"last {last}", first)
    return parts.tile("Loss", wording.scientific(now.value), [html.Span(each) for each in told if each])
