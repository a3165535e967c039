"""The Python client of a collector: ``gradcanary.Client``, its typed results and its errors.

It needs the standard library only; ``to_numpy()``, ``to_pandas()`` and ``to_polars()`` import theirs when called.
"""

from __future__ import annotations

from gradcanary.client.client import Client, Run
from gradcanary.client.heatmap import Heatmap, HeatmapRow
from gradcanary.client.records import Ack, Explanation, Incident, Layer, Member, Records, Silence
from gradcanary.client.series import Line, Metrics, Series
from gradcanary.export.collector import (
    AccessError,
    CollectorError,
    NotFoundError,
    UnreachableError,
    VersionError,
)

for _error in (AccessError, CollectorError, NotFoundError, UnreachableError, VersionError):
    _error.__module__ = __name__  # a traceback names the module to import it from

__all__ = [
    "AccessError",
    "Ack",
    "Client",
    "CollectorError",
    "Explanation",
    "Heatmap",
    "HeatmapRow",
    "Incident",
    "Layer",
    "Line",
    "Member",
    "Metrics",
    "NotFoundError",
    "Records",
    "Run",
    "Series",
    "Silence",
    "UnreachableError",
    "VersionError",
]
