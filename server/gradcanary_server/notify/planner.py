"""The notification policy: the next message about an incident for an endpoint, and its earliest time. Pure.

State is notified, not events. :func:`next_notification` compares the last message that an endpoint got with the
incident, and returns the next message and the earliest time for it. :func:`next_action` also respects silences and
messages under way. Between two messages there is always a minimum interval, and the last one reports the last state.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from gradcanary_server.incidents.causes import is_inhibited_by
from gradcanary_server.incidents.lifecycle import RANKS, RULE_CHANGE_S, Incident
from gradcanary_server.incidents.silences import SilencedMembers, without_silenced
from gradcanary_server.notify.endpoints import Endpoint
from gradcanary_server.rules.config import Pace
from gradcanary_server.rules.types import Severity

Kind = Literal["opened", "grew", "reopened", "resolved", "ended", "reminder"]

LAST_KINDS = ("resolved", "ended")
"""Kinds that close what a receiver keeps open."""

MAX_DOUBLINGS = 5
"""Reopenings that double the interval: 15 minutes become 8 hours at most."""

LEASE_S = 15.0
"""Lifetime of a claim: longer than an attempt can take (webhook.TIMEOUT_S, and pictures.DRAW_S), short enough after a
kill."""


@dataclass(frozen=True)
class LastNotification:
    """The last message that an endpoint got: ``layers`` is the number of layers in it."""

    at: float
    kind: Kind
    layers: int
    severity: Severity
    reopens: int


@dataclass(frozen=True)
class NextNotification:
    """The next message and its earliest time; it covers ``layers`` layers if it is enqueued now."""

    not_before: float
    kind: Kind
    layers: int


class VisibleIncident(NamedTuple):
    """An incident without its ``hidden`` members, which a silence covers."""

    incident: Incident
    hidden: frozenset[int | None]


class NotifiedCause(NamedTuple):
    """An incident that an endpoint is notified of, and may explain another; ``at`` is the time of its first message,
    None while that is to come.
    """

    incident: Incident
    at: float | None


class Inhibition(NamedTuple):
    """True while a cause holds back the messages about an incident; its first one is not sent before ``until``."""

    is_active: bool = False
    until: float = 0.0


class DeliveryKey(NamedTuple):
    """The key of a message: the version-th of an incident of a run for an endpoint."""

    run_id: int
    incident_id: int
    endpoint_id: int
    version: int


@dataclass(frozen=True)
class Delivery:
    """A message without its body; ``delivered`` is set once it is, ``maybe_delivered`` while it may have been."""

    key: DeliveryKey
    state: str
    enqueued_at: float
    next_attempt: float
    lease_until: float | None
    delivered: LastNotification | None
    maybe_delivered: LastNotification | None = None


@dataclass(frozen=True)
class Expire:
    """A pending message is too old to be sent."""

    key: DeliveryKey

    @property
    def run_id(self) -> int:
        return self.key.run_id


@dataclass(frozen=True)
class Enqueue:
    """The next message is due; it must not name ``hidden`` members, which a silence covers."""

    key: DeliveryKey
    due: NextNotification
    hidden: frozenset[int | None] = frozenset()

    @property
    def run_id(self) -> int:
        return self.key.run_id


@dataclass(frozen=True)
class MarkDone:
    """An incident has no further notifications."""

    run_id: int
    incident_id: int


Step = Expire | Enqueue | MarkDone
Waiting = Literal["waiting"]


def min_interval_s(incident: Incident, pace: Pace) -> float:
    """Return the minimum time between two messages about this incident."""
    return pace.interval_s * 2.0 ** min(incident.reopened, MAX_DOUBLINGS)


def next_notification(
    incident: Incident,
    last: LastNotification | None,
    pace: Pace,
    acked: bool,
    *,
    sends_ended: bool = False,
) -> NextNotification | None:
    """Return the next message, None while nothing is new.

    An incident that recovers before its first message is due needs none. One that the run ended on needs it:
    its layers did not recover, and a job that crashes of its NaN within seconds matters most. After a message the end
    of the run is sent only to an endpoint that ``sends_ended``.
    """
    if last is None:
        if incident.state == "resolved":
            return None
        return NextNotification(_group_wait_end(incident, 0, pace), "opened", incident.ever_firing)
    is_end = incident.state == "ended"
    following = (
        _next_kind_at_end(incident, last, pace, sends_ended) if is_end else _next_kind(incident, last, pace, acked)
    )
    if following is None:
        return None
    kind, earliest = following
    not_before = max(earliest, last.at + min_interval_s(incident, pace))
    # Members of the last message may be silenced now; they still count.
    return NextNotification(not_before, kind, max(incident.ever_firing, last.layers))


def _next_kind(incident: Incident, last: LastNotification, pace: Pace, acked: bool) -> tuple[Kind, float] | None:
    """Return the kind of the next message after another one, and its earliest time without the minimum interval."""
    is_worse = RANKS[incident.severity] > RANKS[last.severity]
    if incident.state == "resolved":
        # Layers that fired and recovered since a resolved message need another one.
        if last.kind not in LAST_KINDS or is_worse or incident.ever_firing > last.layers:
            may_come_back = incident.resolution == "rule_changed"  # the changed rule may find the same again
            return "resolved", (incident.resolved or 0.0) + RULE_CHANGE_S if may_come_back else last.at
        return None
    if incident.reopened > last.reopens or last.kind in LAST_KINDS:
        return "reopened", _group_wait_end(incident, last.reopens, pace)
    if acked:
        return None
    # Counts at least one layer: after a NaN loss, which has none, any layer would be growth without bound.
    if is_worse or incident.ever_firing >= pace.growth * max(last.layers, 1):
        return "grew", last.at
    if incident.severity == "critical":
        return "reminder", last.at + pace.remind_s
    return None


def _next_kind_at_end(
    incident: Incident, last: LastNotification, pace: Pace, sends_ended: bool
) -> tuple[Kind, float] | None:
    """Return the kind of the next message about an incident that the run ended on: what was not sent before."""
    is_known = last.kind not in LAST_KINDS
    if is_known and RANKS[incident.severity] > RANKS[last.severity]:
        return "grew", last.at
    if is_known and sends_ended:  # also of one that reopened meanwhile
        return "ended", last.at
    if incident.reopened > last.reopens or last.kind == "resolved":
        return "reopened", _group_wait_end(incident, last.reopens, pace)
    return ("grew", last.at) if RANKS[incident.severity] > RANKS[last.severity] else None


def _group_wait_end(incident: Incident, notified_reopens: int, pace: Pace) -> float:
    # A flapping incident may never be open for wait_s at a time: from the second reopening on it need not be.
    if incident.reopened - notified_reopens > 1:
        return incident.opened + pace.wait_s
    return (incident.opened if incident.reopened_at is None else incident.reopened_at) + pace.wait_s


def visible_to(
    incident: Incident, silenced: SilencedMembers | None, last: LastNotification | None
) -> VisibleIncident | None:
    """Return an incident without its silenced members, None while no message may be sent.

    A message needs a visible member that fires; the end after an earlier message needs a visible member only.
    """
    if silenced is None:
        return VisibleIncident(incident, frozenset())
    visible = frozenset(silenced.members) - silenced.covered
    fires = bool(visible & silenced.firing())
    if not visible or (not fires and (incident.state == "open" or last is None)):
        return None
    view = without_silenced(incident, silenced.members, visible)
    if incident.state == "ended" and not fires and last is not None:  # what reopened is silenced
        if last.kind in LAST_KINDS:
            return None
        view = replace(view, reopened=last.reopens)
    return VisibleIncident(view, silenced.covered)


def inhibition(incident: Incident, causes: Iterable[NotifiedCause], pace: Pace) -> Inhibition:
    """Return how the causes of which an endpoint is notified hold back the messages about an incident.

    A cause does so while it is open; one that the run ended on, if the run ended on both. After its recovery an
    incident that still fires waits for the gathering time: it may recover with its cause. A crash is one message with
    a cause that was not sent yet, and has its own after that.
    """
    is_active, until = False, 0.0
    for cause, at in causes:
        if is_inhibited_by(incident, cause) and not (incident.rule == "crash" and _is_before(at, incident.opened)):
            is_active |= cause.state == "open" or (cause.state == "ended" and incident.state != "open")
            until = max(until, (cause.resolved or 0.0) + pace.wait_s) if cause.state == "resolved" else until
    return Inhibition(is_active, until)


def notified_cause(
    cause: Incident, silenced: SilencedMembers | None, sent: Sequence[Delivery], target: Endpoint
) -> NotifiedCause | None:
    """Return an incident as a cause, None if the endpoint neither got a message about it nor will."""
    begun = [message for message in sent if message.state in ("pending", "delivered") or message.maybe_delivered]
    is_older = cause.resolved is not None and cause.resolved < target.since
    is_severe = RANKS[cause.severity] >= RANKS[target.min_severity]
    will_be = is_severe and not is_older and visible_to(cause, silenced, None) is not None
    at = min((message.enqueued_at for message in begun), default=None)
    return NotifiedCause(cause, at) if will_be or at is not None else None


def _is_before(at: float | None, moment: float) -> bool:
    return at is not None and at < moment


def needs_notification_later(incident: Incident, last: LastNotification | None) -> bool:
    """Return True if an incident that is silenced now may need a message after the silence.

    What reopened under a silence, and is over with the run, needs none.
    """
    return incident.state == "open" or (last is not None and last.kind not in LAST_KINDS)


def is_leased(lease_until: float | None, now: float) -> bool:
    """Return True if a dispatcher is sending a message."""
    return lease_until is not None and now <= lease_until


def next_action(
    incident: Incident,
    silenced: SilencedMembers | None,
    target: Endpoint,
    sent: Sequence[Delivery],
    pace: Pace,
    now: float,
    inhibited: Inhibition = Inhibition(),  # noqa: B008 -- immutable
) -> Expire | Enqueue | Waiting | None:
    """Return the step for one endpoint: "waiting" while a message is under way or due later, None if all is sent.

    Of an ``inhibited`` incident only the end is sent, if the endpoint was notified of it before.
    """
    newest = sent[-1] if sent else None
    last = _last_notification(incident, sent)
    view = visible_to(incident, silenced, last)
    if newest is not None and is_leased(newest.lease_until, now):
        return "waiting"  # the next message depends on the result
    if newest is not None and newest.state == "pending":
        return Expire(newest.key) if now >= newest.enqueued_at + pace.interval_s or view is None else "waiting"
    if view is None:
        return "waiting" if needs_notification_later(incident, last) else None
    incident, hidden = view
    if last is None and RANKS[incident.severity] < RANKS[target.min_severity]:
        return None
    due = next_notification(incident, last, pace, incident.acked is not None, sends_ended=target.sends_ended)
    if due is None or incident.run_id is None or incident.id is None:
        return None
    if inhibited.is_active and due.kind not in LAST_KINDS:
        if incident.state == "open":
            return "waiting"
        if not target.sends_ended or last is None or last.kind in LAST_KINDS:
            return None
        due = replace(due, kind="ended")  # what its receiver keeps open is closed, whatever the message would say
    # A newer message does not shorten the back-off of an endpoint that failed.
    not_before = newest.next_attempt if newest is not None and newest.state == "expired" else 0.0
    not_before = max(not_before, inhibited.until if last is None else 0.0)
    key = DeliveryKey(incident.run_id, incident.id, target.id, 1 if newest is None else newest.key.version + 1)
    return Enqueue(key, due, hidden) if now >= max(due.not_before, not_before) else "waiting"


def is_final_delivery(message: Delivery) -> bool:
    """Return True if a pending message, which may have arrived, reports that its incident is over."""
    doubt = message.maybe_delivered
    return message.state == "pending" and doubt is not None and doubt.kind in LAST_KINDS


def final_notification(
    incident: Incident,
    silenced: SilencedMembers | None,
    sent: Sequence[Delivery],
    pace: Pace,
    silenced_until: float,
    *,
    sends_ended: bool,
) -> Enqueue | None:
    """Return the last message about a deleted run's incident for an endpoint, None if it needs none.

    Nothing plans it again, so a silenced one waits for the end of the silences.
    """
    last, newest = _last_notification(incident, sent), sent[-1]
    if last is None:
        return None
    view = visible_to(incident, silenced, last)
    incident, hidden = view or VisibleIncident(incident, frozenset())
    due = next_notification(incident, last, pace, acked=False, sends_ended=sends_ended)
    if due is None:
        return None
    # After an attempt under way, and not before the next attempt of one that failed.
    times = [due.not_before, newest.lease_until or 0.0, silenced_until if view is None else 0.0]
    times += [] if newest.state == "delivered" else [newest.next_attempt]
    key = newest.key._replace(version=newest.key.version + 1)
    return Enqueue(key, replace(due, not_before=max(times)), hidden)


def _last_notification(incident: Incident, sent: Sequence[Delivery]) -> LastNotification | None:
    """Return the message that was delivered last; a redelivery makes it an older one.

    Once the incident is over, a message that may have been delivered counts, too: its receiver needs the end.
    """
    notifications = [message.delivered for message in reversed(sent) if message.delivered is not None]
    if incident.state != "open":
        doubtful = [message.maybe_delivered for message in sent if message.maybe_delivered is not None]
        notifications += [message for message in doubtful if message.kind not in LAST_KINDS]
    return max(notifications, key=lambda notification: notification.at, default=None)
