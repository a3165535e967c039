"""The page of one run: its frame and the contents of its slots."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dash import dcc, html

from gradcanary.display.verdict import label, verdict
from gradcanary_dashboard.address.run import View, layer_url
from gradcanary_dashboard.analysis import launches as run_launches
from gradcanary_dashboard.analysis import layers
from gradcanary_dashboard.analysis import loss as loss_levels
from gradcanary_dashboard.analysis.buckets import widths
from gradcanary_dashboard.analysis.curve import Curve, is_of_samples
from gradcanary_dashboard.analysis.events import Events
from gradcanary_dashboard.analysis.stats import STATS, phases
from gradcanary_dashboard.collector import run as run_data
from gradcanary_dashboard.collector.run import OtherRun, RunData
from gradcanary_dashboard.components import (
    accumulators,
    configuration,
    elements,
    figure_controls,
    incident_card,
    layer_table,
    notes,
    run_picker,
    share_bar,
    static,
)
from gradcanary_dashboard.figures import axes, curves, heatmap
from gradcanary_dashboard.figures import metrics as metric_figures
from gradcanary_dashboard.text import numbers
from gradcanary_dashboard.text.glossary import explain
from gradcanary_dashboard.text.names import Common

IDLE = "Point at a cell for its value, click it for the parameter's curve, twice for its page."
"""What stands below the heatmap."""

SLOTS = {
    "verdict": "children",
    "tiles": static.TREES,
    "heat-words": "children",
    "refusal": "children",
    "legend": "children",
    "heatmap": elements.FIGURE,
    "chosen": static.TREES,
    "vs-runs": "children",
    "vs": static.TREES,
    "vs-heatmap": elements.FIGURE,
    "run-zoom-note": "children",
    "run-reset": "hidden",
    "run-moves": figure_controls.STEPS,
    "trend": elements.FIGURE,
    "trend-title": static.TREES,
    "trend-note": "children",
    "panels": static.TREES,
    "metrics-state": "data-panels",
    "metrics-found": "hidden",
    "metrics-tally": "children",
    "csv": "href",
    "trend-csv": "href",
    "layers-csv": "href",
    "accumulators": static.TREES,
    "accumulators-tally": "children",
    "incidents": static.TREES,
    "incident-tally": "children",
    "overview": static.TREES,
    "notes": "children",
    "layer-rows": static.TREES,
    "layer-rows-tally": "children",
    "layer-rows-frozen": static.TREES,
    **{f"option-{stat}": "hidden" for stat in STATS},
}
"""Id and property of each slot that a refresh fills."""

FIGURES = {
    "heatmap": "Heatmap, parameters by steps; the table of parameters holds the last values",
    "trend": "A stat of the chosen parameter over the steps",
    "vs-heatmap": "Heatmap of the other run, parameters by the same steps",
}


def frame(place: Mapping[str, str], contents: Mapping[str, Any]) -> list[Any]:
    """Return the page with its first contents (none while the collector does not answer)."""
    run = place["run"]
    return [
        html.Div(
            [
                html.Div([elements.crumbs([("Runs", "/")], None), html.H1(run)], className="titled"),
                html.Div(contents.get("verdict"), id="verdict"),
                share_bar.of_run(run, contents, run_picker.versus(contents), share_bar.run_settings_link(run)),
            ],
            className="run-head judged",
        ),
        html.Div(
            [
                static.slot("tiles", contents.get("tiles"), className="tiles"),
                _incidents(contents),
                _figures(contents),
                _aside(contents),
            ],
            className="columns of-run",
        ),
        elements.page_state("run", contents.get("shown")),
    ]


def unknown(run: str) -> list[Any]:
    """Return the page of an unknown run."""
    text = ["The collector knows no run ", html.Code(run), ". It may have another name, or was deleted."]
    return [elements.missing("No such run", text, ("See all runs", "/"))]


def fill(data: RunData, view: View, search: str = "", wrong: str | None = None) -> dict[str, Any]:
    """Return the contents of every slot but ``vs-runs``; ``search`` is the query of the view, ``wrong`` what is wrong
    with its steps."""
    run, has_ended = data.run["run"], data.run["state"] in numbers.ENDED
    clock = run_data.clock(view, data.heatmap)
    span = axes.Span.of(run, view, data.heatmap).timed(clock)
    events = Events.of(data.run, data.heatmap["marks"])
    chosen = data.layer["layer"] if data.layer else None
    other = data.other.heatmap if data.other else None
    drawn = heatmap.figure(
        data.heatmap, span, chosen, events, data.layers, names_rows=view.order == "worst", scaled_with=other
    )
    listed, sums = _matching(data, view), accumulators.groups(data.layers)
    rows, common = layers.worst_first(listed)[: layers.MAX_ROWS], layers.common(data.layers)
    return {
        "verdict": _verdict(data),
        "tiles": static.encode(_tiles(data, sums)),
        "heat-words": f"{STATS[view.stat].title}, every parameter",
        **figure_controls.offered(view, data.layers),
        "refusal": _refusal(data, view, wrong),
        "legend": figure_controls.legend(drawn),
        "heatmap": _unmatched(span, view) if view.rows and not data.heatmap["rows"] else drawn,
        "run-zoom-note": figure_controls.zoom_note(
            view, widths(data.heatmap), "column", clock, is_of_samples=_is_of_samples(data, events)
        ),
        "run-reset": not view.is_zoomed,
        "run-moves": figure_controls.reached(run_launches.measured(events.launches)),
        **_metrics(data, view, search),
        "csv": share_bar.csv_url(run, view),
        "layers-csv": share_bar.csv_url(run, view, "layers"),
        "accumulators": static.encode(
            [
                *accumulators.card(sums, data.run["framework"], view.rows, common, has_ended=has_ended),
                *accumulators.facts(data.run),
            ]
        ),
        "accumulators-tally": accumulators.tally(sums),
        "incidents": static.encode(incident_card.panel(data.incidents, view, common=common)),
        "incident-tally": incident_card.tally(data.incidents),
        "overview": static.encode(configuration.overview(data.run, data.layers)),
        "notes": notes.cards({**data.run, "facts": []}),
        "layer-rows": layer_table.rows(data.run, rows, data.layer, view, common, draws=True),
        "layer-rows-tally": _tally(data, listed, len(rows)),
        "layer-rows-frozen": static.encode(layer_table.frozen(*layers.frozen(data.run, data.layers))),
        **_trend(data, view, span, events, common),
        "vs": static.encode(run_picker.beside(run, data.other.run if data.other else None, view)),
        "vs-heatmap": _other_heatmap(data, data.other, span, view) if data.other else elements.NO_FIGURE,
    }


def _other_heatmap(data: RunData, other: OtherRun, span: axes.Span, view: View) -> axes.Figure:
    """Return the heatmap of the run beside this one: over the same steps, in the same colours."""
    events = Events.of(other.run, other.heatmap["marks"])
    return heatmap.figure(
        other.heatmap,
        span,
        other.layer["layer"] if other.layer else None,
        events,
        other.layers,
        names_rows=view.order == "worst",
        scaled_with=data.heatmap,
        has_clock=False,
    )


def _is_of_samples(data: RunData, events: Events) -> bool:
    """Return True if a column has one sample, by the counts of the curve: a heatmap has none."""
    drawn = data.series
    is_as_wide = drawn is not None and widths(drawn) == widths(data.heatmap)
    return drawn is not None and is_as_wide and is_of_samples(drawn, events)


def _refusal(data: RunData, view: View, wrong: str | None) -> str | None:
    """Return what is wrong with the address of the page, and what is shown instead."""
    is_strange = view.incident is not None and all(each["id"] != view.incident for each in data.incidents)
    told = [
        data.refusal and f"{data.refusal} All rows are shown.",
        wrong and f"{wrong} All steps are shown.",
        f"Incident {view.incident} is not of this run." if is_strange else None,
    ]
    return " ".join(filter(None, told)) or None


def _matching(data: RunData, view: View) -> list[layers.Layer]:
    """Return the layers of the heatmap's rows, for the table."""
    is_whole = not view.rows or data.refusal is not None
    return run_data.matching(data.layers, data.heatmap, is_refused=is_whole)


