"""Heartbeats of the collectors in the store, and the repair of times after its clock was set back.

A collector writes a row while it can take requests: the time without any collector (an outage, a full disk, a machine
that slept, a clock that was set) is not held against a run. :mod:`gradcanary_server.tsdb.retention` has another row.
"""

from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, func, select, update

from gradcanary import __version__
from gradcanary_server.storage.database import Database
from gradcanary_server.storage.runs import SILENT
from gradcanary_server.storage.schema import (
    batch,
    collector_heartbeat,
    compaction_claim,
    delivery,
    endpoint,
    incident,
    insert_new,
    launch,
    run,
    session,
)

BEAT_S = 15.0
"""How often a collector writes its heartbeat."""

_TIMES = (
    run.c.last_seen,
    batch.c.received,
    endpoint.c.created,
    incident.c.opened,
    incident.c.reopened_at,
    incident.c.resolved,
    delivery.c.enqueued_at,
    delivery.c.delivered,
    delivery.c.maybe_delivered_at,
    delivery.c.next_attempt,
    delivery.c.lease_until,
    compaction_claim.c.lease_until,
)
"""In the order in which other transactions lock these tables. A lease and a next attempt may lie ahead; ending
them early harms nothing."""

_LAST_SEEN = (
    select(func.max(session.c.last_seen))
    .join(run, run.c.run_id == session.c.run_id)
    .where(run.c.ended.is_(None), session.c.ended.is_(None))
)


_BEAT = select(collector_heartbeat).where(collector_heartbeat.c.heartbeat_id == bindparam("heartbeat_id"))


@dataclass(frozen=True)
class Heartbeat:
    """A row of ``collector_heartbeat``; more than ``gap_s`` between two beats, forward or back, is an interruption."""

    number: int
    gap_s: float

    def beat(self, database: Database, connection: Connection, last_seen: float = 0.0) -> tuple[float, float]:
        """Write the row; return now and the last beat, or ``last_seen`` if that is later."""
        where = collector_heartbeat.c.heartbeat_id == self.number
        row = connection.execute(select(collector_heartbeat).where(where).with_for_update()).one_or_none()
        now = database.now(connection)  # after the row is locked
        if row is None:
            values = {"listening_since": now, "last_beat": now, "version": __version__}
            insert_new(connection, collector_heartbeat, {"heartbeat_id": self.number, **values})
            return now, last_seen
        last = max(float(row.last_beat), last_seen)
        since = row.listening_since if self._is_continuous(last, now) else now
        values = {"listening_since": since, "last_beat": now, "version": __version__}
        connection.execute(update(collector_heartbeat).where(where).values(values))
        return now, last

    def since(self, connection: Connection, now: float) -> float | None:
        """Return the time of the first beat after the last interruption, None without any beat."""
        row = connection.execute(_BEAT, {"heartbeat_id": self.number}).one_or_none()
        if row is None:
            return None
        return float(row.listening_since) if self._is_continuous(row.last_beat, now) else now

    def _is_continuous(self, at: float, now: float) -> bool:
        return abs(now - at) <= self.gap_s


LISTENING = Heartbeat(1, 60.0)
"""A collector takes requests. After a minute without it an agent may have called in vain; the rules about silence wait
much longer."""


def listen(database: Database, connection: Connection) -> None:
    """Write that a collector listens; if the clock was set back, repair the stored times."""
    last_seen = float(connection.execute(_LAST_SEEN).scalar_one() or 0.0)
    now, last = LISTENING.beat(database, connection, last_seen)
    if last - now > LISTENING.gap_s:
        _set_back(connection, last - now, now)


def listening_since(connection: Connection, now: float) -> float:
    """Return since when a collector listens without interruption, 0.0 if none has ever listened."""
    return LISTENING.since(connection, now) or 0.0


def _set_back(connection: Connection, back_s: float, now: float) -> None:
    """Repair stored times after the clock was set back by about ``back_s`` seconds.

    A time in the future would delay everything that counts from it, maybe by years: it becomes now. All launches move
    by ``back_s``, so that their order stays and the next one is the newest; open sessions, too, so that one that was
    silent for long is not taken for one that was active just now.
    """
    for column in _TIMES:
        connection.execute(update(column.table).where(column > now).values({column.name: now}))
    connection.execute(update(launch).values(started=launch.c.started - back_s))
    times = {"last_seen": session.c.last_seen - back_s, "max_step_at": session.c.max_step_at - back_s}
    may_send = session.c.ended.is_(None) | (session.c.ended == SILENT)
    connection.execute(update(session).where(may_send).values(**times))
