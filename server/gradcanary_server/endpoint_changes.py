"""Endpoints as people make and change them over HTTP, in the tables."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Executable, Result, RowMapping, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from gradcanary_server import endpoints, signing
from gradcanary_server.errors import RequestError
from gradcanary_server.schema import MAX_ID, endpoint

MOST = 50
"""Endpoints of a store: each is held against each open incident twice a second."""


def find(connection: Connection, number: int, *, holding: bool = False) -> RowMapping:
    """Return an endpoint that was not deleted, and hold it for a change where asked to; raises RequestError 404."""
    mine = select(endpoint).where(endpoint.c.endpoint_id == number, endpoint.c.deleted.is_(None))
    mine = mine.with_for_update(key_share=True) if holding else mine
    found = connection.execute(mine).mappings().one_or_none() if 0 <= number <= MAX_ID else None
    if found is None:
        raise RequestError(404, "unknown_endpoint", f"There is no endpoint {number} here.", "endpoint")
    return found


def every(connection: Connection) -> list[RowMapping]:
    """Return all endpoints that were not deleted, in the order of their creation."""
    query = select(endpoint).where(endpoint.c.deleted.is_(None)).order_by(endpoint.c.endpoint_id)
    return list(connection.execute(query).mappings())


def add(connection: Connection, url: str, name: str, min_severity: str, secret: str | None, now: float) -> int:
    """Make an endpoint and return its number; raises RequestError 409 where there is one of that address."""
    number = connection.execute(select(func.count()).where(endpoint.c.deleted.is_(None))).scalar_one()
    if number >= MOST:
        raise RequestError(409, "too_many_endpoints", f"There are {MOST} endpoints already: remove some.")
    values = {"url": url, "name": name, "min_severity": min_severity, "secret": secret or signing.new_secret()}
    made = insert(endpoint).values(**values, kind="webhook", origin="api", created=now)
    return int(_execute(connection, made.returning(endpoint.c.endpoint_id)).scalar_one())


def change(connection: Connection, number: int, wished: dict[str, Any], enabled: bool | None, now: float) -> None:
    """Write what somebody wishes of an endpoint; raises RequestError 404, 409 where only the operator can say so."""
    known = find(connection, number, holding=True)
    said = [name for name in ("url", "min_severity") if name in wished and wished[name] != known[name]]
    if said and known["origin"] == "operator":
        raise _of_operator(f"Its {said[0].replace('_', ' ')} is given on the command line, as [SEVERITY=]URL.", said[0])
    if "url" in wished and wished["url"] != known["url"]:
        wished = {**wished, "failing_since": None}
    if wished:
        _execute(connection, update(endpoint).where(endpoint.c.endpoint_id == number).values(**wished))
    if enabled is False and known["disabled"] is None:
        endpoints.disable(connection, number, now, "somebody disabled it", "api")
    elif enabled and known["disabled"] is not None:
        endpoints.enable(connection, known, now)


def rotate(connection: Connection, number: int, now: float, *, is_given: bool) -> str:
    """Give an endpoint another secret and return it; ``is_given``: the operator's is in the environment.

    Raises RequestError 404, and 409 where it has none or this is not the place.
    """
    known = find(connection, number, holding=True)
    if known["kind"] == "apprise":
        raise RequestError(
            409, "not_signed", "Messages through apprise are not signed: there is no secret.", "endpoint"
        )
    if is_given and known["origin"] == "operator":
        raise _of_operator("Its secret is that of GRADCANARY_WEBHOOK_SECRET: change it there.", "secret")
    made = signing.new_secret()
    mine = update(endpoint).where(endpoint.c.endpoint_id == number)
    connection.execute(mine.values(**endpoints.rotated(known["secret"], made, now)))
    return made


def remove(connection: Connection, number: int, now: float) -> None:
    """Delete an endpoint, its address and its secrets; what it was told stays with the incidents.

    Raises RequestError 404, and 409 where the command line names it.
    """
    known = find(connection, number, holding=True)
    if known["origin"] == "operator" and known["disabled"] is None:
        raise _of_operator("It is given on the command line: start without it, then it can be removed.", "endpoint")
    endpoints.disable(connection, number, now, "it was removed", "api")
    gone = {"url": f"deleted:{number}", "secret": "", "previous_secret": None, "previous_until": None, "deleted": now}
    connection.execute(update(endpoint).where(endpoint.c.endpoint_id == number).values(**gone, last_error=None))


def _execute(connection: Connection, statement: Executable) -> Result[Any]:
    """Carry out what gives an endpoint an address; raises RequestError 409 where another one has it."""
    try:
        return connection.execute(statement)
    except IntegrityError as error:
        raise RequestError(409, "known_endpoint", "There is an endpoint of this address already.", "url") from error


def _of_operator(message: str, field: str) -> RequestError:
    return RequestError(409, "operators_endpoint", message, field)
