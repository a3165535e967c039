"""Endpoints and what was sent to them as the API shows it: plain JSON values, no secret in any."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from sqlalchemy import Connection, RowMapping, func, select, tuple_

from gradcanary_server import addresses, run_names
from gradcanary_server.endpoint_shapes import AttemptShape, DeliveryList, DeliveryShape, EndpointShape
from gradcanary_server.errors import invalid
from gradcanary_server.planning import Key
from gradcanary_server.schema import attempt, delivery, incident, run
from gradcanary_server.timestamps import timestamp

PAGE = 50

DELIVERY = r"^[0-9]{1,9}-[0-9]{1,9}-[0-9]{1,9}$"
"""Names of deliveries: INCIDENT-ENDPOINT-VERSION."""
"""Deliveries of one answer, newest first."""


def pending(connection: Connection) -> dict[int, int]:
    """Return how many messages wait to be sent, by endpoint."""
    query = select(delivery.c.endpoint_id, func.count()).where(delivery.c.state == "pending")
    return {row[0]: row[1] for row in connection.execute(query.group_by(delivery.c.endpoint_id))}


def shown(row: RowMapping, waiting: int) -> EndpointShape:
    """Return an endpoint with how it is, and ``waiting`` messages."""
    is_enabled = row["disabled"] is None
    return {
        "id": row["endpoint_id"],
        "kind": row["kind"],
        "origin": row["origin"],
        "name": row["name"],
        "url": address(row),
        "min_severity": row["min_severity"],
        "state": "enabled" if is_enabled else "disabled",
        "since": timestamp(row["created"] if is_enabled else row["disabled"]),
        "why": row["disabled_why"],
        "disabled_by": row["disabled_by"],
        "failing_since": timestamp(row["failing_since"]),
        "last_success": timestamp(row["last_success"]),
        "last_failure": timestamp(row["last_failure"]),
        "last_error": row["last_error"],
        "pending": waiting,
    }


def address(row: RowMapping) -> str | None:
    """Return an endpoint's address as it may be shown, None of one that is in the configuration only, or deleted."""
    is_here = row["deleted"] is None and "://" in row["url"]
    return addresses.shown(row["url"]) if is_here else None


def label(row: RowMapping) -> str:
    """Return what an endpoint is called: its name, else its address, and that it was deleted."""
    said = row["name"] or address(row) or ""
    return f"{said} (deleted)".strip() if row["deleted"] is not None else said


def log(connection: Connection, number: int, before: str | None) -> DeliveryList:
    """Return a page of the messages to an endpoint, newest first; ``next`` is the ``before`` of the following one."""
    query = select(*(column for column in delivery.c if column.name != "body"), run_names.CALLED.label("run"))
    query = query.join(incident, incident.c.incident_id == delivery.c.incident_id)
    query = query.join(run, run.c.run_id == incident.c.run_id).where(delivery.c.endpoint_id == number)
    place = tuple_(delivery.c.sealed, delivery.c.incident_id, delivery.c.version)
    if before is not None:
        query = query.where(place < tuple_(*_place(before)))
    order = (delivery.c.sealed.desc(), delivery.c.incident_id.desc(), delivery.c.version.desc())
    rows = connection.execute(query.order_by(*order).limit(PAGE + 1)).mappings().all()
    tried = attempts(connection, [key(row) for row in rows[:PAGE]])
    last = rows[PAGE - 1] if len(rows) > PAGE else None
    return {
        "deliveries": [delivered(row, tried[key(row)]) for row in rows[:PAGE]],
        "next": None if last is None else f"{last['sealed']!r}-{last['incident_id']}-{last['version']}",
    }


def delivered(row: RowMapping, tried: Sequence[AttemptShape]) -> DeliveryShape:
    """Return a message without its bytes, and the attempts at it."""
    its = key(row)
    return {
        "id": delivery_id(its),
        "webhook_id": f"msg_{its.incident}_{its.version}",
        "run": row["run"],
        "incident": its.incident,
        "endpoint": its.endpoint,
        "version": its.version,
        "kind": row["kind"],
        "state": row["state"],
        "sealed": timestamp(row["sealed"]),
        "delivered": timestamp(row["delivered"]),
        "next_attempt": timestamp(row["next_attempt"]) if row["state"] == "pending" else None,
        "attempts": list(tried),
    }


def attempts(connection: Connection, keys: Sequence[Key]) -> dict[Key, list[AttemptShape]]:
    """Return the attempts at some messages, in their order."""
    found: dict[Key, list[AttemptShape]] = defaultdict(list)
    its = tuple_(attempt.c.incident_id, attempt.c.endpoint_id, attempt.c.version)
    for row in connection.execute(select(attempt).where(its.in_(keys)).order_by(attempt.c.number)):
        told: AttemptShape = {"at": timestamp(row.at), "status": row.status, "ms": row.ms, "error": row.error}
        found[Key(row.incident_id, row.endpoint_id, row.version)].append(told)
    return found


def delivery_id(its: Key) -> str:
    """Return the name of a message in paths: those of its incident, its endpoint and its version."""
    return "-".join(map(str, its))


def delivery_key(text: str) -> Key:
    """Return the message of a name; raises RequestError 422."""
    parts = text.split("-")
    if len(parts) != len(Key._fields) or not all(_is_number(part) for part in parts):
        raise invalid("A delivery is INCIDENT-ENDPOINT-VERSION, as the log of its endpoint lists it.", "delivery")
    return Key(*map(int, parts))


def key(row: RowMapping) -> Key:
    """Return which message a row is of."""
    return Key(row["incident_id"], row["endpoint_id"], row["version"])


def _place(before: str) -> tuple[float, int, int]:
    sealed, _, rest = before.partition("-")
    number, _, version = rest.partition("-")
    if not (_is_number(sealed.replace(".", "", 1), 25) and _is_number(number) and _is_number(version)):
        raise invalid("before is the 'next' of an answer.", "before")
    return float(sealed), int(number), int(version)


def _is_number(text: str, longest: int = 10) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= longest
