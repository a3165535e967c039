"""The incidents of the rules of the clock, silent and stalled: which runs to look at, how they open, what ends them.

What is written is written in a transaction that holds the run's row, so that of several collectors one opens an
incident, and a request that comes at the same moment is seen.
"""

from collections import defaultdict
from collections.abc import Mapping

from sqlalchemy import Connection, select

from gradcanary_server import incidents, vigils
from gradcanary_server.database import Record
from gradcanary_server.life import Absence, absence, is_stale
from gradcanary_server.observations import Change, Evidence, Severity
from gradcanary_server.rules import Rules
from gradcanary_server.schema import run, session

SEVERITIES: Mapping[str, Severity] = {"silent": "critical", "stalled": "warning"}

_OPEN = (
    select(session.c.run_id, session.c.launch_no, session.c.ended, session.c.last_seen, session.c.interval_s)
    .add_columns(session.c.reached, session.c.moved, run.c.step)
    .join(run, run.c.run_id == session.c.run_id)
    .where(run.c.ended.is_(None), session.c.ended.is_(None), session.c.rank >= 0)
)


def found(connection: Connection, now: float, rules: Rules, run_id: int | None = None) -> dict[int, Absence]:
    """Return what does not come, by run, of all runs or of one."""
    query = _OPEN if run_id is None else _OPEN.where(session.c.run_id == run_id)
    sessions: dict[int, list[Record]] = defaultdict(list)
    for row in connection.execute(query):
        sessions[row.run_id].append(row)
    missed, vigil = incidents.missed(connection), vigils.read(connection, now)
    judged = {
        each: absence(rows, rows[0].step, missed.get(each, ()), now, vigil, rules) for each, rows in sessions.items()
    }
    return {each: what for each, what in judged.items() if what is not None}


def report(connection: Connection, run_id: int, what: Absence, now: float, reopen_s: float) -> None:
    """Open an incident."""
    evidence: Evidence | None = "lost_rank" if what.has_lost_rank else "no_step" if what.step is None else None
    step, severity, quiet_s = what.step or 0, SEVERITIES[what.rule], now - what.since
    change = Change(step, what.rule, None, "fired", severity, step, quiet_s, evidence=evidence)
    incidents.report(connection, run_id, what.launch_no, change, now, reopen_s)


def progress(row: Record, now: float, step: int | None) -> dict[str, object]:
    """Return what a session's row says of its steps, now that it was heard of and told of a step, or of none.

    While it was not heard of it may have made some: that time is no standstill.
    """
    if step is not None and (row.reached is None or step > row.reached):
        return {"reached": step, "moved": now}
    return {"moved": row.moved + now - row.last_seen} if row.reached is not None and is_stale(row, now) else {}


def heard_again(connection: Connection, row: Record, now: float, step: int | None) -> None:
    """Close what a request of a session is the answer to; ``row`` is as it was before it.

    Asked for only after a while without a request, or a step, so that a run that is well costs nothing.
    """
    if row.ended is not None or row.rank < 0:
        return
    if is_stale(row, now):
        close(connection, row.run_id, row.launch_no, "silent", now)
    is_step = step is not None and (row.reached is None or step > row.reached)
    if is_step and (row.moved is None or row.moved <= now - row.interval_s):
        close(connection, row.run_id, row.launch_no, "stalled", now, step)


def close(connection: Connection, run_id: int, launch_no: int, rule: str, now: float, step: int | None = None) -> None:
    """Close the incident of a rule as resumed, if one is open."""
    if rule not in incidents.missed(connection, [run_id])[run_id]:
        return
    last = connection.execute(select(run.c.step).where(run.c.run_id == run_id)).scalar_one()
    at = max(step or 0, last or 0)
    change = Change(at, rule, None, "resolved", SEVERITIES[rule], at, resolution="resumed")
    incidents.report(connection, run_id, launch_no, change, now)
