"""Silences: their table, and incidents without their silenced members.

A silence hides members from notifications, not from pages. An incident is notified as if it had only the other
members. If none of these fires, no message is sent until the silence ends; then the state of that time is notified. A
receiver of ``opened`` always gets ``resolved``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from sqlalchemy import Connection, RowMapping, bindparam, delete, func, insert, select, update

from gradcanary.wording import agree, count
from gradcanary_server.clock import UnixTime
from gradcanary_server.errors import RequestError, invalid
from gradcanary_server.incidents import repository, text
from gradcanary_server.incidents.lifecycle import RANKS, Incident, Member
from gradcanary_server.matchers import Glob, Matcher
from gradcanary_server.rules.config import Rule
from gradcanary_server.storage.schema import (
    PAGE_RUNS,
    incident,
    incident_layer,
    is_of_incident,
    layer,
    new_id,
    run,
    silence,
)

Members = Mapping[int | None, Member]


@dataclass(frozen=True)
class SilencedMembers:
    """The members of an incident by layer_no (None: the whole run), and those that a silence covers now."""

    members: Members
    covered: frozenset[int | None]

    def firing(self) -> frozenset[int | None]:
        """Return the members that fire."""
        return frozenset(number for number, member in self.members.items() if member.until_step is None)


def without_silenced(incident: Incident, members: Members, visible: Collection[int | None]) -> Incident:
    """Return an incident as if it had only its ``visible`` members, at least one."""
    if len(visible) == len(members):
        return incident
    layers = [members[number] for number in visible if number is not None]
    return replace(
        incident,
        severity=max((members[number].severity for number in visible), key=RANKS.__getitem__),
        since_step=min(members[number].since_step for number in visible),
        firing=sum(member.until_step is None for member in layers),
        ever_firing=len(layers),
    )


def silenced_note(members: Members, hidden: Collection[int | None]) -> str:
    """Return a sentence that counts the hidden layers that fire, "" if none does."""
    layers = sum(number is not None and members[number].until_step is None for number in hidden if number in members)
    if not layers:
        return ""
    are_series = any(number is not None and number < repository.WHOLE_RUN_NO for number in members)
    hidden_words = f"{layers:,} more series" if are_series else count(layers, "more parameter")
    return f" {hidden_words} {agree(layers, ('is', 'are'))} silenced."


MAX_SILENCES = 200
"""Twice a second each one in force is compared with each open incident."""


@dataclass(frozen=True)
class Silence:
    """A silence of the incidents of a ``rule`` (None: all) in runs whose names match the glob ``run``.

    It covers the layers in whose names the expression ``match`` is found; without one all members, also the whole run.
    """

    id: int
    run: str
    rule: Rule | None
    match: str | None
    created: UnixTime
    until: UnixTime
    by: str
    note: str

    def is_about(self, run_name: str, rule: str) -> bool:
        """Return True if it can cover members of the incidents of a rule in a run."""
        return self.rule in (None, rule) and _glob(self.run).covers(run_name)

    def covers(self, layer_name: str | None) -> bool:
        """Return True if it covers a member of such an incident; None is the whole run."""
        if self.match is None:
            return True
        return layer_name is not None and _expression(self.match).found_in(layer_name)


def silenced_until(matching: Sequence[Silence], name: str | None) -> float | None:
    """Return the end of the last of an incident's silences that covers a member, None if none does."""
    return max((silence.until for silence in matching if silence.covers(name)), default=None)


class SilencedIncident(NamedTuple):
    """An open incident that a silence affects: it covers ``members`` of its ``firing`` ones."""

    incident: int
    run_id: int
    rule: str
    members: int
    firing: int


def active_silences(connection: Connection, now: float) -> list[Silence]:
    """Return the silences in force, the oldest first."""
    rows = connection.execute(select(silence).where(silence.c.ends > now).order_by(silence.c.silence_id))
    return [Silence(*row) for row in rows]


def create_silence(connection: Connection, new: Silence) -> Silence:
    """Store a silence under a new id, and delete those that are over; raises RequestError 422."""
    connection.execute(delete(silence).where(silence.c.ends <= new.created))
    if connection.execute(select(func.count()).select_from(silence)).scalar_one() >= MAX_SILENCES:
        raise invalid(f"There are {MAX_SILENCES} silences already: end some with DELETE /api/v1/silences/ID.")
    values = {
        "run_glob": new.run,
        "rule": new.rule,
        "expression": new.match,
        "created": new.created,
        "ends": new.until,
        "created_by": new.by,
        "note": new.note,
    }
    row = insert(silence).values(**values, **new_id(connection, silence)).returning(silence.c.silence_id)
    silence_id = connection.execute(row).scalar_one()
    return replace(new, id=silence_id)


