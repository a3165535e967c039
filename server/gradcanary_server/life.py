"""Whether a run lives and makes steps: told from when it was last heard of, by the database's clock; pure."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

from gradcanary_server.leaps import is_ahead
from gradcanary_server.rules import Rules, Silent, Stalled

STALE_AFTER = 3
"""Heartbeat intervals without a request."""


class Heard(Protocol):
    """What a session's row says."""

    ended: str | None
    last_seen: float
    interval_s: float


class Stepping(Heard, Protocol):
    """An open session: the highest step that it told of, and when that last rose, both None before the first one."""

    launch_no: int
    reached: int | None
    moved: float | None


@dataclass(frozen=True)
class Vigil:
    """Since when somebody listens: ``began`` the first time ever, ``since`` without a break."""

    began: float = 0.0
    since: float = 0.0


@dataclass(frozen=True)
class Absence:
    """What did not come: of a rule of the clock, ``since`` when, and the last ``step`` that is known, None = none."""

    rule: str
    launch_no: int
    step: int | None
    since: float
    has_lost_rank: bool = False


def is_stale(session: Heard, now: float) -> bool:
    """Tell whether a session missed some heartbeats, or was not heard of since the clock was set back."""
    return now - session.last_seen > STALE_AFTER * session.interval_s or is_ahead(session.last_seen, now)


def session_state(session: Heard, now: float, silent: Silent = Silent(), since: float = 0.0) -> str:  # noqa: B008 -- immutable
    """Return finished, crashed or silent of a session that ended, else what its silence means.

    What was not heard before ``since`` says nothing: nobody listened.
    """
    if session.ended is not None:
        return session.ended
    if not is_stale(session, now):
        return "live"
    return "silent" if now - _quiet_since(session, now, since) > silence_s(session, silent) else "stale"


def _quiet_since(session: Heard, now: float, since: float) -> float:
    # What lies ahead was before the clock was set back, and so before anybody listened by the present one.
    return since if is_ahead(session.last_seen, now) else max(session.last_seen, since)


def run_state(
    ended: str | None,
    open_sessions: Iterable[Heard],
    now: float,
    silent: Silent = Silent(),  # noqa: B008 -- immutable
    since: float = 0.0,
) -> str:
    """Return the state of a run: how it ended, else that of its liveliest open session."""
    if ended is not None:
        return ended
    states = {session_state(session, now, silent, since) for session in open_sessions}
    return next((state for state in ("live", "stale") if state in states), "silent")


def silence_s(session: Heard, silent: Silent) -> float:
    """Return how long nothing may be heard of a session."""
    return max(silent.after_s, silent.intervals * session.interval_s)


def standstill_s(stalled: Stalled, median_s: float | None, longest_s: float | None) -> float:
    """Return how long a run may make no step, by the times of its steps; None where they are not known."""
    return max(stalled.after_s, stalled.steps * (median_s or 0.0), stalled.pause_factor * (longest_s or 0.0))


def absence(
    sessions: Collection[Stepping], step: int | None, missed: Collection[str], now: float, vigil: Vigil, rules: Rules
) -> Absence | None:
    """Return what does not come of a run that has not ended, and is not ``missed`` yet; None where all is well.

    ``sessions`` are its open ones. A stalled run is one that makes no step for ``stalled.after_s`` at least: how long
    its own steps take is for the caller to ask. What was silent before anybody listened is an old story.
    """
    if not sessions:
        return None
    state = run_state(None, sessions, now, rules.silent, vigil.since)
    heard = max(vigil.since if is_ahead(session.last_seen, now) else session.last_seen for session in sessions)
    launch_no = max(session.launch_no for session in sessions)
    last = max((session.reached for session in sessions if session.reached is not None), default=step)
    if state == "silent":
        is_news = heard >= vigil.began - max(silence_s(session, rules.silent) for session in sessions)
        is_wanted = rules.silent.enabled and is_news and "silent" not in missed
        return Absence("silent", launch_no, last, heard) if is_wanted else None
    moved = max((session.moved for session in sessions if session.moved is not None), default=None)
    is_wanted = rules.stalled.enabled and state == "live" and "stalled" not in missed
    if not is_wanted or moved is None or now - moved <= rules.stalled.after_s:
        return None
    return Absence("stalled", launch_no, last, moved, any(is_stale(session, now) for session in sessions))
