"""Runs that are not wanted any more, and measurements that are too old: what goes, and how its room comes back.

Deleting a run takes its small rows at once; its measurements, which may be gigabytes, go a bite at a time behind it,
so that nobody who sends waits for it. Numbers of runs are never used again.
"""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import Connection, Table, and_, delete, exists, func, select, tuple_

from gradcanary_server import run_names, tiles
from gradcanary_server.database import insert_new
from gradcanary_server.errors import RequestError, unknown_run
from gradcanary_server.schema import HEAVY, deleted_session, run, session, tile
from gradcanary_server.tiles import OF_METRICS

REMEMBERED_S = 30 * 86_400.0
"""How long the sessions of a deleted run are told so."""

BITE = 500
"""Rows of measurements that one transaction takes away."""

_COUNT = select(func.count(), func.max(deleted_session.c.deleted))


def delete_run(connection: Connection, name: str, now: float) -> None:
    """Delete a run; raises RequestError 404 where there is none."""
    row = run_names.find(connection, name, held=True)
    if row is None:
        raise unknown_run(name)
    run_id = row.run_id
    connection.execute(delete(deleted_session).where(deleted_session.c.deleted < now - REMEMBERED_S))
    for session_id in connection.scalars(select(session.c.session).where(session.c.run_id == run_id)).all():
        for each in (row.name, *run_names.former(connection, run_id)):
            insert_new(connection, deleted_session, {"run": each, "session": session_id, "deleted": now})
    connection.execute(delete(run).where(run.c.run_id == run_id))


def check_deleted(connection: Connection, run_name: str, session_id: str) -> None:
    """Raise RequestError 410 for a session whose run was deleted."""
    mine = (deleted_session.c.run == run_name) & (deleted_session.c.session == session_id)
    if connection.execute(select(deleted_session.c.run).where(mine)).first() is not None:
        raise RequestError(410, "run_deleted", f"Run {run_name!r} was deleted here.", "run")


def count(connection: Connection) -> tuple[int, float]:
    """Return what another deletion changes: looking for what it left behind takes a look at every tile."""
    row = connection.execute(_COUNT).one()
    return row[0], row[1] or 0.0


def has_orphans(connection: Connection) -> bool:
    """Tell whether deleted runs left measurements behind."""
    return any(_orphan(connection, table) is not None for table in HEAVY)


def purge(connection: Connection) -> None:
    """Take a bite of what deleted runs left behind."""
    for table in HEAVY:
        run_id = _orphan(connection, table)
        if run_id is not None:
            _bite(connection, table, run_id)
            return


def thin(connection: Connection, older_than: float) -> bool:
    """Delete raw samples that were stored before a time and are in the pyramid; tell whether there were any.

    The last tile of a chain stays: the newest samples tell how the layers are.
    """
    keys = (tile.c.run_id, tile.c.launch_no, tile.c.every)
    old = and_(tile.c.level == 0, tile.c.every != OF_METRICS, tile.c.stored < older_than)
    query = select(*keys, func.max(tile.c.number).label("last")).where(old).group_by(*keys)
    thinned = False
    for row in connection.execute(query).all():
        known = tiles.chains(connection, row.run_id, held=True)
        of = next(each for each in known if (each.launch_no, each.every) == (row.launch_no, row.every))
        until = min((row.last + 1) * of.span(0), of.end(1), (of.sealed - 1) // of.span(0) * of.span(0))
        if until > of.raw_from:
            tiles.discard(connection, row.run_id, of, 0, of.raw_from, until)
            tiles.note(connection, row.run_id, replace(of, raw_from=until))
            thinned = True
    return thinned


def _orphan(connection: Connection, table: Table) -> int | None:
    gone = ~exists().where(run.c.run_id == table.c.run_id)
    found: int | None = connection.execute(select(table.c.run_id).where(gone).limit(1)).scalar_one_or_none()
    return found


def _bite(connection: Connection, table: Table, run_id: int) -> None:
    keys = [column for column in table.primary_key.columns if column is not table.c.run_id]
    mine = table.c.run_id == run_id
    if keys:
        rows = connection.execute(select(*keys).where(mine).limit(BITE)).all()
        mine &= tuple_(*keys).in_([tuple(row) for row in rows])
    connection.execute(delete(table).where(mine))
