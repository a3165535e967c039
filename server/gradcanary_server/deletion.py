"""Runs that are not wanted any more, and measurements that are too old: what goes, and how its room comes back.

Deleting a run takes its small rows at once; its measurements, which may be gigabytes, go a bite at a time behind it,
so that nobody who sends waits for it. Numbers of runs are never used again.

Whoever was told of an incident is told that it is over, at its pace: until then the run's row, under a name that leads
nowhere, its layers and its incidents are there for the deliverer, and for nobody else.
"""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import Connection, Select, Table, and_, delete, exists, func, or_, select, tuple_, update

from gradcanary_server import incidents, run_names, tiles
from gradcanary_server.database import Record
from gradcanary_server.errors import RequestError, unknown_run
from gradcanary_server.rows import insert_new
from gradcanary_server.schema import (
    HEAVY,
    deleted_session,
    delivery,
    incident,
    launch,
    layer_set,
    run,
    run_alias,
    session,
    tile,
)
from gradcanary_server.tiles import OF_METRICS, Chain

REMEMBERED_S = 30 * 86_400.0
"""How long the sessions of a deleted run are told so."""

BITE = 500
"""Rows of measurements that one transaction takes away."""

_OF_ITS_LIFE = (run_alias, session, launch, layer_set)
"""What is of a run but its row, measurements, layers and incidents."""

_IS_OWED = exists().where(incident.c.run_id == run.c.run_id, incident.c.settled.is_(False))

_COUNT = select(func.count(), func.max(deleted_session.c.deleted))


def delete_run(connection: Connection, name: str, now: float) -> None:
    """Delete a run, or all of it that its last messages do not need; raises RequestError 404 where there is none."""
    row = run_names.find(connection, name, held=True)
    if row is None:
        raise unknown_run(name)
    run_id = row.run_id
    connection.execute(delete(deleted_session).where(deleted_session.c.deleted < now - REMEMBERED_S))
    for session_id in connection.scalars(select(session.c.session).where(session.c.run_id == run_id)).all():
        for each in (row.name, *run_names.former(connection, run_id)):
            insert_new(connection, deleted_session, {"run": each, "session": session_id, "deleted": now})
    if _is_owed(connection, row, now):
        _hide(connection, row)
    else:
        connection.execute(delete(run).where(run.c.run_id == run_id))


def _is_owed(connection: Connection, row: Record, now: float) -> bool:
    """Close the incidents of a run for good; tell whether somebody who heard of one is to hear of that.

    A message that nobody can have taken is not sent any more.
    """
    incidents.end_run(connection, row.run_id, row.step or 0, now)
    mine = (incident.c.run_id == row.run_id, incident.c.settled.is_(False))
    may_know = or_(delivery.c.delivered.is_not(None), delivery.c.unsure.is_not(None))
    waiting = delivery.c.incident_id.in_(select(incident.c.incident_id).where(*mine)), delivery.c.state == "pending"
    connection.execute(update(delivery).where(*waiting, ~may_know).values(state="expired"))
    heard = exists().where(delivery.c.incident_id == incident.c.incident_id, may_know)
    connection.execute(update(incident).where(*mine, ~heard).values(settled=True))
    return connection.execute(select(incident.c.incident_id).where(*mine).limit(1)).first() is not None


def _hide(connection: Connection, row: Record) -> None:
    """Leave of a run what its last messages are made of, where nobody finds it; its name is free."""
    for table in _OF_ITS_LIFE:
        connection.execute(delete(table).where(table.c.run_id == row.run_id))
    hidden = {"name": f"{row.run_id} (deleted)", "deleted_as": row.name, "ended": "finished", "archived": True}
    connection.execute(update(run).where(run.c.run_id == row.run_id).values(**hidden))


def is_over(connection: Connection) -> bool:
    """Tell whether there are deleted runs of which all was told."""
    return connection.execute(select(run.c.run_id).where(run_names.WAS_DELETED, ~_IS_OWED).limit(1)).first() is not None


def forget(connection: Connection) -> None:
    """Take away what is left of deleted runs of which all was told."""
    connection.execute(delete(run).where(run_names.WAS_DELETED, ~_IS_OWED))


