"""The incidents of the read API, and the acknowledgement of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from sqlalchemy import ColumnElement, Connection, select, update

from gradcanary import wire
from gradcanary_server import (
    access,
    bodies,
    dossiers,
    incident_choice,
    incident_views,
    incidents,
    sessions,
    silences,
    tags,
)
from gradcanary_server.answer_shapes import answered
from gradcanary_server.database import Database
from gradcanary_server.errors import RequestError
from gradcanary_server.incident_choice import MAX_PLACE, Choice
from gradcanary_server.incident_shapes import IncidentInFull, IncidentList
from gradcanary_server.requests import Reader, check_text
from gradcanary_server.run_names import IS_THERE
from gradcanary_server.schema import MAX_ID, incident, run

PAGE = 100
"""Incidents of one answer at most."""

router = APIRouter(prefix="/api/v1")


@dataclass(frozen=True)
class Acknowledgement(wire.Request):
    """Somebody knows of an incident; reminders and growth need not be said any more. ``new_baseline``: it is as it
    shall be. Without ``by`` it is whom the token names.
    """

    by: str | None = None
    note: str = ""
    new_baseline: bool = False


_ACK = Reader(Acknowledgement)


# Response models would check what was just built: the answers are plain JSON values.
@router.get("/incidents", response_model=None, responses=answered("incidents"))
def list_incidents(
    request: Request,
    wanted: Annotated[Choice, Depends()],
    before: Annotated[int | None, Query(ge=0, le=MAX_PLACE)] = None,
    limit: Annotated[int, Query(ge=1, le=PAGE)] = PAGE,
) -> Response:
    """Answer incidents, newest or worst first; ``next`` is the ``before`` of the following page."""
    database: Database = request.app.state.database
    with database.read() as connection:
        found = incident_choice.page(connection, wanted, before, limit)
        shown, quiet = found.ids, silences.in_force(connection, database.now(connection))

        def build() -> IncidentList:
            told = incident_views.told(connection, shown)
            url = request.app.state.settings.public_url
            held = dossiers.load(connection, shown, is_brief=True)
            listed = [incident_views.brief(each, url, quiet, told[each.id]) for each in held]
            return {"incidents": listed, "next": found.next}

        return tags.answer(request, [found.next, shown, *incident_views.depends(connection, shown, quiet)], build)


@router.get("/incidents/{number}", response_model=None, responses=answered("incident"))
def show_incident(request: Request, number: int) -> Response:
    """Answer one incident with its layers and deliveries."""
    database: Database = request.app.state.database
    with database.read() as connection:
        _run_of(connection, number)
        quiet = silences.in_force(connection, database.now(connection))
        depends = incident_views.depends(connection, [number], quiet)
        return tags.answer(request, depends, lambda: _full(connection, number, request))


@router.post("/incidents/{number}/ack", response_model=None, responses=answered("incident"))
async def acknowledge(request: Request, number: int) -> JSONResponse:
    """Take note that somebody knows, and answer the incident; a second one replaces the first."""
    ack = _ACK.read(await bodies.read(request))
    check_text(ack.note, "note", 2_000, lines=True)
    by = access.signature(request, ack.by)
    return JSONResponse(await run_in_threadpool(_acknowledge, request, number, ack, by))


def _acknowledge(request: Request, number: int, ack: Acknowledgement, by: str) -> IncidentInFull:
    database: Database = request.app.state.database
    with database.write() as connection:
        run_id = _run_of(connection, number)
        now = database.now(connection)
        # The run first, as everywhere: ingest, which holds it, may be at this incident.
        sessions.revise(connection, run_id)
        if ack.new_baseline:
            incidents.accept(connection, run_id, number, now)
        noted = {"acked": now, "acked_by": by, "ack_note": ack.note}
        connection.execute(update(incident).where(_is(number)).values(**noted))
        return _full(connection, number, request)


def _full(connection: Connection, number: int, request: Request) -> IncidentInFull:
    _run_of(connection, number)
    dossier = dossiers.load(connection, [number])[0]
    database: Database = request.app.state.database
    quiet = silences.in_force(connection, database.now(connection))
    return incident_views.full(connection, dossier, request.app.state.settings.public_url, quiet)


def _run_of(connection: Connection, number: int) -> int:
    mine = select(incident.c.run_id).join(run, run.c.run_id == incident.c.run_id).where(_is(number), IS_THERE)
    run_id = connection.execute(mine).scalar_one_or_none() if 0 <= number <= MAX_ID else None
    if run_id is None:
        raise RequestError(404, "unknown_incident", f"There is no incident {number} here.", "incident")
    return int(run_id)


def _is(number: int) -> ColumnElement[bool]:
    return incident.c.incident_id == number
