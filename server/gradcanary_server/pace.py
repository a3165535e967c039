"""When to say what about an incident: a pure function of what is true and of what was told.

State is delivered, not events. Per incident and endpoint the last message told is remembered; :func:`due` compares it
with the incident and answers with the next message and the earliest moment for it. Whatever happens in between, two
messages keep their distance, and the last one is true.
"""

from dataclasses import dataclass
from typing import Literal

from gradcanary_server.incident_state import OF_THE_CLOCK, RANKS, Incident
from gradcanary_server.observations import Severity

Kind = Literal["opened", "grew", "reopened", "resolved", "reminder"]

MAX_DOUBLINGS = 5
"""Reopenings that stretch the interval: 15 minutes become 8 hours at most."""


@dataclass(frozen=True)
class Pace:
    """How often people are spoken to; ``pace:`` of rules.yaml."""

    wait_s: float = 10.0
    """Gathers the layers of one event into the first message."""
    interval_s: float = 900.0
    """The least distance of two messages of one incident; doubles with each reopening."""
    growth: float = 2.0
    """This many times the layers last named are news."""
    remind_s: float = 86_400.0
    reopen_s: float = 21_600.0
    """A refire this soon after a resolution continues the incident; later it is a new one."""


@dataclass(frozen=True)
class Told:
    """The last message an endpoint took: ``at`` is when, ``ever`` how many layers it covered."""

    at: float
    kind: Kind
    ever: int
    severity: Severity
    reopened: int


@dataclass(frozen=True)
class Due:
    """The next message, at the earliest moment for it; it covers ``members`` layers if sealed now."""

    not_before: float
    kind: Kind
    members: int


def spacing(incident: Incident, pace: Pace) -> float:
    """Return the least seconds between two messages of this incident."""
    return pace.interval_s * 2.0 ** min(incident.reopened, MAX_DOUBLINGS)


def due(incident: Incident, told: Told | None, pace: Pace, acked: bool) -> Due | None:
    """Return what to say next and when at the earliest; None while nothing is new.

    An incident that recovers before its first message is due stays unsaid. One that a run's end closed is said all
    the same: its layers did not recover, and a job that dies of its NaN within seconds is the one to hear about. But
    one that was missed and says that it ended is missed no more.
    """
    if told is None:
        is_owed = incident.resolution == "run_finished" and incident.rule not in OF_THE_CLOCK
        if incident.state == "resolved" and not is_owed:
            return None
        return Due(_gathered(incident, 0, pace), "opened", incident.ever)
    news = _news(incident, told, pace, acked)
    if news is None:
        return None
    kind, wished = news
    # Members that were told may be silenced now; they stay told.
    return Due(max(wished, told.at + spacing(incident, pace)), kind, max(incident.ever, told.ever))


def _news(incident: Incident, told: Told, pace: Pace, acked: bool) -> tuple[Kind, float] | None:
    worse = RANKS[incident.severity] > RANKS[told.severity]
    if incident.state == "resolved":
        # Told as resolved, then layers came and went unsaid: they are owed a last word too.
        if told.kind != "resolved" or worse or incident.ever > told.ever:
            return "resolved", told.at
        return None
    if incident.reopened > told.reopened:
        return "reopened", _gathered(incident, told.reopened, pace)
    if acked:
        return None
    # At least one layer counts as named, so that a first layer after a NaN loss is not growth without bound.
    if worse or incident.ever >= pace.growth * max(told.ever, 1):
        return "grew", told.at
    if incident.severity == "critical":
        return "reminder", told.at + pace.remind_s
    return None


def _gathered(incident: Incident, heard: int, pace: Pace) -> float:
    # A flapping incident may never be open for wait_s at a stretch; from its second unheard reopening on it has waited.
    if incident.reopened - heard > 1:
        return incident.opened + pace.wait_s
    return (incident.opened if incident.reopened_at is None else incident.reopened_at) + pace.wait_s
