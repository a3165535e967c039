"""Which incidents a list shows, in which order, and where its next page begins."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Annotated, Literal

from fastapi import Query
from pydantic import BeforeValidator
from sqlalchemy import ColumnElement, Connection, Select, case, func, select

from gradcanary_server import runs
from gradcanary_server.errors import invalid
from gradcanary_server.incident_state import OF_THE_CLOCK, RANKS
from gradcanary_server.observations import Severity
from gradcanary_server.rules import NAMES
from gradcanary_server.run_names import IS_THERE
from gradcanary_server.run_shapes import one_of
from gradcanary_server.schema import MAX_ID, incident, run

_OVER = 2 * 2 * len(RANKS)
"""The place of what is over: behind every severity, of the clock or not, of what is open or a run ended on."""

_IDS = MAX_ID + 1
MAX_PLACE = (_OVER + 1) * _IDS - 1
"""The last place of a list: of what is worst first these count as digits before the number of the incident."""


def _dated(text: object) -> object:
    """Return what is to be a time, unless it is a number: by its size that would be seconds or milliseconds."""
    try:
        float(str(text))
    except ValueError:
        return text
    raise ValueError("it is a time such as 2030-01-31T12:00:00Z")


@dataclass(frozen=True)
class Choice:
    """Which incidents a list shows: of a run by its name, or of those with a part in their names; each may be left.

    ``sort`` is ``newest``, or ``worst``: open ones before those that runs ended on, the worst of each first, what
    layers did before what is late, then the newest; what is over otherwise is behind them.
    """

    run: str | None = None
    named: Annotated[str, Query(max_length=100)] = ""
    state: Literal["open", "resolved"] | None = None
    severity: Severity | None = None
    rule: Annotated[str | None, one_of(*NAMES)] = None
    since: Annotated[datetime, BeforeValidator(_dated)] | None = None
    sort: Literal["newest", "worst"] = "newest"


@dataclass(frozen=True)
class Page:
    """Numbers of incidents in the order of a list, and the ``before`` of the page that follows, None: there is none."""

    ids: list[int]
    next: int | None


def page(connection: Connection, wanted: Choice, before: int | None, limit: int) -> Page:
    """Return so many incidents that are meant, those behind ``before`` where it is given.

    Where a list goes on is a place in it, and not an incident that has it: one that gets worse or is over moves by
    itself alone. Raises RequestError 422 for a rule that is none, and for a place that only the other order has; 404
    for a run that is not known.
    """
    query = _meant(connection, wanted)
    if wanted.sort == "newest":
        if before is not None and before > MAX_ID:
            raise invalid(f"A list of the newest goes on at 0 to {MAX_ID}; is this a place of sort=worst?", "before")
        query = query.order_by(incident.c.incident_id.desc())
        query = query if before is None else query.where(incident.c.incident_id < before)
    else:
        place, newest_first = _place(), MAX_ID - incident.c.incident_id
        query = query.order_by(place, newest_first)
        if before is not None:
            behind, number = divmod(before, _IDS)
            query = query.where((place > behind) | ((place == behind) & (newest_first > number)))
    rows = connection.execute(query.limit(limit + 1)).all()
    ids = [row.incident_id for row in rows[:limit]]
    if len(rows) <= limit:
        return Page(ids, None)
    return Page(ids, ids[-1] if wanted.sort == "newest" else rows[limit - 1].place * _IDS + MAX_ID - ids[-1])


def _place() -> ColumnElement[int]:
    """Return how far behind an incident is among others, from 0 on: a number that the store can sort by."""
    mild = case(
        {severity: len(RANKS) - 1 - rank for severity, rank in RANKS.items()}, value=incident.c.severity, else_=0
    )
    late = case((incident.c.rule.in_(OF_THE_CLOCK), 1), else_=0)
    ended = case((incident.c.state == "open", 0), else_=2 * len(RANKS))
    is_over = (incident.c.state != "open") & (func.coalesce(incident.c.resolution, "") != "run_finished")
    return case((is_over, _OVER), else_=ended + 2 * mild + late)


def _meant(connection: Connection, wanted: Choice) -> Select[tuple[int, int]]:
    if wanted.rule is not None and wanted.rule not in NAMES:
        raise invalid(f"A rule is one of {', '.join(NAMES)}; leave it away for all.", "rule")
    query = (
        select(incident.c.incident_id, _place().label("place"))
        .join(run, run.c.run_id == incident.c.run_id)
        .where(IS_THERE)
    )
    if wanted.run is not None:
        query = query.where(incident.c.run_id == runs.find(connection, wanted.run).run_id)
    if wanted.named:
        named = func.lower(run.c.name).contains(wanted.named.lower(), autoescape=True)
        query = query.where(named)
    if wanted.since is not None:
        query = query.where(incident.c.opened >= _utc(wanted.since).timestamp())
    for column in (incident.c.state, incident.c.severity, incident.c.rule):
        value = getattr(wanted, column.name)
        query = query if value is None else query.where(column == value)
    return query


def _utc(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
