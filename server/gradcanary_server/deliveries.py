"""What was told and what is to be told, in the tables.

One row per message; sealing writes its bytes, and nothing changes them afterwards. How they are sent: attempts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    RowMapping,
    bindparam,
    insert,
    or_,
    select,
    update,
)

from gradcanary_server import dossiers, endpoints, incident_rows, incidents, notifications, silences, veils
from gradcanary_server.endpoints import Endpoint
from gradcanary_server.incident_state import RANKS, Incident
from gradcanary_server.pace import Due, Pace, Told, due
from gradcanary_server.schema import delivery, endpoint, incident
from gradcanary_server.veils import Veil


class Key(NamedTuple):
    """A message: the version-th of an incident for an endpoint."""

    incident: int
    endpoint: int
    version: int


# Made once: twice a second they are asked, and mostly for nothing.
_UNSETTLED = select(incident).where(incident.c.settled.is_(False)).order_by(incident.c.incident_id)
_HELD = _UNSETTLED.with_for_update(skip_locked=True)


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


Step = Expire | Seal | Settle
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


def plan(
    connection: Connection, pace: Pace, now: float, muted: frozenset[str] = frozenset(), *, holding: bool = False
) -> list[Step]:
    """Return what is to be written now, from what is true and what was told; of ``muted`` rules nobody is told.

    ``holding`` the incidents until the transaction ends, without those that somebody changes at this moment: their
    turn comes in the next round.
    """
    rows = connection.execute(_HELD if holding else _UNSETTLED).mappings().all()
    if not rows:
        return []
    targets = endpoints.enabled(connection)
    told = _by_target(connection)
    veiled = silences.veiled(connection, rows, silences.in_force(connection, now))
    steps: list[Step] = []
    for row in rows:
        what = incident_rows.parsed(row)
        whom = () if row["rule"] in muted else targets
        heard = [(target, told.get((row["incident_id"], target.id), [])) for target in whom]
        veil = veiled.get(row["incident_id"])
        verdicts = [_next(what, veil, each, sent, pace, now) for each, sent in heard if sent or not _is_past(row, each)]
        steps += [verdict for verdict in verdicts if isinstance(verdict, Expire | Seal)]
        if what.state == "resolved" and all(verdict is None for verdict in verdicts):
            steps.append(Settle(row["incident_id"]))
    return steps


def _is_past(row: RowMapping, target: Endpoint) -> bool:
    """Tell whether an incident was over before there was anybody to tell: nobody wants to hear old stories."""
    return row["state"] == "resolved" and bool(row["resolved"] < target.since)


def carry_out(connection: Connection, step: Step, public_url: str, now: float) -> None:
    """Write a step of :func:`plan`, in the transaction that planned it and holds its incident."""
    if isinstance(step, Seal):
        _seal(connection, step, public_url, now)
    elif isinstance(step, Expire):
        # Not what another collector has claimed meanwhile: that is on its way.
        unclaimed = (*is_key(step.key), delivery.c.state == "pending", is_unclaimed(now))
        connection.execute(update(delivery).where(*unclaimed).values(state="expired"))
    else:
        connection.execute(update(incident).where(incident.c.incident_id == step.incident).values(settled=True))


def claimable(connection: Connection, now: float) -> list[Key]:
    """Return the messages whose next attempt is due, oldest first."""
    return [Key(row.incident_id, row.endpoint_id, row.version) for row in connection.execute(_CLAIMABLE, {"now": now})]


def _by_target(connection: Connection) -> dict[tuple[int, int], list[Sent]]:
    """Return the messages of the incidents that are not settled, per incident and endpoint, oldest first."""
    query = select(*(column for column in delivery.c if column.name != "body"))
    query = query.join(incident, incident.c.incident_id == delivery.c.incident_id)
    rows = connection.execute(query.where(incident.c.settled.is_(False)).order_by(delivery.c.version)).mappings()
    found: dict[tuple[int, int], list[Sent]] = defaultdict(list)
    for row in rows:
        found[row["incident_id"], row["endpoint_id"]].append(_sent(row))
    return found


def _sent(row: RowMapping) -> Sent:
    told = Told(row["delivered"], row["kind"], row["told_ever"], row["told_severity"], row["told_reopened"])
    return Sent(
        key=Key(row["incident_id"], row["endpoint_id"], row["version"]),
        state=row["state"],
        sealed=row["sealed"],
        next_attempt=row["next_attempt"],
        lease_until=row["lease_until"],
        told=told if row["state"] == "delivered" else None,
    )


def _next(
    what: Incident, veil: Veil | None, target: Endpoint, sent: list[Sent], pace: Pace, now: float
) -> Step | Waiting | None:
    """Return the step for one endpoint; "waiting" while something is under way or due later, None when all is said."""
    last = sent[-1] if sent else None
    # What arrived last, which is not the newest where an older message was sent once more.
    heard = max((each.told for each in reversed(sent) if each.told is not None), key=lambda told: told.at, default=None)
    view = veils.view(what, veil, heard)
    if last is not None and last.lease_until is not None and last.lease_until >= now:
        return "waiting"  # how that ends decides what is to be said
    if last is not None and last.state == "pending":
        is_old = now >= last.sealed + pace.interval_s or view is None
        return Expire(last.key) if is_old else "waiting"
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


def _seal(connection: Connection, step: Seal, public_url: str, now: float) -> None:
    key, news = step.key, step.due
    [dossier] = dossiers.load(connection, [key.incident], step.hidden)
    url = incidents.page(public_url, dossier.run, key.incident)
    connection.execute(
        insert(delivery).values(
            incident_id=key.incident,
            endpoint_id=key.endpoint,
            version=key.version,
            kind=news.kind,
            state="pending",
            body=notifications.seal(dossier, news.kind, key.version, url, now),
            sealed=now,
            told_ever=news.members,
            told_severity=dossier.incident.severity,
            told_reopened=dossier.incident.reopened,
            next_attempt=now,
        )
    )


def free(now: float | BindParameter[float]) -> Sequence[ColumnElement[bool]]:
    """Return what is true of messages whose next attempt is due.

    One may have been sealed at the moment at which its endpoint was disabled, or deleted.
    """
    enabled = select(endpoint.c.endpoint_id).where(endpoint.c.disabled.is_(None))
    is_wanted = delivery.c.endpoint_id.in_(enabled)
    return delivery.c.state == "pending", delivery.c.next_attempt <= now, is_unclaimed(now), is_wanted


def is_unclaimed(now: float | BindParameter[float]) -> ColumnElement[bool]:
    """Return what is true of messages that nobody is sending."""
    return or_(delivery.c.lease_until.is_(None), delivery.c.lease_until < now)


def is_key(key: Key) -> Sequence[ColumnElement[bool]]:
    """Return what is true of one message."""
    return (
        delivery.c.incident_id == key.incident,
        delivery.c.endpoint_id == key.endpoint,
        delivery.c.version == key.version,
    )


_CLAIMABLE = (
    select(delivery.c.incident_id, delivery.c.endpoint_id, delivery.c.version)
    .where(*free(bindparam("now")))
    .order_by(delivery.c.next_attempt, *delivery.primary_key)
)
