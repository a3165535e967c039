"""The runs of a comparison, one a row, and the sign that each has everywhere on the page; no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dash import dcc, html

from gradcanary_dashboard.address.comparison import CompareView, compare_url
from gradcanary_dashboard.address.run import run_url
from gradcanary_dashboard.analysis import comparison
from gradcanary_dashboard.analysis.compared_runs import TIMED_STEPS, Compared, CompareData
from gradcanary_dashboard.components import elements
from gradcanary_dashboard.figures import overlay
from gradcanary_dashboard.text import numbers as number_text

HEADS = (
    "Run",
    "State",
    "Steps",
    "Parameters",
    "Firing",
    "Accumulators",
    "Loss",
    "Step time",
    "Peak memory",
    "Incidents",
)
HINTS = {
    "Loss": "Median of the last points of the steps that all runs have; least, over them; last, of the run",
    "Step time": f"Median of single steps: the last {number_text.integer(TIMED_STEPS)}, at most, that all runs have",
    "Peak memory": "Largest over the steps that all runs have",
    "Accumulators": "The dtype that gradients are summed in, as their values show, else as stored",
}


def table(data: CompareData, numbers: Sequence[comparison.Numbers], wanted: CompareView) -> html.Table:
    """Return the table; each number is held against that of the first run."""
    heads = [html.Th(head, scope="col", role="columnheader", title=HINTS.get(head)) for head in HEADS]
    rows = [
        _row(place, run, told, numbers[0], wanted)
        for place, (run, told) in enumerate(zip(data.runs, numbers, strict=True))
    ]
    return html.Table(
        [html.Thead(html.Tr(heads, role="row")), html.Tbody(rows)],
        className="compared-runs",
        # On a phone each row is a card, which would take the table's meaning away.
        role="table",
        **elements.attributes(
            aria_label="The runs",
            data_names=", ".join(f"{run.letter} {run.name}" for run in data.runs),
            data_file="-".join(run.name for run in data.runs),
        ),
    )


def _row(
    place: int, run: Compared, told: comparison.Numbers, first: comparison.Numbers, wanted: CompareView
) -> html.Tr:
    is_first = told is first
    ks = ", ".join(map(number_text.integer, told.micro_steps[:4]))
    cells: list[list[Any]] = [
        [elements.run_state(run.run["state"])],
        [_steps(run), *_below(f"counted from {number_text.integer(run.origin)}" if run.origin else "")],
        [number_text.integer(told.layers)],
        [html.Span(number_text.integer(told.firing), className="bad" if told.firing else None), *_below(_rules(told))],
        [told.dtypes or number_text.NOTHING, *_below(f"K {ks}" if ks else "")],
        [comparison.loss(told.loss_there), *_below(_losses(told))],
        _with_change(number_text.seconds(told.step_time_s), told.step_time_s, None if is_first else first.step_time_s),
        _with_change(
            number_text.size(told.peak_memory_bytes),
            told.peak_memory_bytes,
            None if is_first else first.peak_memory_bytes,
        ),
        [_incidents(run)],
    ]
    named = zip(HEADS[1:], cells, strict=True)
    tds = [html.Td(cell, role="cell", **elements.attributes(data_head=head)) for head, cell in named]
    return html.Tr([_name(place, run, wanted), *tds], role="row", **elements.attributes(data_key=run.name))


def _name(place: int, run: Compared, wanted: CompareView) -> html.Th:
    cross = html.Span("\N{MULTIPLICATION SIGN}", **elements.attributes(aria_hidden="true"))
    out = html.Span(f"Leave {run.name} out", className="unseen")
    leave = dcc.Link([cross, out], href=compare_url(wanted.without_run(run.name)), className="leave", title="Leave out")
    link = dcc.Link(run.name, href=run_url(run.name))
    return html.Th([chip(place, run), link, leave], scope="row", role="rowheader")


def chip(place: int, run: Compared) -> html.Span:
    """Return a run's letter with the pattern of its line."""
    line = {"background": overlay.pattern(place)}
    pattern = html.Span(className="pattern", style=line, **elements.attributes(aria_hidden="true"))
    return html.Span([html.B(run.letter), pattern], className="chip")


def _steps(run: Compared) -> str:
    if run.steps is None:
        return number_text.NOTHING
    first, last = (step + run.origin for step in run.steps)
    return f"{number_text.integer(first)} to {number_text.integer(last)}"


def _rules(told: comparison.Numbers) -> str:
    return ", ".join(rule.replace("_", " ") for rule in told.rules)


def _losses(told: comparison.Numbers) -> str:
    known = {"least": told.loss_least, "last": told.loss_last}
    return ", ".join(f"{name} {comparison.loss(value)}" for name, value in known.items() if value is not None)


def _with_change(text: str, now: float | None, before: float | None) -> list[Any]:
    return [text, *_below(comparison.change(now, before))]


def _below(text: str) -> list[Any]:
    return [html.Span(text, className="below")] if text else []


def _incidents(run: Compared) -> html.Span:
    opened = len(run.run["open_incidents"])
    words = f"{number_text.integer(opened)} open of {number_text.integer(len(run.incidents))}"
    return html.Span(words if run.incidents else "none", className="bad" if opened else None)
