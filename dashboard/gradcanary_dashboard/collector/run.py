"""The answers for a run's page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from gradcanary_dashboard.address.run import View, find_wrong_steps, parse
from gradcanary_dashboard.analysis import launches as run_launches
from gradcanary_dashboard.analysis import loss as loss_levels
from gradcanary_dashboard.analysis.arrays import decode
from gradcanary_dashboard.analysis.clock import Clock
from gradcanary_dashboard.analysis.layers import Layer, choose
from gradcanary_dashboard.collector import incidents as incident_data
from gradcanary_dashboard.collector.client import Answer, Collector
from gradcanary_dashboard.collector.errors import NotFoundError, RefusedError

COLUMNS = 600
ROWS = 400
POINTS = 600
NO_LAYER = "^$"
"""An expression that matches no name, as no name is empty."""

TOTAL_NORM, CLIP_FACTOR = "total_norm", "clip_factor"
"""Metrics of a clip: each sample has a norm; it has a factor if gradients changed after the norm was computed."""

CLIPPED_BELOW = 1 - 1e-5
"""Below this factor a sample counts as clipped, as in the agent."""

Answered: TypeAlias = Mapping[str, Any] | None


@dataclass(frozen=True)
class OtherRun:
    """The answers about the run that a page shows beside its own, for the same steps.

    ``layer`` is its layer with the name of the drawn one, ``series`` that layer's; None if it has none.
    """

    run: Mapping[str, Any]
    layers: list[Layer]
    layer: Layer | None
    heatmap: Mapping[str, Any]
    series: Mapping[str, Any] | None


@dataclass(frozen=True)
class RunData:
    """The collector's answers about one run at about one revision.

    ``layer`` is the one whose trend is drawn; ``refusal`` is the error of the expression for rows, which the heatmap
    ignores then. ``loss`` is that without tags: of the whole run, or of the steps before the first step of the
    verdict's incident, and then ``loss_since`` of the others.
    """

    run: Mapping[str, Any]
    layers: list[Layer]
    layer: Layer | None
    heatmap: Mapping[str, Any]
    refusal: str | None
    series: Mapping[str, Any] | None
    loss: Answered
    loss_since: Answered
    incidents: list[Mapping[str, Any]]
    incidents_version: str
    clips: bool
    other: OtherRun | None = None


def load(collector: Collector, run: str, view: View, shown: int | None) -> RunData:
    """Read everything; ``shown`` is the number of the layer drawn before."""
    incidents, incidents_version = load_incidents(collector, run, view.incident)
    all_layers = collector.run(run, "layers").body["layers"]
    chosen = choose(all_layers, view.layer, _first_member(incidents, view.incident), shown)
    series = None
    if chosen is not None:
        series = collector.run(run, "series", stat=view.stat, layer=chosen["layer"], points=POINTS, **bounds(view)).body
    heatmap, refusal = picture(collector, run, view)
    run_answer = collector.run(run).body
    loss, loss_since = _losses(collector, run_answer, loss_levels.since(incidents))
    return RunData(
        run=run_answer,
        layers=all_layers,
        layer=chosen,
        heatmap=heatmap,
        refusal=refusal,
        series=series,
        loss=loss,
        loss_since=loss_since,
        incidents=incidents,
        incidents_version=incidents_version,
        clips=clips(collector, run_answer),
        other=_load_other(collector, run_answer, view, chosen),
    )


def view_of(run: Mapping[str, Any], text: str) -> tuple[View, str | None]:
    """Return the view of a query string, with all steps of the run where its own cannot be drawn, and why not."""
    view, steps = parse(text), run_launches.measured(run_launches.launches(run))
    wrong = find_wrong_steps(text, steps) if steps else None
    return (view, None) if wrong is None else (replace(view, from_step=None, to_step=None), wrong)


def find_other(collector: Collector, run: str, view: View) -> Answer | None:
    """Return the run that stands beside this one; None if the view names none, or one that the collector lacks."""
    if view.vs in (None, "", run):
        return None
    try:
        found = collector.run(str(view.vs))
    except NotFoundError:
        return None
    return found if "run" in found.body else None  # a proxy may take the name for a folder


def version(collector: Collector, run: str, view: View) -> str:
    """Return the version of a run, and of the one beside it."""
    other = find_other(collector, run, view)
    return collector.run(run).version + (f" {other.version}" if other else "")


def same_steps(run: Mapping[str, Any], view: View) -> View:
    """Return the view for another run: with the steps of this one where the view has none."""
    first, last = run_launches.measured(run_launches.launches(run)) or (None, None)
    return replace(
        view,
        from_step=first if view.from_step is None else view.from_step,
        to_step=last if view.to_step is None else view.to_step,
    )


def _load_other(collector: Collector, run: Mapping[str, Any], view: View, chosen: Layer | None) -> OtherRun | None:
    """Return the run beside this one; None also if it is deleted in the meantime."""
    found = find_other(collector, run["run"], view)
    if found is None:
        return None
    try:
        return _read_other(collector, found, run, view, chosen)
    except NotFoundError:
        return None


def _read_other(
    collector: Collector, found: Answer, run: Mapping[str, Any], view: View, chosen: Layer | None
) -> OtherRun:
    name, there, series = found.body["run"], same_steps(run, view), None
    heatmap, _ = picture(collector, name, there)
    layers: list[Layer] = collector.run(name, "layers").body["layers"]
    layer = next((each for each in layers if chosen is not None and each["name"] == chosen["name"]), None)
    if layer is not None:
        series = collector.run(
            name, "series", stat=view.stat, layer=layer["layer"], points=POINTS, **bounds(there)
        ).body
    return OtherRun(found.body, layers, layer, heatmap, series)


def clips(collector: Collector, run: Mapping[str, Any]) -> bool:
    """Return False if the agent measured clips and gradients were never clipped."""
    measured = {metric["name"] for metric in run["metrics"]}
    if CLIP_FACTOR not in measured:
        return TOTAL_NORM not in measured
    answer = collector.run(run["run"], "metrics", name=CLIP_FACTOR, points=1).body
    return any(bool((decode(metric["min"]) < CLIPPED_BELOW).any()) for metric in answer["metrics"])


def is_unsettled(incidents: list[Mapping[str, Any]]) -> bool:
    """Return True if a delivery is pending or a silence may end: both change without a new revision of the run."""
    return any(_is_unsettled(incident) for incident in incidents)


def clock(view: View, answer: Mapping[str, Any]) -> Clock | None:
    """Return the clock of a view with a time axis, from an answer's steps and times; None for a step axis."""
    return Clock.of(answer) if view.x == "time" else None


