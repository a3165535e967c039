"""The state of runs (live, stale, silent, finished, ...), and the detection of silent and stalled runs.

All times are the database's clock. A run is silent when none of its sessions sends a request, and stalled when a
session sends requests and no new step.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from sqlalchemy import BindParameter, Connection, bindparam, func, select

from gradcanary_server.incidents import service
from gradcanary_server.rules.config import Rules, Silent, Stalled
from gradcanary_server.storage import heartbeat, runs
from gradcanary_server.storage.database import Record
from gradcanary_server.storage.schema import run, session

STALE_AFTER = 3
"""Heartbeat intervals without a request."""

STEP_TIMES = ("step_time_s", "{}")
"""Name and tags of the metric. The agent measures it: neither an outage of the collector nor a replay changes it."""

STEP_TIME_WEIGHT = 1 / 50
"""Weight of the newest step in the mean: one evaluation of 20 mean steps lengthens it by less than half of its time."""


class SessionActivity(Protocol):
    """The columns of a session that its state depends on."""

    ended: str | None
    last_seen: float
    interval_s: float


class SteppingSession(SessionActivity, Protocol):
    """An open session: its highest step, and when that last rose; both are None before the first step."""

    launch_no: int
    max_step: int | None
    max_step_at: float | None


@dataclass(frozen=True)
class Absence:
    """A silent or stalled run: the rule, the time of the last sign, and the last step (None: it made no step)."""

    rule: str
    launch_no: int
    step: int | None
    since: float
    has_lost_rank: bool = False


class StepTimes(NamedTuple):
    """Seconds per step, None where none was measured: an exponentially weighted mean, and the longest."""

    mean_step_s: float | None = None
    longest_step_s: float | None = None

    def add(self, measured_s: Iterable[float]) -> "StepTimes":
        """Return the times with newer steps."""
        mean_s, longest_s = self
        for step_s in measured_s:
            mean_s = step_s if mean_s is None else mean_s + STEP_TIME_WEIGHT * (step_s - mean_s)
            longest_s = step_s if longest_s is None else max(longest_s, step_s)
        return StepTimes(mean_s, longest_s)


@dataclass(frozen=True)
class RunStatus:
    """A run, its state at the time of the request, its last step, and the time of that step.

    Silence counts from ``since`` on: the collector was down before.
    """

    row: Record
    state: str
    since: float
    step: int | None
    last_step_at: float | None


def is_stale(session: SessionActivity, now: float) -> bool:
    """Return True if a session missed some heartbeats."""
    return now - session.last_seen > STALE_AFTER * session.interval_s


def session_state(session: SessionActivity, now: float, silent: Silent = Silent(), since: float = 0.0) -> str:  # noqa: B008 -- immutable
    """Return how a session ended (finished, crashed, detached, silent), else live, stale or silent.

    Silence counts from ``since`` on: no collector listened before.
    """
    if session.ended is not None:
        return session.ended
    if not is_stale(session, now):
        return "live"
    limit_s = max(silent.after_s, silent.intervals * session.interval_s)
    return "silent" if now - max(session.last_seen, since) > limit_s else "stale"


def run_state(
    ended: str | None,
    open_sessions: Iterable[SessionActivity],
    now: float,
    silent: Silent = Silent(),  # noqa: B008 -- immutable
    since: float = 0.0,
) -> str:
    """Return how a run ended, else the best state of its open sessions."""
    if ended is not None:
        return ended
    states = {session_state(session, now, silent, since) for session in open_sessions}
    return next((state for state in ("live", "stale") if state in states), "silent")


def stall_timeout_s(stalled: Stalled, times: StepTimes) -> float:
    """Return the longest time without a step that is not a stall, by the times of earlier steps."""
    mean_s, longest_s = times
    return max(stalled.after_s, stalled.steps * (mean_s or 0.0), stalled.pause_factor * (longest_s or 0.0))


def find_absence(
    sessions: Collection[SteppingSession],
    step: int | None,
    times: StepTimes,
    open_rules: Collection[str],
    now: float,
    since: float,
    rules: Rules,
) -> Absence | None:
    """Return the absence of a run that has not ended, None if it is well or has an open incident for it.

    ``sessions`` are its open ones; a collector listens ``since``. Only an open incident makes an absence old: to
    compare times that were written before and after the clock was set would lose some.
    """
    if not sessions:
        return None
    state = run_state(None, sessions, now, rules.silent, since)
    launch_no = max(session.launch_no for session in sessions)
    last_step = max((session.max_step for session in sessions if session.max_step is not None), default=step)
    if state == "silent":
        last_seen = max(session.last_seen for session in sessions)
        is_new = rules.silent.enabled and "silent" not in open_rules
        return Absence("silent", launch_no, last_step, last_seen) if is_new else None
    stepped_at = max((session.max_step_at for session in sessions if session.max_step_at is not None), default=None)
    is_new = rules.stalled.enabled and state == "live" and "stalled" not in open_rules
    if not is_new or stepped_at is None or now - stepped_at <= stall_timeout_s(rules.stalled, times):
        return None
    return Absence("stalled", launch_no, last_step, stepped_at, any(is_stale(session, now) for session in sessions))


_RUN_IDS: BindParameter[int] = bindparam("run_ids", expanding=True)
_RUNS = select(run).where(run.c.run_id.in_(_RUN_IDS))
_STATES = select(run.c.run_id, run.c.name, run.c.ended, run.c.step).where(run.c.run_id.in_(_RUN_IDS))
_ALIKE = (session.c.run_id, session.c.ended, session.c.interval_s)
# The best state of several is that of the last seen: a launch has hundreds of ranks.
_OPEN_SESSIONS = (
    select(*_ALIKE, func.max(session.c.last_seen).label("last_seen"))
    .where(session.c.ended.is_(None), session.c.rank >= 0, session.c.run_id.in_(_RUN_IDS))
    .group_by(*_ALIKE)
)


def read_status(connection: Connection, name: str, now: float, silent: Silent) -> RunStatus:
    """Return a run by name; raises RequestError 404."""
    return _statuses(connection, [runs.get_run(connection, name)], now, silent)[0]


def read_statuses(connection: Connection, run_ids: Sequence[int], now: float, silent: Silent) -> list[RunStatus]:
    """Return runs in the order of their ids; to sort whole rows in SQL would copy all their facts."""
    rows = {row.run_id: row for row in connection.execute(_RUNS, {"run_ids": run_ids})}
    return _statuses(connection, [rows[run_id] for run_id in run_ids], now, silent)


def read_states(connection: Connection, run_ids: Sequence[int], now: float, silent: Silent) -> dict[str, str]:
    """Return the states of runs by name."""
    rows: list[Record] = [*connection.execute(_STATES, {"run_ids": run_ids})]
    return {status.row.name: status.state for status in _statuses(connection, rows, now, silent)}


def read_open_statuses(connection: Connection, limit: int, now: float, silent: Silent) -> list[RunStatus]:
    """Return the runs that neither ended nor are archived, at most ``limit``, the last seen ones first."""
    query = select(run.c.run_id).where(run.c.ended.is_(None), run.c.archived.is_(False))
    run_ids = connection.scalars(query.order_by(run.c.last_seen.desc(), run.c.run_id.desc()).limit(limit)).all()
    return read_statuses(connection, run_ids, now, silent)


def _statuses(connection: Connection, rows: Sequence[Record], now: float, silent: Silent) -> list[RunStatus]:
    run_ids = [row.run_id for row in rows]
    open_sessions: dict[int, list[SessionActivity]] = defaultdict(list)
    for open_session in connection.execute(_OPEN_SESSIONS, {"run_ids": run_ids}):
        open_sessions[open_session.run_id].append(open_session)
    open_rules = service.open_absence_rules(connection, run_ids)
    listening_since = heartbeat.listening_since(connection, now)
    progress = runs.max_steps(connection, run_ids)
    statuses = []
    for row in rows:
        # An outage of the collector does not end the silence of a run that has an open incident for it.
        since = 0.0 if "silent" in open_rules[row.run_id] else listening_since
        state = run_state(row.ended, open_sessions[row.run_id], now, silent, since)
        step, last_step_at = progress.get(row.run_id, (row.step, None))
        statuses.append(RunStatus(row, state, since, step, last_step_at))
    return statuses
