"""Several runs over one step axis as Plotly figures: a stat of a layer, step time, memory, loss. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gradcanary_dashboard.analysis.curve import Curve
from gradcanary_dashboard.analysis.events import Events
from gradcanary_dashboard.analysis.launches import Hole
from gradcanary_dashboard.analysis.stats import Stat
from gradcanary_dashboard.figures import axes, curves, palette
from gradcanary_dashboard.figures import events as event_marks
from gradcanary_dashboard.text import units
from gradcanary_dashboard.text.units import Unit

COLOURS = ("#1c7ed6", "#a67c00", "#009e73", "#b5669b", "#868e96", "#d55e00")
"""Colours of the runs: hues of Okabe and Ito, "Color Universal Design", with a contrast of 3:1 on both themes. Red is
left out: it means firing."""

DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
"""Dashes of the runs: colour must not be the only difference."""

LENGTHS_PX = ((24,), (6, 3), (3, 3), (6, 2, 2, 2), (10, 4), (10, 3, 3, 3))
"""Lengths of each dash: of a line, of a hole, and so on."""


def pattern(place: int) -> str:
    """Return the line of a run as a background in CSS."""
    stops, end = [], 0
    for number, width in enumerate(LENGTHS_PX[place]):
        stops.append(f"{'transparent' if number % 2 else COLOURS[place]} {end}px {end + width}px")
        end += width
    return f"repeating-linear-gradient(90deg, {', '.join(stops)})"


STAT_HEIGHT = 300
COST_HEIGHT = 170

NO_LEVELS: Mapping[str, float] = {}

LABEL_PX = 13
NEAR = 0.04
"""Ends of lines closer than this share of the axis have their labels below each other."""


@dataclass(frozen=True)
class RunCurve:
    """A curve of one run, number ``place`` of those compared, its steps counted from the run's origin.

    ``letter`` is that of the run, with the name of the curve behind it if the run has several.
    """

    place: int
    letter: str
    curve: Curve

    @classmethod
    def read(
        cls, place: int, letter: str, answer: Mapping[str, Any], series: Mapping[str, Any], events: Events, origin: int
    ) -> RunCurve | None:
        """Return the curve of a series or metric; None if it is empty."""
        curve = Curve.read(answer, series, events)
        return None if curve.is_empty else cls.of(place, letter, curve, events, origin)

    @classmethod
    def of(cls, place: int, letter: str, curve: Curve, events: Events, origin: int) -> RunCurve:
        """Return a curve of a run, its steps counted from the run's origin."""
        holes = [Hole(hole.first - origin, hole.last - origin, hole.whys, hole.gaps) for hole in events.holes]
        return cls(place, letter, replace(curve, buckets=curve.buckets.shifted(-origin), holes=holes))

    @property
    def colour(self) -> str:
        """The run's colour."""
        return COLOURS[self.place]


@dataclass(frozen=True)
class Mark:
    """A step at which an incident of one of the runs opened, counted from the run's origin."""

    place: int
    step: float
    label: str
    words: str


def of_stat(
    strands: Sequence[RunCurve],
    span: axes.Span,
    stat: Stat,
    enter: float | None,
    marked: Sequence[Mark],
    axis: str,
    levels: Sequence[curves.Level] = (),
) -> axes.Figure:
    """Return a stat of one layer in each run, the threshold and other levels, and the steps of their incidents."""
    if not strands:
        return _nothing(span, STAT_HEIGHT, f"{stat.title}: no value of this parameter in these steps.", axis)
    if stat.is_log:
        levels = [*levels, *(_threshold(enter, levels) if stat.has_threshold else [])]
        drawn, floor, top = _log(strands, span, STAT_HEIGHT, levels)
    else:
        drawn, floor, top = _linear(strands, span, STAT_HEIGHT, from_zero=True)
    mark(drawn, marked, span)
    unseen = event_marks.pointers([{"from": m.step, "to": m.step, "text": m.words} for m in marked], span, top)
    return _figure(strands, span, drawn, floor, top, Unit(), axis, unseen)


def _threshold(enter: float | None, others: Sequence[curves.Level]) -> list[curves.Level]:
    """Return the threshold; alone its label is on the left, as the letters of lines are at their ends."""
    if enter is None:
        return []
    is_upper = not any(level.is_upper for level in others)
    return [curves.Level("threshold", enter, palette.ORANGE, is_upper=is_upper, is_left=not others)]


