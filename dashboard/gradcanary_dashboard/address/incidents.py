"""The queries of the list of incidents and of the table of an incident. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from urllib.parse import parse_qs, urlencode

from gradcanary.display.verdict import SEVERITIES

STATES = {"": "every state", "open": "open", "over": "resolved or ended", "resolved": "resolved", "ended": "ended"}
OF_API = {"over": ("resolved", "ended"), **{state: (state,) for state in ("open", "resolved", "ended")}}
"""The states that the API knows, by choice."""

CHOICES = {"": "every severity", **{each: each for each in reversed(SEVERITIES)}}
"""Of a severity, in words."""

MAX_TEXT = 100
"""Most characters of a part of a run's or a layer's name, or of a rule."""

FEW = 100
"""Rows of an incident's table at first."""


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


@dataclass(frozen=True)
class Members:
    """The choice of an incident's layers: a part of their names, the column of the order, the number of rows."""

    find: str = ""
    by: int | None = None
    descends: bool = False
    most: int = FEW


def parse_members(search: str | None) -> Members:
    """Return the choice of a query string: ``by`` is a column, with a minus if it descends."""
    query = parse_qs((search or "").removeprefix("?"))
    given = {key: query.get(key, [""])[0].strip() for key in ("find", "by", "most")}
    by = re.fullmatch(r"(-?)([0-9]{1,2})", given["by"])
    most = int(given["most"]) if re.fullmatch(r"[0-9]{1,6}", given["most"]) else FEW
    return Members(
        find=given["find"][:MAX_TEXT],
        by=None if by is None else int(by[2]),
        descends=by is not None and by[1] == "-",
        most=max(FEW, most),
    )


def url(chosen: Filter) -> str:
    """Return the address of the list under a filter."""
    given = {key: value for key, value in vars(chosen).items() if value not in ("", None)}
    return f"/incidents?{urlencode(given)}" if given else "/incidents"
