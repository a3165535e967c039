"""The runs of a comparison, as the collector has them; no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradcanary_dashboard.analysis.differences import Differences
from gradcanary_dashboard.analysis.launches import Steps
from gradcanary_dashboard.analysis.layers import Layer

COSTS = ("loss", "step_time_s", "peak_memory_bytes")
"""The metrics that are drawn below each other, of those without tags: what is tagged is never averaged."""

TIMED_STEPS = 2_000
"""Steps in common whose times are asked for one by one, the last: a median of means would count what a slow step in
each of them takes."""


@dataclass(frozen=True)
class Compared:
    """What the collector says of one of the runs; ``steps`` and every step drawn are counted from ``origin``.

    ``series`` is None where the run has no layer of the chosen name; ``times`` are those of the last steps in common,
    one by one.
    """

    letter: str
    run: Mapping[str, Any]
    layers: list[Layer]
    origin: int
    steps: Steps | None
    incidents: Sequence[Mapping[str, Any]] = ()
    metrics: Mapping[str, Any] = field(default_factory=dict)
    times: Mapping[str, Any] = field(default_factory=dict)
    series: Mapping[str, Any] | None = None

    @property
    def name(self) -> str:
        """The run's name."""
        return str(self.run["run"])


@dataclass(frozen=True)
class CompareData:
    """The collector's answers about some runs; ``common`` are the steps that all of those which have any share.

    ``listed`` are the runs that can be chosen, ``unknown`` those that the collector does not know; ``refusal`` says
    what is wrong with the expression for rows, of which no notice is taken then.
    """

    runs: Sequence[Compared]
    listed: Sequence[Mapping[str, Any]]
    unknown: Sequence[str] = ()
    common: Steps | None = None
    found: Differences = field(default_factory=Differences)
    layer: str | None = None
    refusal: str | None = None

    @property
    def is_comparison(self) -> bool:
        """Whether there are at least two runs to look at."""
        return len(self.runs) > 1
