"""What comes next between an incident and an endpoint, by what is true, what was told and what is under way; pure.

Nothing waits for a clock: times that no rule allows were written before it was set back, and are brought up to date
first. :func:`gradcanary_server.pace.due` says when what is to be said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from gradcanary_server import veils
from gradcanary_server.endpoints import Endpoint
from gradcanary_server.incident_state import RANKS, Incident
from gradcanary_server.leaps import AHEAD_S, Leaps, is_ahead, since
from gradcanary_server.pace import Due, Pace, Told, due
from gradcanary_server.veils import Veil
from gradcanary_server.webhooks import LONGEST_RETRY_S

LEASE_S = 15.0
"""How long a claim holds: longer than an attempt can take (webhooks.TIMEOUT_S), short enough after a kill."""


class Key(NamedTuple):
    """A message: the version-th of an incident for an endpoint."""

    incident: int
    endpoint: int
    version: int


@dataclass(frozen=True)
class Expire:
    """A sealed message is too old to be sent."""

    key: Key


@dataclass(frozen=True)
class Seal:
    """The next message is due."""

    key: Key
    due: Due
    hidden: frozenset[int | None] = frozenset()
    """Members that it may not name: a silence covers them, or did as they recovered."""


@dataclass(frozen=True)
class Settle:
    """Nobody is to be told anything more about an incident."""

    incident: int


@dataclass(frozen=True)
class Redate:
    """The times of a message are of before the clock was set back: what they are by the present one."""

    key: Key
    sealed: float
    next_attempt: float
    delivered: float | None
    unsure: float | None


Step = Expire | Seal | Settle | Redate
Waiting = Literal["waiting"]


@dataclass(frozen=True)
class Sent:
    """A message without its bytes; ``told`` is set once it was delivered, ``unsure`` while it may have been."""

    key: Key
    state: str
    sealed: float
    next_attempt: float
    lease_until: float | None
    told: Told | None
    unsure: Told | None = None


def aged(message: Sent, leaps: Leaps) -> Sent:
    """Return a message as old as it is, where the clock was set forward since.

    But for its next attempt: a receiver that is asked sooner than was said then takes no harm.
    """

    def then(told: Told | None) -> Told | None:
        return None if told is None else replace(told, at=since(told.at, leaps))

    return replace(
        message,
        sealed=since(message.sealed, leaps),
        lease_until=None if message.lease_until is None else since(message.lease_until - LEASE_S, leaps) + LEASE_S,
        told=then(message.told),
        unsure=then(message.unsure),
    )


def gathered(what: Incident, leaps: Leaps, now: float) -> Incident:
    """Return an incident that has gathered its layers if that began before the clock was set back."""

    def begun(moment: float) -> float:
        return 0.0 if is_ahead(moment, now) else since(moment, leaps)

    return replace(
        what, opened=begun(what.opened), reopened_at=None if what.reopened_at is None else begun(what.reopened_at)
    )


def redated(sent: Sequence[Sent], now: float) -> list[Redate]:
    """Return what is to be written anew of the messages that an endpoint was sent of an incident.

    What was written last was so now at the latest: all that lies in the future goes back by as much. So a next attempt
    stays away from the last one, none is further ahead than one may be, and what arrived last has arrived just now.
    """
    arrived = [told.at for each in sent for told in (each.told, each.unsure) if told is not None]
    newest = max([each.sealed for each in sent] + arrived, default=now)
    if not is_ahead(newest, now):
        return [_limited(each, now) for each in sent if each.next_attempt > _latest(now)]
    back_s, told_s = newest - now, max(arrived, default=now) - now
    found = [(each, _set_back(each, back_s, told_s, now)) for each in sent]
    return [redate for each, redate in found if redate != _as_it_is(each)]


def _latest(now: float) -> float:
    return now + LONGEST_RETRY_S + AHEAD_S


def _as_it_is(message: Sent) -> Redate:
    told, unsure = (None if each is None else each.at for each in (message.told, message.unsure))
    return Redate(message.key, message.sealed, message.next_attempt, told, unsure)


def _limited(message: Sent, now: float) -> Redate:
    return replace(_as_it_is(message), next_attempt=now)


def _set_back(message: Sent, back_s: float, told_s: float, now: float) -> Redate:
    """Return the times of a message, set back where they lie in the future."""

    def here(moment: float, by_s: float) -> float:
        return moment - by_s if moment > now else moment

    retry = here(message.next_attempt, back_s)
    told, unsure = (None if each is None else here(each.at, told_s) for each in (message.told, message.unsure))
    return Redate(message.key, here(message.sealed, back_s), now if retry > _latest(now) else retry, told, unsure)


def is_leased(lease_until: float | None, now: float) -> bool:
    """Tell whether somebody is sending a message; a lease further ahead than one may hold is of another time."""
    return lease_until is not None and now <= lease_until <= now + LEASE_S + AHEAD_S


def following(
    what: Incident, veil: Veil | None, target: Endpoint, sent: Sequence[Sent], pace: Pace, now: float
) -> Expire | Seal | Waiting | None:
    """Return the step for one endpoint; "waiting" while something is under way or due later, None when all is said."""
    last = sent[-1] if sent else None
    heard = _heard(what, sent)
    view = veils.view(what, veil, heard)
    if last is not None and is_leased(last.lease_until, now):
        return "waiting"  # how that ends decides what is to be said
    if last is not None and last.state == "pending":
        return Expire(last.key) if now >= last.sealed + pace.interval_s or view is None else "waiting"
    if view is None:
        return "waiting" if veils.is_owed(what, heard) else None
    what, hidden = view
    if heard is None and RANKS[what.severity] < RANKS[target.min_severity]:
        return None
    news = due(what, heard, pace, what.acked is not None)
    if news is None or what.id is None:
        return None
    # A receiver that failed is not asked sooner because the message was renewed.
    held = last.next_attempt if last is not None and last.state == "expired" else 0.0
    key = Key(what.id, target.id, 1 if last is None else last.key.version + 1)
    return Seal(key, news, hidden) if now >= max(news.not_before, held) else "waiting"


def _heard(what: Incident, sent: Sequence[Sent]) -> Told | None:
    """Return what arrived last, which is not the newest message where an older one was sent once more.

    What may have arrived is taken for heard where that makes something more to be said: whoever may have heard that an
    incident began is owed its end.
    """
    heard = [each.told for each in reversed(sent) if each.told is not None]
    if what.state == "resolved":
        heard += [each.unsure for each in sent if each.unsure is not None and each.unsure.kind != "resolved"]
    return max(heard, key=lambda told: told.at, default=None)
