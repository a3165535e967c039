"""Incidents of a filter, and the layers of one incident, as CSV."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gradcanary_dashboard.address.incidents import Filter
from gradcanary_dashboard.collector.client import Collector
from gradcanary_dashboard.exports.csv import Pieces, Table, file_name, to_csv

OF_MEMBER = ("name", "since_step", "until_step", "baseline", "value", "siblings", "evidence", "rank")
OF_INCIDENT = ("id", "run", "rule", "severity", "state", "resolution", "since_step", "opened_step", "resolved_step")
COUNTED = ("firing", "ever", "layers")
STATES = {"over": ("resolved", "ended"), **{state: (state,) for state in ("open", "resolved", "ended")}}
SAID = ("opened", "resolved", "summary", "url")


def of_members(collector: Collector, number: int) -> tuple[str, Pieces]:
    """Return the present and former layers of an incident in model order."""
    incident = collector.incident(number).body
    return file_name(incident["run"], "incident", str(number)), to_csv(_members(incident))


def of_incidents(collector: Collector, chosen: Filter) -> tuple[str, Pieces]:
    """Return all incidents of a filter, newest first."""
    words = [each for each in (chosen.state, chosen.severity, chosen.rule, chosen.run) if each]
    first = _page(collector, chosen, None)  # a refusal is raised before the file begins
    return file_name("incidents", *words), to_csv(_incidents(_all(collector, chosen, first)))


def _members(incident: Mapping[str, Any]) -> Table:
    yield OF_MEMBER
    for member in incident["layers"]:
        if member["layer"] is not None:
            yield [member[key] for key in OF_MEMBER]


def _incidents(found: Iterable[Mapping[str, Any]]) -> Table:
    yield [*OF_INCIDENT, *COUNTED, *SAID]
    for incident in found:
        counts = [incident["counts"][key] for key in COUNTED]
        yield [*(incident[key] for key in OF_INCIDENT), *counts, *(incident[key] for key in SAID)]


def _all(collector: Collector, chosen: Filter, page: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from page["incidents"]
    while page["next"] is not None:
        page = _page(collector, chosen, page["next"])
        yield from page["incidents"]


def _page(collector: Collector, chosen: Filter, before: str | None) -> Mapping[str, Any]:
    page: Mapping[str, Any] = collector.incidents(state=STATES.get(chosen.state), before=before, **chosen.asked()).body
    return page
