"""What the three figures of a run share: one step axis, equal margins, incident marks, no modebar."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gradcanary_dashboard import palette, wording
from gradcanary_dashboard.view import View

Figure: TypeAlias = dict[str, Any]
Floats: TypeAlias = npt.NDArray[np.float64]

CONFIG: Any = {
    "displayModeBar": False,
    "displaylogo": False,
    "plotlyServerURL": "",
    "doubleClick": "autosize",
    "responsive": True,
}
"""No button that sends a chart to a cloud, no link to the maker; a double click shows the whole run again."""

MARGIN = {"l": 92, "r": 16, "t": 20, "b": 42}
CLEAR = "rgba(0,0,0,0)"
LABELLED_MARKS = 12


@dataclass(frozen=True)
class Span:
    """The steps that the three figures show, and what stays put while the span's identity does."""

    first: float
    last: float
    identity: str

    @classmethod
    def of(cls, run: str, view: View, steps: Floats, bucket_steps: int) -> Span:
        """Return the view's steps where it names them, else all there are."""
        first = steps[0] if len(steps) else 0.0
        last = steps[-1] + bucket_steps - 1 if len(steps) else 1.0
        first = first if view.from_step is None else view.from_step
        last = last if view.to_step is None else view.to_step
        return cls(float(first), float(max(last, first + 1)), f"{run}|{view.from_step}|{view.to_step}")

    def axis(self) -> dict[str, Any]:
        """Return the x axis."""
        return {
            "range": [self.first - 0.5, self.last + 0.5],
            "tickformat": ",d",
            "nticks": 7,
            "zeroline": False,
            "showline": False,
            "ticks": "",
            "title": {"text": "step", "standoff": 8, "font": {"size": 11.5}},
        }


def layout(span: Span, height: int, yaxis: Mapping[str, Any]) -> dict[str, Any]:
    """Return a figure's layout; zoom is by dragging along the steps only."""
    return {
        "height": height,
        "margin": dict(MARGIN),
        "paper_bgcolor": CLEAR,
        "plot_bgcolor": CLEAR,
        "showlegend": False,
        "dragmode": "zoom",
        "hovermode": "x",
        "hoverlabel": {"bgcolor": palette.DARK, "bordercolor": palette.DARK, "font": {"color": palette.WHITE}},
        "font": {"size": 11.5},
        "uirevision": span.identity,
        "xaxis": span.axis(),
        "yaxis": {"fixedrange": True, "zeroline": False, "showline": False, "ticks": "", **yaxis},
    }


def nothing(span: Span, height: int, text: str) -> Figure:
    """Return an empty figure that says why it is empty."""
    note = {"text": plain(text), "showarrow": False, "xref": "paper", "yref": "paper", "x": 0.5, "y": 0.5}
    return {"data": [], "layout": {**layout(span, height, {"visible": False}), "annotations": [note]}}


def marks(points: Iterable[Mapping[str, Any]], span: Span, ink: str) -> dict[str, Any]:
    """Return the vertical lines of incidents, with the numbers of those that fired above the plot."""
    seen = [mark for mark in points if span.first <= mark["step"] <= span.last]
    return {
        "shapes": [_line(mark, ink) for mark in seen],
        "annotations": [_label(mark) for mark in seen if mark["kind"] == "fired"][-LABELLED_MARKS:],
    }


def plain(text: str) -> str:
    """Return a text that Plotly shows as it is: its labels are a small HTML."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def steps_text(steps: Floats, bucket_steps: int) -> list[str]:
    """Return ``12,340`` or, for a bucket of several steps, ``12,320 to 12,351``."""
    if bucket_steps <= 1:
        return [wording.integer(step) for step in steps]
    return [f"{wording.integer(step)} to {wording.integer(step + bucket_steps - 1)}" for step in steps]


def _line(mark: Mapping[str, Any], ink: str) -> dict[str, Any]:
    colour = ink if mark["kind"] == "fired" else palette.GREEN
    return {
        "type": "line",
        "xref": "x",
        "yref": "paper",
        "x0": mark["step"],
        "x1": mark["step"],
        "y0": 0,
        "y1": 1,
        "line": {"color": colour, "width": 1.2, "dash": "dot"},
    }


def _label(mark: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "text": f"#{int(mark['incident'])}",
        "x": mark["step"],
        "y": 1,
        "xref": "x",
        "yref": "paper",
        "yanchor": "bottom",
        "showarrow": False,
    }
