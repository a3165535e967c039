"""Where messages go: addresses, their secrets, and when one is given up."""

from __future__ import annotations

import base64
import binascii
import secrets
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

from sqlalchemy import Connection, insert, select, update

from gradcanary_server.errors import SettingsError
from gradcanary_server.observations import Severity
from gradcanary_server.schema import delivery, endpoint

GIVE_UP_S = 5 * 86_400.0
"""An endpoint that failed for so long without one success is disabled."""

_PREFIX = "whsec_"
_SECRET_BYTES = 32
_SECRET_RANGE = range(16, 129)


@dataclass(frozen=True)
class Endpoint:
    """An enabled endpoint; incidents under ``min_severity``, or over before ``since``, are not its business."""

    id: int
    url: str
    secret: str
    min_severity: Severity
    since: float


def ensure_operator_endpoint(connection: Connection, url: str, secret: str | None, now: float) -> str | None:
    """Make sure that the address given on the command line is told, and return its secret if it was made just now.

    An address that is known keeps its secret unless another is given, and is enabled again: the operator asks for it.
    Loopback and private addresses are fine here. Raises SettingsError on an address or secret that cannot work.
    """
    check(url, secret)
    known = connection.execute(select(endpoint).where(endpoint.c.url == url)).one_or_none()
    if known is not None:
        changed: dict[str, object] = {"disabled": None, "disabled_why": None, "failing_since": None}
        changed["created"] = known.created if known.disabled is None else now
        changed["secret"] = secret or known.secret
        connection.execute(update(endpoint).where(endpoint.c.url == url).values(**changed))
        return None
    made = secret or _PREFIX + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()
    connection.execute(insert(endpoint).values(url=url, secret=made, min_severity="warning", created=now))
    return None if secret else made


def disable_others(connection: Connection, url: str | None, now: float) -> None:
    """Disable every endpoint but the one given on the command line: leaving it out is how an operator removes it."""
    query = select(endpoint.c.endpoint_id).where(endpoint.c.disabled.is_(None), endpoint.c.url != (url or ""))
    query = query.order_by(endpoint.c.endpoint_id)
    for endpoint_id in connection.scalars(query).all():
        _disable(connection, endpoint_id, now, "--webhook did not name it at the last start")


def check(url: str, secret: str | None) -> None:
    """Raise SettingsError unless messages can be sent to this address and signed with this secret."""
    _check_url(url)
    if secret is not None:
        _check_secret(secret)


def enabled(connection: Connection) -> list[Endpoint]:
    """Return the endpoints that are to be told, in the order of their creation."""
    query = select(endpoint).where(endpoint.c.disabled.is_(None)).order_by(endpoint.c.endpoint_id)
    return [
        Endpoint(row.endpoint_id, row.url, row.secret, row.min_severity, row.created)
        for row in connection.execute(query)
    ]


def hold(connection: Connection, endpoint_id: int) -> None:
    """Hold an endpoint until the transaction ends; whoever changes it and its messages begins with it."""
    mine = select(endpoint.c.endpoint_id).where(endpoint.c.endpoint_id == endpoint_id)
    connection.execute(mine.with_for_update(key_share=True))


def succeeded(connection: Connection, endpoint_id: int) -> None:
    """Forget the failures of an endpoint."""
    connection.execute(update(endpoint).where(endpoint.c.endpoint_id == endpoint_id).values(failing_since=None))


def failed(connection: Connection, endpoint_id: int, now: float, why: str, permanent: bool) -> None:
    """Count a failure from the first one on; disable the endpoint if it is permanent or lasted for five days."""
    mine = endpoint.c.endpoint_id == endpoint_id
    connection.execute(update(endpoint).where(mine, endpoint.c.failing_since.is_(None)).values(failing_since=now))
    since = connection.execute(select(endpoint.c.failing_since).where(mine)).scalar_one()
    if permanent or now - since >= GIVE_UP_S:
        reason = why if permanent else f"no success for {GIVE_UP_S / 86_400:.0f} days; last: {why}"
        _disable(connection, endpoint_id, now, reason)


def _disable(connection: Connection, endpoint_id: int, now: float, why: str) -> None:
    mine = endpoint.c.endpoint_id == endpoint_id
    connection.execute(update(endpoint).where(mine).values(disabled=now, disabled_why=why))
    waiting = (delivery.c.endpoint_id == endpoint_id, delivery.c.state == "pending")
    connection.execute(update(delivery).where(*waiting).values(state="disabled", lease_until=None))


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise SettingsError(f"--webhook {url!r} is not an address ({error}): http://HOST[:PORT]/PATH.") from error
    if parts.username is not None or parts.password is not None:
        bare = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
        raise SettingsError(
            f"--webhook {bare!r} was given with a user name or password: leave them out; "
            "messages are signed, the receiver checks the signature."
        )
    if parts.scheme not in ("http", "https") or not host or not url.isprintable() or " " in url:
        raise SettingsError(f"--webhook {url!r} is not an http or https address: http://HOST[:PORT]/PATH.")


def _check_secret(secret: str) -> None:
    try:
        size = len(base64.b64decode(secret.removeprefix(_PREFIX), validate=True))
    except (binascii.Error, ValueError):
        size = 0
    if not secret.startswith(_PREFIX) or size not in _SECRET_RANGE:
        raise SettingsError(
            "GRADCANARY_WEBHOOK_SECRET must be 'whsec_' followed by base64 of "
            f"{_SECRET_RANGE[0]} to {_SECRET_RANGE[-1]} random bytes, 32 for example."
        )
