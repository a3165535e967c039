"""Curves over the step axis as Plotly figures: the trend of a layer, and lines for all figures. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gradcanary_dashboard.analysis.arrays import Floats, encode
from gradcanary_dashboard.analysis.curve import Curve
from gradcanary_dashboard.analysis.events import Events
from gradcanary_dashboard.analysis.stats import Stat
from gradcanary_dashboard.figures import axes, palette
from gradcanary_dashboard.figures import events as event_marks
from gradcanary_dashboard.text import numbers

SPREAD = 10.0
"""Beyond this ratio of the largest to the smallest value the default axis is logarithmic: the end of a loss that fell
by decades stays readable, and a first step may take minutes."""

LOG, LOG_ABOVE_0, NOTHING_ABOVE_0 = (
    "log axis",
    "log axis, what is not above 0 on its floor",
    "linear: nothing is above 0",
)

TREND_HEIGHT = 250
VS_NAMES = ("this run", "vs")
VS_PEN = {"colour": "#b5669b", "dash": "dash"}
"""The names of the lines of two runs, and the pen of the second one: beside all other colours, 3:1 on both themes."""

FADE = "22"
"""Alpha of an envelope, in hex."""

HOLE_FILL = palette.NO_DATA + "50"

FEW_DECADES = 2
MOST_LABELS = 5

LEAST_ROOM = 0.1
"""Of the height of a log axis, under a label: half a line of the smallest figure."""

DOTTED = 40
"""Up to this many samples each has a dot: a full zoom shows which steps were sampled."""


def is_log(found: Sequence[Curve], wanted: str = "auto") -> bool:
    """Return True for a log axis: as ``wanted`` (``log``, ``linear``), else if the values span more than a decade.

    Never if no value is above 0.
    """
    known = _known(found)
    if wanted == "linear" or not (known > 0).any():
        return False
    return wanted == "log" or bool(known.min() > 0 and known.max() > SPREAD * known.min())


def words(found: Sequence[Curve], wanted: str) -> str:
    """Return the note about the axis of values; empty for a linear axis unless a log axis was wanted."""
    if not is_log(found, wanted):
        return NOTHING_ABOVE_0 if wanted == "log" and len(_known(found)) else ""
    return LOG if _known(found).min() > 0 else LOG_ABOVE_0


def _known(found: Sequence[Curve]) -> Floats:
    known: Floats = np.concatenate([np.zeros(0), *(each for curve in found for each in (curve.low, curve.high))])
    finite: Floats = known[np.isfinite(known)]
    return finite


@dataclass(frozen=True)
class Level:
    """A value with a line across the plot: a threshold or a baseline."""

    name: str
    value: float
    colour: str
    is_upper: bool
    is_left: bool = False

    def line(self) -> dict[str, Any]:
        """Return the line."""
        line = {"color": self.colour, "width": 1.2, "dash": "dash"}
        return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": self.value, "y1": self.value, "line": line}

    def label(self, *, is_log: bool = True) -> dict[str, Any]:
        """Return the label, above the line or below, so that two labels never overlap."""
        side = {"x": 0, "xanchor": "left", "xshift": 4} if self.is_left else {"x": 1, "xanchor": "right"}
        height = {
            "y": math.log10(self.value) if is_log else self.value,
            "yanchor": "bottom" if self.is_upper else "top",
        }
        return {
            "text": f"{self.name} {numbers.scientific(self.value)}",
            "xref": "paper",
            **side,
            **height,
            "showarrow": False,
        }


def trend(
    answer: Mapping[str, Any],
    span: axes.Span,
    stat: Stat,
    events: Events,
    *,
    firing: bool = False,
    baseline: float | None = None,
    height: int = TREND_HEIGHT,
    other: Curve | None = None,
) -> axes.Figure:
    """Return a stat of one layer: the mean in its envelope, and the stat's threshold and baseline.

    ``other`` is the same layer in another run.
    """
    curve = Curve.read(answer, answer["series"][0], events)
    if curve.is_empty:
        return axes.nothing(span, height, f"{stat.title}: no value of this parameter in these steps.")
    colour = palette.RED if firing and stat.has_threshold else palette.BLUE
    levels = _levels(answer, baseline) if stat.has_threshold else []
    found = [curve, *([other] if other is not None and not other.is_empty else [])]
    drawn, top, (shown, *others) = _plot(found, span, height, stat, levels)
    pointed = event_marks.draw(drawn, events, span, palette.RED, HOLE_FILL)
    lines = [line(shown, curve, colour), *(beside(each, exact) for each, exact in zip(others, found[1:], strict=True))]
    if others:
        lines[0]["name"] = VS_NAMES[0]
    data = span.placed([*envelope(shown, colour), *lines, *crosses(curve, top)])
    return {"data": [*data, *event_marks.pointers(pointed, span, top)], "layout": drawn}


def _levels(answer: Mapping[str, Any], baseline: float | None) -> list[Level]:
    enter = float(answer["threshold"]["enter"])
    if baseline is None or baseline <= 0:
        return [Level("threshold", enter, palette.ORANGE, True)]
    return [
        Level("threshold", enter, palette.ORANGE, enter > baseline),
        Level("baseline", baseline, palette.GREEN, enter <= baseline),
    ]


def _plot(
    found: Sequence[Curve], span: axes.Span, height: int, stat: Stat, levels: Sequence[Level]
) -> tuple[dict[str, Any], float, list[Curve]]:
    """Return the layout, a height near its top, and the curves as drawn there."""
    if not stat.is_log:
        return axes.layout(span, height, {"rangemode": "tozero"}), max(map(top_of, found)), list(found)
    drawn, top, floor = log_plot(found, span, height, [level.value for level in levels])
    below = [_below(levels[0].value, floor)] if levels else []
    drawn["shapes"] = [*below, *(level.line() for level in levels)]
    drawn["annotations"] = [*(level.label() for level in levels), *drawn["annotations"]]
    return drawn, top, [above(curve, floor) for curve in found]


def log_plot(
    found: Sequence[Curve], span: axes.Span, height: int, levels: Sequence[float] = ()
) -> tuple[dict[str, Any], float, float]:
    """Return the layout of a log axis, a height near its top, and the floor for values without a logarithm."""
    floor, top = _log_range(found, levels)
    ticks = _ticks(floor, top)
    floor = _below_labels(floor, top, ticks)
    yaxis = {"type": "log", "range": [math.log10(floor), math.log10(top)], "dtick": ticks}
    drawn = axes.layout(span, height, {**yaxis, "exponentformat": "power"})
    drawn["annotations"] = [_floor_label(found, floor)] if _is_cut(found) else []
    return drawn, top / 1.3, floor


def plotted(
    found: Sequence[Curve], span: axes.Span, height: int, yaxis: Mapping[str, Any], *, is_log: bool
) -> tuple[dict[str, Any], float, list[Curve]]:
    """Return the layout of curves on a log or a linear axis, a height near its top, and the curves as drawn there."""
    if not is_log:
        return axes.layout(span, height, yaxis), max(map(top_of, found)), list(found)
    drawn, top, floor = log_plot(found, span, height)
    drawn["yaxis"].update(yaxis)
    return drawn, top, [above(curve, floor) for curve in found]


def top_of(curve: Curve) -> float:
    finite = curve.high[np.isfinite(curve.high)]
    return float(finite.max()) if finite.size else 1.0


def _log_range(found: Sequence[Curve], levels: Sequence[float]) -> tuple[float, float]:
    """Return the ends of the axis: all levels visible, with room on both sides for their labels."""
    known = np.concatenate([*(curve.low for curve in found), *(curve.high for curve in found), levels])
    positive = known[np.isfinite(known) & (known > 0)]
    low, high = (float(positive.min()), float(positive.max())) if positive.size else (1e-2, 1.0)
    room = 0.4 if len(levels) else min(0.4, 0.1 + 0.1 * math.log10(high / low))
    return 10 ** (math.log10(low) - (1.0 if _is_cut(found) else room)), 10 ** (math.log10(high) + room)


def _is_cut(found: Sequence[Curve]) -> bool:
    """Return True if some values have no logarithm and are drawn on the floor."""
    return any(bool((curve.low <= 0).any()) for curve in found)


def _ticks(floor: float, top: float) -> int | str:
    """Return the distance of labels in decades; under two decades, which may have one power of ten, at 2 and 5 as well.

    An axis without a power of ten, or with no 2 or 5 beside it, has two to five numbers at equal distances: a lone 2
    would not say of which decade it is, and a lone label says nothing of the distance of two values.
    """
    low, high = math.log10(floor), math.log10(top)
    if high - low >= FEW_DECADES:
        return max(1, math.ceil((high - low) / 6))
    decades = range(math.floor(low), math.floor(high) + 1)
    if (
        math.floor(high) >= low
        and sum(floor <= part * 10.0**decade <= top for decade in decades for part in (1, 2, 5)) > 1
    ):
        return "D2"
    steps = [part * 10.0 ** math.floor(low) for part in (0.1, 0.2, 0.5, 1, 2, 5)]
    return f"L{next(step for step in steps if top // step - floor // step <= MOST_LABELS)}"


def _below_labels(floor: float, top: float, ticks: int | str) -> float:
    """Return a floor so far under the lowest label that this is not upon the first label of the steps."""
    if not isinstance(ticks, str) or not ticks.startswith("L"):
        return floor
    step, room = float(ticks[1:]), math.log10(top / floor) * LEAST_ROOM
    return min(floor, math.ceil(floor / step) * step / math.pow(10, room))


def above(curve: Curve, floor: float) -> Curve:
    """Return the curve with values without a logarithm, such as exact zeros, on the floor of the log axis."""
    low, mean, high = (np.maximum(values, floor) for values in (curve.low, curve.mean, curve.high))
    return replace(curve, low=low, mean=mean, high=high)


def envelope(curve: Curve, colour: str) -> list[dict[str, Any]]:
    """Return one closed polygon per contiguous piece (a fill between traces would bridge the gaps)."""
    polygons = []
    for piece in curve.pieces():
        steps, low, high = curve.middle[piece], curve.low[piece], curve.high[piece]
        if not (high > low).any():
            continue
        if len(steps) == 1:
            half = curve.buckets.width[piece] / 2
            steps, low, high = np.concatenate((steps - half, steps + half)), np.repeat(low, 2), np.repeat(high, 2)
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


def line(shown: Curve, exact: Curve, colour: str, told: Callable[[float], str] = numbers.scientific) -> dict[str, Any]:
    """Return the line of means, broken between pieces; a lone bucket is a dot, and so is each of a few.

    ``told`` formats a value of several samples; a single sample has all its digits.
    """
    pieces = shown.pieces()
    nothing = np.full(1, np.nan)
    x = [part for piece in pieces for part in (shown.middle[piece], nothing)]
    y = [part for piece in pieces for part in (shown.mean[piece], nothing)]
    words = [part for piece in pieces for part in (*_hover(exact, piece, told), ["", ""])]
    dots = any(piece.stop - piece.start == 1 for piece in pieces) or len(words) <= DOTTED
    return {
        "type": "scatter",
        "mode": "lines+markers" if dots else "lines",
        "x": encode(np.concatenate(x) if x else nothing),
        "y": encode(np.concatenate(y) if y else nothing),
        "line": {"color": colour, "width": 1.6},
        "marker": {"size": 4, "color": colour},
        "connectgaps": False,
        "customdata": words,
        "hovertemplate": "step %{customdata[0]}<br>%{customdata[1]}<extra></extra>",
    }


def beside(shown: Curve, exact: Curve, told: Callable[[float], str] = numbers.scientific) -> dict[str, Any]:
    """Return the line of another run, dashed."""
    drawn = line(shown, exact, VS_PEN["colour"], told)
    words = f"{VS_NAMES[1]}<br>{drawn['hovertemplate']}"
    dashed, small = {**drawn["line"], "dash": VS_PEN["dash"]}, {**drawn["marker"], "size": 2.5}
    return {**drawn, "line": dashed, "marker": small, "name": VS_NAMES[1], "meta": VS_NAMES[1], "hovertemplate": words}


def smooth(average: Curve, colour: str, dash: str) -> dict[str, Any]:
    """Return the line of a moving average; the pointer reads the measured values behind it."""
    drawn = line(average, average, colour)
    told = {key: drawn[key] for key in ("type", "x", "y", "connectgaps")}
    return {**told, "mode": "lines", "line": {**drawn["line"], "dash": dash}, "hoverinfo": "skip"}


def _hover(curve: Curve, piece: slice, told: Callable[[float], str]) -> list[list[str]]:
    """Return the hover texts of buckets: a single sample with all digits, else mean and extremes."""
    columns = (curve.low, curve.mean, curve.high, curve.count)
    texts = []
    for low, mean, high, count in zip(*(column[piece].tolist() for column in columns), strict=True):
        around = f" ({told(low)} to {told(high)})" if low < high else ""
        is_exact = count == 1 and told is numbers.scientific
        texts.append(numbers.exact(mean) if is_exact else told(mean) + around)
    are_single = bool((curve.count[piece] <= 1).all())  # after a change of the interval a bucket may have several
    steps = curve.buckets[piece].words(are_single=are_single)
    return [list(words) for words in zip(steps, texts, strict=True)]


def crosses(curve: Curve, height: float) -> list[dict[str, Any]]:
    """Return crosses at non-finite values."""
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
            "customdata": curve.buckets[hit].words(are_single=False),
            "hovertemplate": "step %{customdata}<br>not finite<extra></extra>",
        }
    ]


def _below(enter: float, floor: float) -> dict[str, Any]:
    sides = {"xref": "paper", "x0": 0, "x1": 1, "y0": floor, "y1": enter}
    return {"type": "rect", **sides, "fillcolor": palette.RED + "10", "line": {"width": 0}, "layer": "below"}


def _floor_label(found: Sequence[Curve], floor: float) -> dict[str, Any]:
    words = "0 or less" if any(bool((curve.low < 0).any()) for curve in found) else "exact 0"
    place = {"xref": "paper", "x": 0, "xanchor": "left", "xshift": 4, "y": math.log10(floor), "yanchor": "bottom"}
    return {"text": words, **place, "showarrow": False}
