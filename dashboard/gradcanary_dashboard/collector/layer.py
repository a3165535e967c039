"""Everything that a layer's page shows, asked from the collector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gradcanary_dashboard.address.run import View
from gradcanary_dashboard.analysis.arrays import decode
from gradcanary_dashboard.analysis.layers import Layer, find
from gradcanary_dashboard.analysis.stats import STATS
from gradcanary_dashboard.collector import run as run_data
from gradcanary_dashboard.collector.client import Collector
from gradcanary_dashboard.collector.errors import NotFoundError

POINTS = 600
INCIDENTS = 24
"""Incidents of the layer that are asked for in full, open ones first, then the newest."""


@dataclass(frozen=True)
class LayerData:
    """The collector's answers about one layer; ``series`` holds the stats that were ever measured of it.

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
    """Ask for everything about a layer, by name or number; raises NotFoundError."""
    all_layers = collector.run(run, "layers").body["layers"]
    layer = find(all_layers, wanted)
    if layer is None:
        raise NotFoundError(f"The run {run} has no layer {wanted}.")
    number, told = layer["layer"], collector.run(run).body
    incidents, version = load_incidents(collector, run, number, view.incident)
    asked = {stat: _series(collector, run, stat, number, view) for stat in STATS}
    return LayerData(
        run=told,
        layers=all_layers,
        layer=layer,
        series={stat: answer for stat, answer in asked.items() if answer is not None},
        incidents=incidents,
        incidents_version=version,
        clips=run_data.clips(collector, told),
    )


def measured(collector: Collector, run: str, layer: int) -> list[str]:
    """Return the stats that were ever measured of a layer, given by its number."""
    asked = {stat: collector.run(run, "series", stat=stat, layer=layer, points=1).body for stat in STATS}
    return [stat for stat, answer in asked.items() if _holds_values(answer)] or ["absmax"]


def load_incidents(
    collector: Collector, run: str, layer: int, named: int | None
) -> tuple[list[Mapping[str, Any]], str]:
    """Return the layer's incidents and their version, more of them in full than the run's page needs."""
    return run_data.load_incidents(collector, run, named, INCIDENTS, layer=layer)


def _series(collector: Collector, run: str, stat: str, layer: int, view: View) -> Mapping[str, Any] | None:
    """Return a stat over the steps in sight, None where no step of the run has it."""
    steps = {"from": view.from_step, "to": view.to_step}
    answer: Mapping[str, Any] = collector.run(run, "series", stat=stat, layer=layer, points=POINTS, **steps).body
    if _holds_values(answer) or stat == "absmax":
        return answer
    ever = view.is_zoomed and _holds_values(collector.run(run, "series", stat=stat, layer=layer, points=1).body)
    return answer if ever else None


def _holds_values(answer: Mapping[str, Any]) -> bool:
    return bool(decode(answer["series"][0]["count"]).any())
