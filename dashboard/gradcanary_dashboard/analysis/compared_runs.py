"""The compared runs, as the collector answers them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from gradcanary_dashboard.analysis.configurations import RATE_OF_GROUP
from gradcanary_dashboard.analysis.differences import Differences
from gradcanary_dashboard.analysis.launches import Steps
from gradcanary_dashboard.analysis.layers import Layer, common
from gradcanary_dashboard.text.names import Common

RUN_METRICS = ("loss", "total_norm", "step_time_s", "peak_memory_bytes")
"""The metrics of the figures, without tags: series with tags are never averaged. Learning rates come with them."""

MOST_RATES = 16
"""Learning rates that are requested of a run, a group each."""

TIMED_STEPS = 2_000
"""Last common steps whose times are read one by one: each mean of several steps would contain a slow step."""


@dataclass(frozen=True)
class Compared:
    """The answers about one of the runs; ``steps`` and every drawn step count from ``origin``.

    ``series`` is None if the run has no layer of the chosen name; ``times`` are those of the last common steps, one by
    one.
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

    @property
    def metric_names(self) -> list[str]:
        """The metrics that are drawn: those of all runs, and the learning rates of this one."""
        rates = [each["name"] for each in self.run["metrics"] if RATE_OF_GROUP.fullmatch(each["name"])]
        return [*RUN_METRICS, *sorted(dict.fromkeys(rates), key=lambda name: int(name[2:]))[:MOST_RATES]]


@dataclass(frozen=True)
class CompareData:
    """The answers about the compared runs; ``common`` are the steps that all runs with any step have.

    ``listed`` are the runs that can be chosen, ``unknown`` those that the collector does not have; ``refusal`` is the
    error of the expression for rows, which is ignored then.
    """

    runs: Sequence[Compared]
    listed: Sequence[Mapping[str, Any]]
    unknown: Sequence[str] = ()
    common: Steps | None = None
    found: Differences = field(default_factory=Differences)
    layer: str | None = None
    refusal: str | None = None

    @cached_property
    def names(self) -> Common:
        """What the names of the layers of all runs share."""
        return common(layer for run in self.runs for layer in run.layers)

    @property
    def is_comparison(self) -> bool:
        """True if there are at least two runs."""
        return len(self.runs) > 1