def _tally(data: RunData, listed: list[layers.Layer], shown: int) -> str:
    matching = "" if len(listed) == len(data.layers) else f" matching, of {numbers.integer(len(data.layers))}"
    return layer_table.tally(len(listed), shown) + matching


def _unmatched(span: axes.Span, view: View) -> axes.Figure:
    return axes.nothing(span, heatmap.HEIGHT[0], f"No parameter has a name that {view.rows} matches.")


def _metrics(data: RunData, view: View, search: str) -> dict[str, Any]:
    found, names = metric_figures.of(data.run["metrics"]), _metrics_of_incident(data, view)
    found = sorted(found, key=lambda panel: names.isdisjoint(panel.names))
    return {
        "panels": figure_controls.metric_cards(*metric_figures.listed(found, view.metrics)),
        # The browser asks for metrics once the page shows the query of its address.
        "metrics-state": json.dumps(
            {
                "run": data.run["run"],
                "revision": data.run["revision"],
                "search": search,
                "vs": data.other and data.other.run["revision"],
                "first": bool(names),  # a style sheet puts the metrics before the gradients
            }
        ),
        "metrics-found": len(found) <= figure_controls.FEW_METRICS and view.metrics is None,
        "metrics-tally": metric_figures.tally(found, view.metrics),
    }


