"""The answers for the comparison page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gradcanary_dashboard.address.comparison import ALIGNS, LETTERS, CompareView
from gradcanary_dashboard.analysis import launches as run_launches
from gradcanary_dashboard.analysis.compared_runs import TIMED_STEPS, Compared, CompareData
from gradcanary_dashboard.analysis.differences import COLUMNS, ROWS, differences
from gradcanary_dashboard.analysis.launches import Steps
from gradcanary_dashboard.analysis.layers import worst_first
from gradcanary_dashboard.analysis.stats import STATS
from gradcanary_dashboard.collector.client import Collector
from gradcanary_dashboard.collector.errors import NotFoundError, RefusedError

POINTS = 600
STEP_TIME = "step_time_s"


def version(collector: Collector, wanted: CompareView) -> str:
    """Return the version of the page: of all its runs, and of the list until two runs are chosen."""
    versions = [_version(collector, run) for run in wanted.runs]
    is_comparison = sum(map(bool, versions)) > 1
    return " ".join(versions if is_comparison else [*versions, collector.runs().version])


def load(collector: Collector, wanted: CompareView, shown: str | None) -> CompareData:
    """Read everything; ``shown`` is the name of the layer drawn before."""
    answers = {run: _find_run(collector, run) for run in wanted.runs}
    known = [answer for answer in answers.values() if answer is not None]
    listed = collector.runs().body["runs"]
    unknown = [run for run, answer in answers.items() if answer is None]
    runs = [_compared(collector, run, letter, wanted) for run, letter in zip(known, LETTERS, strict=False)]
    data = CompareData(runs, listed, unknown)
    if not data.is_comparison:
        return data
    data = _with_differences(collector, replace(data, common=_common(runs, wanted)), wanted)
    data = replace(data, layer=_choose(data, wanted.view.layer, shown))
    timed = [replace(run, times=_times(collector, run, data.common)) for run in runs]
    return replace(data, runs=[_drawn(collector, run, data.layer, wanted) for run in timed])


def _version(collector: Collector, run: str) -> str:
    try:
        return collector.run(run).version
    except NotFoundError:
        return ""


def _find_run(collector: Collector, run: str) -> Mapping[str, Any] | None:
    """Return a run, None if the collector does not have it."""
    try:
        body: Mapping[str, Any] = collector.run(run).body
    except NotFoundError:
        return None
    return body


def _compared(collector: Collector, run: Mapping[str, Any], letter: str, wanted: CompareView) -> Compared:
    launches = run_launches.launches(run)
    begun = [launch.steps for launch in launches if launch.steps is not None]
    measured = run_launches.measured(launches)
    origin = begun[0][0] if begun and wanted.align == ALIGNS[1] else 0
    steps = None if measured is None else (measured[0] - origin, measured[1] - origin)
    layers = collector.run(run["run"], "layers").body["layers"]
    return Compared(letter, run, layers, origin, steps, collector.incidents(run=run["run"]).body["incidents"])


def _common(runs: Sequence[Compared], wanted: CompareView) -> Steps | None:
    """Return the visible steps that all runs with any step have in common."""
    known = [run.steps for run in runs if run.steps is not None]
    if len(known) < 2:
        return None
    first = max([steps[0] for steps in known] + [wanted.view.from_step or 0])
    last = min(steps[1] for steps in known)
    last = last if wanted.view.to_step is None else min(last, wanted.view.to_step)
    return (first, last) if first <= last else None


def _with_differences(collector: Collector, data: CompareData, wanted: CompareView) -> CompareData:
    """Return the data with the differences; if the expression is refused, those of all layers and the error."""
    begun = [run for run in data.runs if run.steps is not None]
    common, refusal = data.common, None
    if common is None:
        return data
    try:
        answers = [_picture(collector, run, common, wanted.view.stat, wanted.view.rows) for run in begun]
    except RefusedError as error:
        if wanted.view.rows is None:
            raise
        answers, refusal = [_picture(collector, run, common, wanted.view.stat) for run in begun], str(error)
    is_log = STATS[wanted.view.stat].is_log
    found = differences(answers, [run.origin for run in begun], common, is_log=is_log)
    return replace(data, found=found, refusal=refusal)


def _picture(
    collector: Collector, run: Compared, common: Steps, stat: str, rows: str | None = None
) -> Mapping[str, Any]:
    query: dict[str, str | int | None] = {"stat": stat, "value": "mean", "columns": COLUMNS, "rows": ROWS}
    query |= {"match": rows, "from": common[0] + run.origin, "to": common[1] + run.origin}
    body: Mapping[str, Any] = collector.run(run.name, "heatmap", **query).body
    return body


def _choose(data: CompareData, named: str | None, shown: str | None) -> str | None:
    """Return the layer to draw: of the address, drawn before, with the largest difference, or the worst."""
    known = {layer["name"] for run in data.runs for layer in run.layers}
    for wanted in (named, shown):
        if wanted in known:
            return wanted
    if data.found.rows:
        return data.found.rows[0].name
    return next((str(worst_first(run.layers)[0]["name"]) for run in data.runs if run.layers), None)


def _times(collector: Collector, run: Compared, common: Steps | None) -> Mapping[str, Any]:
    """Return the time of each of the last common steps."""
    if common is None:
        return {}
    first, last = max(common[0], common[1] - TIMED_STEPS + 1) + run.origin, common[1] + run.origin
    query: dict[str, str | int] = {
        "name": STEP_TIME,
        "tags": "{}",
        "points": TIMED_STEPS,
        "from": first,
        "to": last,
    }
    body: Mapping[str, Any] = collector.run(run.name, "metrics", **query).body
    return body


def _drawn(collector: Collector, run: Compared, layer: str | None, wanted: CompareView) -> Compared:
    """Return a run with its metrics and the series of the drawn layer."""
    view = wanted.view
    first = None if view.from_step is None else view.from_step + run.origin
    last = None if view.to_step is None else view.to_step + run.origin
    steps = {"from": first, "to": last, "points": POINTS}
    metrics = collector.run(run.name, "metrics", name=run.metric_names, tags="{}", **steps).body
    number = next((each["layer"] for each in run.layers if each["name"] == layer), None)
    if number is None:
        return replace(run, metrics=metrics)
    series = collector.run(run.name, "series", stat=view.stat, layer=number, **steps).body
    return replace(run, metrics=metrics, series=series)
