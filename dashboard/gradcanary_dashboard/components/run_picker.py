"""Which runs are compared, on their own page and on that of a run: what is chosen from, and what is wrong; no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dash import dcc, html

from gradcanary.display.verdict import verdict
from gradcanary_dashboard.address.comparison import ALIGNS, MOST_RUNS, CompareView, compare_url
from gradcanary_dashboard.address.run import View, run_url
from gradcanary_dashboard.analysis.compared_runs import CompareData
from gradcanary_dashboard.components import elements, static
from gradcanary_dashboard.text import numbers

PICKED = 50
"""Runs that are offered as links, the ones heard of last first; others by name."""


def field(contents: Mapping[str, Any]) -> html.Div:
    """Return the field for one more run; any name can be typed, those known are offered."""
    field = dcc.Input(
        id="compare-add", type="text", list="compare-names", placeholder="name of a run", autoComplete="off"
    )
    names = html.Datalist(contents.get("compare-names"), id="compare-names")
    label = html.Label("Add a run", htmlFor="compare-add")
    hidden = contents.get("compare-adding", False)
    return html.Div([label, field, names], id="compare-adding", className="adding", hidden=hidden)


def versus(contents: Mapping[str, Any]) -> html.Select:
    """Return the choice of the run that stands beside the one of the page."""
    held = elements.attributes(data_key="vs", aria_label="Compare with another run")
    return html.Select(contents.get("vs-runs"), id="vs-runs", className="do", title="vs: beside this run", **held)


def options(run: Mapping[str, Any], listed: Sequence[Mapping[str, Any]], view: View) -> list[html.Option]:
    """Return the options of that choice: the chosen run, then runs with as many layers as this one, then others."""
    ranked = sorted(listed, key=lambda other: other["layers"] != run["layers"])
    names = dict.fromkeys([view.vs or "", *(other["run"] for other in ranked)])
    others = [
        html.Option(f"vs {name}", value=name, selected=name == view.vs)
        for name in names
        if name not in ("", run["run"])
    ]
    return [html.Option("Compare with \N{HORIZONTAL ELLIPSIS}", value=""), *others]


def beside(run: str, other: Mapping[str, Any] | None, view: View) -> list[Any]:
    """Return the line above the heatmap of the other run; none if there is no other run."""
    if view.vs in (None, "", run):
        return []
    held = elements.attributes(data_key="vs", data_choice="", data_once="")
    leave = html.Button("Remove", type="button", className="do", **held)
    if other is None:
        return [html.Span(["The collector knows no run ", html.B(view.vs), "."]), leave]
    name, chosen = other["run"], replace(view, vs=None)
    return [
        html.H3([stroke(), "vs ", dcc.Link(name, href=run_url(name, view.steps()))]),
        elements.run_state(other["state"]),
        html.Span(verdict(other).text, className="dim"),
        dcc.Link("Full comparison", href=compare_url(CompareView((run, name), view=chosen)), className="do"),
        leave,
    ]


def stroke() -> html.Span:
    """Return a piece of the line of the run beside this one."""
    return html.Span(className="stroke vs", **elements.attributes(aria_hidden="true"))


def asking(data: CompareData, free: Sequence[Mapping[str, Any]], wanted: CompareView) -> dict[str, Any]:
    """Return the contents that ask for runs: the first, or one to hold against it."""
    known = replace(wanted, runs=tuple(run.name for run in data.runs))
    text: list[Any] = ["Choose a run; those that you choose after it are held against it."]
    if data.runs:
        leave = dcc.Link("another one", href=compare_url(known.without_run(data.runs[0].name)))
        text = ["Choose the run to hold against ", html.B(data.runs[0].name), ", or begin with ", leave, "."]
    if not free:
        text = ["There is no other run yet."] if data.listed else ["There is no run yet. ", elements.first_run_link()]
    links = html.Ul(
        [html.Li(_pick(run, known), **elements.attributes(data_key=run["run"])) for run in free[:PICKED]],
        className="picks",
    )
    more = len(free) > PICKED
    rest = html.P("The newest are listed; others are found by their names, above.", className="dim")
    return {
        "compare-said": html.H1("Compare runs"),
        "compare-runs": static.encode(None),
        "compare-picker": static.encode([html.P(text), *([links] if free else []), *([rest] if more else [])]),
    }


def _pick(run: Mapping[str, Any], known: CompareView) -> dcc.Link:
    facts = [f"step {numbers.integer(run['step'])}", numbers.plural(run["layers"], "parameter")]
    facts += [numbers.dtypes(run["accumulators"])] if run["accumulators"] else []
    told = html.Span([elements.run_state(run["state"]), *(html.Span(fact) for fact in facts)], className="dim facts")
    return dcc.Link([html.Span(run["run"], className="name"), told], href=compare_url(known.with_run(run["run"])))


def notes(data: CompareData, wanted: CompareView) -> list[Any]:
    """Return what is wrong with the address, and what to do."""
    lines: list[list[Any]] = []
    for run in data.unknown:
        without = dcc.Link("Leave it out", href=compare_url(wanted.without_run(run)))
        lines.append(
            ["The collector knows no run ", html.B(run), ": it may have another name, or was deleted. ", without]
        )
    again = " is named twice and counts once: choose another run to hold against it."
    lines += [[html.B(run), again] for run in wanted.repeated]
    if wanted.left_out:
        out = numbers.plural(len(wanted.left_out), "more run")
        lines.append([f"At most {MOST_RUNS} runs are compared at once; {out} in the address stand aside."])
    if data.is_comparison and data.common is None:
        lines.append(_apart(data, wanted))
    return [html.P([elements.icon("warning"), html.Span(line)], className="note") for line in lines]


def _apart(data: CompareData, wanted: CompareView) -> list[Any]:
    """Return why nothing can be held against anything."""
    without = [run for run in data.runs if run.steps is None]
    if len(without) > len(data.runs) - 2:
        yet = numbers.yet(run.run["state"] for run in without)
        return [f"There is no step of {' and '.join(run.letter for run in without)}{yet}."]
    if wanted.view.is_zoomed:
        everything = replace(wanted, view=replace(wanted.view, from_step=None, to_step=None))
        return [
            "The runs have none of the steps in sight in common. ",
            dcc.Link("All steps", href=compare_url(everything)),
        ]
    line: list[Any] = ["The runs have no steps in common."]
    if wanted.align == ALIGNS[0]:
        line += [" ", dcc.Link("Count from the first step of each", href=compare_url(wanted.from_firsts()))]
    return line
