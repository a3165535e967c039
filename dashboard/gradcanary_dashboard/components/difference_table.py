"""Layers of several runs, the one that differs most first, as rows of a table; no I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from dash import dcc, html

from gradcanary_dashboard.address.comparison import CompareView
from gradcanary_dashboard.analysis import comparison
from gradcanary_dashboard.analysis.compared_runs import CompareData
from gradcanary_dashboard.analysis.comparison import dtype
from gradcanary_dashboard.analysis.differences import Difference
from gradcanary_dashboard.analysis.layers import MAX_ROWS
from gradcanary_dashboard.analysis.stats import STATS, Stat
from gradcanary_dashboard.components import elements, layer_table, share_bar, static, table
from gradcanary_dashboard.components.table import Column
from gradcanary_dashboard.figures import overlay
from gradcanary_dashboard.text import numbers

COLUMNS = (
    Column("Parameter", "button"),
    Column("Difference", "gap"),
    Column("Levels", "levels"),
    Column("Where", "where"),
)

NAMED = 40
"""Layers that only some runs have, by name."""


def listed(data: CompareData, wanted: CompareView) -> dict[str, Any]:
    """Return the contents of the card."""
    rows = data.found.rows
    accumulators = [{layer["name"]: layer["accumulator"] for layer in run.layers} for run in data.runs]
    begun = [place for place, run in enumerate(data.runs) if run.steps is not None]
    stat = STATS[wanted.view.stat]
    told = [_difference(row, data, begun, accumulators, stat) for row in rows[:MAX_ROWS]]
    return {
        "differences-csv": share_bar.compared_url(wanted, "differences"),
        "compare-refusal": data.refusal and f"{data.refusal} All parameters are listed.",
        "compare-measure": _measure(data, wanted),
        "differences": table.written(COLUMNS, told),
        "differences-tally": layer_table.tally(len(rows), len(told), "most different"),
        "differences-rest": static.encode(_rest(data)),
    }


def _measure(data: CompareData, wanted: CompareView) -> str:
    """Return by what the layers are ordered, or why none is listed."""
    stat, found = STATS[wanted.view.stat], data.found
    if data.common is None:
        return "Nothing to hold against each other."
    if wanted.view.rows and not data.refusal and not (found.rows or found.unmeasured or found.partly):
        return f"No parameter has a name that {wanted.view.rows} matches."
    if not found.rows:
        return "No parameter was measured in all of these runs."
    where = numbers.steps(*data.common).lower()
    unit = ", in decades" if stat.is_log else ""
    over = f"over {found.stretches} equal parts of {where}" if found.stretches > 1 else f"over {where}"
    first = next(run.letter for run in data.runs if run.steps is not None)
    return f"Largest difference of {stat.title.lower()} between {first} and another run, {over} (medians{unit})."


def _difference(
    row: Difference,
    data: CompareData,
    begun: Sequence[int],
    accumulators: Sequence[Mapping[str, Mapping[str, str | None]]],
    stat: Stat,
) -> table.Row:
    other = data.runs[begun[row.of]]
    dtypes = [dtype(accumulators[place].get(row.name)) for place in (begun[0], begun[row.of])]
    whose = f"{other.letter} " if len(begun) > 2 else ""
    levels = [
        [
            "span",
            {},
            ["b", {"style": f"border-color: {overlay.COLOURS[place]}"}, data.runs[place].letter],
            f" {_value(value)}",
        ]
        for place, value in zip(begun, row.values, strict=True)
    ]
    change = dtypes[0] if dtypes[0] == dtypes[1] else f"{dtypes[0]} \N{RIGHTWARDS ARROW} {dtypes[1]}"
    gap = {"text": whose + _gap(row, stat), "mark": "far" if _is_far(row, stat) else ""}
    where = f"{numbers.steps(row.first, row.last).lower()} \N{MIDDLE DOT} {change}"
    return table.Row(row.name, [gap, {"parts": levels}, where], is_chosen=row.name == data.layer, common=data.names)


def _value(value: float) -> str:
    if math.isnan(value):
        return numbers.NOTHING
    return numbers.scientific(value) if math.isfinite(value) else "not finite"


def _gap(row: Difference, stat: Stat) -> str:
    if math.isfinite(row.gap):
        sign = "+" if row.gap > 0 else comparison.MINUS if row.gap < 0 else ""
        return f"{sign}{abs(row.gap):.1f} decades" if stat.is_log else f"{sign}{numbers.scientific(abs(row.gap))}"
    first, other = row.values[0], row.values[row.of]
    if np.isinf([first, other]).any():
        return "not finite" if np.isinf(other) else "finite again"
    return "to exact 0" if other == 0 else "from exact 0"


def _is_far(row: Difference, stat: Stat) -> bool:
    return abs(row.gap) >= 1 if stat.is_log else not math.isfinite(row.gap)


def _rest(data: CompareData) -> list[Any]:
    """Return what is said of layers that cannot be held against each other."""
    lines: list[Any] = []
    if data.found.unmeasured:
        lines.append(html.P(f"{numbers.plural(data.found.unmeasured, 'parameter')} without a value in the same steps."))
    begun = [run for run in data.runs if run.steps is not None]
    groups: dict[tuple[int, ...], list[str]] = {}
    for name, having in (data.found.partly or {}).items():
        groups.setdefault(having, []).append(name)
    for having, names in groups.items():
        letters = " and ".join(begun[place].letter for place in having)
        shown = [html.Li(elements.parameter(name)) for name in names[:NAMED]]
        shown += [html.Li(f"and {numbers.integer(len(names) - NAMED)} more")] if len(names) > NAMED else []
        summary = html.Summary(f"{numbers.plural(len(names), 'parameter')} only in {letters}")
        lines.append(html.Details([summary, html.Ul(shown)]))
    return lines


def card(contents: Mapping[str, Any]) -> html.Div:
    """Return the card that stays, with its first contents."""
    refusal = html.P(contents.get("compare-refusal"), id="compare-refusal", className="refusal", role="alert")
    heads = table.heads(COLUMNS)
    drawn = table.table("differences", heads, contents, labelled_by="differences-title", shows_heads=False)
    tally = html.Span(contents.get("differences-tally"), id="differences-tally")
    words = "All parameters of this list, of the steps in sight"
    table_csv = share_bar.csv_link("differences-csv", contents.get("differences-csv"), words, "take")
    card = elements.card(
        "differences",
        html.P(contents.get("compare-measure"), id="compare-measure", className="dim"),
        html.Div([_sought(), refusal], className="controls"),
        html.Div(drawn, className="scroll", tabIndex=0),
        static.slot("differences-rest", contents.get("differences-rest"), className="rest"),
        title="Parameters, most different first",
        aside=[tally, table_csv],
    )
    return html.Div(card, className="beside")


def _sought() -> html.Div:
    field = dcc.Input(
        id="rows", type="search", placeholder="parameters, a regex: lora_A|mlp", autoComplete="off", spellCheck=False
    )
    label = html.Label("Parameters whose name matches", htmlFor="rows", className="unseen")
    return html.Div([label, field], className="field", **elements.attributes(data_key="rows"))
