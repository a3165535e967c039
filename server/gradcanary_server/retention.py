"""Whether the clock is believed when it says that samples are too old: what it takes is not to be had again.

A clock may be years ahead, at a boot or by a mistake, and a collector that starts under it has nothing to hold it
against but what the store knows: when somebody looked last. Whoever comes much later waits a day, in which a person may
put it right, and until something was heard of a run; then it was a pause. Where he comes much later once more within
that day, he waits an hour from then on: nobody looked on in between. That is in the store, so a restart changes nothing
of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, func, select, update

from gradcanary_server.rows import insert_new
from gradcanary_server.schema import run, vigil

DOUBT_S = 86_400.0
"""How much later than the last look is doubted, and for how long."""

LONG_S = 30 * DOUBT_S
"""What is doubted also of a clock that is in doubt already; less is not, or samples would be kept for ever where a
machine is on only now and then.
"""

HOLD_S = 3_600.0
"""What is left of a doubt at least after a gap of ``DOUBT_S``, and how late in a doubt something must be heard."""

_OURS = 2


@dataclass(frozen=True)
class Trust:
    """This clock is known ``since``, less what of its doubt a gap took, and was looked at last ``at``, by itself."""

    since: float
    at: float

    @property
    def until(self) -> float:
        """From when on it is believed, if something is heard of a run until then."""
        return self.since + DOUBT_S

    def looked(self, now: float) -> Trust:
        """Return what is known of it at the next look."""
        is_new = now < self.at - DOUBT_S or now > self.at + (DOUBT_S if self.at >= self.until else LONG_S)
        if not is_new and now > self.at + DOUBT_S:
            return Trust(now - DOUBT_S + HOLD_S, now)
        return Trust(now if is_new else min(self.since, now), now)

    def believes(self, now: float, heard: float | None) -> bool:
        """Tell whether samples may go by it; ``heard`` is when something was heard of a run last."""
        return now >= self.until and heard is not None and heard >= self.until - HOLD_S


def look(connection: Connection, now: float) -> Trust:
    """Note that somebody looks, and return what is known of the clock."""
    its = vigil.c.vigil_id == _OURS
    row = connection.execute(select(vigil).where(its).with_for_update()).one_or_none()
    found = Trust(now, now) if row is None else Trust(row.since, row.at).looked(now)
    if row is None:
        insert_new(connection, vigil, {"vigil_id": _OURS, "began": now, "since": now, "at": now})
    connection.execute(update(vigil).where(its).values(since=found.since, at=found.at))
    return found


def doubted_until(connection: Connection, now: float) -> float | None:
    """Return until when no samples are taken at least, None where the clock is believed; writes nothing."""
    row = connection.execute(select(vigil).where(vigil.c.vigil_id == _OURS)).one_or_none()
    found = Trust(now, now) if row is None else Trust(row.since, row.at).looked(now)
    heard = connection.execute(select(func.max(run.c.last_seen))).scalar_one()
    return None if found.believes(now, heard) else found.until