def _metrics_of_incident(data: RunData, view: View) -> set[str]:
    """Return the metrics that the incident of the address is about; empty without one, or if it is about parameters."""
    incident = next((each for each in data.incidents if each["id"] == view.incident), {})
    return {each["metric"]["name"] for each in incident.get("layers", ()) if each.get("metric")}


def _trend(data: RunData, view: View, span: axes.Span, events: Events, common: Common) -> dict[str, Any]:
    if data.layer is None or data.series is None:
        return {
            "trend": axes.nothing(span, curves.TREND_HEIGHT, f"No parameter{numbers.yet([data.run['state']])}."),
            "trend-title": static.encode("Parameter"),
            "trend-note": "",
            "trend-csv": None,
            "chosen": static.encode(None),
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
        other=_other_curve(data.other),
    )
    return {
        "trend": drawn,
        "trend-title": static.encode(elements.parameter_link(name, href, common)),
        "trend-note": [f"{stat.title.lower()}{measured}: mean in its min to max", *_vs(data.other)],
        "trend-csv": share_bar.csv_url(data.run["run"], view, "layer", layer=str(data.layer["layer"]), stat=stat.name),
        "chosen": static.encode(
            [
                html.Span("\N{BLACK LEFT-POINTING TRIANGLE} ", **elements.attributes(aria_hidden="true")),
                dcc.Link(
                    [*elements.parameter(name, common), ": all its stats"], href=href, className="layer", title=name
                ),
            ]
        ),
    }


def _vs(other: OtherRun | None) -> list[Any]:
    """Return the legend of the other run's line, or that it has none."""
    if other is None:
        return []
    if other.layer is None:
        return [f" \N{MIDDLE DOT} {other.run['run']} has no such parameter"]
    return [" \N{MIDDLE DOT} ", html.Span([run_picker.stroke(), other.run["run"]], className="line")]


def _other_curve(other: OtherRun | None) -> Curve | None:
    if other is None or other.series is None:
        return None
    return Curve.read(other.series, other.series["series"][0], Events.of(other.run, ()))


def _figures(contents: Mapping[str, Any]) -> html.Div:
    return html.Div(
        [
            # Before what the style sheet arranges by it.
            html.Div(id="metrics-state", hidden=True, **{"data-panels": contents.get("metrics-state")}),
            elements.card(
                "heat",
                figure_controls.bar(contents),
                html.Div(contents.get("legend"), id="legend", className="legend"),
                # A double click leads to the layer.
                elements.graph("heatmap", contents.get("heatmap"), FIGURES["heatmap"], zooms_back=False),
                html.Div(id="readout", className="readout", hidden=True, **elements.attributes(aria_live="off")),
                html.P(IDLE, className="hint aside"),
                static.slot("chosen", contents.get("chosen"), tag=html.P, className="chosen-layer"),
                # Hidden by the style sheet while there is no other run.
                static.slot("vs", contents.get("vs")),
                elements.graph("vs-heatmap", contents.get("vs-heatmap"), FIGURES["vs-heatmap"], zooms_back=False),
                title=html.Span(contents.get("heat-words", "Every parameter"), id="heat-words"),
                aside=figure_controls.zoom_bar("run", contents),
            ),
            elements.card(
                "curve",
                elements.graph("trend", contents.get("trend"), FIGURES["trend"], _trend_csv(contents)),
                title=static.slot(
                    "trend-title", contents.get("trend-title", static.encode("Parameter")), tag=html.Span
                ),
                aside=html.Span(contents.get("trend-note"), id="trend-note"),
            ),
            figure_controls.of_metrics(contents),
            static.slot("panels", contents.get("panels"), className="panels"),
            html.Div(contents.get("notes"), id="notes", className="notes"),
        ],
        className="figures",
    )


