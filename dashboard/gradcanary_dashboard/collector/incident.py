"""The curves for the picture of an incident."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gradcanary_dashboard.address.run import View
from gradcanary_dashboard.analysis import picture
from gradcanary_dashboard.collector.client import Collector
from gradcanary_dashboard.collector.run import POINTS, bounds


def load_curves(
    collector: Collector, incident: Mapping[str, Any], run: Mapping[str, Any], view: View, metrics: Sequence[str]
) -> picture.Curves:
    """Read a stat of the worst parameters and these metrics, over the steps of the view."""
    name, seen = run["run"], {"points": POINTS, **bounds(view)}
    layers = [str(member["layer"]) for member in picture.worst(incident) if member["layer"] is not None]
    series = None
    for stat in picture.stats(incident["rule"]) if layers else ():
        answer = collector.run(name, "series", stat=stat, layer=layers, **seen).body
        least = 1 if stat == "absmax" else picture.FEWEST
        if any(picture.has_values(each, least) for each in answer["series"]):
            series = answer
            break
    logged = collector.run(name, "metrics", name=metrics, tags="{}", **seen).body if metrics else None
    series_of = [member["metric"] for member in picture.worst(incident) if member.get("metric")]
    asked = {"name": [each["name"] for each in series_of], "tags": [json.dumps(each["tags"]) for each in series_of]}
    members = collector.run(name, "metrics", **asked, **seen).body if series_of else None
    return picture.Curves(run, series, logged, members)
