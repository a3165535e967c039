"""Since when a collector listens: what nobody could hear is not held against a run.

A row is written as long as a collector can take requests, for all collectors of a store together. Where it was not, by
an outage of them or of the database, a full disk or a machine that slept, listening begins anew.
"""

from sqlalchemy import Connection, select, update

from gradcanary_server.database import Database
from gradcanary_server.life import Vigil
from gradcanary_server.rows import insert_new
from gradcanary_server.schema import vigil

BEAT_S = 15.0
"""How often it is written."""

GAP_S = 60.0
"""Without it, somebody may have called in vain; well under the silence that means anything."""

_ONE = 1


def keep(database: Database, connection: Connection) -> None:
    """Note that this collector listens."""
    its = vigil.c.vigil_id == _ONE
    row = connection.execute(select(vigil).where(its).with_for_update()).one_or_none()
    now = database.now(connection)  # by then others may have written
    if row is None:
        insert_new(connection, vigil, {"vigil_id": _ONE, "began": now, "since": now, "at": now})
        return
    since = row.since if _is_kept(row.at, now) else now
    connection.execute(update(vigil).where(its).values(began=min(row.began, since), since=since, at=now))


def read(connection: Connection, now: float) -> Vigil:
    """Return since when somebody listens; all the time where nobody ever noted it."""
    row = connection.execute(select(vigil).where(vigil.c.vigil_id == _ONE)).one_or_none()
    if row is None:
        return Vigil()
    return Vigil(row.began, row.since if _is_kept(row.at, now) else now)


def _is_kept(at: float, now: float) -> bool:
    return -GAP_S <= now - at <= GAP_S  # a clock that was set back begins anew, too