def bounds(view: View) -> dict[str, int | None]:
    """Return the visible steps as parameters for the collector."""
    return {"from": view.from_step, "to": view.to_step}


def _losses(collector: Collector, run: Mapping[str, Any], since: int | None) -> tuple[Answered, Answered]:
    """Return the loss before and since a step; without a step, the whole loss and None.

    These are two requests: in one over a million steps all points since may be in the last bucket.
    """
    if not any(metric["name"] == "loss" and not metric["tags"] for metric in run["metrics"]):
        return None, None
    query: dict[str, str | int | None] = {"name": "loss", "tags": "{}", "points": POINTS}
    if since is None:
        return collector.run(run["run"], "metrics", **query).body, None
    later = collector.run(run["run"], "metrics", **query, **{"from": since}).body
    return collector.run(run["run"], "metrics", **query, to=since - 1).body if since else None, later


def picture(collector: Collector, run: str, view: View) -> tuple[Mapping[str, Any], str | None]:
    """Return the heatmap of the view; if the expression is refused, that of all rows and the error."""
    wanted: dict[str, str | int | None] = {"stat": view.stat, "value": view.value, "order": view.order}
    wanted |= {"columns": COLUMNS, "rows": ROWS, **bounds(view)}
    try:
        return collector.run(run, "heatmap", match=view.rows, **wanted).body, None
    except RefusedError as error:
        if view.rows is None:
            raise
        return collector.run(run, "heatmap", **wanted).body, str(error)


def matching(layers: list[Layer], heatmap: Mapping[str, Any], *, is_refused: bool) -> list[Layer]:
    """Return the layers of a heatmap's rows; all layers if the expression was refused."""
    if is_refused:
        return layers
    numbers = {number for row in heatmap["rows"] for number in row["layers"]}
    return [layer for layer in layers if layer["layer"] in numbers]


def axis(collector: Collector, run: str, view: View) -> Mapping[str, Any]:
    """Return a heatmap without layers: steps, times, gaps and marks of the view, for a tenth of the bytes."""
    wanted = {"stat": view.stat, "columns": COLUMNS, "rows": 1, "match": NO_LAYER, **bounds(view)}
    answer: Mapping[str, Any] = collector.run(run, "heatmap", **wanted).body
    return answer


def load_incidents(
    collector: Collector, run: str, named: int | None, *, layer: int | None = None
) -> tuple[list[Mapping[str, Any]], str]:
    """Return the incidents of a run, or of a layer of it, and their version.

    The named one comes first, with all details; then open ones, worst first.
    """
    answer = incident_data.worst_of_run(collector, run, layer)
    incidents: list[Mapping[str, Any]] = answer.body["incidents"]
    first = _named(named, collector, answer.body, layer)
    if first is None:
        return incidents, answer.version
    return [first, *(incident for incident in incidents if incident["id"] != named)], answer.version


def _named(
    number: int | None, collector: Collector, listed: Mapping[str, Any], layer: int | None
) -> Mapping[str, Any] | None:
    """Return an incident of the same run and layer with all details; None if there is none with this number."""
    incidents: list[Mapping[str, Any]] = listed["incidents"]
    known = next((incident for incident in incidents if incident["id"] == number), None)
    if number is None or (known is None and listed["next"] is None):
        return None
    if known is not None and "layers" in known:
        return known
    try:
        found: Mapping[str, Any] = collector.incident(number).body
    except NotFoundError:
        return known
    is_listed = known is not None or (
        found["run"] == incidents[0]["run"] and (layer is None or _concerns(found, layer))
    )
    return found if is_listed else None


def _concerns(incident: Mapping[str, Any], layer: int) -> bool:
    return any(member["layer"] in (layer, None) and not member.get("metric") for member in incident["layers"])


def _first_member(incidents: list[Mapping[str, Any]], named: int | None) -> int | None:
    incident = next((incident for incident in incidents if incident["id"] == named), {})
    members = (member["layer"] for member in incident.get("layers", ()))
    return next((layer for layer in members if layer is not None), None)


def _is_unsettled(incident: Mapping[str, Any]) -> bool:
    deliveries = incident.get("deliveries", ())
    return (
        bool(incident["silenced"])
        or any(delivery["state"] == "pending" for delivery in deliveries)
        or (incident["state"] == "open" and not deliveries and incident["severity"] != "information")
    )
