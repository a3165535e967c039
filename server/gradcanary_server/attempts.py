"""Claims on messages, and what comes of them.

A claim is compare-and-set on a fence, so that of two deliverers only one sends, and one that comes back late from a
hang writes nothing.

From its claim on a message is in doubt (``unsure``): its sender may be killed with the answer. An answer ends the
doubt, and an attempt that certainly did not arrive leaves it as it was before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, RowMapping, func, insert, select, update

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
    unsure: float | None = None
    """When an attempt before was made that may have arrived."""


def claim(connection: Connection, key: Key, now: float) -> Claim | None:
    """Take the right to send a message for the length of a lease; None when another deliverer has it."""
    return _claimed(connection, key, free(now), now)


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
    claimed = _claimed(connection, key, [is_unclaimed(now)], now)
    if claimed is None:
        raise RequestError(409, "under_way", "It is being sent at this moment.", "delivery")
    return claimed


def message(row: RowMapping, number: str, body: bytes, now: float) -> Message:
    """Return what is sent to the endpoint of a row."""
    is_guarded = row["origin"] == "api"
    return Message(number, row["url"], endpoints.signing_secrets(row, now), body, is_guarded)


def conclude(connection: Connection, claim: Claim, result: Result, took_ms: int, now: float, jitter: float) -> None:
    """Record an attempt and what follows from it; writes nothing when the claim was lost meanwhile.

    An endpoint that was disabled meanwhile may have taken the message all the same.
    """
    endpoints.hold(connection, claim.key.endpoint)
    error = result if isinstance(result, TransportError) else None
    changes: dict[str, object] = {"attempts": claim.number, "lease_until": None}
    if error is None:
        changes |= _delivered(connection, claim, now)
    else:
        changes |= _refused(connection, claim, error, now, jitter)
    is_held = (delivery.c.fence == claim.fence, delivery.c.state.in_({claim.state, "disabled"}))
    if connection.execute(update(delivery).where(*is_key(claim.key), *is_held).values(**changes)).rowcount != 1:
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
        _unsettle(connection, claim.key)
    return {"state": "delivered", "delivered": _arriving(connection, claim.key, now), "unsure": None}


def _refused(
    connection: Connection, claim: Claim, error: TransportError, now: float, jitter: float
) -> dict[str, object]:
    """Return the columns of a message that did not arrive, as far as anybody knows."""
    if claim.state == "delivered":
        return {}
    changes: dict[str, object] = {} if error.is_unsure else {"unsure": claim.unsure}
    if claim.state == "pending":
        failures = _failures(connection, claim) + 1
        changes |= {"next_attempt": now + retry_delay(failures, error.retry_after_s, jitter)}
    elif error.is_unsure:
        _unsettle(connection, claim.key)
    return changes


def _unsettle(connection: Connection, key: Key) -> None:
    """Have the deliverer look at an incident again of which all was said."""
    connection.execute(update(incident).where(incident.c.incident_id == key.incident).values(settled=False))


def _arriving(connection: Connection, key: Key, now: float) -> float:
    """Return now as the time of an arrival: after all others, also by a clock that was set back meanwhile."""
    its = (delivery.c.incident_id == key.incident, delivery.c.endpoint_id == key.endpoint)
    query = select(func.max(delivery.c.delivered), func.max(delivery.c.unsure))
    query = query.where(*its, delivery.c.version != key.version)
    before = max((each for each in connection.execute(query).one() if each is not None), default=-math.inf)
    return now if before < now else math.nextafter(before, math.inf)


def _claimed(connection: Connection, key: Key, on: Sequence[ColumnElement[bool]], now: float) -> Claim | None:
    """Take the right to send a message that meets conditions, and return the claim; None where it does not."""
    query = select(delivery, *(column for column in endpoint.c if column.name != "endpoint_id"))
    query = query.join(endpoint, endpoint.c.endpoint_id == delivery.c.endpoint_id).where(*is_key(key), *on)
    row = connection.execute(query.with_for_update(of=delivery)).mappings().one_or_none()
    if row is None:
        return None
    doubt = {} if row["state"] == "delivered" else {"unsure": _arriving(connection, key, now)}
    leased = {"fence": row["fence"] + 1, "lease_until": now + LEASE_S, **doubt}
    connection.execute(update(delivery).where(*is_key(key)).values(**leased))
    sent = message(row, f"msg_{key.incident}_{key.version}", row["body"], now)
    return Claim(key, row["fence"] + 1, row["attempts"] + 1, sent, row["state"], row["unsure"])


def _failures(connection: Connection, claim: Claim) -> int:
    """Count the attempts at this endpoint since it last took a message of this incident."""
    mine = (delivery.c.incident_id == claim.key.incident, delivery.c.endpoint_id == claim.key.endpoint)
    heard = select(func.max(delivery.c.version)).where(*mine, delivery.c.state == "delivered").scalar_subquery()
    since = select(func.sum(delivery.c.attempts)).where(*mine, delivery.c.version > func.coalesce(heard, 0))
    return connection.execute(since).scalar_one() or 0
