"""What a collector knows of a short run, read once at its end."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]
Pairs = list[tuple[int, float]]

STATS = ("absmax", "nonfinite", "zero_fraction", "update_ratio", "accumulation_error")


@dataclass(frozen=True)
class Outcome:
    """How the process of a run ended.

    ``peak_bytes`` is its resident memory; it ``is_terminated`` if it went on after its last step.
    """

    run: str
    command: tuple[str, ...]
    asked_steps: int
    status: int
    tail: tuple[str, ...]
    peak_bytes: int
    is_terminated: bool = False


@dataclass(frozen=True)
class Measurements:
    """What was measured of a run; everything is empty if it made no step.

    ``metrics`` are pairs of step and value by name, ``stats`` the same by stat and parameter. An absmax of a
    parameter without a gradient, or of one with no finite element, is missing.
    """

    run: Json = field(default_factory=dict)
    layers: list[Json] = field(default_factory=list)
    incidents: list[Json] = field(default_factory=list)
    metrics: dict[str, Pairs] = field(default_factory=dict)
    stats: dict[str, dict[str, Pairs]] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """The optimizer steps of all launches."""
        sessions = (each for each in self.run.get("sessions", ()) if each["rank"] == 0)
        return sum(each["last_step"] - each["first_step"] + 1 for each in sessions if each["last_step"] is not None)

    @property
    def facts(self) -> list[Json]:
        """The facts that the agents reported."""
        return list(self.run.get("facts", ()))


def read_measurements(read: Callable[[str], Any], name: str, names: Sequence[str]) -> Measurements:
    """Read a run, if it is among the ``names``; raises OSError."""
    if name not in names:
        return Measurements()
    asked = "&".join(f"stat={stat}" for stat in STATS)
    columns = _columns(read(f"/runs/{name}/export.csv?{asked}"))
    stats: dict[str, dict[str, Pairs]] = {stat: {} for stat in STATS}
    for title, pairs in columns.items():
        stat, _, layer = title.partition(" ")
        if stat in stats:
            stats[stat][layer] = pairs
    return Measurements(
        run=read(f"/runs/{name}"),
        layers=read(f"/runs/{name}/layers")["layers"],
        incidents=read(f"/incidents?run={name}&sort=worst&limit=50&detailed=50")["incidents"],
        metrics=_columns(read(f"/runs/{name}/metrics.csv")),
        stats=stats,
    )


def _columns(text: str) -> dict[str, Pairs]:
    """Return the columns of a CSV after step and time, without empty cells."""
    rows = csv.reader(io.StringIO(text))
    titles = next(rows, ["step", "time"])[2:]
    found: dict[str, Pairs] = {title: [] for title in titles}
    for row in rows:
        for title, cell in zip(titles, row[2:], strict=True):
            if cell:
                found[title].append((int(row[0]), float(cell)))
    return found


def finite(pairs: Pairs) -> Pairs:
    """Return the pairs whose value is finite."""
    return [(step, value) for step, value in pairs if math.isfinite(value)]
