"""Routes of silences: which members of which incidents are not notified, until when."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request
from sqlalchemy import Connection
from typing_extensions import TypedDict

from gradcanary_server.api.http import Json, JsonRoute, author_name
from gradcanary_server.api.incidents import unix_time
from gradcanary_server.api.models import Count
from gradcanary_server.api.services import DatabaseDep
from gradcanary_server.clock import timestamp
from gradcanary_server.errors import invalid
from gradcanary_server.incidents import silences
from gradcanary_server.incidents.silences import Silence, SilencedIncident
from gradcanary_server.matchers import Matcher, MatcherError
from gradcanary_server.rules.config import Rule
from gradcanary_server.storage import runs
from gradcanary_server.validation import Body, check_text

MAX_SILENCE_S = 366 * 86_400.0
"""A rule that is never to be notified has ``notify: false``."""

_GLOB = r"[A-Za-z0-9._*?-]{1,100}"

router = APIRouter(prefix="/api/v1", route_class=JsonRoute)


@dataclass(frozen=True)
class SilenceShape(Silence):
    """A silence, with the open incidents that it hides."""

    incidents: list[int]


class SilenceList(TypedDict):
    """The active silences in the order of their creation."""

    silences: list[SilenceShape]


class HiddenIncident(TypedDict):
    """An open incident; a silence would hide ``members`` of its ``firing`` ones."""

    id: int
    run: str
    rule: Rule
    members: Count
    firing: Count


class SilencePreview(TypedDict):
    """The incidents that a silence would hide now, and the number of runs that its name matches."""

    runs: Count
    incidents: list[HiddenIncident]


class SilenceCreate(Body):
    """A silence to create; ``until`` is a time, ``match`` an expression found in names of layers. Without ``by`` its
    author is the token's name.
    """

    run: str
    until: str
    by: str | None = None
    rule: Rule | None = None
    match: str | None = None
    note: str = ""


class SilencePatch(Body):
    """Another end of a silence."""

    until: str


@router.get("/silences")
def list_silences(database: DatabaseDep) -> SilenceList:
    """Answer the active silences in the order of their creation, each with the open incidents it hides."""
    with database.read() as connection:
        active = silences.active_silences(connection, database.now(connection))
        listed = [_with_incidents(silence, silences.silenced_incidents(connection, silence)) for silence in active]
    return {"silences": listed}


@router.get("/silences/preview", response_model=SilencePreview)
def preview_silence(
    database: DatabaseDep,
    run: Annotated[str, Query(json_schema_extra={"pattern": f"^{_GLOB}$"})],
    rule: Rule | None = None,
    match: str | None = None,
) -> Json:
    """Answer the incidents that such a silence would hide now, and the number of runs; creates nothing."""
    _check(run, match)
    with database.read() as connection:
        glob, now = _current_name(connection, run), database.now(connection)
        hidden = silences.silenced_incidents(connection, Silence(0, glob, rule, match, now, now, "", ""))
        names = silences.run_names(connection, {incident.run_id for incident in hidden})
        incidents = [{**item._asdict(), "id": item.incident, "run": names[item.run_id]} for item in hidden]
        return {"runs": silences.count_runs_named(connection, glob), "incidents": incidents}


@router.post("/silences", status_code=201)
def add_silence(request: Request, database: DatabaseDep, new: SilenceCreate) -> SilenceShape:
    """Silence members of incidents, and answer 201 with the silence; they stay on the pages."""
    check_text(new.note, "note", 2_000, lines=True)
    _check(new.run, new.match)
    by = author_name(request, new.by)
    with database.write() as connection:
        now = database.now(connection)
        until = _end(new.until, now)
        glob = _current_name(connection, new.run)
        unsaved = Silence(0, glob, new.rule, new.match, now, until, by, new.note)
        silence = silences.create_silence(connection, unsaved)
        request.state.about = f"{silence.id}: {silence.rule or 'every rule'} in {silence.run}"
        return _with_incidents(silence, _revise_runs(connection, silence))


@router.patch("/silences/{number}")
def change_silence(request: Request, database: DatabaseDep, number: int, patch: SilencePatch) -> SilenceShape:
    """Set another end of a silence, and answer it."""
    with database.write() as connection:
        now = database.now(connection)
        silence = silences.find_silence(connection, number, now)
        silence = silences.change_end(connection, silence, _end(patch.until, now))
        request.state.about = f"until {timestamp(silence.until)}"
        return _with_incidents(silence, _revise_runs(connection, silence))


@router.delete("/silences/{number}", status_code=204)
def end_silence(database: DatabaseDep, number: int) -> None:
    """End a silence; incidents that are still open are notified."""
    with database.write() as connection:
        _revise_runs(connection, silences.end_silence(connection, number, database.now(connection)))


def _check(run: str, match: str | None) -> None:
    if not re.fullmatch(_GLOB, run):
        raise invalid("A run is a name, or one with * and ? for any text and character: * is every run.", "run")
    if match is not None:
        check_text(match, "match", 200, shortest=1)
        try:
            Matcher(match)
        except MatcherError as error:
            raise invalid(f"This expression does not work: {error}.", "match") from error


def _current_name(connection: Connection, name: str) -> str:
    """Return the name of the run that has or had this name, else the pattern itself."""
    run = runs.find_run(connection, name)
    return name if run is None else run.name


def _end(text: str, now: float) -> float:
    try:
        end = unix_time(datetime.fromisoformat(text))
    except ValueError as error:
        raise invalid("A silence ends at a time such as 2030-01-31T12:00:00Z.", "until") from error
    if not now < end <= now + MAX_SILENCE_S:
        raise invalid(f"A silence ends in the future (here it is {timestamp(now)}), within 366 days.", "until")
    return end


def _revise_runs(connection: Connection, silence: Silence) -> Sequence[SilencedIncident]:
    """Raise the revision of the runs whose incidents a silence hides or hid, and return these incidents."""
    hidden = silences.silenced_incidents(connection, silence)
    for run_id in sorted({incident.run_id for incident in hidden}):
        runs.bump_revision(connection, run_id)
    return hidden


def _with_incidents(silence: Silence, hidden: Sequence[SilencedIncident]) -> SilenceShape:
    return SilenceShape(**vars(silence), incidents=[incident.incident for incident in hidden])
