"""The picture of an incident: the worst parameters around its first sign, loss and learning rates below. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gradcanary_dashboard.address.run import View
from gradcanary_dashboard.analysis import picture
from gradcanary_dashboard.analysis.events import Events
from gradcanary_dashboard.analysis.picture import Curves
from gradcanary_dashboard.analysis.stats import STATS
from gradcanary_dashboard.figures import axes, curves, learning_rates, metrics, overlay, palette
from gradcanary_dashboard.figures import events as event_marks
from gradcanary_dashboard.text import numbers
from gradcanary_dashboard.text.units import Unit

NORM, LOSS = "total_norm", "loss"
SMALL = 96
"""Height of loss and learning rate in pixels, without the axis below the last of them."""

LEAST_MARGIN = 8
"""Pixels below a figure without labels of its axis."""

SIGN = len(overlay.COLOURS) - 1
"""The colour of the first sign: no parameter has it."""


def names(known: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the metrics to ask for, of those that a run has."""
    plain = [metric for metric in known if not metric["tags"]]
    return [*(each["name"] for each in plain if each["name"] in (NORM, LOSS)), *learning_rates.names(plain)]


def draw(incident: Mapping[str, Any], told: Curves, view: View) -> dict[str, axes.Figure]:
    """Return the figures from the top down: ``curves`` (parameters, else the total norm), ``loss`` and ``rates``.

    A figure without a value is left out. All have the same steps; only the last one has the labels of its axis.
    """
    first, last = view.from_step or 0, view.to_step or 0
    span = axes.Span(first, last, f"incident {incident['id']}|{first}|{last}")
    events = Events.of(told.run, ())
    drawn = {}
    if told.series is not None:
        drawn["curves"] = _parameters(incident, told.series, span, events)
    if told.members is not None:
        drawn["curves"] = _series(incident, told.members, span, events)
    for slot, key in (("curves", NORM), ("loss", LOSS)):
        if slot not in drawn and _is_logged(told.metrics, key):
            drawn[slot] = _metric(incident, told, key, span, events)
    rates = learning_rates.read(told.metrics, events) if told.metrics else []
    if rates:
        is_log = curves.is_log([rate.curve for rate in rates])
        figure = learning_rates.figure(rates, span, events, is_log=is_log)
        figure["layout"]["yaxis"] |= {} if is_log else {"rangemode": "tozero", "exponentformat": "e"}
        drawn["rates"] = _small(figure, incident, span, metrics.OWN[metrics.RATES].title)
    for figure in list(drawn.values())[:-1]:
        _hide_axis(figure)
    return drawn


def title(incident: Mapping[str, Any], told: Curves) -> str:
    """Return the title of the picture: ``Gradient absmax of the 5 worst of 8 parameters``."""
    if told.members is not None:
        names = ", ".join(dict.fromkeys(member["metric"]["name"] for member in picture.worst(incident)))
        few, many = len(picture.worst(incident)), len(picture.members(incident))
        return f"{names} of {few} series" if few == many else f"{names} of the {few} worst of {many} series"
    if told.series is None:
        return "Around the first sign"
    shown, stat = picture.worst(incident), STATS[told.series["stat"]].title
    all_of_them = len(picture.members(incident))
    if all_of_them == len(shown):
        return f"{stat} of {numbers.plural(all_of_them, 'parameter')}"
    return f"{stat} of the {len(shown)} worst of {numbers.integer(all_of_them)} parameters"


def _is_logged(answer: Mapping[str, Any] | None, name: str) -> bool:
    found = answer["metrics"] if answer else ()
    return any(each["name"] == name and picture.has_values(each) for each in found)


def _metric(incident: Mapping[str, Any], told: Curves, key: str, span: axes.Span, events: Events) -> axes.Figure:
    [panel] = metrics.of([each for each in told.run["metrics"] if each["name"] == key and not each["tags"]])
    figure = metrics.draw(panel, told.metrics or {}, span, events, View())["figure"]
    return _small(figure, incident, span, panel.kind.title, is_labelled=key == NORM)


