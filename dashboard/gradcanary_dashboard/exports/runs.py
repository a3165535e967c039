"""The list of runs as CSV."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from gradcanary_dashboard.address.runs import Listing
from gradcanary_dashboard.analysis.verdict import firing, verdict
from gradcanary_dashboard.collector.client import Collector
from gradcanary_dashboard.exports.csv import Pieces, Table, file_name, to_csv

OF_RUN = ("run", "state", "step", "last_step_at", "last_seen")
COUNTED = ("layers", "below_threshold")


def of_runs(collector: Collector, chosen: Listing) -> tuple[str, Pieces]:
    """Return all runs of a list in its order."""
    words = [each for each in (chosen.text, chosen.state, "archive" if chosen.is_archived else None) if each]
    first = _page(collector, replace(chosen, after=None))  # a refusal is raised before the file begins
    return file_name("runs", *words), to_csv(_runs(_all(collector, chosen, first)))


def _runs(found: Iterable[Mapping[str, Any]]) -> Table:
    yield [*OF_RUN, *COUNTED, "firing", "open_incidents", "severity", "says", "accumulators", "tags", "note"]
    for run in found:
        said = verdict(run)
        sums = ", ".join(f"{dtype} {number}" for dtype, number in run["accumulators"].items())
        yield [
            *(run[key] for key in (*OF_RUN, *COUNTED)),
            firing(run),
            len(run["open_incidents"]),
            run["worst"] or run["severity_at_end"],
            said.text,
            sums,
            ", ".join(run["tags"]),
            run["note"],
        ]


def _all(collector: Collector, chosen: Listing, page: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from page["runs"]
    while page["next"] is not None:
        page = _page(collector, replace(chosen, after=page["next"]))
        yield from page["runs"]


def _page(collector: Collector, chosen: Listing) -> Mapping[str, Any]:
    page: Mapping[str, Any] = collector.runs(**chosen.question()).body
    return page
