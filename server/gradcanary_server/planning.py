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


Step = Expire | Seal | Settle | Redate
Waiting = Literal["waiting"]


@dataclass(frozen=True)
class Sent:
    """A message without its bytes; ``told`` is set once it was delivered."""

    key: Key
    state: str
    sealed: float
    next_attempt: float
    lease_until: float | None
    told: Told | None


def aged(message: Sent, leaps: Leaps) -> Sent:
    """Return a message as old as it is, where the clock was set forward since.

    But for its next attempt: a receiver that is asked sooner than was said then takes no harm.
    """
    return replace(
        message,
        sealed=since(message.sealed, leaps),
        lease_until=None if message.lease_until is None else since(message.lease_until - LEASE_S, leaps) + LEASE_S,
        told=None if message.told is None else replace(message.told, at=since(message.told.at, leaps)),
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
    arrived = [each.told.at for each in sent if each.told is not None]
    newest = max([each.sealed for each in sent] + arrived, default=now)
    if not is_ahead(newest, now):
        return [_limited(each, now) for each in sent if each.next_attempt > _latest(now)]
    back_s, told_s = newest - now, max(arrived, default=now) - now
    found = [(each, _set_back(each, back_s, told_s, now)) for each in sent]
    return [redate for each, redate in found if redate != _as_it_is(each)]


def _latest(now: float) -> float:
    return now + LONGEST_RETRY_S + AHEAD_S


def _as_it_is(message: Sent) -> Redate:
    told = None if message.told is None else message.told.at
    return Redate(message.key, message.sealed, message.next_attempt, told)


def _limited(message: Sent, now: float) -> Redate:
    return replace(_as_it_is(message), next_attempt=now)


def _set_back(message: Sent, back_s: float, told_s: float, now: float) -> Redate:
    """Return the times of a message, set back where they lie in the future."""

    def here(moment: float, by_s: float) -> float:
        return moment - by_s if moment > now else moment

    retry = here(message.next_attempt, back_s)
    told = None if message.told is None else here(message.told.at, told_s)
    return Redate(message.key, here(message.sealed, back_s), now if retry > _latest(now) else retry, told)


def is_leased(lease_until: float | None, now: float) -> bool:
    """Tell whether somebody is sending a message; a lease further ahead than one may hold is of another time."""
    return lease_until is not None and now <= lease_until <= now + LEASE_S + AHEAD_S


def following(
    what: Incident, veil: Veil | None, target: Endpoint, sent: Sequence[Sent], pace: Pace, now: float
) -> Expire | Seal | Waiting | None:
    """Return the step for one endpoint; "waiting" while something is under way or due later, None when all is said."""
    last = sent[-1] if sent else None
    # What arrived last, which is not the newest where an older message was sent once more.
    heard = max((each.told for each in reversed(sent) if each.told is not None), key=lambda told: told.at, default=None)
    view = veils.view(what, veil, heard)
    if last is not None and is_leased(last.lease_until, now):
        return "waiting"  # how that ends decides what is to be said
    if last is not None and last.state == "pending":
        # Whoever sent it was killed before it was known whether it arrived: sent once more, it is.
        is_unsure = last.lease_until is not None
        is_old = now >= last.sealed + pace.interval_s and not is_unsure
        return Expire(last.key) if is_old or view is None else "waiting"
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
