"""The metrics of a run as figures: one per name, a line for each set of tags, never averaged. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from gradcanary_dashboard.address.run import View
from gradcanary_dashboard.analysis.curve import Curve
from gradcanary_dashboard.analysis.events import Events
from gradcanary_dashboard.figures import axes, curves, learning_rates, palette
from gradcanary_dashboard.figures import events as event_marks
from gradcanary_dashboard.text import numbers, units
from gradcanary_dashboard.text.units import Unit

USUAL_LINES = 12
MOST_LINES = 24
"""Lines of a figure: by default, and at most. Colours times dashes distinguish that many."""

LISTED = 400
"""Most entries of a legend; with more, the reader narrows the expression."""

MOST_PANELS = 100
FAINT = 0.35
"""Opacity of the measured line behind its moving average."""

ENVELOPES = 3
"""Up to this many lines each has its envelope."""

COLOURS = (palette.BLUE, palette.GREEN, palette.VIOLET, palette.TEAL, palette.GREY, palette.OCHRE)
DASHES = ("solid", "dash", "dot", "dashdot")


@dataclass(frozen=True)
class Kind:
    """The drawing of a metric: title, description, height in pixels, unit of the axis, and format of a value.

    One that ``is_dense`` has a value in each step: a step without one is a hole. One that ``is_large`` has the width of
    the page, others stand in two columns.
    """

    title: str
    words: str = ""
    height: int = 140
    axis: Mapping[str, Any] = field(default_factory=dict)
    unit: Callable[[float], Unit] = units.plain
    told: Callable[[float], str] = numbers.scientific
    is_dense: bool = False
    is_large: bool = False


RATES = "rates"
OWN = {
    "loss": Kind("Loss", height=250, is_dense=True, is_large=True),
    RATES: Kind("Learning rate", height=learning_rates.HEIGHT, is_large=True),
    "total_norm": Kind("Total norm", "of all gradients, before clipping", 220, is_dense=True, is_large=True),
    "clip_factor": Kind("Clip factor", "what gradients were multiplied with", is_dense=True),
    "scaler_scale": Kind("Scale of the GradScaler", told=numbers.integer, is_dense=True),
    "skipped_total": Kind("Skipped steps", "in all so far", told=numbers.integer),
    "step_time_s": Kind("Step time", unit=units.of_seconds, told=numbers.seconds, is_dense=True),
    "peak_memory_bytes": Kind("Peak memory", unit=units.of_bytes, told=numbers.size),
    "agent_share": Kind("Agent", "its share of the time", axis={"tickformat": "~%"}, told=numbers.percent),
}
"""The agent's own metrics in the order of the page; logged metrics follow by name."""


@dataclass(frozen=True)
class Series:
    """A metric with one set of tags; ``ident`` is its name in addresses."""

    name: str
    tags: Mapping[str, str]
    last: float | None

    @property
    def ident(self) -> str:
        """Ten digits of a hash of name and tags: the same in every run."""
        return sha256(json.dumps([self.name, self.tags], sort_keys=True).encode()).hexdigest()[:10]

    @property
    def text(self) -> str:
        """The tags in words."""
        return ", ".join(f"{tag}={value}" for tag, value in sorted(self.tags.items())) or "no tags"


@dataclass(frozen=True)
class OtherPanel:
    """The same figure of another run: its panel, an answer with its line, and its events."""

    run: str
    panel: Panel
    answer: Mapping[str, Any]
    events: Events

    def line(self) -> dict[str, Any]:
        """Return its line in the legend."""
        last = self.panel.last if self.panel.key != RATES else ""
        return {"id": curves.VS_NAMES[1], "text": self.run, "last": last, **curves.VS_PEN}


@dataclass(frozen=True)
class Panel:
    """One figure; ``key`` is the id of its element."""

    key: str
    kind: Kind
    series: Sequence[Series]

    @property
    def is_plain(self) -> bool:
        """True if it can be drawn over that of another run: learning rates, or one line without tags."""
        return self.key == RATES or (len(self.series) == 1 and not self.series[0].tags)

    @property
    def last(self) -> str:
        """The last value of its first line."""
        return "" if self.series[0].last is None else self.kind.told(self.series[0].last)

    @property
    def names(self) -> list[str]:
        """The names of its metrics."""
        return list(dict.fromkeys(each.name for each in self.series))

    @property
    def asked(self) -> list[str]:
        """The names to request: of many learning rates only the drawn ones."""
        if self.key == RATES:
            return learning_rates.names({"name": name, "tags": {}} for name in self.names)
        return self.names

    @property
    def entries(self) -> int:
        """The number of lines in the legend."""
        return len(self.asked) if self.key == RATES else len(self.series)

    @property
    def words(self) -> str:
        """The description of the metric, or the number of its lines."""
        if len(self.series) == 1 or self.key == RATES:
            return self.kind.words
        tags = sorted({tag for each in self.series for tag in each.tags})
        return f"{numbers.plural(len(self.series), 'line')} by {', '.join(tags)}"

    @property
    def none(self) -> str:
        """The id in an address that means no line of this figure."""
        return Series(self.key, {}, None).ident

    def chosen(self, view: View) -> list[Series]:
        """Return the lines to draw: those in the address, which may be none, else the first ones."""
        named = [each for each in self.series if each.ident in view.lines]
        if not named and self.none in view.lines:
            return []
        return named[:MOST_LINES] or list(self.series[:USUAL_LINES])


