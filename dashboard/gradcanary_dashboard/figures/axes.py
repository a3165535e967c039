"""The shared layout of all figures: one step axis, equal margins, no modebar. Pure."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from gradcanary_dashboard.address.run import View
from gradcanary_dashboard.analysis.arrays import Floats, encode, read
from gradcanary_dashboard.analysis.buckets import Buckets
from gradcanary_dashboard.analysis.clock import Clock
from gradcanary_dashboard.figures import palette
from gradcanary_dashboard.text import numbers

Figure: TypeAlias = dict[str, Any]

MARGIN = {"l": 92, "r": 16, "t": 20, "b": 42}
TICK_PX = 24
LINE = 34
"""Characters per line of a sentence in a plot that fit on a phone."""

AXIS_LETTERS = 32
"""Characters of all labels of a step axis that fit side by side on a phone."""

MOST_TICKS = 7

ROUND, DIGITS = 2_000, 1_000
"""From this many visible steps labels are in thousands, unless both ends would have the same label."""

CLEAR = "rgba(0,0,0,0)"


@dataclass(frozen=True)
class Span:
    """The visible steps of all figures of a page; zoom and scroll stay while its identity stays."""

    first: float
    last: float
    identity: str
    clock: Clock | None = None

    @classmethod
    def of(cls, run: str, view: View, answer: Mapping[str, Any]) -> Span:
        """Return the steps of the view; all steps of the answer where the view has none."""
        buckets = Buckets.of(answer)
        first, last = (buckets.first[0], buckets.end) if len(buckets.first) else (0.0, 1.0)
        first = first if view.from_step is None else view.from_step
        last = last if view.to_step is None else view.to_step
        return cls(float(first), float(max(last, first)), f"{run}|{view.from_step}|{view.to_step}")

    def timed(self, clock: Clock | None) -> Span:
        """Return the span with a time axis; with a step axis if there is no clock."""
        return self if clock is None else replace(self, clock=clock, identity=f"{self.identity}|time")

    def at(self, step: float) -> float:
        """Return the position of a step on the axis: itself, or its time."""
        return step if self.clock is None else float(self.clock.at(step))

    def placed(self, traces: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return traces over steps as traces over the axis."""
        if self.clock is None:
            return list(traces)
        return [{**trace, "x": encode(self.clock.at(_steps_of(trace["x"])))} for trace in traces]

    @property
    def width(self) -> float:
        """The number of visible steps."""
        return self.last - self.first + 1

    def axis(self) -> dict[str, Any]:
        """Return the x axis; labels are whole steps, few enough for a phone."""
        return {
            "range": [self.at(self.first - 0.5), self.at(self.last + 0.5)],
            **(self._step_ticks() if self.clock is None else {"type": "date", "nticks": 4}),
            "tickangle": 0,
            "zeroline": False,
            "showline": False,
            "ticks": "",
            "title": {"text": "step" if self.clock is None else "time, UTC", "standoff": 8, "font": {"size": 11.5}},
        }

    def _step_ticks(self) -> dict[str, Any]:
        if self.width > max(ROUND, self.last / DIGITS):  # 12k, 1.2M, 12.346M
            digits = math.ceil(math.log10(MOST_TICKS * self.last / self.width)) + 1
            return {"tickformat": "~s", "nticks": _ticks_of(digits + len(".M"))}
        letters = len(numbers.integer(self.last))
        few = {"dtick": 1} if self.width <= min(6, AXIS_LETTERS // letters) else {}
        return {"tickformat": ",d", "nticks": _ticks_of(letters), **few}


def _ticks_of(letters: int) -> int:
    return min(MOST_TICKS, max(2, AXIS_LETTERS // letters))


def _steps_of(x: Mapping[str, Any] | Sequence[float]) -> Floats:
    return np.asarray(read(x) if isinstance(x, Mapping) else x, np.float64)


def layout(span: Span, height: int, yaxis: Mapping[str, Any]) -> dict[str, Any]:
    """Return a figure's layout; dragging zooms along the steps only. Values have labels as far as there is room."""
    return {
        "height": height,
        "margin": dict(MARGIN),
        "paper_bgcolor": CLEAR,
        "plot_bgcolor": CLEAR,
        "showlegend": False,
        "dragmode": "zoom",
        "hovermode": "x",
        "hoverlabel": {
            "bgcolor": palette.DARK,
            "bordercolor": palette.DARK,
            "font": {"color": palette.WHITE},
            "align": "left",
        },
        "font": {"size": 11.5},
        "uirevision": span.identity,
        "xaxis": span.axis(),
        "yaxis": {
            "fixedrange": True,
            "zeroline": False,
            "showline": False,
            "ticks": "",
            "ticklabelstandoff": 5,
            "ticklabeloverflow": "allow",  # else Plotly measures each label; there is room for half of one
            **_ticks(height),
            **yaxis,
        },
    }


def anchored(step: float, span: Span, room: float) -> str:
    """Return the alignment of a label of this share of the axis at a step: near the ends it stays inside."""
    if step > span.last - room / 2 * span.width:
        return "right"
    return "left" if step < span.first + room / 2 * span.width else "center"


def _ticks(height: int) -> dict[str, int]:
    return {"nticks": max(2, min(5, (height - MARGIN["t"] - MARGIN["b"]) // TICK_PX))}


def nothing(span: Span, height: int, text: str) -> Figure:
    """Return an empty figure with the reason in it."""
    note = {"text": wrapped(text), "showarrow": False, "xref": "paper", "yref": "paper", "x": 0.5, "y": 0.5}
    return {"data": [], "layout": {**layout(span, height, {"visible": False}), "annotations": [note]}}


def plain(text: str) -> str:
    """Return a text escaped for Plotly, whose labels are a kind of HTML."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def wrapped(text: str) -> str:
    """Return a sentence for Plotly in lines that fit on a phone."""
    return "<br>".join(map(plain, textwrap.wrap(text, LINE)))
