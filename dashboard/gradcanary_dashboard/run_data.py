"""Everything that a run's page shows, asked from the collector."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gradcanary_dashboard.client import Collector
from gradcanary_dashboard.layers import Layer, choose
from gradcanary_dashboard.view import View

COLUMNS = 600
ROWS = 400
POINTS = 600
DETAILED_INCIDENTS = 8
"""Incidents asked for in full, the named one and the newest; more are listed by their summary."""


@dataclass(frozen=True)
class RunData:
    """The collector's answers about one run at about one revision; ``layer`` is the one whose trend is drawn."""

    run: Mapping[str, Any]
    layers: list[Layer]
    layer: Layer | None
    heatmap: Mapping[str, Any]
    series: Mapping[str, Any] | None
    loss: Mapping[str, Any]
    incidents: list[Mapping[str, Any]]

    incidents_version: str

    @property
    def undelivered(self) -> bool:
        """Whether a message may be on its way: its state changes without a new revision of the run."""
        return any(_is_unsettled(incident) for incident in self.incidents)


def load(collector: Collector, run: str, view: View, shown: int | None) -> RunData:
    """Ask for everything; ``shown`` is the number of the layer drawn before."""
    steps = {"from": view.from_step, "to": view.to_step}
    incidents, incidents_version = load_incidents(collector, run, view.incident)
    all_layers = collector.run(run, "layers").body["layers"]
    chosen = choose(all_layers, view.layer, _first_member(incidents, view.incident), shown)
    series = None
    if chosen is not None:
        series = collector.run(run, "series", stat="absmax", layer=chosen["layer"], points=POINTS, **steps).body
    return RunData(
        run=collector.run(run).body,
        layers=all_layers,
        layer=chosen,
        heatmap=collector.run(run, "heatmap", stat="absmax", value="min", columns=COLUMNS, rows=ROWS, **steps).body,
        series=series,
        loss=collector.run(run, "metrics", name="loss", points=POINTS, **steps).body,
        incidents=incidents,
        incidents_version=incidents_version,
    )


def load_incidents(collector: Collector, run: str, named: int | None) -> tuple[list[Mapping[str, Any]], str]:
    """Return the run's incidents and their version: open first, then the newest; the first and the named in full."""
    listed = collector.incidents(run=run)
    ranked = sorted(listed.body["incidents"], key=lambda incident: (incident["state"] != "open", -incident["id"]))
    found: list[Mapping[str, Any]] = []
    versions = [listed.version]
    for place, incident in enumerate(ranked):
        if place < DETAILED_INCIDENTS or incident["id"] == named:
            answer = collector.incident(incident["id"])
            versions.append(answer.version)
            found.append(answer.body)
        else:
            found.append(incident)
    return found, hashlib.sha256(" ".join(versions).encode()).hexdigest()[:16]


def _first_member(incidents: list[Mapping[str, Any]], named: int | None) -> int | None:
    incident = next((incident for incident in incidents if incident["id"] == named), {})
    members = (member["layer"] for member in incident.get("layers", ()))
    return next((layer for layer in members if layer is not None), None)


def _is_unsettled(incident: Mapping[str, Any]) -> bool:
    deliveries = incident.get("deliveries", ())
    return any(delivery["state"] == "pending" for delivery in deliveries) or (
        incident["state"] == "open" and not deliveries and incident["severity"] != "information"
    )