def of(metrics: Iterable[Mapping[str, Any]]) -> list[Panel]:
    """Return the panels of a run's metrics."""
    found: dict[str, list[Series]] = {}
    for metric in metrics:
        series = Series(metric["name"], metric["tags"], metric["last"])
        is_rate = not series.tags and learning_rates.is_rate(series.name)
        found.setdefault(RATES if is_rate else series.name, []).append(series)
    own = [name for name in OWN if name in found]
    others = sorted(name for name in found if name not in OWN)
    return [_panel(name, found[name]) for name in (*own, *others)]


def listed(panels: Sequence[Panel], sought: str | None = None) -> tuple[Sequence[Panel], str]:
    """Return the panels with ``sought`` in their name, at most as many as a page draws, and the text below them."""
    found = _matching(panels, sought)
    return found[:MOST_PANELS], _more(found, sought)


def tally(panels: Sequence[Panel], sought: str | None) -> str:
    """Return ``130 metrics, of which 100 are drawn``, or ``12 of 130 metrics`` for a search."""
    found, total = len(_matching(panels, sought)), numbers.plural(len(panels), "metric")
    words = f"{numbers.integer(found)} of {total}" if sought else total
    return f"{words}, of which {MOST_PANELS} are drawn" if found > MOST_PANELS else words


def _matching(panels: Sequence[Panel], sought: str | None) -> list[Panel]:
    part = (sought or "").strip().casefold()
    return [panel for panel in panels if any(part in name.casefold() for name in (panel.kind.title, *panel.names))]


def _more(found: Sequence[Panel], sought: str | None) -> str:
    """Return the text below the cards if there are more panels, or none."""
    if sought and not found:
        return f"No metric has \N{LEFT DOUBLE QUOTATION MARK}{sought}\N{RIGHT DOUBLE QUOTATION MARK} in its name."
    more = len(found) - MOST_PANELS
    return f"{numbers.plural(more, 'more metric')} can be found by a part of the name." if more > 0 else ""


def draw(
    panel: Panel,
    answer: Mapping[str, Any],
    span: axes.Span,
    events: Events,
    view: View,
    other: OtherPanel | None = None,
) -> dict[str, Any]:
    """Return a panel's figure and legend, from an answer with at least the lines to draw.

    Over a plain panel that of another run is drawn.
    """
    other = other if panel.is_plain else None
    if panel.key == RATES:
        return _draw_rates(panel, answer, span, events, view, other)
    chosen = panel.chosen(view)
    pens = {each.ident: _pen(place, len(chosen)) for place, each in enumerate(chosen)}
    read = _curves(panel, answer, events)
    drawn = [(each, read[each.ident]) for each in chosen if each.ident in read]
    others = list(_curves(other.panel, other.answer, other.events).values()) if other else []
    figure = _figure(panel, drawn, pens, span, events, view, others)
    is_one = len(panel.series) == 1
    legend = [] if is_one else [_entry(panel, each, pens) for each in panel.series[:LISTED]]
    if other and pens:
        [(ident, pen)] = pens.items()
        legend = [{"id": ident, "text": curves.VS_NAMES[0], "last": panel.last, **pen}, other.line()]
    return {
        "key": panel.key,
        "figure": figure,
        "legend": legend,
        "of": len(panel.series),
        "none": panel.none,
        "last": f"last {panel.last}" if is_one and panel.last and not other else "",
        "scale": curves.words([curve for _, curve in drawn], view.y),
    }


