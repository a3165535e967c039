"""Where messages go: addresses, their secrets, and when one is given up.

An endpoint was given on the command line (origin *operator*) or made over HTTP (origin *api*). One that goes through
apprise has no address in the tables, but what stands for it: its address is full of passwords, and stays in the
configuration. A deleted one keeps its row, without address and secret, for what it was told.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import ColumnElement, Connection, RowMapping, func, insert, select, update

from gradcanary_server import addresses, signing
from gradcanary_server.addresses import AddressError
from gradcanary_server.errors import SettingsError
from gradcanary_server.observations import Severity
from gradcanary_server.schema import delivery, endpoint, incident
from gradcanary_server.signing import SecretError

GIVE_UP_S = 5 * 86_400.0
"""An endpoint that failed for so long without one success is disabled."""

TRIED_S = 86_400.0
"""More than lies between two attempts; failures that are further apart say nothing of the time between."""

ROTATION_S = 86_400.0
"""How long messages are signed with the secret before, too."""

By = Literal["failures", "operator", "api"]
"""Who disabled an endpoint."""

LEFT_OUT = "the command line did not name it at the last start"


@dataclass(frozen=True)
class Endpoint:
    """An enabled endpoint; incidents under ``min_severity``, or over before ``since``, are not its business."""

    id: int
    url: str
    min_severity: Severity
    since: float


@dataclass(frozen=True)
class Given:
    """An endpoint of the command line; ``url`` is its address, or what stands for it where it is of apprise."""

    url: str
    min_severity: Severity = "warning"
    kind: Literal["webhook", "apprise"] = "webhook"
    name: str = ""


def ensure_operator_endpoint(connection: Connection, url: str, secret: str | None, now: float) -> str | None:
    """Make sure that an address given on the command line is told of warnings; as :func:`ensure`."""
    return ensure(connection, Given(url), secret, now)


def ensure(connection: Connection, given: Given, secret: str | None, now: float) -> str | None:
    """Make sure that an endpoint of the command line is told, and return its secret if it was made just now.

    One that is known keeps its secret unless another is given, and is enabled again: the operator asks for it. One
    that was made over HTTP is the operator's from now on. Loopback and private addresses are fine here. Raises
    SettingsError on an address or secret that cannot work.
    """
    if given.kind == "webhook":
        _check(given.url, secret)
    values: dict[str, object] = {"kind": given.kind, "origin": "operator", "min_severity": given.min_severity}
    known = connection.execute(select(endpoint).where(endpoint.c.url == given.url)).mappings().one_or_none()
    if known is not None:
        values |= _enabled(known, now)
        if given.kind == "webhook" and secret not in (None, known["secret"]):
            values |= rotated(known["secret"], secret or "", now)
        connection.execute(update(endpoint).where(_is(known["endpoint_id"])).values(**values))
        if known["disabled"] is not None:
            _reopen_untold_ends(connection, known["endpoint_id"])
        return None
    made = "" if given.kind == "apprise" else secret or signing.new_secret()
    connection.execute(insert(endpoint).values(url=given.url, name=given.name, secret=made, created=now, **values))
    return None if secret else made or None


def disable_others(connection: Connection, urls: Collection[str], now: float) -> None:
    """Disable the operator's endpoints that the command line does not name: that is how they are removed."""
    mine = (endpoint.c.disabled.is_(None), endpoint.c.origin == "operator", endpoint.c.url.not_in(urls))
    for number in connection.scalars(
        select(endpoint.c.endpoint_id).where(*mine).order_by(endpoint.c.endpoint_id)
    ).all():
        disable(connection, number, now, LEFT_OUT, "operator")


def enabled(connection: Connection) -> list[Endpoint]:
    """Return the endpoints that are to be told, in the order of their creation."""
    query = select(endpoint).where(endpoint.c.disabled.is_(None)).order_by(endpoint.c.endpoint_id)
    return [Endpoint(row.endpoint_id, row.url, row.min_severity, row.created) for row in connection.execute(query)]


def hold(connection: Connection, endpoint_id: int) -> None:
    """Hold an endpoint until the transaction ends; whoever changes it and its messages begins with it."""
    mine = select(endpoint.c.endpoint_id).where(_is(endpoint_id))
    connection.execute(mine.with_for_update(key_share=True))