def _parameters(incident: Mapping[str, Any], answer: Mapping[str, Any], span: axes.Span, events: Events) -> axes.Figure:
    by_layer = {series["layer"]: series for series in answer["series"]}
    members = picture.members(incident)
    read = [
        overlay.RunCurve.read(place, str(place + 1), answer, by_layer[member["layer"]], events, 0)
        for place, member in enumerate(picture.worst(incident))
        if member["layer"] in by_layer
    ]
    stat = STATS[answer["stat"]]
    strands = [each for each in read if each is not None]
    if not stat.has_threshold:  # measured from time to time
        strands = [replace(strand, curve=strand.curve.known()) for strand in strands]
    enter = float(answer["threshold"]["enter"]) if incident["rule"] == "collapse" else None
    levels = _levels(members, enter) if stat.has_threshold else []
    figure = overlay.of_stat(strands, span, stat, enter, [_sign(incident)], "step", levels)
    for trace in figure["data"]:
        trace.get("line", {}).pop("dash", None)  # a fall of dashes is hard to see; numbers tell the lines apart
    return figure


def _series(incident: Mapping[str, Any], answer: Mapping[str, Any], span: axes.Span, events: Events) -> axes.Figure:
    """Return the worst series of metrics, with their bound and level where these are the same for all."""
    by_series = {_key(each): each for each in answer["metrics"]}
    shown = picture.worst(incident)
    read = [
        overlay.RunCurve.read(place, str(place + 1), answer, by_series[_key(member["metric"])], events, 0)
        for place, member in enumerate(shown)
        if _key(member["metric"]) in by_series
    ]
    strands = [replace(strand, curve=strand.curve.known()) for strand in read if strand is not None]
    levels = {
        name: values.pop()
        for name, values in (
            ("bound", {member["metric"]["bound"] for member in shown}),
            ("level", {member["baseline"] for member in shown}),
        )
        if len(values) == 1 and None not in values
    }
    figure = overlay.of_run_metric(strands, span, Unit(), "No value in these steps.", "step", levels)
    figure["layout"]["height"] = overlay.STAT_HEIGHT
    overlay.mark(figure["layout"], [_sign(incident)], span)
    return figure


def _key(series: Mapping[str, Any]) -> tuple[str, str]:
    return series["name"], json.dumps(series["tags"], sort_keys=True)


def _levels(members: Sequence[picture.Member], enter: float | None) -> list[curves.Level]:
    """Return the level before, else that of similar parameters."""
    for key, name in (("baseline", "baseline"), ("siblings", "similar parameters")):
        value = picture.level(members, key)
        if value:  # a logarithmic axis has no zero
            return [curves.Level(name, value, palette.GREEN, is_upper=enter is None or value >= enter)]
    return []


def _sign(incident: Mapping[str, Any]) -> overlay.Mark:
    since = numbers.integer(incident["since_step"])
    return overlay.Mark(SIGN, incident["since_step"], f"first sign {since}", f"First sign at step {since}")


def _small(
    figure: axes.Figure, incident: Mapping[str, Any], span: axes.Span, title: str, *, is_labelled: bool = False
) -> axes.Figure:
    """Return a low figure of a metric with the first sign in it, its title above."""
    layout, sign = figure["layout"], _sign(incident)
    overlay.mark(layout, [sign if is_labelled else replace(sign, label="")], span)
    up = event_marks.LAUNCH_LINE_PX if is_labelled else 0
    place = {"x": 0, "y": 1, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom", "yshift": up}
    layout["annotations"] = [*layout["annotations"], {"text": f"<b>{title}</b>", **place, "showarrow": False}]
    layout["margin"]["t"] += up
    layout["height"] = SMALL + layout["margin"]["b"] + up
    layout["yaxis"]["nticks"] = 4
    return figure


def _hide_axis(figure: axes.Figure) -> None:
    layout = figure["layout"]
    layout["height"] += LEAST_MARGIN - layout["margin"]["b"]
    layout["margin"]["b"] = LEAST_MARGIN
    layout["xaxis"] |= {"showticklabels": False, "title": {"text": ""}}
