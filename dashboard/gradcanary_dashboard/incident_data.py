"""What the pages of incidents show, asked from the collector."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradcanary_dashboard.client import Answer, Collector
from gradcanary_dashboard.incident_filter import Filter
from gradcanary_dashboard.wording import OF_THE_CLOCK, SEVERITIES

OPEN, OLD = 100, 50
"""Open incidents of a page, and resolved ones."""


@dataclass(frozen=True)
class Chapter:
    """Incidents of one state, newest first, open ones worst first; ``next`` is the ``before`` of the following page."""

    state: str
    incidents: Sequence[Mapping[str, Any]]
    next: int | None


def load(collector: Collector, chosen: Filter) -> list[Chapter]:
    """Return the open incidents, then the resolved ones; of later pages of the history these alone."""
    answers = _answers(collector, chosen)
    return [Chapter(state, _ordered(state, answer.body), answer.body["next"]) for state, answer in answers.items()]


def version(collector: Collector, chosen: Filter) -> str:
    """Return what changes when :func:`load` returns others."""
    versions = [answer.version for answer in _answers(collector, chosen).values()]
    return hashlib.sha256(" ".join(versions).encode()).hexdigest()[:16]


def rules(collector: Collector) -> list[str]:
    """Return the names of the rules, as the collector has them."""
    found = collector.rules().body
    return [name for name, rule in found.items() if isinstance(rule, dict) and "enabled" in rule]


def worst_first(incidents: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return what is open first, then what runs ended on, the worst of each first, what layers did before what is late,
    then the newest."""
    newest = sorted(incidents, key=lambda each: -each["id"])
    return sorted(newest, key=_place)


def _place(incident: Mapping[str, Any]) -> tuple[int, int, bool]:
    if incident["state"] != "open" and incident["resolution"] != "run_finished":
        return 2, 0, False
    is_late = incident["rule"] in OF_THE_CLOCK
    return int(incident["state"] != "open"), -SEVERITIES.index(incident["severity"]), is_late


def _ordered(state: str, found: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    incidents: Sequence[Mapping[str, Any]] = found["incidents"]
    return worst_first(incidents) if state == "open" else incidents


def _answers(collector: Collector, chosen: Filter) -> dict[str, Answer]:
    states = {"": ("open", "resolved"), "open": ("open",), "resolved": ("resolved",)}[chosen.state]
    if chosen.before is not None:
        states = states[-1:]
    limits = {"open": OPEN, "resolved": OLD}
    asked = {**chosen.asked(), "before": chosen.before}
    return {state: collector.incidents(state=state, limit=limits[state], **asked) for state in states}
