"""The answers for the pages of incidents."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradcanary_dashboard.address.incidents import OF_API, Filter
from gradcanary_dashboard.collector.client import Answer, Collector

FIRST: Mapping[str, Mapping[str, Any]] = {"open": {"sort": "worst", "limit": 100}}
"""Number and order of a page's incidents, by state; the newest 50 of any other state."""

OVER = "over"
"""The history: incidents that are resolved or ended."""


DETAILED_OF_RUN = 8
"""Incidents that a run's page shows with their layers and deliveries; the others are listed by their summary."""

DETAILED_OF_LAYER = 24
"""The same on a layer's page, which has no other list."""


@dataclass(frozen=True)
class IncidentPage:
    """Incidents of one state, or the history, newest first, open ones worst first.

    ``next`` is the ``before`` of the following page.
    """

    state: str
    incidents: Sequence[Mapping[str, Any]]
    next: str | None


def load(collector: Collector, chosen: Filter) -> list[IncidentPage]:
    """Return open incidents, then the history; later pages have only the history."""
    answers = _answers(collector, chosen)
    return [IncidentPage(state, answer.body["incidents"], answer.body["next"]) for state, answer in answers.items()]


def version(collector: Collector, chosen: Filter) -> str:
    """Return the version of :func:`load`."""
    versions = [answer.version for answer in _answers(collector, chosen).values()]
    return hashlib.sha256(" ".join(versions).encode()).hexdigest()[:16]


def rules(collector: Collector) -> list[str]:
    """Return the names of the collector's rules."""
    body = collector.rules().body
    return [name for name, rule in body.items() if isinstance(rule, dict) and "enabled" in rule]


def worst(collector: Collector, **query: str | int | None) -> Answer:
    """Return open incidents, then those that runs ended on, then the others; the worst of each kind first.

    The collector sorts them: if there are more than an answer holds, it holds the worst.
    """
    return collector.incidents(sort="worst", **query)


def worst_of_run(collector: Collector, run: str, layer: int | None = None) -> Answer:
    """Return the incidents of a run, or of a layer of it, the worst first, the first of them with all details."""
    detailed = DETAILED_OF_RUN if layer is None else DETAILED_OF_LAYER
    return worst(collector, run=run, layer=layer, detailed=detailed)


def _answers(collector: Collector, chosen: Filter) -> dict[str, Answer]:
    states = (chosen.state,) if chosen.state else ("open", OVER)
    if chosen.before is not None:
        states = states[-1:]
    query = {"limit": 50, **chosen.asked(), "before": chosen.before}
    return {state: collector.incidents(state=OF_API[state], **{**query, **FIRST.get(state, {})}) for state in states}