def check_deleted(connection: Connection, run_name: str, session_id: str) -> None:
    """Raise RequestError 410 for a session whose run was deleted."""
    mine = (deleted_session.c.run == run_name) & (deleted_session.c.session == session_id)
    if connection.execute(select(deleted_session.c.run).where(mine)).first() is not None:
        raise RequestError(410, "run_deleted", f"Run {run_name!r} was deleted here.", "run")


def count(connection: Connection) -> tuple[int, float]:
    """Return what another deletion changes: looking for what it left behind takes a look at every tile."""
    row = connection.execute(_COUNT).one()
    return row[0], row[1] or 0.0


def orphans(connection: Connection) -> list[tuple[Table, int]]:
    """Return which measurements deleted runs left behind: table and run_id.

    From run to run by the keys: to look at each tile took as long as there are tiles, for each bite.
    """
    return [(table, run_id) for table in HEAVY for run_id in connection.scalars(_orphans(table))]


def purge(connection: Connection, table: Table, run_id: int) -> bool:
    """Take a bite of what a deleted run left in a table; tell whether there may be more."""
    keys = [column for column in table.primary_key.columns if column is not table.c.run_id]
    mine = table.c.run_id == run_id
    rows = connection.execute(select(*keys or [table.c.run_id]).where(mine).limit(BITE)).all()
    if keys:
        mine &= tuple_(*keys).in_([tuple(row) for row in rows])
    connection.execute(delete(table).where(mine))
    return len(rows) == BITE


def aged(connection: Connection, older_than: float) -> list[tuple[int, int, int, int]]:
    """Return the chains of which raw samples go, stored before a time: run_id, launch, interval, last tile of these."""
    keys = (tile.c.run_id, tile.c.launch_no, tile.c.every)
    old = and_(tile.c.level == 0, tile.c.every != OF_METRICS, tile.c.stored < older_than)
    query = select(*keys, func.max(tile.c.number).label("last")).where(old).group_by(*keys)
    known = {(run_id, of.launch_no, of.every): of for run_id, of in tiles.every_chain(connection)}
    found = [(row.run_id, row.launch_no, row.every, row.last) for row in connection.execute(query)]
    return [each for each in found if (of := known.get(each[:3])) and of.raw_from < _until(of, each[3])]


def thin(connection: Connection, run_id: int, launch_no: int, every: int, last: int) -> bool:
    """Delete a bite of the raw samples of a chain up to a tile that are in the pyramid; tell whether there are more."""
    known = tiles.chains(connection, run_id, held=True)
    of = next((each for each in known if (each.launch_no, each.every) == (launch_no, every)), None)
    if of is None:
        return False
    span, until = of.span(0), _until(of, last)
    if until <= of.raw_from:
        return False
    there = (tile.c.run_id == run_id) & (tile.c.level == 0) & (tile.c.launch_no == launch_no) & (tile.c.every == every)
    number = of.raw_from // span
    of_one = connection.execute(select(func.count()).where(there, tile.c.number == number)).scalar_one()
    bite = min(until, (number + max(BITE // max(of_one, 1), 1)) * span)
    tiles.discard(connection, run_id, of, 0, of.raw_from, bite)
    tiles.note(connection, run_id, replace(of, raw_from=bite))
    return bite < until


def _until(of: Chain, last: int) -> int:
    """Return before which step raw samples up to a tile go; the last tile stays: it tells how the layers are."""
    span = of.span(0)
    return min((last + 1) * span, of.end(1), (of.sealed - 1) // span * span)


def _orphans(table: Table) -> Select[int]:
    """Return the query for the run_ids in a table that no run has."""
    first = select(func.min(table.c.run_id).label("run_id")).cte(recursive=True)
    following = select(func.min(table.c.run_id)).where(table.c.run_id > first.c.run_id).scalar_subquery()
    ids = first.union_all(select(following).where(first.c.run_id.is_not(None)))
    known = exists().where(run.c.run_id == ids.c.run_id, run_names.IS_THERE)
    return select(ids.c.run_id).where(ids.c.run_id.is_not(None), ~known)
