"""The incidents of the read API, and the acknowledgement of one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Literal

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from sqlalchemy import ColumnElement, Connection, select, update

from gradcanary import wire
from gradcanary_server import bodies, dossiers, incident_views, incidents, runs, sessions, silences
from gradcanary_server.answer_shapes import answered
from gradcanary_server.database import Database
from gradcanary_server.errors import RequestError, invalid
from gradcanary_server.incident_shapes import IncidentInFull
from gradcanary_server.requests import Reader, check_text
from gradcanary_server.schema import incident

PAGE = 100
"""Incidents of one answer, newest first."""

MAX_ID = 2**31 - 1

router = APIRouter(prefix="/api/v1")


@dataclass(frozen=True)
class Acknowledgement(wire.Request):
    """Somebody knows of an incident; reminders and growth need not be said any more. ``new_baseline``: it is as it
    shall be.
    """

    by: str
    note: str = ""
    new_baseline: bool = False


_ACK = Reader(Acknowledgement)


# Response models would check what was just built: the answers are plain JSON values.
@router.get("/incidents", response_model=None, responses=answered("incidents"))
def list_incidents(
    request: Request,
    run: str | None = None,
    state: Literal["open", "resolved"] | None = None,
    since: datetime | None = None,
    before: int = MAX_ID,
) -> JSONResponse:
    """Answer the incidents of a run, or of all, newest first; ``next`` is the ``before`` of the following page."""
    if not 0 <= before <= MAX_ID:
        raise invalid(f"before is an incident id, 0 to {MAX_ID}.", "before")
    database: Database = request.app.state.database
    with database.read() as connection:
        ids = _matching(connection, run, state, since, before)
        found = dossiers.load(connection, ids[:PAGE])
        quiet = silences.in_force(connection, database.now(connection))
    url = request.app.state.settings.public_url
    more = ids[PAGE - 1] if len(ids) > PAGE else None
    return JSONResponse({"incidents": [incident_views.brief(each, url, quiet) for each in found], "next": more})


@router.get("/incidents/{number}", response_model=None, responses=answered("incident"))
def show_incident(request: Request, number: int) -> JSONResponse:
    """Answer one incident with its layers and deliveries."""
    database: Database = request.app.state.database
    with database.read() as connection:
        return JSONResponse(_full(connection, number, request))


@router.post("/incidents/{number}/ack", response_model=None, responses=answered("incident"))
async def acknowledge(request: Request, number: int) -> JSONResponse:
    """Take note that somebody knows, and answer the incident; a second one replaces the first."""
    ack = _ACK.read(await bodies.read(request))
    check_text(ack.by, "by", 200, shortest=1)
    check_text(ack.note, "note", 2_000, lines=True)
    return JSONResponse(await run_in_threadpool(_acknowledge, request, number, ack))


def _acknowledge(request: Request, number: int, ack: Acknowledgement) -> IncidentInFull:
    database: Database = request.app.state.database
    with database.write() as connection:
        run_id = _run_of(connection, number)
        now = database.now(connection)
        # The run first, as everywhere: ingest, which holds it, may be at this incident.
        sessions.revise(connection, run_id)
        if ack.new_baseline:
            incidents.accept(connection, run_id, number, now)
        noted = {"acked": now, "acked_by": ack.by, "ack_note": ack.note}
        connection.execute(update(incident).where(_is(number)).values(**noted))
        return _full(connection, number, request)


def _full(connection: Connection, number: int, request: Request) -> IncidentInFull:
    _run_of(connection, number)
    dossier = dossiers.load(connection, [number])[0]
    database: Database = request.app.state.database
    quiet = silences.in_force(connection, database.now(connection))
    return incident_views.full(connection, dossier, request.app.state.settings.public_url, quiet)


def _run_of(connection: Connection, number: int) -> int:
    mine = select(incident.c.run_id).where(_is(number))
    run_id = connection.execute(mine).scalar_one_or_none() if 0 <= number <= MAX_ID else None
    if run_id is None:
        raise RequestError(404, "unknown_incident", f"There is no incident {number} here.", "incident")
    return int(run_id)


def _matching(
    connection: Connection, run_name: str | None, state: str | None, since: datetime | None, before: int
) -> list[int]:
    """Return the ids of a page and one more, newest first."""
    query = select(incident.c.incident_id).where(incident.c.incident_id < before)
    if run_name is not None:
        query = query.where(incident.c.run_id == runs.find(connection, run_name).run_id)
    if state is not None:
        query = query.where(incident.c.state == state)
    if since is not None:
        query = query.where(incident.c.opened >= _utc(since).timestamp())
    return list(connection.scalars(query.order_by(incident.c.incident_id.desc()).limit(PAGE + 1)))


def _utc(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)


def _is(number: int) -> ColumnElement[bool]:
    return incident.c.incident_id == number
