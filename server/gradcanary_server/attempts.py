"""Claims on messages, and what comes of them.

A claim is compare-and-set on a fence, so that of two deliverers only one sends, and one that comes back late from a
hang writes nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sqlalchemy import Connection, RowMapping, func, insert, select, update

from gradcanary_server import endpoints
from gradcanary_server.courier import Result
from gradcanary_server.deliveries import free, is_key, is_unclaimed
from gradcanary_server.errors import RequestError
from gradcanary_server.planning import LEASE_S, Key
from gradcanary_server.schema import attempt, delivery, endpoint, incident
from gradcanary_server.webhooks import Message, TransportError, retry_delay

MAX_ERROR = 500


@dataclass(frozen=True)
class Claim:
    """A message that one sender alone may send until its lease ends; ``number`` counts its attempts from 1.

    ``state`` is pending where the deliverer sends it; any other one of a message that somebody wants sent again.
    """

    key: Key
    fence: int
    number: int
    message: Message
    state: str = "pending"


def claim(connection: Connection, key: Key, now: float) -> Claim | None:
    """Take the right to send a message for the length of a lease; None when another deliverer has it."""
    taken = (
        update(delivery).where(*is_key(key), *free(now)).values(fence=delivery.c.fence + 1, lease_until=now + LEASE_S)
    )
    return _claimed(connection, key, now) if connection.execute(taken).rowcount == 1 else None


def reclaim(connection: Connection, key: Key, now: float) -> Claim:
    """Take the right to send a message once more now, whatever became of it.

    Raises RequestError 404 where there is none, and 409 where it is on its way, or its endpoint is disabled.
    """
    endpoints.hold(connection, key.endpoint)
    query = select(endpoint.c.disabled).join(delivery, delivery.c.endpoint_id == endpoint.c.endpoint_id)
    found = connection.execute(query.where(*is_key(key))).one_or_none()
    if found is None:
        raise RequestError(404, "unknown_delivery", "There is no such delivery here.", "delivery")
    if found.disabled is not None:
        raise RequestError(
            409, "endpoint_disabled", f"Endpoint {key.endpoint} is disabled: enable it first.", "delivery"
        )
    leased = {"fence": delivery.c.fence + 1, "lease_until": now + LEASE_S}
    taken = update(delivery).where(*is_key(key), is_unclaimed(now)).values(**leased)
    if connection.execute(taken).rowcount != 1:
        raise RequestError(409, "under_way", "It is being sent at this moment.", "delivery")
    return _claimed(connection, key, now)


def message(row: RowMapping, number: str, body: bytes, now: float) -> Message:
    """Return what is sent to the endpoint of a row."""
    is_guarded = row["origin"] == "api"
    return Message(number, row["url"], endpoints.signing_secrets(row, now), body, is_guarded)


def conclude(connection: Connection, claim: Claim, result: Result, took_ms: int, now: float, jitter: float) -> None:
    """Record an attempt and what follows from it; writes nothing when the claim was lost meanwhile."""
    endpoints.hold(connection, claim.key.endpoint)
    error = result if isinstance(result, TransportError) else None
    changes: dict[str, object] = {"attempts": claim.number, "lease_until": None}
    if error is None:
        changes |= _delivered(connection, claim, now)
    elif claim.state == "pending":
        failures = _failures(connection, claim) + 1
        changes |= {"next_attempt": now + retry_delay(failures, error.retry_after_s, jitter)}
    mine = (*is_key(claim.key), delivery.c.fence == claim.fence, delivery.c.state == claim.state)
    if connection.execute(update(delivery).where(*mine).values(**changes)).rowcount != 1:
        return
    connection.execute(
        insert(attempt).values(
            incident_id=claim.key.incident,
            endpoint_id=claim.key.endpoint,
            version=claim.key.version,
            number=claim.number,
            at=now,
            status=result.status if isinstance(result, TransportError) else result,
            ms=took_ms,
            error=None if error is None else str(error)[:MAX_ERROR],
        )
    )
    if error is None:
        endpoints.succeeded(connection, claim.key.endpoint, now)
    else:
        endpoints.failed(connection, claim.key.endpoint, now, str(error)[:MAX_ERROR], error.permanent)


def _delivered(connection: Connection, claim: Claim, now: float) -> dict[str, object]:
    """Return the columns of a message that arrived.

    One that had not arrived before is what its endpoint was told last: what has become true since is told after it,
    also of an incident of which all was said.
    """
    if claim.state == "delivered":
        return {}
    if claim.state != "pending":
        connection.execute(update(incident).where(incident.c.incident_id == claim.key.incident).values(settled=False))
    return {"state": "delivered", "delivered": _arrived(connection, claim, now)}


def _arrived(connection: Connection, claim: Claim, now: float) -> float:
    """Return when a message arrived: after all others of its incident, also by a clock that was set back meanwhile."""
    mine = (delivery.c.incident_id == claim.key.incident, delivery.c.endpoint_id == claim.key.endpoint)
    before = connection.execute(select(func.max(delivery.c.delivered)).where(*mine)).scalar_one()
    return now if before is None or before < now else math.nextafter(before, math.inf)


def _claimed(connection: Connection, key: Key, now: float) -> Claim:
    query = select(delivery, *(column for column in endpoint.c if column.name != "endpoint_id"))
    query = query.join(endpoint, endpoint.c.endpoint_id == delivery.c.endpoint_id).where(*is_key(key))
    row = connection.execute(query).mappings().one()
    sent = message(row, f"msg_{key.incident}_{key.version}", row["body"], now)
    return Claim(key, row["fence"], row["attempts"] + 1, sent, row["state"])


def _failures(connection: Connection, claim: Claim) -> int:
    """Count the attempts at this endpoint since it last took a message of this incident."""
    mine = (delivery.c.incident_id == claim.key.incident, delivery.c.endpoint_id == claim.key.endpoint)
    heard = select(func.max(delivery.c.version)).where(*mine, delivery.c.state == "delivered").scalar_subquery()
    since = select(func.sum(delivery.c.attempts)).where(*mine, delivery.c.version > func.coalesce(heard, 0))
    return connection.execute(since).scalar_one() or 0
