"""The learning rates of all parameter groups in one figure, with its legend. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gradcanary_dashboard.analysis.configurations import RATE_OF_GROUP
from gradcanary_dashboard.analysis.curve import Curve
from gradcanary_dashboard.analysis.events import Events
from gradcanary_dashboard.figures import axes, curves, palette
from gradcanary_dashboard.figures import events as event_marks

HEIGHT = 190
MOST_GROUPS = 16
"""Most requested groups: an optimizer that steps inside backward may have one per layer."""

COLOURS = (palette.BLUE, palette.GREEN, palette.MAGENTA, palette.GREY, palette.TEAL)
"""Colours of the lines, and so their largest number; red and orange mean firing and thresholds."""


@dataclass(frozen=True)
class Rate:
    """A curve, and the numbers of its parameter groups."""

    curve: Curve
    groups: Sequence[int]
    colour: str

    @property
    def name(self) -> str:
        """The parameter groups in words."""
        return f"group{'s' if len(self.groups) > 1 else ''} {', '.join(map(str, self.groups))}"

    @property
    def ident(self) -> str:
        """The id of the line on the page."""
        return f"lr{self.groups[0]}"


def groups(metrics: Iterable[Mapping[str, Any]]) -> list[int]:
    """Return the parameter groups with a learning rate among the metrics of a run."""
    named = (RATE_OF_GROUP.fullmatch(metric["name"]) for metric in metrics if not metric["tags"])
    return sorted({int(match[1]) for match in named if match})


def is_rate(name: str) -> bool:
    """Return True if a metric is the learning rate of a parameter group."""
    return RATE_OF_GROUP.fullmatch(name) is not None


def names(metrics: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the names of the drawn learning rates, by group."""
    return [f"lr{group}" for group in groups(metrics)[:MOST_GROUPS]]


def read(answer: Mapping[str, Any], events: Events) -> list[Rate]:
    """Return the learning rates of an answer; groups with equal rates share a line."""
    found: dict[bytes, Rate] = {}
    by_name = {metric["name"]: metric for metric in answer["metrics"] if not metric["tags"]}
    for name in names(answer["metrics"]):
        curve = Curve.read(answer, by_name[name], events)
        if curve.is_empty:
            continue
        key = curve.low.tobytes() + curve.high.tobytes()
        if key in found:
            found[key] = replace(found[key], groups=[*found[key].groups, int(name[2:])])
        elif len(found) < len(COLOURS):
            found[key] = Rate(curve, [int(name[2:])], COLOURS[len(found)])
    return list(found.values())


def figure(
    rates: Sequence[Rate], span: axes.Span, events: Events, *, is_log: bool = True, others: Sequence[Rate] = ()
) -> axes.Figure:
    """Return the figure, on a log axis by default: a schedule spans decades. ``others`` are those of another run."""
    if not rates:
        return axes.nothing(span, HEIGHT, "No learning rate has been logged in these steps.")
    both = [*rates, *others]
    drawn, top, shown = curves.plotted([rate.curve for rate in both], span, HEIGHT, {}, is_log=is_log)
    pointed = event_marks.draw(drawn, events, span, palette.RED, curves.HOLE_FILL)
    lines = [_line(*each) for each in zip(rates, shown[: len(rates)], strict=True)]
    lines += [curves.beside(each, rate.curve) for rate, each in zip(others, shown[len(rates) :], strict=True)]
    return {"data": [*span.placed(lines), *event_marks.pointers(pointed, span, top)], "layout": drawn}


def legend(rates: Sequence[Rate], known: Sequence[int]) -> list[dict[str, Any]]:
    """Return the legend: the groups of each colour, and the number of ``known`` groups without a line."""
    drawn = sum(len(rate.groups) for rate in rates)
    if len(rates) == 1 and drawn == len(known):
        return [{"text": f"all {drawn} parameter groups"}] if drawn > 1 else []
    left = [{"text": f"{len(known) - drawn} more groups"}] if 0 < drawn < len(known) else []
    named = [{"id": rate.ident, "text": rate.name, "colour": rate.colour, "dash": "solid"} for rate in rates]
    return [*named, *left]


def _line(rate: Rate, shown: Curve) -> dict[str, Any]:
    line = curves.line(shown, rate.curve, rate.colour)
    return {**line, "meta": rate.ident, "hovertemplate": f"{rate.name}<br>{line['hovertemplate']}"}