def _draw_rates(
    panel: Panel,
    answer: Mapping[str, Any],
    span: axes.Span,
    events: Events,
    view: View,
    other: OtherPanel | None,
) -> dict[str, Any]:
    found = learning_rates.read(answer, events)
    others = learning_rates.read(other.answer, other.events) if other else []
    known = learning_rates.groups({"name": each.name, "tags": each.tags} for each in panel.series)
    figure = learning_rates.figure(found, span, events, is_log=view.y != "linear", others=others)
    legend = learning_rates.legend(found, known)
    if other:
        own = {"id": "lr0", "text": curves.VS_NAMES[0], "colour": learning_rates.COLOURS[0], "dash": "solid"}
        legend = [*(legend or [own]), other.line()]
    return {"key": panel.key, "figure": figure, "legend": legend, "of": len(known), "last": "", "scale": ""}


def _panel(name: str, series: list[Series]) -> Panel:
    ranked = sorted(series, key=lambda each: (bool(each.tags), each.text))
    kind = OWN.get(name) or Kind(name)
    key = name if name in OWN else f"metric-{sha256(name.encode()).hexdigest()[:10]}"
    return Panel(key, kind, ranked)


def _pen(place: int, lines: int) -> dict[str, str]:
    """Return the colour and dash of a line; a single line is grey."""
    colour = palette.GREY if lines == 1 else COLOURS[place % len(COLOURS)]
    return {"colour": colour, "dash": DASHES[place // len(COLOURS) % len(DASHES)]}


def _entry(panel: Panel, series: Series, pens: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    last = "not finite" if series.last is None else panel.kind.told(series.last)
    pen = pens.get(series.ident)
    return {"id": series.ident, "text": series.text, "last": last, "drawn": pen is not None, **(pen or {})}


def _curves(panel: Panel, answer: Mapping[str, Any], events: Events) -> dict[str, Curve]:
    found = {}
    for metric in answer["metrics"]:
        series = Series(metric["name"], metric["tags"], None)
        curve = Curve.read(answer, metric, events)
        if series.name in panel.names and not curve.is_empty:
            found[series.ident] = curve if panel.kind.is_dense and not series.tags else curve.known()
    return found


def _figure(
    panel: Panel,
    drawn: Sequence[tuple[Series, Curve]],
    pens: Mapping[str, Mapping[str, str]],
    span: axes.Span,
    events: Events,
    view: View,
    others: Sequence[Curve] = (),
) -> axes.Figure:
    if not pens:
        return axes.nothing(span, panel.kind.height, "Every line is switched off: choose some below.")
    if not drawn:
        return axes.nothing(span, panel.kind.height, f"{panel.kind.title}: nothing was logged in these steps.")
    unit = panel.kind.unit(max(curve.usual for _, curve in drawn))
    suffix = {"ticksuffix": f" {unit.name}"} if unit.name else {}
    scaled, weight = [curve.scaled(unit.size) for _, curve in drawn], float(view.smooth)
    averages = [curve.smoothed(weight) for curve in scaled] if weight else []
    beside = [(curve.smoothed(weight) if weight else curve).scaled(unit.size) for curve in others]
    yaxis, is_log = {**suffix, **panel.kind.axis}, curves.is_log([*scaled, *beside], view.y)
    both = [*scaled, *averages, *beside]
    layout, top, shown = curves.plotted(both, span, panel.kind.height, yaxis, is_log=is_log)
    layout["hovermode"] = "x" if len(drawn) == 1 else "closest"
    traces: list[dict[str, Any]] = []
    for place, (series, curve) in enumerate(drawn):
        pen, line = pens[series.ident], shown[place]
        traces += curves.envelope(line, pen["colour"]) if len(drawn) <= ENVELOPES and not weight else []
        traces.append(_line(panel, series, line, curve, pen))
        if weight:
            traces[-1]["opacity"] = FAINT
            traces.append(curves.smooth(shown[len(drawn) + place], pen["colour"], pen["dash"]))
        traces += curves.crosses(line, top)
    for line, curve in zip(shown[len(scaled) + len(averages) :], others, strict=True):
        traces.append(curves.beside(line, curve, panel.kind.told))
    pointed = event_marks.draw(layout, events, span, palette.RED, curves.HOLE_FILL)
    return {"data": [*span.placed(traces), *event_marks.pointers(pointed, span, top)], "layout": layout}


def _line(panel: Panel, series: Series, shown: Curve, curve: Curve, pen: Mapping[str, str]) -> dict[str, Any]:
    line = curves.line(shown, curve, pen["colour"], panel.kind.told)
    line["line"] = {**line["line"], "dash": pen["dash"]}
    line["meta"] = series.ident
    if len(panel.series) > 1:
        # Not within the template, where %{..} has a meaning.
        line["name"] = axes.wrapped(series.text)
        line["hovertemplate"] = f"%{{fullData.name}}<br>{line['hovertemplate']}"
    return line
