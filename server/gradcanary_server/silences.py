"""Silences in the tables: until when nobody is told of which members of which incidents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from sqlalchemy import Connection, RowMapping, delete, func, insert, select, update

from gradcanary_server import incident_rows
from gradcanary_server.errors import RequestError, invalid
from gradcanary_server.expressions import Expression, Glob
from gradcanary_server.run_names import CALLED, IS_THERE
from gradcanary_server.schema import incident, run, silence
from gradcanary_server.veils import Veil

MOST = 200
"""In force at a time: each is held against each open incident twice a second."""


@dataclass(frozen=True)
class Silence:
    """Covers layers of the incidents of a ``rule`` (None: all) in runs of that ``glob``, until a moment in unix
    seconds: those in whose name ``expression`` is found, without one every member, the whole run, too.
    """

    id: int
    glob: str
    rule: str | None
    expression: str | None
    created: float
    until: float
    by: str
    note: str

    def is_about(self, run_name: str, rule: str) -> bool:
        """Tell whether it covers anything of the incidents of a rule in a run."""
        return self.rule in (None, rule) and _glob(self.glob).covers(run_name)

    def covers(self, layer_name: str | None) -> bool:
        """Tell whether it covers a member of such an incident; None is the whole run."""
        if self.expression is None:
            return True
        return layer_name is not None and _expression(self.expression).found_in(layer_name)


def end_of(about: Sequence[Silence], name: str | None) -> float | None:
    """Return when a member is silenced no more, by the silences about its incident; None where none covers it."""
    return max((each.until for each in about if each.covers(name)), default=None)


class Hushed(NamedTuple):
    """An incident that a silence is about: of how many members that fire it covers how many."""

    incident: int
    run_id: int
    rule: str
    members: int
    of: int


def in_force(connection: Connection, now: float) -> list[Silence]:
    """Return the silences of this moment, in the order in which they were made."""
    rows = connection.execute(select(silence).where(silence.c.ends > now).order_by(silence.c.silence_id))
    return [Silence(*row) for row in rows]


def add(connection: Connection, wished: Silence) -> Silence:
    """Store a silence under a number of its own, and forget those that are over; raises RequestError 422."""
    connection.execute(delete(silence).where(silence.c.ends <= wished.created))
    if connection.execute(select(func.count()).select_from(silence)).scalar_one() >= MOST:
        raise invalid(f"There are {MOST} silences already: end some with DELETE /api/v1/silences/ID.")
    values = {
        "run_glob": wished.glob,
        "rule": wished.rule,
        "expression": wished.expression,
        "created": wished.created,
        "ends": wished.until,
        "made_by": wished.by,
        "note": wished.note,
    }
    number = connection.execute(insert(silence).values(**values).returning(silence.c.silence_id)).scalar_one()
    return replace(wished, id=number)


def find(connection: Connection, number: int, now: float) -> Silence:
    """Return a silence; raises RequestError 404 where none of that number is in force."""
    found = next((each for each in in_force(connection, now) if each.id == number), None)
    if found is None:
        raise _unknown(number)
    return found


def move(connection: Connection, known: Silence, until: float) -> Silence:
    """Give a silence another end and return it; raises RequestError 404 where it was ended meanwhile."""
    mine = update(silence).where(silence.c.silence_id == known.id).values(ends=until)
    if not connection.execute(mine).rowcount:
        raise _unknown(known.id)
    return replace(known, until=until)


def end(connection: Connection, number: int, now: float) -> Silence:
    """End a silence now and return it; raises RequestError 404 where none of that number is in force."""
    ended = find(connection, number, now)
    if not connection.execute(delete(silence).where(silence.c.silence_id == number)).rowcount:
        raise _unknown(number)  # somebody else was a moment earlier
    return ended


def silenced(
    connection: Connection, run_id: int, rule: str, names: Mapping[int, str], now: float
) -> frozenset[int | None]:
    """Return which members of an incident of this rule would be silenced now, by layer_no; None is the whole run."""
    found = in_force(connection, now)
    if not found:
        return frozenset()
    run_name = connection.execute(select(run.c.name).where(run.c.run_id == run_id)).scalar_one()
    about = [each for each in found if each.is_about(run_name, rule)]
    return covered(about, [(None, None), *names.items()])


def covered(about: Sequence[Silence], members: Iterable[tuple[int | None, str | None]]) -> frozenset[int | None]:
    """Return those of these members, by layer_no and name, that one of the silences covers."""
    return frozenset(number for number, name in members if any(each.covers(name) for each in about))


def veiled(connection: Connection, rows: Sequence[RowMapping], found: Sequence[Silence]) -> dict[int, Veil]:
    """Return what hides members of these incidents, by incident, if something does; ``found`` are in force."""
    named_runs = run_names(connection, {row["run_id"] for row in rows}) if found else {}
    made: dict[int, Veil] = {}
    for row in rows:
        about = [each for each in found if each.is_about(named_runs.get(row["run_id"], ""), row["rule"])]
        if about or row["unheard"]:
            members = incident_rows.members(connection, row["incident_id"])
            names = incident_rows.names(connection, row["run_id"]) if about else {}
            named = [(number, None if number is None else names.get(number)) for number in members]
            made[row["incident_id"]] = Veil(members, covered(about, named))
    return made


def hushed(connection: Connection, by: Silence) -> list[Hushed]:
    """Return the open incidents of which a silence covers a member that fires."""
    opened = select(incident).where(incident.c.state == "open").order_by(incident.c.incident_id)
    rows = connection.execute(opened).mappings().all()
    hidden = veiled(connection, rows, [by])
    found = [(row, hidden[row["incident_id"]]) for row in rows if row["incident_id"] in hidden]
    return [
        Hushed(row["incident_id"], row["run_id"], row["rule"], len(covered), len(veil.firing()))
        for row, veil in found
        if (covered := veil.firing_covered())
    ]


def runs_named(connection: Connection, glob: str) -> int:
    """Return how many runs have such a name."""
    return sum(_glob(glob).covers(name) for name in connection.scalars(select(run.c.name).where(IS_THERE)))


def run_names(connection: Connection, run_ids: Iterable[int]) -> dict[int, str]:
    """Return the names of these runs by their number."""
    rows = connection.execute(select(run.c.run_id, CALLED.label("name")).where(run.c.run_id.in_(list(run_ids))))
    return {row.run_id: row.name for row in rows}


@lru_cache(maxsize=256)
def _glob(text: str) -> Glob:
    return Glob(text)


@lru_cache(maxsize=256)
def _expression(text: str) -> Expression:
    return Expression(text)


def _unknown(number: int) -> RequestError:
    return RequestError(404, "unknown_silence", f"There is no silence {number} in force here.", "silence")
