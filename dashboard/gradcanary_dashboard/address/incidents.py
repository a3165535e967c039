"""Which incidents the list shows: the query of ``/incidents``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from urllib.parse import parse_qs, urlencode

from gradcanary_dashboard.analysis.severity import SEVERITIES

STATES = {"": "open and resolved", "open": "open", "resolved": "resolved"}
CHOICES = {"": "every severity", **{each: each for each in reversed(SEVERITIES)}}
"""Of a severity, in words."""

MAX_TEXT = 100
"""Characters of a part of a run's name, or of a rule's."""


@dataclass(frozen=True)
class Filter:
    """``run`` is a part of a run's name; ``before`` is where the list goes on, as the page before it was told."""

    state: str = ""
    severity: str = ""
    rule: str = ""
    run: str = ""
    before: str | None = None

    @property
    def is_set(self) -> bool:
        """Whether some incidents are left out."""
        return replace(self, before=None) != Filter()

    def asked(self) -> dict[str, str | None]:
        """Return what the collector is asked with, but for the state and the page."""
        return {"severity": self.severity or None, "rule": self.rule or None, "name_contains": self.run or None}


def parse(search: str | None) -> Filter:
    """Return the filter of a query string; what cannot be read counts as absent."""
    query = parse_qs((search or "").removeprefix("?"))
    given = {key: query.get(key, [""])[0].strip() for key in ("state", "severity", "rule", "run", "before")}
    return Filter(
        state=given["state"] if given["state"] in STATES else "",
        severity=given["severity"] if given["severity"] in CHOICES else "",
        rule=given["rule"][:MAX_TEXT],
        run=given["run"][:MAX_TEXT],
        before=given["before"] or None,
    )


def url(chosen: Filter) -> str:
    """Return the address of the list under a filter."""
    given = {key: value for key, value in vars(chosen).items() if value not in ("", None)}
    return f"/incidents?{urlencode(given)}" if given else "/incidents"