def succeeded(connection: Connection, endpoint_id: int, now: float) -> None:
    """Note a success, and forget the failures of an endpoint."""
    connection.execute(update(endpoint).where(_is(endpoint_id)).values(failing_since=None, last_success=now))


def failed(connection: Connection, endpoint_id: int, now: float, why: str, permanent: bool) -> None:
    """Count a failure from the first one on; disable the endpoint if it is permanent or lasted for five days.

    It is tried each few hours while there is something to say: where nobody tried for a day, by the clock, there was
    not, or the clock was set, and its failures begin anew.
    """
    mine = _is(endpoint_id)
    query = select(endpoint.c.failing_since, endpoint.c.last_failure, endpoint.c.disabled).where(mine)
    since, before, disabled = connection.execute(query).one()
    if since is None or before is None or now - before >= TRIED_S:
        since = now
    connection.execute(update(endpoint).where(mine).values(failing_since=since, last_failure=now, last_error=why))
    if disabled is None and (permanent or now - since >= GIVE_UP_S):
        reason = why if permanent else f"no success for {GIVE_UP_S / 86_400:.0f} days; last: {why}"
        disable(connection, endpoint_id, now, reason, "failures")


def enable(connection: Connection, known: RowMapping, now: float) -> None:
    """Let an endpoint be told again: of what is open, and of the end of what it was told; not of what began and ended
    meanwhile."""
    connection.execute(update(endpoint).where(_is(known["endpoint_id"])).values(**_enabled(known, now)))
    _reopen_untold_ends(connection, known["endpoint_id"])


def disable(connection: Connection, endpoint_id: int, now: float, why: str, by: By) -> None:
    """Tell an endpoint nothing any more, not even what waits to be sent."""
    connection.execute(update(endpoint).where(_is(endpoint_id)).values(disabled=now, disabled_why=why, disabled_by=by))
    waiting = (delivery.c.endpoint_id == endpoint_id, delivery.c.state == "pending")
    connection.execute(update(delivery).where(*waiting).values(state="disabled", lease_until=None))


def rotated(old: str, new: str, now: float) -> dict[str, object]:
    """Return the columns of an endpoint whose secret becomes another one: for a day the old one signs, too."""
    return {"secret": new, "previous_secret": old, "previous_until": now + ROTATION_S}


def signing_secrets(row: RowMapping, now: float) -> tuple[str, ...]:
    """Return what the messages to an endpoint are signed with, the newest first."""
    has_previous = row["previous_secret"] is not None and now < row["previous_until"]
    return (row["secret"], row["previous_secret"]) if has_previous else (row["secret"],)


def _reopen_untold_ends(connection: Connection, endpoint_id: int) -> None:
    """Have the deliverer look again at incidents that an endpoint heard of, or may have, but not that they are over."""
    last = delivery.alias()
    of_last = (last.c.endpoint_id == endpoint_id, last.c.incident_id == delivery.c.incident_id)
    newest = select(func.max(last.c.delivered)).where(*of_last).correlate(delivery).scalar_subquery()
    heard = func.coalesce(delivery.c.delivered, delivery.c.unsure)
    no_end = (delivery.c.endpoint_id == endpoint_id, delivery.c.kind != "resolved", heard >= func.coalesce(newest, 0.0))
    open_here = select(delivery.c.incident_id).where(*no_end)
    settled = (incident.c.settled.is_(True), incident.c.incident_id.in_(open_here))
    connection.execute(update(incident).where(*settled).values(settled=False))


def _enabled(known: RowMapping, now: float) -> dict[str, object]:
    columns: dict[str, object] = dict.fromkeys(("disabled", "disabled_why", "disabled_by", "failing_since"))
    return {**columns, "created": known["created"] if known["disabled"] is None else now}


def _check(url: str, secret: str | None) -> None:
    try:
        addresses.check_url(url)
        if secret is not None:
            signing.check(secret)
    except AddressError as error:
        raise SettingsError(f"--webhook {error}.") from error
    except SecretError as error:
        raise SettingsError(f"GRADCANARY_WEBHOOK_SECRET {error}.") from error


def _is(endpoint_id: int) -> ColumnElement[bool]:
    return endpoint.c.endpoint_id == endpoint_id
