"""The runs of a comparison: their numbers, one a row, their configurations, one a column, and their signs; no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from dash import dcc, html

from gradcanary_dashboard.address.comparison import CompareView, compare_url
from gradcanary_dashboard.address.run import run_url
from gradcanary_dashboard.analysis import comparison
from gradcanary_dashboard.analysis import configurations as configuration_values
from gradcanary_dashboard.analysis.compared_runs import TIMED_STEPS, Compared, CompareData
from gradcanary_dashboard.components import elements
from gradcanary_dashboard.figures import overlay
from gradcanary_dashboard.text import numbers as number_text
from gradcanary_dashboard.text.glossary import explain

HEADS = (
    "Run",
    "State",
    "Steps",
    "Parameters",
    "Not recovered",
    "Accumulators",
    "Loss",
    "Step time",
    "Peak memory",
    "Incidents",
)
HINTS = {
    "Not recovered": f"Parameters with a rule that fires, or fired as the run ended. {explain('firing')}",
    "Loss": "Median of the last points of the steps that all runs have; least, over them; last, of the run",
    "Step time": f"Median of single steps: the last {number_text.integer(TIMED_STEPS)}, at most, that all runs have",
    "Peak memory": "Largest over the steps that all runs have",
    "Accumulators": "The dtype that gradients are summed in, as their values show, else as stored",
}


def table(data: CompareData, numbers: Sequence[comparison.Numbers], wanted: CompareView) -> html.Table:
    """Return the table; each number is held against that of the first run."""
    shown = (elements.explained(head, HINTS[head]) if head in HINTS else head for head in HEADS)
    heads = [html.Th(head, scope="col", role="columnheader") for head in shown]
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


def configurations(data: CompareData) -> list[Any]:
    """Return the configurations, one run a column: what differs on top, what is the same folded."""
    rows = configuration_values.rows([run.run for run in data.runs])
    differing = [row for row in rows if row.differs]
    same = [row for row in rows if not row.differs]
    if not rows:
        return [html.P("The agents sent the configuration of fewer than two of these runs.", className="dim")]
    found: list[Any] = [html.P("Nothing that the agents sent differs.", className="dim")]
    if differing:
        heads = [html.Th("Setting", scope="col"), *(_head(place, run) for place, run in enumerate(data.runs))]
        found = [_columns([html.Thead(html.Tr(heads)), *_parts(differing)], "What differs")]
    if same:
        whose = "both runs" if len(data.runs) == 2 else f"all {len(data.runs)} runs"
        of = f"{number_text.plural(len(same), 'value')} the same in {whose}"
        folded = [html.Summary(of), _columns(_parts(same), "The same in all runs")]
        found.append(html.Details(folded, **elements.attributes(data_key="same")))
    return found


def _columns(parts: list[Any], words: str) -> html.Div:
    label = elements.attributes(aria_label=words)
    return html.Div(html.Table(parts, **label), className="columns-of", tabIndex=0, role="region", **label)


def _head(place: int, run: Compared) -> html.Th:
    return html.Th([chip(place, run), html.Span(run.name, className="run-name")], scope="col")


def _parts(rows: Sequence[configuration_values.Row]) -> list[html.Tbody]:
    """Return the rows of each section below its name; of values that are the same, one cell."""
    parts: list[html.Tbody] = []
    for section, its in groupby(rows, key=lambda row: row.section):
        heading = html.Tr(html.Th(section, scope="rowgroup", colSpan=99), className="section")
        parts.append(html.Tbody([heading, *map(_values, its)], **elements.attributes(data_key=section)))
    return parts


def _values(row: configuration_values.Row) -> html.Tr:
    known = [value for place, value in enumerate(row.values) if place not in row.unknown]
    cells = [html.Td(known[0], className="value")]
    if row.differs:
        words = ["not known" if place in row.unknown else value or "not set" for place, value in enumerate(row.values)]
        marks = [
            "other" if place not in row.unknown and value != known[0] else "" for place, value in enumerate(row.values)
        ]
        cells = [_value(*each) for each in zip(row.values, words, marks, strict=True)]
    return html.Tr([html.Th(row.name, scope="row"), *cells], **elements.attributes(data_key=row.name))


def _value(value: str | None, words: str, mark: str) -> html.Td:
    return html.Td(words if value else html.Span(words, className="dim"), className=f"value {mark}".strip())


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
