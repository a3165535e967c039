"""The comparison page: its frame and the contents of its slots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dash import dcc, html

from gradcanary_dashboard.address.comparison import ALIGNS, MOST_RUNS, CompareView
from gradcanary_dashboard.address.run import layer_url
from gradcanary_dashboard.analysis import comparison
from gradcanary_dashboard.analysis.compared_runs import CompareData
from gradcanary_dashboard.analysis.stats import STATS
from gradcanary_dashboard.components import (
    difference_table,
    elements,
    figure_controls,
    run_picker,
    run_table,
    share_bar,
    static,
)
from gradcanary_dashboard.figures import comparison as comparison_figures
from gradcanary_dashboard.figures.comparison import FIGURES, TITLES
from gradcanary_dashboard.figures.overlay import COST_HEIGHT, STAT_HEIGHT
from gradcanary_dashboard.text import numbers

SLOTS = {
    "compare-said": "children",
    "compare-csv": "href",
    "compare-notes": static.TREES,
    "compare-runs": static.TREES,
    "compare-setup": static.TREES,
    "compare-adding": "hidden",
    "compare-names": "children",
    "compare-picker": static.TREES,
    "compare-layer": static.TREES,
    "compare-legend": "children",
    "compare-zoom-note": "children",
    "compare-reset": "hidden",
    "compare-moves": figure_controls.STEPS,
    "compare-refusal": "children",
    "compare-measure": "children",
    "differences": static.TREES,
    "differences-tally": "children",
    "differences-csv": "href",
    "differences-rest": static.TREES,
    **dict.fromkeys(FIGURES, elements.FIGURE),
    **{f"compare-option-{stat}": "hidden" for stat in STATS},
}
"""Id and property of each slot that a refresh fills."""


def frame(_place: Mapping[str, str], contents: Mapping[str, Any]) -> list[Any]:
    """Return the page with its first contents (none while the collector does not answer)."""
    return [
        html.Div(
            [elements.crumbs([("Runs", "/")], "Compare"), share_bar.of_comparison(contents)],
            className="run-head compare-head",
        ),
        html.Div(
            contents.get("compare-said", html.H1("Compare runs")),
            id="compare-said",
            **elements.attributes(aria_live="polite"),
        ),
        static.slot("compare-notes", contents.get("compare-notes")),
        static.slot("compare-runs", contents.get("compare-runs")),
        run_picker.field(contents),
        static.slot("compare-picker", contents.get("compare-picker")),
        # Hidden by the style sheet while runs are chosen: Dash draws anew all that is in what it hides or shows.
        html.Div(
            [_setup(contents), _figures(contents), difference_table.card(contents)],
            id="compare-body",
            className="columns",
        ),
        elements.page_state("compare", contents.get("shown")),
    ]


def fill(data: CompareData, wanted: CompareView) -> dict[str, Any]:
    """Return the contents of every slot."""
    chosen = {*wanted.runs}
    free = [run for run in data.listed if run["run"] not in chosen]
    contents: dict[str, Any] = {
        "compare-notes": static.encode(run_picker.notes(data, wanted)),
        "compare-adding": len(wanted.runs) >= MOST_RUNS,
        "compare-names": [html.Option(value=run["run"]) for run in free],
        "compare-picker": static.encode(None),
    }
    if not data.is_comparison:
        return {**contents, **run_picker.asking(data, free, wanted)}
    numbers = [comparison.read(run, data.common) for run in data.runs]
    return {
        **contents,
        "compare-said": html.H1(comparison.sentence(numbers, data.common), className="verdict compared"),
        "compare-csv": share_bar.compared_url(_named(data, wanted), "compare"),
        "compare-runs": static.encode(run_table.table(data, numbers, wanted)),
        "compare-setup": static.encode(run_table.configurations(data)),
        "compare-layer": static.encode(_layer(data, wanted)),
        "compare-legend": _legend(data),
        "compare-reset": not wanted.view.is_zoomed,
        "compare-moves": figure_controls.reached(comparison_figures.steps(data)),
        "compare-zoom-note": figure_controls.zoom_note(
            replace(wanted.view, x="step"),
            [comparison_figures.bucket(data)],
            "point",
            is_of_samples=comparison_figures.is_of_samples(data),
        ),
        **comparison_figures.drawn(data, wanted),
        **difference_table.listed(data, wanted),
        **_offered(data, wanted),
    }


def _named(data: CompareData, wanted: CompareView) -> CompareView:
    """Return the view with the drawn layer; without it a link shows the layer that differs most then."""
    return replace(wanted, view=replace(wanted.view, layer=data.layer))


def _layer(data: CompareData, wanted: CompareView) -> list[Any]:
    """Return the name of the drawn layer, and the links to its page in each run."""
    if data.layer is None:
        return [f"No parameter{numbers.yet(run.run['state'] for run in data.runs)}"]
    links: list[Any] = []
    for run in data.runs:
        number = next((layer["layer"] for layer in run.layers if layer["name"] == data.layer), None)
        if number is not None:
            view = replace(wanted.view, from_step=None, to_step=None) if run.origin else wanted.view
            words: list[Any] = [
                run.letter,
                html.Span(f": all stats of this parameter in {run.name}", className="unseen"),
            ]
            links.append(dcc.Link(words, href=layer_url(run.name, data.layer, number, view)))
    named = html.Span(elements.parameter(data.layer, data.names), className="layer", title=data.layer)
    return [named, html.Span(["all its stats in ", *links], className="ways-on")]


def _legend(data: CompareData) -> list[Any]:
    absent = [run.letter for run in data.runs if run.series is None]
    lines = [html.Span([run_table.chip(place, run), run.name]) for place, run in enumerate(data.runs)]
    return [*lines, *([html.Span(f"{' and '.join(absent)} without this parameter")] if absent else [])]


def _offered(data: CompareData, wanted: CompareView) -> dict[str, bool]:
    layers = [layer for run in data.runs for layer in run.layers]
    return {f"compare-{option}": hidden for option, hidden in figure_controls.offered(wanted.view, layers).items()}


def _setup(contents: Mapping[str, Any]) -> html.Section:
    slot = static.slot("compare-setup", contents.get("compare-setup"))
    return elements.card("setup", slot, title="Configuration", aside="what differs first")


def _figures(contents: Mapping[str, Any]) -> html.Div:
    legend = html.Div(contents.get("compare-legend"), id="compare-legend", className="legend")
    first = elements.card(
        "overlay",
        _choices(contents),
        legend,
        _graph("compare-stat", contents),
        title=static.slot("compare-layer", contents.get("compare-layer"), tag=html.Span),
        aside=figure_controls.zoom_bar("compare", contents, has_clock=False),
    )
    others = [
        elements.card(f"curve-{figure}", _graph(figure, contents), title=title, aside="same steps")
        for figure, title in TITLES.items()
    ]
    return html.Div([first, *others], className="figures")


def _graph(name: str, contents: Mapping[str, Any]) -> html.Figure:
    height = COST_HEIGHT if name in TITLES else STAT_HEIGHT
    return elements.graph(name, contents.get(name), FIGURES[name], height=height)


def _choices(contents: Mapping[str, Any]) -> html.Div:
    options = [
        html.Option(
            stat.title,
            value="" if place == 0 else name,
            id=f"compare-option-{name}",
            hidden=contents.get(f"compare-option-{name}"),
        )
        for place, (name, stat) in enumerate(STATS.items())
    ]
    stats = html.Select(options, **elements.attributes(data_key="stat", aria_label="Stat"))
    words = {"": "by step", ALIGNS[1]: "since the first step"}
    buttons = [
        html.Button(
            text, type="button", **elements.attributes(data_key="align", data_choice=choice, data_clears="from to")
        )
        for choice, text in words.items()
    ]
    group = html.Div(
        buttons, className="group", role="group", **elements.attributes(aria_label="What the axis counts from")
    )
    return html.Div(html.Div([stats, group], className="choices"), className="controls")
