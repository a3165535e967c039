"""The query of the list of incidents. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from urllib.parse import parse_qs, urlencode

from gradcanary_dashboard.analysis.severity import SEVERITIES

STATES = {"": "every state", "open": "open", "over": "resolved or ended", "resolved": "resolved", "ended": "ended"}
OF_API = {"over": ("resolved", "ended"), **{state: (state,) for state in ("open", "resolved", "ended")}}
"""The states that the API knows, by choice."""

CHOICES = {"": "every severity", **{each: each for each in reversed(SEVERITIES)}}
"""Of a severity, in words."""

MAX_TEXT = 100
"""Most characters of a part of a run's name, or of a rule."""


@dataclass(frozen=True)
class Filter:
    """The filter of the list; ``run`` is a part of a run's name, ``before`` the ``next`` of the page before."""

    state: str = ""
    severity: str = ""
    rule: str = ""
    run: str = ""
    before: str | None = None

    @property
    def is_set(self) -> bool:
        """True if some incidents are left out."""
        return replace(self, before=None) != Filter()

    def asked(self) -> dict[str, str | None]:
        """Return the parameters for the collector, without state and page."""
        return {"severity": self.severity or None, "rule": self.rule or None, "name_contains": self.run or None}


def parse(search: str | None) -> Filter:
    """Return the filter of a query string; invalid parameters are ignored."""
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
