"""What was told and what is to be told, in the tables.

One row per message; sealing writes its bytes, and nothing changes them afterwards. Claims are compare-and-set on a
fence, so that of two deliverers only one sends, and one that comes back late from a hang writes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import ColumnElement, Connection, Row, func, insert, or_, select, update

from gradcanary_server import dossiers, endpoints, incident_rows, incidents, notifications
from gradcanary_server.endpoints import Endpoint
from gradcanary_server.incident_state import RANKS, Incident
from gradcanary_server.pace import Due, Pace, Told, due
from gradcanary_server.schema import attempt, delivery, incident
from gradcanary_server.schema import endpoint as endpoint_table
from gradcanary_server.webhooks import Message, TransportError, retry_delay

LEASE_S = 15.0
"""How long a claim holds: longer than an attempt can take (webhooks.TIMEOUT_S), short enough after a kill."""

MAX_ERROR = 500


@dataclass(frozen=True)
class Step:
    """Something to write: expire a message that is too old, seal the next one, or settle an incident."""

    what: Literal["expire", "seal", "settle"]
    incident: int
    endpoint: int = 0
    version: int = 0
    due: Due | None = None


@dataclass(frozen=True)
class Claim:
    """A message that this deliverer alone may send until its lease ends; ``number`` counts its attempts from 1."""

    incident: int
    endpoint: int
    version: int
    fence: int
    number: int
    message: Message


def plan(connection: Connection, pace: Pace, now: float) -> list[Step]:
    """Return what is to be written now, from what is true and what was told."""
    targets = endpoints.enabled(connection)
    told = _by_target(connection)
    steps: list[Step] = []
    for row in connection.execute(select(incident).where(incident.c.settled.is_(False))).mappings():
        what = incident_rows.parsed(row)
        verdicts = [_next(what, target, told.get((row["incident_id"], target.id), []), pace, now) for target in targets]
        steps += [verdict for verdict in verdicts if isinstance(verdict, Step)]
        if what.state == "resolved" and all(verdict is None for verdict in verdicts):
            steps.append(Step("settle", row["incident_id"]))
    return steps


def carry_out(connection: Connection, step: Step, public_url: str, now: float) -> None:
    """Write a step of :func:`plan`, in the transaction that planned it."""
    if step.what == "settle":
        connection.execute(update(incident).where(incident.c.incident_id == step.incident).values(settled=True))
    elif step.what == "expire":
        connection.execute(update(delivery).where(*_key(step)).values(state="expired"))
    elif step.due is not None:
        _seal(connection, step, step.due, public_url, now)


def claimable(connection: Connection, now: float) -> list[Row[tuple[int, int, int]]]:
    """Return incident, endpoint and version of the messages whose next attempt is due, oldest first."""
    query = select(delivery.c.incident_id, delivery.c.endpoint_id, delivery.c.version)
    return list(connection.execute(query.where(*_free(now)).order_by(delivery.c.next_attempt)))


def claim(connection: Connection, key: Row[tuple[int, int, int]], now: float) -> Claim | None:
    """Take the right to send a message for the length of a lease; None when another deliverer has it."""
    mine = _key(Step("seal", key[0], key[1], key[2]))
    taken = update(delivery).where(*mine, *_free(now)).values(fence=delivery.c.fence + 1, lease_until=now + LEASE_S)
    if connection.execute(taken).rowcount != 1:
        return None
    query = select(delivery, endpoint_table.c.url, endpoint_table.c.secret)
    query = query.join(endpoint_table, endpoint_table.c.endpoint_id == delivery.c.endpoint_id).where(*mine)
    row = connection.execute(query).one()
    message = Message(f"msg_{row.incident_id}_{row.version}", row.url, row.secret, row.body)
    return Claim(row.incident_id, row.endpoint_id, row.version, row.fence, row.attempts + 1, message)


def conclude(
    connection: Connection, claim: Claim, result: int | TransportError, took_ms: int, now: float, jitter: float
) -> None:
    """Record an attempt and what follows from it; writes nothing when the claim was lost meanwhile."""
    error = result if isinstance(result, TransportError) else None
    changes: dict[str, object] = {"attempts": claim.number, "lease_until": None}
    if error is None:
        changes |= {"state": "delivered", "delivered": now}
    else:
        failures = _failures(connection, claim) + 1
        changes |= {"next_attempt": now + retry_delay(failures, error.retry_after_s, jitter)}
    mine = (*_key(claim), delivery.c.fence == claim.fence, delivery.c.state == "pending")
    if connection.execute(update(delivery).where(*mine).values(**changes)).rowcount != 1:
        return
    connection.execute(
        insert(attempt).values(
            incident_id=claim.incident,
            endpoint_id=claim.endpoint,
            version=claim.version,
            number=claim.number,
            at=now,
            status=result if isinstance(result, int) else result.status,
            ms=took_ms,
            error=None if error is None else str(error)[:MAX_ERROR],
        )
    )
    if error is None:
        endpoints.succeeded(connection, claim.endpoint)
    else:
        endpoints.failed(connection, claim.endpoint, now, str(error)[:MAX_ERROR], error.permanent)


_COLUMNS = [column for column in delivery.c if column.name != "body"]
Waiting = Literal["waiting"]


def _by_target(connection: Connection) -> dict[tuple[int, int], list[Row[tuple[object, ...]]]]:
    """Return the messages of the incidents that are not settled, per incident and endpoint, oldest first."""
    query = select(*_COLUMNS).join(incident, incident.c.incident_id == delivery.c.incident_id)
    found: dict[tuple[int, int], list[Row[tuple[object, ...]]]] = {}
    for row in connection.execute(query.where(incident.c.settled.is_(False)).order_by(delivery.c.version)):
        found.setdefault((row.incident_id, row.endpoint_id), []).append(row)
    return found


def _next(
    what: Incident, target: Endpoint, sent: list[Row[tuple[object, ...]]], pace: Pace, now: float
) -> Step | Waiting | None:
    """Return the step for one endpoint; "waiting" while a message is under way or due later, None for nothing to say."""
    last = sent[-1] if sent else None
    if last is not None and last.state == "pending":
        is_old = now >= last.sealed + pace.interval_s and (last.lease_until is None or last.lease_until < now)
        return Step("expire", last.incident_id, target.id, last.version) if is_old else "waiting"
    heard = next((_told(row) for row in reversed(sent) if row.state == "delivered"), None)
    if heard is None and RANKS[what.severity] < RANKS[target.min_severity]:
        return None
    news = due(what, heard, pace, what.acked is not None)
    if news is None or what.id is None:
        return None
    # A receiver that failed is not asked sooner because the message was renewed.
    held = last.next_attempt if last is not None and last.state == "expired" else 0.0
    version = 1 if last is None else last.version + 1
    return Step("seal", what.id, target.id, version, news) if now >= max(news.not_before, held) else "waiting"


def _told(row: Row[tuple[object, ...]]) -> Told:
    return Told(row.delivered, row.kind, row.told_ever, row.told_severity, row.told_reopened)


def _seal(connection: Connection, step: Step, news: Due, public_url: str, now: float) -> None:
    dossier = dossiers.load(connection, step.incident)
    if dossier is None:
        return
    url = incidents.page(public_url, dossier.run, step.incident)
    connection.execute(
        insert(delivery).values(
            incident_id=step.incident,
            endpoint_id=step.endpoint,
            version=step.version,
            kind=news.kind,
            state="pending",
            body=notifications.seal(dossier, news.kind, step.version, url, now),
            sealed=now,
            told_ever=news.members,
            told_severity=dossier.incident.severity,
            told_reopened=dossier.incident.reopened,
            next_attempt=now,
        )
    )


def _failures(connection: Connection, claim: Claim) -> int:
    """Count the attempts at this endpoint since it last took a message of this incident."""
    mine = (delivery.c.incident_id == claim.incident, delivery.c.endpoint_id == claim.endpoint)
    heard = select(func.max(delivery.c.version)).where(*mine, delivery.c.state == "delivered").scalar_subquery()
    since = select(func.sum(delivery.c.attempts)).where(*mine, delivery.c.version > func.coalesce(heard, 0))
    return connection.execute(since).scalar_one() or 0


def _free(now: float) -> Sequence[ColumnElement[bool]]:
    return (
        delivery.c.state == "pending",
        delivery.c.next_attempt <= now,
        or_(delivery.c.lease_until.is_(None), delivery.c.lease_until < now),
    )


def _key(of: Step | Claim) -> Sequence[ColumnElement[bool]]:
    return (
        delivery.c.incident_id == of.incident,
        delivery.c.endpoint_id == of.endpoint,
        delivery.c.version == of.version,
    )
