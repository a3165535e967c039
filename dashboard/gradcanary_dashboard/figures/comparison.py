"""The figures of a comparison, from the answers about its runs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from gradcanary_dashboard.address.comparison import ALIGNS, CompareView
from gradcanary_dashboard.analysis import curve
from gradcanary_dashboard.analysis.buckets import widths
from gradcanary_dashboard.analysis.compared_runs import RUN_METRICS, CompareData
from gradcanary_dashboard.analysis.events import Events
from gradcanary_dashboard.analysis.launches import Steps
from gradcanary_dashboard.analysis.stats import STATS
from gradcanary_dashboard.figures import axes, learning_rates, overlay
from gradcanary_dashboard.figures.overlay import Mark, RunCurve
from gradcanary_dashboard.text import numbers
from gradcanary_dashboard.text.units import Unit

FIGURES = {
    "compare-stat": "A stat of the chosen parameter in each run over the steps",
    "compare-loss": "Loss of each run over the steps",
    "compare-rate": "Learning rates of each run over the steps",
    "compare-norm": "Norm of all gradients of each run over the steps",
    "compare-time": "Time of a step of each run over the steps",
    "compare-memory": "Peak memory of each run over the steps",
}
Series: TypeAlias = tuple[Mapping[str, Any], Mapping[str, Any]]
"""An answer of the collector, and one of its series or metrics."""

TITLES = {
    "compare-loss": "Loss",
    "compare-rate": "Learning rate",
    "compare-norm": "Total norm",
    "compare-time": "Step time",
    "compare-memory": "Peak memory",
}


def drawn(data: CompareData, wanted: CompareView) -> dict[str, Any]:
    """Return every figure by its id."""
    span, axis, stat = _span(data, wanted), _axis(wanted), STATS[wanted.view.stat]
    enters = {run.series["threshold"]["enter"] for run in data.runs if run.series}
    enter = enters.pop() if len(enters) == 1 else None  # no line is the threshold of all
    losses, norms, times, memory = (_logged(data, name) for name in RUN_METRICS)
    none = "has been logged in these steps."
    return {
        "compare-stat": overlay.of_stat(_measured(data), span, stat, enter, _marks(data, span), axis),
        "compare-loss": overlay.of_run_metric(losses, span, Unit(), f"No loss {none}", axis),
        "compare-rate": overlay.of_run_metric(_rates(data), span, Unit(), f"No learning rate {none}", axis),
        "compare-norm": overlay.of_run_metric(norms, span, Unit(), f"No total norm {none}", axis),
        "compare-time": overlay.of_run_metric(times, span, overlay.seconds(times), f"No step time {none}", axis),
        "compare-memory": overlay.of_run_metric(memory, span, overlay.size(memory), f"No peak memory {none}", axis),
    }


def _measured(data: CompareData) -> list[RunCurve]:
    return _strands(data, {run.letter: (run.series, run.series["series"][0]) for run in data.runs if run.series})


def _logged(data: CompareData, name: str) -> list[RunCurve]:
    """Return a metric of each run that has it without tags: series with tags are never averaged."""
    found: dict[str, Series] = {}
    for run in data.runs:
        for metric in run.metrics["metrics"]:
            if metric["name"] == name and not metric["tags"]:
                found[run.letter] = run.metrics, metric
    return _strands(data, found)


def _rates(data: CompareData) -> list[RunCurve]:
    """Return the learning rates of each run; groups with the same rate share a line, named if a run has several."""
    found: list[RunCurve] = []
    for place, run in enumerate(data.runs):
        events = Events.of(run.run, ())
        rates = learning_rates.read(run.metrics, events)
        for rate in rates:
            name = run.letter if len(rates) == 1 else f"{run.letter} {rate.ident}"
            found.append(RunCurve.of(place, name, rate.curve, events, run.origin))
    return found


def _strands(data: CompareData, found: Mapping[str, Series]) -> list[RunCurve]:
    read = [
        RunCurve.read(place, run.letter, *found[run.letter], Events.of(run.run, ()), run.origin)
        for place, run in enumerate(data.runs)
        if run.letter in found
    ]
    return [strand for strand in read if strand is not None]


def _marks(data: CompareData, span: axes.Span) -> list[Mark]:
    """Return the steps at which incidents of the runs opened."""
    found: list[Mark] = []
    for place, run in enumerate(data.runs):
        for mark in (run.series or {}).get("marks", ()):
            step = mark["step"] - run.origin
            if mark["kind"] == "fired" and span.first <= step <= span.last:
                number = int(mark["incident"])
                words = f"{run.letter}: incident #{number} opened at step {numbers.integer(mark['step'])}"
                found.append(Mark(place, step, f"{run.letter} #{number}", words))
    return found


def steps(data: CompareData) -> Steps | None:
    """Return the first and the last step of all runs, None before the first."""
    known = [run.steps for run in data.runs if run.steps is not None]
    return (min(first for first, _ in known), max(last for _, last in known)) if known else None


def _span(data: CompareData, wanted: CompareView) -> axes.Span:
    view = wanted.view
    begin, end = steps(data) or (0, 1)
    first = begin if view.from_step is None else view.from_step
    last = end if view.to_step is None else view.to_step
    identity = f"{wanted.runs}|{wanted.align}|{view.from_step}|{view.to_step}"
    return axes.Span(float(first), float(max(first, last)), identity)


def _axis(wanted: CompareView) -> str:
    return "step" if wanted.align == ALIGNS[0] else "steps since the first of each run"


def bucket(data: CompareData) -> int:
    return max((width for run in data.runs if run.series for width in widths(run.series)), default=1)


def is_of_samples(data: CompareData) -> bool:
    """Return True if each point of the chosen layer is one sample, at the same interval in all runs."""
    drawn = [(run.series, Events.of(run.run, ())) for run in data.runs if run.series]
    is_even = len({tuple(widths(series)) for series, _ in drawn}) == 1
    return is_even and all(curve.is_of_samples(*each) for each in drawn)