def of_run_metric(
    strands: Sequence[RunCurve],
    span: axes.Span,
    unit: Unit,
    nothing: str,
    axis: str,
    levels: Mapping[str, float] = NO_LEVELS,
) -> axes.Figure:
    """Return a metric of each run; the axis begins near the values, so that a few percent are visible.

    ``levels`` are lines across the plot by their names, on a linear axis.
    """
    if not strands:
        return _nothing(span, COST_HEIGHT, nothing, axis)
    told = [replace(strand, curve=strand.curve.scaled(unit.size)) for strand in strands]
    if curves.is_log([strand.curve for strand in told]) and not levels:
        drawn, floor, top = _log(told, span, COST_HEIGHT, [])
    else:
        drawn, floor, top = _linear(told, span, COST_HEIGHT, levels.values(), from_zero=False)
        known = [
            curves.Level(
                name, value, palette.GREEN if name == "level" else palette.ORANGE, value == max(levels.values())
            )
            for name, value in levels.items()
        ]
        drawn["shapes"] = [*drawn.get("shapes", []), *(level.line() for level in known)]
        drawn["annotations"] = [
            *drawn.get("annotations", []),
            *({**level.label(is_log=False)} for level in known),
        ]
    drawn["yaxis"]["ticksuffix"] = f" {unit.name}" if unit.name else ""
    return _figure(told, span, drawn, floor, top, unit, axis, [])


def seconds(strands: Sequence[RunCurve]) -> Unit:
    """Return s or ms, by the length of steps."""
    return units.of_seconds(_largest(strands))


def size(strands: Sequence[RunCurve]) -> Unit:
    """Return the unit of bytes, by the size of the memory."""
    return units.of_bytes(_largest(strands))


def _figure(
    strands: Sequence[RunCurve],
    span: axes.Span,
    drawn: dict[str, Any],
    floor: float,
    top: float,
    unit: Unit,
    axis: str,
    more: Sequence[dict[str, Any]],
) -> axes.Figure:
    is_log = drawn["yaxis"].get("type") == "log"
    data: list[dict[str, Any]] = []
    for strand in strands:
        shown = curves.above(strand.curve, floor) if is_log else strand.curve
        data += curves.envelope(shown, strand.colour)
    for strand in strands:
        shown = curves.above(strand.curve, floor) if is_log else strand.curve
        data += [_line(strand, shown, unit), *_crosses(strand, top)]
    drawn["annotations"] = [*drawn.get("annotations", []), *_labels(strands, span, drawn, floor)]
    drawn["xaxis"]["title"]["text"] = axis
    return {"data": [*data, *more], "layout": drawn}


def _line(strand: RunCurve, shown: Curve, unit: Unit) -> dict[str, Any]:
    line = curves.line(shown, strand.curve, strand.colour)
    line["line"] = {**line["line"], "width": 1.8, "dash": DASHES[strand.place]}
    suffix = f" {unit.name}" if unit.name else ""
    words = f"{strand.letter}  %{{customdata[1]}}{suffix}  at step %{{customdata[0]}}<extra></extra>"
    return {**line, "name": strand.letter, "hovertemplate": words}


def _crosses(strand: RunCurve, top: float) -> list[dict[str, Any]]:
    words = f"{strand.letter}  not finite at step %{{x:,.0f}}<extra></extra>"
    return [{**cross, "hovertemplate": words} for cross in curves.crosses(strand.curve, top)]


def _log(
    strands: Sequence[RunCurve], span: axes.Span, height: int, levels: Sequence[curves.Level]
) -> tuple[dict[str, Any], float, float]:
    """Return the layout, the floor for exact zeros, and a height near the top."""
    drawn, top, floor = curves.log_plot(
        [strand.curve for strand in strands], span, height, [level.value for level in levels]
    )
    for level in levels:
        drawn["shapes"] = [*drawn.get("shapes", []), level.line()]
        drawn["annotations"].append(level.label())
    return drawn, floor, top


