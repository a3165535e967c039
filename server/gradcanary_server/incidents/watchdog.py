"""Incidents of silent and stalled runs: a loop opens them, the next request of a session closes them.

The loop reads the tables, so a restart loses nothing. The transaction that opens or closes an incident locks the run's
row and reads the run again: of several collectors one opens it, and a request at the same moment counts.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Connection, Select, bindparam, exists, select, update

from gradcanary_server.background import BackgroundLoop
from gradcanary_server.incidents import repository, service
from gradcanary_server.incidents.liveness import Absence, StepTimes, find_absence, is_stale
from gradcanary_server.rules.config import Rules
from gradcanary_server.rules.types import Evidence, Resolution, Severity, Transition
from gradcanary_server.storage import heartbeat, runs
from gradcanary_server.storage.database import Database, Record
from gradcanary_server.storage.schema import incident, run, session

WAKE_S = 5.0

SEVERITIES: Mapping[str, Severity] = {"silent": "critical", "stalled": "warning"}


def _has_open(rule: str, run_id: ColumnElement[int]) -> ColumnElement[bool]:
    # Not "= open": SQLite would read all open incidents of the store for each run.
    is_open = incident.c.state.not_in(("resolved", "ended"))
    return exists().where(incident.c.run_id == run_id, incident.c.rule == rule, is_open)


def _open_sessions(run_id: ColumnElement[int]) -> Select[Any]:
    """Return the query for the open sessions without an incident ``silent``, ``run_id`` being that of the run."""
    return (
        select(session.c.run_id, session.c.launch_no, session.c.ended, session.c.last_seen, session.c.interval_s)
        .add_columns(session.c.max_step, session.c.max_step_at, run.c.step, run.c.mean_step_s, run.c.longest_step_s)
        .add_columns(_has_open("stalled", run_id).label("is_stalled"))
        .join(run, run.c.run_id == session.c.run_id)
        .where(run.c.ended.is_(None), session.c.ended.is_(None), session.c.rank >= 0)
        .where(~_has_open("silent", run_id))  # a killed run stays so: nothing more is found of it
    )


_RUN_ID = bindparam("run_id", type_=BigInteger)
_OPEN = _open_sessions(run.c.run_id)
_OPEN_OF_RUN = _open_sessions(_RUN_ID).where(session.c.run_id == _RUN_ID)  # Citus finds its node by no other

logger = logging.getLogger(__name__)


class Watchdog(BackgroundLoop):
    """Opens an incident for each run of one store that goes silent or stalls."""

    def __init__(self, database: Database, rules: Rules) -> None:
        super().__init__("watchdog", logger)
        self._database, self._rules = database, rules

    def listen(self) -> None:
        """Record that this collector takes requests; by a write, because a full disk can still be read."""
        with self._database.write() as connection:
            heartbeat.listen(self._database, connection)

    def look(self) -> None:
        """Open an incident for each run that is silent or stalled."""
        with self._database.read() as connection:
            absences = find_absences(connection, self._database.now(connection), self._rules)
        for run_id in sorted(absences):
            self._open(run_id)

    def _open(self, run_id: int) -> None:
        try:
            with self._database.write() as connection:
                if runs.lock_run(connection, run_id):
                    self._record(connection, run_id)
        except Exception as error:  # the next round tries again; one run does not delay the others
            if not self._outage.handles(error):
                logger.exception("run %s could not be reported", run_id)

    def _record(self, connection: Connection, run_id: int) -> None:
        now = self._database.now(connection)
        absence = find_absences(connection, now, self._rules, run_id).get(run_id)
        if absence is None:
            return  # a request came meanwhile, or another collector was first
        if run_id in service.crashed_runs(connection, run_id):
            self._end_crashed(connection, run_id, absence, now)
            return
        evidence: Evidence | None = None
        if absence.has_lost_rank or absence.step is None:
            evidence = "lost_rank" if absence.has_lost_rank else "no_step"
        step, severity, quiet_s = absence.step or 0, SEVERITIES[absence.rule], now - absence.since
        fired = Transition(step, absence.rule, None, "fired", severity, step, quiet_s, evidence=evidence)
        service.record_transitions(connection, run_id, absence.launch_no, [fired], now, self._rules.pace.reopen_s)
        runs.bump_revision(connection, run_id)

    def _end_crashed(self, connection: Connection, run_id: int, absence: Absence, now: float) -> None:
        """End a run of which one rank crashed and the others are silent: their launcher killed them."""
        connection.execute(update(run).where(run.c.run_id == run_id).values(ended="crashed"))
        service.close_run(connection, run_id, absence.step or 0, now, "run_finished")
        runs.bump_revision(connection, run_id)

    def _run(self) -> None:
        beat_at = 0.0
        while True:
            with self._tracked_round():
                if time.monotonic() >= beat_at:
                    self.listen()
                    beat_at = time.monotonic() + heartbeat.BEAT_S
                self.look()
            if self._stopping.wait(WAKE_S):
                return


def find_absences(connection: Connection, now: float, rules: Rules, run_id: int | None = None) -> dict[int, Absence]:
    """Return the absences that have no incident yet by run, of all runs or of one."""
    query, given = (_OPEN, {}) if run_id is None else (_OPEN_OF_RUN, {"run_id": run_id})
    open_sessions: dict[int, list[Record]] = defaultdict(list)
    for row in connection.execute(query, given):
        open_sessions[row.run_id].append(row)
    since, crashed = heartbeat.listening_since(connection, now), service.crashed_runs(connection, run_id)
    absences: dict[int, Absence] = {}
    for number, rows in open_sessions.items():
        times = StepTimes(rows[0].mean_step_s, rows[0].longest_step_s)
        open_rules = ("stalled",) if rows[0].is_stalled else ()
        absence = find_absence(rows, rows[0].step, times, open_rules, now, since, rules)
        # A crash explains that the other ranks make no step.
        if absence is not None and not (absence.rule == "stalled" and number in crashed):
            absences[number] = absence
    return absences


def progress_columns(row: Record, now: float, step: int | None) -> dict[str, object]:
    """Return the changed progress columns of a session after a request that reports a step, or none.

    The time without requests is no standstill: steps may have been made in it.
    """
    if _is_new_step(row, step):
        return {"max_step": step, "max_step_at": now}
    return (
        {"max_step_at": row.max_step_at + now - row.last_seen}
        if row.max_step is not None and is_stale(row, now)
        else {}
    )


def close_answered(connection: Connection, row: Record, now: float, step: int | None) -> None:
    """Close the incidents that a request of a session ends; ``row`` is the session before that request.

    Reads incidents only after a while without a request, or a step: a healthy run costs nothing.
    """
    if row.ended is not None or row.rank < 0:
        return
    if is_stale(row, now):
        close_absence(connection, row.run_id, "silent", "resumed", now)
        # A rank that was only cut off while another one crashed trains on: see Watchdog._end_crashed.
        connection.execute(update(run).where(run.c.run_id == row.run_id, run.c.ended == "crashed").values(ended=None))
    if _is_new_step(row, step) and (row.max_step_at is None or row.max_step_at <= now - row.interval_s):
        close_absence(connection, row.run_id, "stalled", "resumed", now, step)


def close_absence(
    connection: Connection, run_id: int, rule: str, resolution: Resolution, now: float, step: int | None = None
) -> None:
    """Resolve the incident of a silent or stalled run if one is open, at the run's last step or a newer one."""
    if rule not in service.open_absence_rules(connection, [run_id])[run_id]:
        return
    case = repository.latest_incident(connection, run_id, rule)
    if case is not None:
        last_step = connection.execute(select(run.c.step).where(run.c.run_id == run_id)).scalar_one()
        at = max(step or 0, last_step or 0)
        case.resolve(Transition(at, rule, None, "resolved", SEVERITIES[rule], at, resolution=resolution), now)
        repository.save_incident(connection, run_id, case)


def _is_new_step(row: Record, step: int | None) -> bool:
    return step is not None and (row.max_step is None or step > row.max_step)
