"""Curves over the step axis as Plotly figures: one layer's trend, the loss; no I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gradcanary_dashboard import axes, palette, wording
from gradcanary_dashboard.columns import decode, encode

TREND_HEIGHT = 250
LOSS_HEIGHT = 190
FADE = "22"
"""Alpha of an envelope, in hex."""


@dataclass(frozen=True)
class Curve:
    """Buckets of one series: first step, smallest, mean and largest value (NaN = none), how many were not finite."""

    steps: axes.Floats
    bucket_steps: int
    low: axes.Floats
    mean: axes.Floats
    high: axes.Floats
    nonfinite: npt.NDArray[np.int32]

    @classmethod
    def read(cls, answer: Mapping[str, Any], series: Mapping[str, Any]) -> Curve:
        """Return one series or metric of an answer."""
        counted = decode(series["count"]) > 0
        low, mean, high = (
            np.where(counted, decode(series[key]).astype(np.float64), np.nan) for key in ("min", "mean", "max")
        )
        bucket = max(1, int(answer["bucket_steps"]))
        return cls(decode(answer["steps"]), bucket, low, mean, high, decode(series["nonfinite"]))

    @property
    def middle(self) -> axes.Floats:
        """The middle step of each bucket."""
        return self.steps + (self.bucket_steps - 1) / 2

    def pieces(self) -> list[slice]:
        """Return the stretches of buckets that hold values and follow each other without a hole."""
        known = np.isfinite(self.low) & np.isfinite(self.high)
        if not known.any():
            return []
        between = np.diff(self.steps)
        usual = max(float(self.bucket_steps), float(np.median(between)) if len(between) else 0.0)
        joined = known[1:] & known[:-1] & (between <= 1.5 * usual)
        starts = np.flatnonzero(known & ~np.concatenate(([False], joined)))
        ends = np.flatnonzero(known & ~np.concatenate((joined, [False]))) + 1
        return [slice(int(start), int(end)) for start, end in zip(starts, ends, strict=True)]


def trend(answer: Mapping[str, Any], span: axes.Span, firing: bool) -> axes.Figure:
    """Return one layer's curve on a log axis, with threshold, envelope and incident marks."""
    series = answer["series"][0]
    curve = Curve.read(answer, series)
    enter = float(answer["threshold"]["enter"])
    if not curve.pieces() and not curve.nonfinite.any():
        return axes.nothing(span, TREND_HEIGHT, "This layer has no value in these steps.")
    floor, top = _log_range(curve, enter)
    colour = palette.RED if firing else palette.BLUE
    shown = _above(curve, floor)
    yaxis = {"type": "log", "range": [math.log10(floor), math.log10(top)], "dtick": _decades_per_tick(floor, top)}
    drawn = axes.layout(span, TREND_HEIGHT, {**yaxis, "exponentformat": "power"})
    marked = axes.marks(answer["marks"], span, palette.RED)
    drawn["shapes"] = [_below(enter, floor), _threshold(enter), *marked["shapes"]]
    drawn["annotations"] = [_threshold_label(enter), *marked["annotations"], *_zero_label(curve, floor)]
    data = [*_envelope(shown, colour), _line(shown, curve, colour), *_nonfinite(curve, top / 1.3)]
    return {"data": data, "layout": drawn}


def loss(answer: Mapping[str, Any], span: axes.Span) -> axes.Figure:
    """Return the loss on a linear axis."""
    metric = next((metric for metric in answer["metrics"] if metric["name"] == "loss"), None)
    curve = Curve.read(answer, metric) if metric is not None else None
    if curve is None or (not curve.pieces() and not curve.nonfinite.any()):
        return axes.nothing(span, LOSS_HEIGHT, "No loss has been logged in these steps.")
    drawn = axes.layout(span, LOSS_HEIGHT, {"nticks": 5})
    finite = curve.high[np.isfinite(curve.high)]
    top = float(finite.max()) if finite.size else 1.0
    data = [*_envelope(curve, palette.GREY), _line(curve, curve, palette.GREY), *_nonfinite(curve, top)]
    return {"data": data, "layout": drawn}


def _log_range(curve: Curve, enter: float) -> tuple[float, float]:
    """Return the ends of the axis: half a decade of room on both sides, the threshold always in sight."""
    known = np.concatenate((curve.low, curve.high))
    positive = known[np.isfinite(known) & (known > 0)]
    low = min(float(positive.min()), enter) if positive.size else enter / 10
    high = max(float(positive.max()), enter) if positive.size else enter
    zeros = bool((curve.low == 0).any())
    return 10 ** (math.log10(low) - (1.0 if zeros else 0.4)), 10 ** (math.log10(high) + 0.4)