def _trend_csv(contents: Mapping[str, Any]) -> html.A:
    return share_bar.csv_link("trend-csv", contents.get("trend-csv"), "Every sample of this curve", "save")


def _incidents(contents: Mapping[str, Any]) -> html.Section:
    tally = html.Span(contents.get("incident-tally"), id="incident-tally")
    incidents = static.slot("incidents", contents.get("incidents"))
    return elements.card("incidents", incidents, title="Incidents", aside=tally)


def _aside(contents: Mapping[str, Any]) -> html.Div:
    ran = static.slot("overview", contents.get("overview"))
    return html.Div(
        [
            elements.card("overview", ran, title="What ran"),
            elements.card(
                "accumulators",
                static.slot("accumulators", contents.get("accumulators")),
                title="Accumulators",
                aside=html.Span(contents.get("accumulators-tally"), id="accumulators-tally"),
            ),
            layer_table.card("layer-rows", contents, "Parameters, worst first", _layers_csv(contents), draws=True),
        ],
        className="beside",
    )


def _layers_csv(contents: Mapping[str, Any]) -> html.A:
    words = "The last values of all parameters whose rows are shown, with every digit"
    return share_bar.csv_link("layers-csv", contents.get("layers-csv", ""), words, "take")


def _verdict(data: RunData) -> list[Any]:
    said = verdict(data.run)
    loss = loss_levels.words(data.loss, data.loss_since)
    spoken = said if loss is None else replace(said, beside=f"; {loss}")
    return [elements.verdict_below(spoken, label(said, data.incidents))]


def _tiles(data: RunData, sums: Sequence[accumulators.Group]) -> list[html.Div]:
    """Return the tiles; on a phone they stand below the heatmap, so nothing in them takes the focus."""
    run = data.run
    fires = sum(map(layers.has_incident, data.layers))
    return [
        elements.tile("Step", numbers.integer(run["step"]), _pulse(data)),
        elements.tile(
            "Parameters with an incident",
            f"{numbers.integer(fires)} / {numbers.integer(run['layers'])}",
            _below_layers(data),
            bad=fires > 0,
        ),
        elements.tile("Accumulators", numbers.dtypes(run["accumulators"]), accumulators.tally(sums)),
        _loss(data),
    ]


def _below_layers(data: RunData) -> list[html.Span]:
    """Return how many layers are low, how many parameters are frozen, and how many layers were frozen later."""
    frozen, _ = layers.frozen(data.run, data.layers)
    later = sum(layer["state"] == "not_trainable" for layer in data.layers)
    low = numbers.low(data.run["below_threshold"])
    said = [frozen.partition(":")[0], f"{numbers.plural(later, 'parameter')} not trainable" if later else ""]
    shown = [html.Span(low, title=explain("low"))] if low else []
    return [*shown, *(html.Span(words) for words in said if words)]


def _pulse(data: RunData) -> list[Any]:
    """Return the run's state, the times of its last step and last request, and the time of a step."""
    run = data.run
    stepped = run["last_step_at"]
    took = next((metric["last"] for metric in run["metrics"] if metric["name"] == "step_time_s"), None)
    return [
        elements.run_state(run["state"]),
        *([elements.moment(stepped, "last step ")] if stepped else []),
        elements.moment(run["last_seen"], "last seen "),
        *([html.Span(f"{numbers.seconds(took)} a step")] if took is not None else []),
    ]


def _loss(data: RunData) -> html.Div:
    logged = next((metric for metric in data.run["metrics"] if metric["name"] == "loss" and not metric["tags"]), None)
    begin = data.loss or data.loss_since
    if logged is None or begin is None:
        return elements.tile("Loss", numbers.NOTHING, "not logged")
    first = loss_levels.first(begin)
    if logged["last"] is None:
        return elements.tile("Loss", "not finite", first, bad=True)
    now, last = loss_levels.level(data.loss_since or data.loss), numbers.scientific(logged["last"])
    if now is None:
        return elements.tile("Loss", last, first)
    told = (f"median of the last {numbers.plural(now.steps, 'step')}", f"last {last}", first)
    return elements.tile("Loss", numbers.scientific(now.value), [html.Span(each) for each in told if each])
