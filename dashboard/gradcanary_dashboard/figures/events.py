"""Events on a step axis: incidents, launches and missing steps. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from gradcanary_dashboard.analysis import launches as run_launches
from gradcanary_dashboard.analysis.events import Events
from gradcanary_dashboard.analysis.launches import Hole
from gradcanary_dashboard.figures import axes, palette
from gradcanary_dashboard.text import numbers as number_text

LETTER = 0.025
"""Share of the axis that a character takes on a phone: labels that would overlap are left out."""

LAUNCH_LINE_PX = 13
HOVER_POINTS = 60
"""Points along the whole axis at which the pointer can find a hole."""


def draw(layout: dict[str, Any], events: Events, span: axes.Span, ink: str, hole_fill: str) -> list[dict[str, Any]]:
    """Add lines, bands and labels to a layout; return each event as ``{"from", "to", "text"}`` for the pointer."""
    holes = run_launches.in_sight(events.holes, span.first, span.last)
    launch_ink = palette.DARK if ink == palette.DARK else palette.GREY
    resumed = events.resumed(span.first, span.last)
    fired = [mark for mark in events.incidents if span.first <= mark["step"] <= span.last]
    layout["shapes"] = [
        *layout.get("shapes", []),
        *_bands(holes, span, hole_fill),
        *(_line(span.at(launch.first or 0), launch_ink, "solid") for launch, _ in resumed),
        *(_line(span.at(mark["step"]), ink if mark["kind"] == "fired" else palette.GREEN, "dot") for mark in fired),
    ]
    numbers = [(mark["step"], f"#{int(mark['incident'])}") for mark in fired if mark["kind"] == "fired"]
    names = [(launch.first or 0, f"launch {launch.number}") for launch, _ in resumed]
    layout["annotations"] = [
        *layout.get("annotations", []),
        *labels(numbers, span),
        *labels(names, span, LAUNCH_LINE_PX),
    ]
    if names:
        layout["margin"]["t"] += LAUNCH_LINE_PX
        layout["height"] += LAUNCH_LINE_PX
    return [
        *({"from": hole.first, "to": hole.last, "text": hole.text} for hole in holes),
        *({"from": launch.first, "to": launch.first, "text": text} for launch, text in resumed),
        *({"from": mark["step"], "to": mark["step"], "text": _words(mark)} for mark in fired),
    ]


def pointers(events: Iterable[Mapping[str, Any]], span: axes.Span, height: float) -> list[dict[str, Any]]:
    """Return invisible points for the pointer, along a hole as many as its width needs."""
    points = [(place, event["text"]) for event in events for place in _places(event, span)]
    if not points:
        return []
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "x": [span.at(place) for place, _ in points],
            "y": [height] * len(points),
            "marker": {"opacity": 0, "size": 1},
            "customdata": [axes.wrapped(text) for _, text in points],
            "hovertemplate": "%{customdata}<extra></extra>",
        }
    ]


def _places(event: Mapping[str, Any], span: axes.Span) -> list[float]:
    first, last = max(event["from"], span.first), min(event["to"], span.last)
    count = max(1, math.ceil((last - first) / span.width * HOVER_POINTS))
    return [first + (last - first) * (place + 0.5) / count for place in range(count)]


def _words(mark: Mapping[str, Any]) -> str:
    verb = {"fired": "opened"}.get(mark["kind"], mark["kind"])
    return f"Incident #{int(mark['incident'])} {verb} at step {number_text.integer(mark['step'])}"


def _bands(holes: Sequence[Hole], span: axes.Span, fill: str) -> list[dict[str, Any]]:
    """Return all holes as one shape; the outline keeps a hole of less than a pixel visible."""
    if not holes:
        return []
    ends = [(max(hole.first, span.first) - 0.5, min(hole.last, span.last) + 0.5) for hole in holes]
    sides = [(_written(span, first), _written(span, last)) for first, last in ends]
    path = " ".join(f"M{left},0 L{left},1 L{right},1 L{right},0 Z" for left, right in sides)
    line = {"color": palette.NO_DATA, "width": 1}
    return [{"type": "path", "xref": "x", "yref": "paper", "path": path, "fillcolor": fill, "line": line}]


def _written(span: axes.Span, step: float) -> float | str:
    """Return a position for a path: on a date axis Plotly reads texts there."""
    if span.clock is None:
        return step
    when = datetime.fromtimestamp(span.at(step) / 1e3, timezone.utc)
    return when.strftime("%Y-%m-%d_%H:%M:%S.%f")


def _line(step: float, colour: str, dash: str) -> dict[str, Any]:
    line = {"color": colour, "width": 1.2, "dash": dash}
    return {"type": "line", "xref": "x", "yref": "paper", "x0": step, "x1": step, "y0": 0, "y1": 1, "line": line}


def labels(named: Sequence[tuple[float, str]], span: axes.Span, up: int = 0) -> list[dict[str, Any]]:
    """Return texts above their steps, ``up`` pixels above the plot; from the first on, those that have room."""
    written: list[dict[str, Any]] = []
    free = -math.inf
    for step, text in sorted(named):
        room = LETTER * (len(text) + 1)
        anchor = axes.anchored(step, span, room)
        left = step - {"left": 0.0, "center": 0.5, "right": 1.0}[anchor] * room * span.width
        if left < free:
            continue
        free = left + room * span.width
        place = {"x": span.at(step), "y": 1, "xref": "x", "yref": "paper", "yanchor": "bottom", "yshift": up}
        written.append({"text": text, **place, "xanchor": anchor, "showarrow": False})
    return written