def _decades_per_tick(floor: float, top: float) -> int:
    return max(1, math.ceil((math.log10(top) - math.log10(floor)) / 6))


def _above(curve: Curve, floor: float) -> Curve:
    """Return the curve with exact zeros drawn on the floor of the log axis."""
    low, mean, high = (np.maximum(values, floor) for values in (curve.low, curve.mean, curve.high))
    return Curve(curve.steps, curve.bucket_steps, low, mean, high, curve.nonfinite)


def _envelope(curve: Curve, colour: str) -> list[dict[str, Any]]:
    """Return one closed polygon per contiguous piece (a fill between traces would bridge the gaps)."""
    polygons = []
    half = curve.bucket_steps / 2
    for piece in curve.pieces():
        steps, low, high = curve.middle[piece], curve.low[piece], curve.high[piece]
        if not (high > low).any():
            continue
        if len(steps) == 1:
            steps, low, high = steps + np.array([-half, half]), np.repeat(low, 2), np.repeat(high, 2)
        polygons.append(
            {
                "type": "scatter",
                "x": encode(np.concatenate((steps, steps[::-1]))),
                "y": encode(np.concatenate((high, low[::-1]))),
                "fill": "toself",
                "fillcolor": colour + FADE,
                "line": {"width": 0.6, "color": colour + "66"},
                "mode": "lines",
                "hoverinfo": "skip",
            }
        )
    return polygons


def _line(shown: Curve, exact: Curve, colour: str) -> dict[str, Any]:
    """Return the line of means; a lone bucket is a dot."""
    known = np.full(len(shown.steps), np.nan)
    for piece in shown.pieces():
        known[piece] = shown.mean[piece]
    lone = any(piece.stop - piece.start == 1 for piece in shown.pieces())
    return {
        "type": "scatter",
        "mode": "lines+markers" if lone else "lines",
        "x": encode(shown.middle),
        "y": encode(known),
        "line": {"color": colour, "width": 1.6},
        "marker": {"size": 4, "color": colour},
        "connectgaps": False,
        "customdata": [list(words) for words in zip(*_hover(exact), strict=True)],
        "hovertemplate": "step %{customdata[0]}<br>%{customdata[1]}<extra></extra>",
    }


def _hover(curve: Curve) -> tuple[list[str], list[str]]:
    texts = []
    for low, mean, high in zip(curve.low.tolist(), curve.mean.tolist(), curve.high.tolist(), strict=True):
        around = f" ({wording.scientific(low)} to {wording.scientific(high)})" if low < high else ""
        texts.append(wording.scientific(mean) + around)
    return axes.steps_text(curve.steps, curve.bucket_steps), texts


def _nonfinite(curve: Curve, height: float) -> list[dict[str, Any]]:
    """Return crosses where a value was not finite."""
    hit = curve.nonfinite > 0
    if not hit.any():
        return []
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "x": encode(curve.middle[hit]),
            "y": encode(np.full(int(hit.sum()), height)),
            "marker": {"symbol": "x", "size": 8, "color": palette.MAGENTA},
            "hovertemplate": "step %{x:,.0f}<br>not finite<extra></extra>",
        }
    ]


def _threshold(enter: float) -> dict[str, Any]:
    line = {"color": "#e8590c", "width": 1.2, "dash": "dash"}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": enter, "y1": enter, "line": line}


def _below(enter: float, floor: float) -> dict[str, Any]:
    sides = {"xref": "paper", "x0": 0, "x1": 1, "y0": floor, "y1": enter}
    return {"type": "rect", **sides, "fillcolor": palette.RED + "10", "line": {"width": 0}, "layer": "below"}


def _threshold_label(enter: float) -> dict[str, Any]:
    return {
        "text": f"threshold {wording.scientific(enter)}",
        "xref": "paper",
        "x": 1,
        "xanchor": "right",
        "y": math.log10(enter),
        "yanchor": "bottom",
        "showarrow": False,
    }


def _zero_label(curve: Curve, floor: float) -> list[dict[str, Any]]:
    if not (curve.low == 0).any():
        return []
    place = {"xref": "paper", "x": 0, "xanchor": "left", "y": math.log10(floor), "yanchor": "bottom"}
    return [{"text": "exact 0", **place, "showarrow": False}]
