"""Silences over HTTP: who shall not hear of what, until when."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from sqlalchemy import Connection

from gradcanary import wire
from gradcanary_server import access, bodies, run_names, sessions, silences
from gradcanary_server.answer_shapes import answered
from gradcanary_server.database import Database
from gradcanary_server.errors import invalid
from gradcanary_server.expressions import Expression, ExpressionError
from gradcanary_server.incident_shapes import HiddenShape, SilencePreview, SilenceShape
from gradcanary_server.requests import Reader, check_text
from gradcanary_server.rules import NAMES
from gradcanary_server.run_shapes import one_of
from gradcanary_server.silences import Hushed, Silence
from gradcanary_server.timestamps import timestamp

LONGEST_S = 366 * 86_400.0
"""What is to be quiet for ever is a rule with ``notify: false``."""

_NAMES = r"[A-Za-z0-9._*?-]{1,100}"
_GLOB = re.compile(rf"{_NAMES}\Z")

router = APIRouter(prefix="/api/v1")


@dataclass(frozen=True)
class Wish(wire.Request):
    """A silence that somebody asks for; ``until`` is a time, ``match`` an expression found in layers' names. Without
    ``by`` it is of whom the token names.
    """

    run: str
    until: str
    by: str | None = None
    rule: str | None = None
    match: str | None = None
    note: str = ""


@dataclass(frozen=True)
class Change(wire.Request):
    """Another end of a silence."""

    until: str


_WISH = Reader(Wish)
_CHANGE = Reader(Change)


# Response models would check what was just built: the answers are plain JSON values.
@router.get("/silences", response_model=None, responses=answered("silences"))
def list_silences(request: Request) -> JSONResponse:
    """Answer the silences in force, in the order in which they were made, each with the open incidents it hides."""
    database: Database = request.app.state.database
    with database.read() as connection:
        found = silences.in_force(connection, database.now(connection))
        return JSONResponse({"silences": [_shown(each, silences.hushed(connection, each)) for each in found]})


@router.get("/silences/preview", response_model=None, responses=answered("silence-preview"))
def preview_silence(
    request: Request,
    run: Annotated[str, Query(json_schema_extra={"pattern": f"^{_NAMES}$"})],
    rule: Annotated[str | None, one_of(*NAMES)] = None,
    match: str | None = None,
) -> JSONResponse:
    """Answer what a silence of this would hide now, and how many runs have such a name; nothing is silenced."""
    _check(run, rule, match)
    database: Database = request.app.state.database
    with database.read() as connection:
        glob, now = _glob(connection, run), database.now(connection)
        hushed = silences.hushed(connection, Silence(0, glob, rule, match, now, now, "", ""))
        names = silences.run_names(connection, {each.run_id for each in hushed})
        hidden: list[HiddenShape] = [
            {"id": each.incident, "run": names[each.run_id], "rule": each.rule, "members": each.members, "of": each.of}
            for each in hushed
        ]
        answer: SilencePreview = {"runs": silences.runs_named(connection, glob), "incidents": hidden}
        return JSONResponse(answer)


@router.post("/silences", response_model=None, status_code=201, responses=answered("silenced", 201))
async def add_silence(request: Request) -> JSONResponse:
    """Silence members of incidents, and answer 201 with the silence; they stay on the pages."""
    wish = _WISH.read(await bodies.read(request))
    check_text(wish.note, "note", 2_000, lines=True)
    _check(wish.run, wish.rule, wish.match)
    by = access.signature(request, wish.by)
    return JSONResponse(await run_in_threadpool(_add, request, wish, by), 201)


@router.patch("/silences/{number}", response_model=None, responses=answered("silenced"))
async def change_silence(request: Request, number: int) -> JSONResponse:
    """Give a silence another end, and answer it."""
    wish = _CHANGE.read(await bodies.read(request))
    return JSONResponse(await run_in_threadpool(_move, request, number, wish))


@router.delete("/silences/{number}", status_code=204)
def end_silence(request: Request, number: int) -> None:
    """End a silence: what is still true is told."""
    database: Database = request.app.state.database
    with database.write() as connection:
        _revise(connection, silences.end(connection, number, database.now(connection)))


def _check(run: str, rule: str | None, match: str | None) -> None:
    if not _GLOB.match(run):
        raise invalid("A run is a name, or one with * and ? for any text and character: * is every run.", "run")
    if rule is not None and rule not in NAMES:
        raise invalid(f"A rule is one of {', '.join(NAMES)}; leave it away for all.", "rule")
    if match is not None:
        check_text(match, "match", 200, shortest=1)
        try:
            Expression(match)
        except ExpressionError as error:
            raise invalid(f"This expression does not work: {error}.", "match") from error


def _glob(connection: Connection, name: str) -> str:
    """Return the runs that somebody means: perhaps one by a name that it had, of a message from before."""
    named = run_names.find(connection, name)
    return name if named is None else named.name


def _add(request: Request, wish: Wish, by: str) -> SilenceShape:
    database: Database = request.app.state.database
    with database.write() as connection:
        now = database.now(connection)
        until = _until(wish.until, now)
        glob = _glob(connection, wish.run)
        made = silences.add(connection, Silence(0, glob, wish.rule, wish.match, now, until, by, wish.note))
        request.state.about = f"{made.id}: {made.rule or 'every rule'} in {made.glob}"
        return _shown(made, _revise(connection, made))


def _move(request: Request, number: int, wish: Change) -> SilenceShape:
    database: Database = request.app.state.database
    with database.write() as connection:
        now = database.now(connection)
        moved = silences.move(connection, silences.find(connection, number, now), _until(wish.until, now))
        request.state.about = f"until {timestamp(moved.until)}"
        return _shown(moved, _revise(connection, moved))


def _until(text: str, now: float) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise invalid("A silence ends at a time such as 2030-01-31T12:00:00Z.", "until") from error
    until = (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp()
    if not now < until <= now + LONGEST_S:
        raise invalid(f"A silence ends in the future (here it is {timestamp(now)}), within 366 days.", "until")
    return until


def _revise(connection: Connection, changed: Silence) -> Sequence[Hushed]:
    """Let pages look again at the runs whose incidents a silence hides or hid, and return these."""
    hushed = silences.hushed(connection, changed)
    for run_id in sorted({each.run_id for each in hushed}):
        sessions.revise(connection, run_id)
    return hushed


def _shown(silence: Silence, hushed: Sequence[Hushed]) -> SilenceShape:
    return {
        "id": silence.id,
        "run": silence.glob,
        "rule": silence.rule,
        "match": silence.expression,
        "created": timestamp(silence.created),
        "until": timestamp(silence.until),
        "by": silence.by,
        "note": silence.note,
        "incidents": [each.incident for each in hushed],
    }