def _linear(
    strands: Sequence[RunCurve], span: axes.Span, height: int, levels: Iterable[float] = (), *, from_zero: bool
) -> tuple[dict[str, Any], float, float]:
    known = np.concatenate([*(each for strand in strands for each in (strand.curve.low, strand.curve.high)), [*levels]])
    known = known[np.isfinite(known)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    low = min(low, 0.0) if from_zero else low
    room = 0.1 * (high - low) or 0.1 * abs(high) or 1.0
    bottom = low if from_zero and low == 0 else low - room
    drawn = axes.layout(span, height, {"range": [bottom, high + room]})
    return drawn, bottom, high


def _labels(
    strands: Sequence[RunCurve], span: axes.Span, drawn: Mapping[str, Any], floor: float
) -> list[dict[str, Any]]:
    """Return the letter of each run at the end of its line, without overlaps."""
    ends = sorted(filter(None, (_end(strand, drawn, floor) for strand in strands)), key=lambda end: end[2])
    labels: list[dict[str, Any]] = []
    for place, (strand, step, height) in enumerate(ends):
        near = [label for label in labels if abs(label["x"] - step) < NEAR * span.width]
        lowest = max((label["y"] * _plot_px(drawn) + label["yshift"] for label in near), default=-math.inf)
        shift = max(0.0, lowest + LABEL_PX - height * _plot_px(drawn)) if place else 0.0
        at = {"x": step, "xref": "x", "y": height, "yref": "paper", "yshift": shift, "xshift": 3}
        text = f'<b><span style="color:{strand.colour}">{strand.letter[:1]}</span></b>'
        labels.append({"text": text, **at, "xanchor": "left", "yanchor": "middle", "showarrow": False})
    _lower(labels, span, _plot_px(drawn))
    return labels


def _lower(labels: Sequence[dict[str, Any]], span: axes.Span, plot_px: float) -> None:
    """Move labels that stand out of the plot at its top down, and with them those right below."""
    above: list[tuple[float, float]] = []
    for label in reversed(labels):
        near = [height for step, height in above if abs(label["x"] - step) < NEAR * span.width]
        highest = min([plot_px - LABEL_PX / 2, *(height - LABEL_PX for height in near)])
        height = min(label["y"] * plot_px + label["yshift"], highest)
        label["yshift"] = height - label["y"] * plot_px
        above.append((label["x"], height))


def _end(strand: RunCurve, drawn: Mapping[str, Any], floor: float) -> tuple[RunCurve, float, float] | None:
    """Return the end of a line: its step, and its height as a share of the plot."""
    pieces = strand.curve.pieces()
    if not pieces:
        return None
    last = pieces[-1].stop - 1
    step, value = float(strand.curve.middle[last]), float(strand.curve.mean[last])
    bottom, top = drawn["yaxis"]["range"]
    height = math.log10(max(value, floor)) if drawn["yaxis"].get("type") == "log" else value
    part = (height - bottom) / (top - bottom) if math.isfinite(height) else 1.0
    return strand, step, min(1.0, max(0.0, part))


def _plot_px(drawn: Mapping[str, Any]) -> float:
    return float(drawn["height"] - drawn["margin"]["t"] - drawn["margin"]["b"])


def mark(drawn: dict[str, Any], marked: Sequence[Mark], span: axes.Span) -> None:
    """Add a line where an incident opened, with the run and its number above."""
    lines: list[dict[str, Any]] = []
    for mark in marked:
        line = {"color": COLOURS[mark.place], "width": 1.2, "dash": "dot"}
        ends = {"x0": mark.step, "x1": mark.step, "y0": 0, "y1": 1}
        lines.append({"type": "line", "xref": "x", "yref": "paper", **ends, "line": line})
    written = event_marks.labels([(mark.step, mark.label) for mark in marked], span)
    drawn["shapes"] = [*drawn.get("shapes", []), *lines]
    drawn["annotations"] = [*drawn.get("annotations", []), *written]


def _nothing(span: axes.Span, height: int, text: str, axis: str) -> axes.Figure:
    drawn = axes.nothing(span, height, text)
    drawn["layout"]["xaxis"]["title"]["text"] = axis
    return drawn


def _largest(strands: Sequence[RunCurve]) -> float:
    """Return the largest median of all runs."""
    return max((strand.curve.usual for strand in strands), default=0.0)
