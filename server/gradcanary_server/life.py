"""Whether a run lives: told from when it was last heard of, by the database's clock; pure."""

from collections.abc import Iterable
from typing import Protocol

STALE_AFTER = 3
"""Heartbeat intervals without a request."""

SILENT_AFTER = 10
"""Heartbeat intervals, and never less than SILENT_S."""

SILENT_S = 300.0


class Heard(Protocol):
    """What a session's row says."""

    ended: str | None
    last_seen: float
    interval_s: float


def session_state(session: Heard, now: float) -> str:
    """Return finished, crashed or silent of a session that ended, else what its silence means."""
    if session.ended is not None:
        return session.ended
    quiet_s = now - session.last_seen
    if quiet_s <= STALE_AFTER * session.interval_s:
        return "live"
    return "silent" if quiet_s > max(SILENT_S, SILENT_AFTER * session.interval_s) else "stale"


def run_state(ended: str | None, open_sessions: Iterable[Heard], now: float) -> str:
    """Return the state of a run: how it ended, else that of its liveliest open session."""
    if ended is not None:
        return ended
    states = {session_state(session, now) for session in open_sessions}
    return next((state for state in ("live", "stale") if state in states), "silent")
