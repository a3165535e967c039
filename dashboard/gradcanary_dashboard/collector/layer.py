"""The answers for a layer's page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gradcanary_dashboard.address.run import View
from gradcanary_dashboard.analysis.arrays import decode
from gradcanary_dashboard.analysis.layers import Layer, find
from gradcanary_dashboard.collector import run as run_data
from gradcanary_dashboard.collector.client import Collector
from gradcanary_dashboard.collector.errors import NotFoundError

POINTS = 600


@dataclass(frozen=True)
class LayerData:
    """The collector's answers about one layer. ``series`` holds absmax and the other stats with a value in some step.

    ``incidents`` are those in which the layer is a member, or the whole run.
    """

    run: Mapping[str, Any]
    layers: list[Layer]
    layer: Layer
    series: Mapping[str, Mapping[str, Any]]
    incidents: list[Mapping[str, Any]]
    incidents_version: str
    clips: bool


def load(collector: Collector, run: str, wanted: str, view: View) -> LayerData:
    """Read everything about a layer, by name or number; raises NotFoundError."""
    all_layers = collector.run(run, "layers").body["layers"]
    layer = find(all_layers, wanted)
    if layer is None:
        raise NotFoundError(f"The run {run} has no parameter {wanted}.")
    number, run_answer = layer["layer"], collector.run(run).body
    incidents, version = run_data.load_incidents(collector, run, view.incident, layer=number)
    answer = collector.run(run, f"layers/{number}", points=POINTS, **run_data.bounds(view)).body
    return LayerData(
        run=run_answer,
        layers=all_layers,
        layer=layer,
        series={line["stat"]: {**answer, "phases": line["phases"], "series": [line]} for line in answer["series"]},
        incidents=incidents,
        incidents_version=version,
        clips=run_data.clips(collector, run_answer),
    )


def measured_stats(collector: Collector, run: str, layer: int) -> list[str]:
    """Return the stats with a value in some step, of a layer given by its number; absmax if there are none."""
    answer = collector.run(run, f"layers/{layer}", points=1).body
    return [line["stat"] for line in answer["series"] if decode(line["count"]).any()] or ["absmax"]
