"""Accumulators of a run in few lines: layers that were summed alike together, their kinds by what it cost; no I/O."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from dash import html

from gradcanary import remedies, wire
from gradcanary_dashboard.analysis.layers import Layer
from gradcanary_dashboard.components import elements
from gradcanary_dashboard.text import numbers
from gradcanary_dashboard.text.glossary import explain
from gradcanary_dashboard.text.names import NOTHING_COMMON, Common

LOW = ("bfloat16", "float16")
SHOWN_KINDS = 6
"""Kinds of layers in sight; the others are one click away."""

LOSSY, SHRUNK, STILL = 0.05, 0.95, 0.9
"""From here on a number is worth a colour and a word: the rule accumulation_loss, and weights that stand still."""

COLUMNS = (
    ("error", "What summing up lost, beside a float32 sum: the largest of these parameters"),
    ("norm ratio", "Norm of the sum by that of a float32 sum: the smallest of these parameters"),
    ("frozen", "Share of the weights that 50 steps or more did not move: the largest of these parameters"),
)


@dataclass(frozen=True)
class Kind:
    """Layers with the same name but for numbers: the worst of what was measured of any of them, None = of none."""

    pattern: str
    layers: int
    error: float | None
    norm_ratio: float | None
    frozen: float | None

    @property
    def expression(self) -> str:
        """The names as a regular expression, for the rows of the heatmap."""
        return "^" + r"\d+".join(re.escape(part) for part in self.pattern.split("#")) + "$"

    @property
    def worst_first(self) -> tuple[float, float, float, str]:
        """What kinds are ordered by."""
        error, ratio, frozen = self.error or 0.0, self.norm_ratio, self.frozen or 0.0
        return -error, 1.0 if ratio is None else ratio, -frozen, self.pattern


@dataclass(frozen=True)
class Group:
    """Layers whose gradients were summed alike: dtypes as an accumulator has them, that of the weights, and K."""

    declared: str | None
    stored: str | None
    effective: str | None
    weights: str
    k: int | None
    kinds: Sequence[Kind]

    @property
    def layers(self) -> int:
        """How many."""
        return sum(kind.layers for kind in self.kinds)

    @property
    def is_low(self) -> bool:
        """Whether several micro-steps were summed in a dtype that swallows small addends."""
        return (self.effective or self.stored) in LOW and (self.k or 1) > 1


def groups(layers: Sequence[Layer]) -> list[Group]:
    """Return the layers by how they were summed, low precision first, then the largest."""
    found: dict[tuple[str | None, str | None, str | None, str, int | None], list[Layer]] = {}
    for layer in layers:
        told = layer["accumulator"]
        key = (told["declared"], told["stored"], told["effective"], layer["param_dtype"], layer["micro_steps"])
        found.setdefault(key, []).append(layer)
    made = [Group(*key, _kinds(mine)) for key, mine in found.items()]
    return sorted(made, key=lambda group: (not group.is_low, -group.layers))


def card(
    found: Sequence[Group],
    framework: str | None,
    rows: str | None = None,
    common: Common = NOTHING_COMMON,
    *,
    has_ended: bool = False,
) -> list[Any]:
    """Return the contents of the card: per group its dtypes and kinds, and what to do about low precision.

    ``rows`` is the expression that chooses the rows in sight, ``common`` what the names of the run share.
    """
    if not found:
        return [html.P("No parameter." if has_ended else "No parameter yet.", className="dim")]
    return [
        *(_group(group, rows, common) for group in found),
        *(_remedy(framework) if any(group.is_low for group in found) else []),
    ]


def tally(found: Sequence[Group]) -> str:
    """Return ``144 layers, all alike`` or ``144 layers, summed in 3 ways``."""
    layers = numbers.plural(sum(group.layers for group in found), "parameter")
    return f"{layers}, all alike" if len(found) == 1 else f"{layers}, summed in {len(found)} ways" if found else ""


def _kinds(layers: Sequence[Layer]) -> list[Kind]:
    alike: dict[str, list[Layer]] = {}
    for layer in layers:
        alike.setdefault(_pattern(layer["name"]), []).append(layer)
    made = [
        Kind(
            # One of a kind keeps its number.
            pattern if len(mine) > 1 else mine[0]["name"],
            len(mine),
            _worst(mine, "accumulation_error", max),
            _worst(mine, "norm_ratio", min),
            _worst(mine, "frozen_fraction", max),
        )
        for pattern, mine in alike.items()
    ]
    return sorted(made, key=lambda kind: kind.worst_first)


@lru_cache(maxsize=numbers.KEPT)
def _pattern(name: str) -> str:
    return re.sub(r"\d+", "#", name)


def _worst(layers: Sequence[Layer], stat: str, which: Any) -> float | None:  # noqa: ANN401 -- min or max
    known = [layer[stat] for layer in layers if layer.get(stat) is not None and math.isfinite(layer[stat])]
    return float(which(known)) if known else None


def _group(group: Group, rows: str | None, common: Common) -> html.Section:
    named = {"declared": group.declared, "stored": group.stored, "effective": group.effective, "weights": group.weights}
    dtypes = [html.Div([_term(name), html.Dd(dtype or numbers.NOTHING)]) for name, dtype in named.items()]
    k = html.Div([_term("K"), html.Dd(numbers.integer(group.k))])
    measured = any(value is not None for kind in group.kinds for value in (kind.error, kind.norm_ratio, kind.frozen))
    columns = COLUMNS if measured else ()
    shown, more = group.kinds[:SHOWN_KINDS], group.kinds[SHOWN_KINDS:]
    rest = (
        [
            html.Details(
                [
                    html.Summary(f"{numbers.plural(len(more), 'more kind')} of parameters"),
                    _grid(more, columns, rows, common),
                ]
            )
        ]
        if more
        else []
    )
    words = numbers.plural(group.layers, "parameter") + (
        ": low precision, summed over micro-steps" if group.is_low else ""
    )
    mark = [elements.icon("warning" if group.is_low else "check"), html.Span(words)]
    return html.Section(
        [
            html.H3(mark, className="tone-warning" if group.is_low else None),
            html.Dl([*dtypes, k], className="dtypes"),
            _grid(shown, columns, rows, common),
            *rest,
        ],
        className="sums",
        **elements.attributes(data_key=f"{group.declared} {group.stored} {group.effective} {group.weights} {group.k}"),
    )


def _term(word: str) -> html.Dt:
    return html.Dt(elements.explained(word, explain(word)))


def _grid(kinds: Sequence[Kind], columns: Sequence[tuple[str, str]], rows: str | None, common: Common) -> html.Table:
    heads = [
        html.Th("parameters", scope="col"),
        *(html.Th(elements.explained(name, meaning), scope="col") for name, meaning in columns),
    ]
    lines = [
        html.Tr(
            [_name(kind, rows, common), *_cells(kind)[: len(columns)]], **elements.attributes(data_key=kind.pattern)
        )
        for kind in kinds
    ]
    return html.Table([html.Thead(html.Tr(heads)), html.Tbody(lines)], className="kinds")


def _name(kind: Kind, rows: str | None, common: Common) -> html.Th:
    """Return the names of a kind; a click shows its rows only, in heatmap and table, another one all again."""
    pressed = str(kind.expression == rows).lower()
    words = elements.attributes(data_key="rows", data_choice=kind.expression, data_toggles="", aria_pressed=pressed)
    title = f"{kind.pattern}: show these rows only"
    shown = html.Button(elements.parameter(kind.pattern, common), type="button", className="kind", title=title, **words)
    return html.Th(
        [shown, html.Span(f"\N{MULTIPLICATION SIGN} {numbers.integer(kind.layers)}", className="dim")], scope="row"
    )


def _cells(kind: Kind) -> list[html.Td]:
    told: list[tuple[float | None, str, bool]] = [
        (kind.error, numbers.NOTHING if kind.error is None else numbers.percent(kind.error), (kind.error or 0) > LOSSY),
        (
            kind.norm_ratio,
            numbers.scientific(kind.norm_ratio),
            kind.norm_ratio is not None and kind.norm_ratio < SHRUNK,
        ),
        (
            kind.frozen,
            numbers.NOTHING if kind.frozen is None else numbers.percent(kind.frozen),
            (kind.frozen or 0) > STILL,
        ),
    ]
    return [_cell(value, text, is_bad=is_bad) for value, text, is_bad in told]


def _cell(value: float | None, text: str, *, is_bad: bool) -> html.Td:
    if value is None:
        return html.Td(text, className="dim", title="not measured yet")
    return html.Td([elements.icon("warning"), text], className="bad") if is_bad else html.Td(text)


def _remedy(framework: str | None) -> list[Any]:
    fix = remedies.fix("low_precision_sum", framework)
    said = [
        html.P(remedies.CAUSES["low_precision_sum"].text),
        html.P(fix.text),
        *([elements.code(fix.code)] if fix.code else []),
    ]
    return [html.Details([html.Summary("What to do about low precision"), *said], className="remedy")]


def facts(run: Mapping[str, Any]) -> list[Any]:
    """Return the findings about a run's settings, beside what they led to; frozen parameters stand with the layers."""
    findings = [fact for fact in run["facts"] if fact["code"] != wire.FROZEN_PARAMETERS]
    listed = [html.Li([elements.icon("info"), html.Span(fact["text"])]) for fact in findings]
    return [html.H3("Findings"), html.Ul(listed, className="findings")] if listed else []