def find_silence(connection: Connection, number: int, now: float) -> Silence:
    """Return a silence in force; raises RequestError 404."""
    for active in active_silences(connection, now):
        if active.id == number:
            return active
    raise _unknown(number)


def change_end(connection: Connection, stored: Silence, until: float) -> Silence:
    """Give a silence another end and return it; raises RequestError 404 if it was ended meanwhile."""
    statement = update(silence).where(silence.c.silence_id == stored.id).values(ends=until)
    if not connection.execute(statement).rowcount:
        raise _unknown(stored.id)
    return replace(stored, until=until)


def end_silence(connection: Connection, number: int, now: float) -> Silence:
    """End a silence now and return it; raises RequestError 404."""
    ended = find_silence(connection, number, now)
    if not connection.execute(delete(silence).where(silence.c.silence_id == number)).rowcount:
        raise _unknown(number)  # another request ended it first
    return ended


def covered_members(
    matching: Sequence[Silence], members: Iterable[tuple[int | None, str | None]]
) -> frozenset[int | None]:
    """Return those of these members, by layer_no and name, that one of the silences covers."""
    return frozenset(number for number, name in members if any(silence.covers(name) for silence in matching))


def silenced_members_by_incident(
    connection: Connection, rows: Sequence[RowMapping], active: Sequence[Silence]
) -> dict[int, SilencedMembers]:
    """Return the silenced members by incident, only of incidents that an ``active`` silence is about."""
    names = run_names(connection, {row["run_id"] for row in rows}) if active else {}
    silenced: dict[int, SilencedMembers] = {}
    for row in rows:
        matching = [
            silence
            for silence in active
            if silence.is_about(names.get(row["run_id"], ""), row["rule"]) and not _is_over(row, silence.created)
        ]
        if matching:
            members = repository.load_members(connection, row["run_id"], row["incident_id"])
            is_by_name = any(silence.match is not None for silence in matching)
            layer_names = _member_names(connection, row) if is_by_name else {}
            named = [(number, None if number is None else layer_names.get(number)) for number in members]
            silenced[row["incident_id"]] = SilencedMembers(members, covered_members(matching, named))
    return silenced


def _is_over(row: RowMapping, moment: float) -> bool:
    """Return True if an incident was over at a moment: a later silence does not change the message of its end."""
    return row["state"] != "open" and row["resolved"] is not None and row["resolved"] < moment


def _member_names(connection: Connection, row: RowMapping) -> dict[int, str]:
    run_id, incident_id = row["run_id"], row["incident_id"]
    series = repository.incident_from_row(row).series
    if series:
        return {number: text.series_name(facts) for number, facts in series.items()}
    is_member = is_of_incident(incident_layer, run_id, incident_id)
    members = select(incident_layer.c.layer_no).where(is_member)
    query = select(layer.c.layer_no, layer.c.name).where(layer.c.run_id == run_id, layer.c.layer_no.in_(members))
    return {row.layer_no: row.name for row in connection.execute(query)}


def silenced_incidents(connection: Connection, active: Silence) -> list[SilencedIncident]:
    """Return the open incidents of which a silence covers a firing member."""
    query = select(incident).where(incident.c.state == "open").order_by(incident.c.incident_id)
    rows = connection.execute(query).mappings().all()
    silenced = silenced_members_by_incident(connection, rows, [active])
    affected = []
    for row in rows:
        members = silenced.get(row["incident_id"])
        if members is not None and (covered := members.covered & members.firing()):
            counts = len(covered), len(members.firing())
            affected.append(SilencedIncident(row["incident_id"], row["run_id"], row["rule"], *counts))
    return affected


def count_runs_named(connection: Connection, glob: str) -> int:
    """Return the number of runs whose names match a glob."""
    return sum(_glob(glob).covers(name) for name in connection.scalars(select(run.c.name)))


def run_names(connection: Connection, run_ids: Iterable[int]) -> dict[int, str]:
    """Return the names of runs by run_id; a statement takes some ten thousand parameters only."""
    ids, names = list(run_ids), {}
    for begin in range(0, len(ids), PAGE_RUNS):
        for row in connection.execute(_NAMES, {"run_ids": ids[begin : begin + PAGE_RUNS]}):
            names[row.run_id] = row.name
    return names


_NAMES = select(run.c.run_id, run.c.name).where(run.c.run_id.in_(bindparam("run_ids", expanding=True)))


@lru_cache(maxsize=256)
def _glob(text: str) -> Glob:
    return Glob(text)


@lru_cache(maxsize=256)
def _expression(text: str) -> Matcher:
    return Matcher(text)


def _unknown(number: int) -> RequestError:
    return RequestError(404, "unknown_silence", f"There is no silence {number} in force here.", "silence")
