"""The lists of runs and of incidents, and the layers of one incident, as CSV."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from gradcanary.display.verdict import verdict
from gradcanary_dashboard.address.incidents import OF_API, Filter
from gradcanary_dashboard.address.runs import Listing
from gradcanary_dashboard.analysis import picture
from gradcanary_dashboard.analysis.verdict import firing
from gradcanary_dashboard.collector.client import Collector
from gradcanary_dashboard.exports.csv import Pieces, Table, file_name, to_csv

Row: TypeAlias = Mapping[str, Any]

OF_RUN = ("run", "state", "created", "host", "step", "last_step_at", "last_seen", "layers", "below_threshold")
OF_MEMBER = ("name", "since_step", "until_step", "baseline", "value", "siblings", "evidence", "rank")
OF_INCIDENT = ("id", "run", "rule", "severity", "state", "resolution", "since_step", "opened_step", "resolved_step")
COUNTED = ("firing", "ever", "layers")
SAID = ("opened", "resolved", "summary", "url")


def of_runs(collector: Collector, chosen: Listing) -> tuple[str, Pieces]:
    """Return all runs of a list in its order."""

    def page(after: str | None) -> Row:
        found: Row = collector.runs(**replace(chosen, after=after).question()).body
        return found

    words = [each for each in (chosen.text, chosen.state, "archive" if chosen.is_archived else None) if each]
    return file_name("runs", *words), to_csv(_runs(_all(page, "runs")))


def of_incidents(collector: Collector, chosen: Filter) -> tuple[str, Pieces]:
    """Return all incidents of a filter, newest first."""

    def page(before: str | None) -> Row:
        found: Row = collector.incidents(state=OF_API.get(chosen.state), before=before, **chosen.asked()).body
        return found

    words = [each for each in (chosen.state, chosen.severity, chosen.rule, chosen.run) if each]
    return file_name("incidents", *words), to_csv(_incidents(_all(page, "incidents")))


def of_members(collector: Collector, number: int) -> tuple[str, Pieces]:
    """Return the present and former layers of an incident in model order."""
    incident = collector.incident(number).body
    return file_name(incident["run"], "incident", str(number)), to_csv(_members(incident))


def _runs(found: Iterable[Row]) -> Table:
    yield [*OF_RUN, "firing", "open_incidents", "severity", "says", "loss", "accumulators", "tags", "note"]
    for run in found:
        said = verdict(run)
        sums = ", ".join(f"{dtype} {number}" for dtype, number in run["accumulators"].items())
        yield [
            *(run[key] for key in OF_RUN),
            firing(run),
            len(run["open_incidents"]),
            run["worst"] or run["severity_at_end"],
            said.text,
            run["loss"] and run["loss"]["last"],
            sums,
            ", ".join(run["tags"]),
            run["note"],
        ]


def _incidents(found: Iterable[Row]) -> Table:
    yield [*OF_INCIDENT, *COUNTED, *SAID]
    for incident in found:
        counts = [incident["counts"][key] for key in COUNTED]
        yield [*(incident[key] for key in OF_INCIDENT), *counts, *(incident[key] for key in SAID)]


def _members(incident: Row) -> Table:
    yield OF_MEMBER
    for member in picture.members(incident):
        yield [member[key] for key in OF_MEMBER]


def _all(page: Callable[[str | None], Row], key: str) -> Iterator[Row]:
    """Return the rows of all pages; a refusal of the first one is raised before the file begins."""
    return _rows(page, key, page(None))


def _rows(page: Callable[[str | None], Row], key: str, found: Row) -> Iterator[Row]:
    yield from found[key]
    while found["next"] is not None:
        found = page(found["next"])
        yield from found[key]
