"""What the pages of incidents show, asked from the collector."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradcanary_dashboard.address.incidents import Filter
from gradcanary_dashboard.collector.client import Answer, Collector

FIRST: Mapping[str, Mapping[str, Any]] = {"open": {"sort": "worst", "limit": 100}, "resolved": {"limit": 50}}
"""How many incidents of a state a page has, and which come first: of resolved ones the newest."""


@dataclass(frozen=True)
class Chapter:
    """Incidents of one state, newest first, open ones worst first; ``next`` is the ``before`` of the following page."""

    state: str
    incidents: Sequence[Mapping[str, Any]]
    next: str | None


def load(collector: Collector, chosen: Filter) -> list[Chapter]:
    """Return the open incidents, then the resolved ones; of later pages of the history these alone."""
    answers = _answers(collector, chosen)
    return [Chapter(state, answer.body["incidents"], answer.body["next"]) for state, answer in answers.items()]


def version(collector: Collector, chosen: Filter) -> str:
    """Return what changes when :func:`load` returns others."""
    versions = [answer.version for answer in _answers(collector, chosen).values()]
    return hashlib.sha256(" ".join(versions).encode()).hexdigest()[:16]


def rules(collector: Collector) -> list[str]:
    """Return the names of the rules, as the collector has them."""
    found = collector.rules().body
    return [name for name, rule in found.items() if isinstance(rule, dict) and "enabled" in rule]


def worst(collector: Collector, **query: str | int | None) -> Answer:
    """Return what is open first, then what runs ended on, the worst of each first, what layers did before what is late,
    then the newest. The collector puts them in this order: of more than one answer holds the first are the worst."""
    return collector.incidents(sort="worst", **query)


def _answers(collector: Collector, chosen: Filter) -> dict[str, Answer]:
    states = {"": ("open", "resolved"), "open": ("open",), "resolved": ("resolved",)}[chosen.state]
    if chosen.before is not None:
        states = states[-1:]
    asked = {**chosen.asked(), "before": chosen.before}
    return {state: collector.incidents(state=state, **FIRST[state], **asked) for state in states}
