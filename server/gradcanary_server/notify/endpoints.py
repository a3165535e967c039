"""Endpoints in the tables: created, changed, disabled after failures, deleted; their secrets.

An endpoint comes from the command line (origin *operator*) or from HTTP (origin *api*). One for apprise has a
fingerprint instead of an address: its address contains passwords. A deleted one keeps its row, without address and
secret, for its deliveries.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import (
    ColumnElement,
    Connection,
    Executable,
    Result,
    RowMapping,
    delete,
    exists,
    func,
    insert,
    select,
    tuple_,
    update,
)
from sqlalchemy.exc import IntegrityError

from gradcanary_server.errors import RequestError, SettingsError
from gradcanary_server.notify import egress, webhook
from gradcanary_server.notify.egress import AddressError
from gradcanary_server.notify.webhook import SecretError
from gradcanary_server.rules.types import SEVERITIES, Severity
from gradcanary_server.storage.schema import MAX_ID, delivery, endpoint, incident, is_of_incident, new_id

DISABLE_AFTER_S = 5 * 86_400.0
"""Time without a success after which an endpoint is disabled."""

MAX_FAILURE_GAP_S = 86_400.0
"""Longer than the time between two attempts; failures further apart do not add up."""

ROTATION_S = 86_400.0
"""Time in which messages are signed with the previous secret, too."""

MAX_ENDPOINTS = 50
"""Endpoints of a store; twice a second each is compared with each open incident."""

By = Literal["failures", "operator", "api"]
"""The cause of a disabled endpoint."""

HAS_INCIDENT = exists().where(is_of_incident(incident, delivery.c.run_id, delivery.c.incident_id))
"""The condition of all messages except the last ones about deleted runs."""

NOT_CONFIGURED = "the command line did not name it at the last start"


@dataclass(frozen=True)
class Endpoint:
    """An enabled endpoint; it gets no incidents under ``min_severity``, and none that were over before ``since``.

    One that ``sends_ended`` also gets the end of a run that ended on an incident.
    """

    id: int
    url: str
    min_severity: Severity
    since: float
    sends_ended: bool = False


@dataclass(frozen=True)
class ConfiguredEndpoint:
    """An endpoint of the command line; ``url`` is its address, for apprise its fingerprint."""

    url: str
    min_severity: Severity = "warning"
    kind: Literal["webhook", "apprise"] = "webhook"  # only a webhook has a secret
    name: str = ""
    sends_ended: bool = False


def parse_configured(text: str) -> ConfiguredEndpoint:
    """Return the endpoint of ``[SEVERITY][,ended]=URL``, or of a URL; the default severity is warning."""
    options, _, url = text.partition("=")
    words = options.split(",")
    severities = [severity for severity in SEVERITIES if severity in words]
    if len(severities) > 1 or sorted(words) != sorted({*severities, *({"ended"} & set(words))}):
        return ConfiguredEndpoint(text)
    severity: Severity = severities[0] if severities else "warning"
    return ConfiguredEndpoint(url, severity, sends_ended="ended" in words)


def redacted_address(row: RowMapping) -> str | None:
    """Return an endpoint's redacted address, None for apprise and for a deleted one."""
    return egress.redact_url(row["url"]) if row["deleted"] is None and "://" in row["url"] else None


def label(row: RowMapping) -> str:
    """Return the label of an endpoint: its name, else its address, with "(deleted)" for a deleted one."""
    text = row["name"] or redacted_address(row) or ""
    return f"{text} (deleted)".strip() if row["deleted"] is not None else text


def upsert_configured(
    connection: Connection, configured: ConfiguredEndpoint, secret: str | None, now: float
) -> str | None:
    """Add or enable an endpoint of the command line, and return its secret if it is new.

    A stored one keeps its secret unless another is given; one that was made over HTTP becomes the operator's. Loopback
    and private addresses are allowed here. Raises SettingsError on an invalid address or secret.
    """
    if configured.kind == "webhook":
        _check(configured.url, secret)
    values: dict[str, object] = {"kind": configured.kind, "origin": "operator", "min_severity": configured.min_severity}
    values["sends_ended"] = configured.sends_ended
    row = connection.execute(select(endpoint).where(endpoint.c.url == configured.url)).mappings().one_or_none()
    if row is not None:
        values |= _enabled(row, now)
        if configured.kind == "webhook" and secret not in (None, row["secret"]):
            values |= _rotated_columns(row["secret"], secret or "", now)
        connection.execute(update(endpoint).where(_is(row["endpoint_id"])).values(**values))
        if row["disabled"] is not None:
            _replan_resolved(connection, row["endpoint_id"])
        return None
    new_secret = "" if configured.kind != "webhook" else secret or webhook.new_secret()
    values |= {"url": configured.url, "name": configured.name, "secret": new_secret, "created": now}
    connection.execute(insert(endpoint).values(**values, **new_id(connection, endpoint)))
    return None if secret else new_secret or None


def disable_missing(connection: Connection, urls: Collection[str], now: float) -> None:
    """Disable the operator's endpoints that the command line does not name any more."""
    missing = (endpoint.c.disabled.is_(None), endpoint.c.origin == "operator", endpoint.c.url.not_in(urls))
    query = select(endpoint.c.endpoint_id).where(*missing).order_by(endpoint.c.endpoint_id)
    for number in connection.scalars(query).all():
        disable_endpoint(connection, number, now, NOT_CONFIGURED, "operator")


def enabled_endpoints(connection: Connection) -> list[Endpoint]:
    """Return the enabled endpoints in the order of their creation."""
    query = select(endpoint).where(endpoint.c.disabled.is_(None)).order_by(endpoint.c.endpoint_id)
    return [
        Endpoint(row.endpoint_id, row.url, row.min_severity, row.created, row.sends_ended)
        for row in connection.execute(query)
    ]


def lock_endpoint(connection: Connection, endpoint_id: int) -> None:
    """Lock an endpoint until the transaction ends: before each change of it and its messages."""
    connection.execute(select(endpoint.c.endpoint_id).where(_is(endpoint_id)).with_for_update(key_share=True))


def record_success(connection: Connection, endpoint_id: int, now: float) -> None:
    """Record a success, and reset the failures of an endpoint."""
    connection.execute(update(endpoint).where(_is(endpoint_id)).values(failing_since=None, last_success=now))


def record_failure(connection: Connection, endpoint_id: int, now: float, error: str, permanent: bool) -> None:
    """Record a failure; disable the endpoint if it is permanent, or failures last for five days.

    Attempts are a few hours apart while there are messages. After a day without an attempt there were none, or the
    clock was set: the five days begin again.
    """
    query = select(endpoint.c.failing_since, endpoint.c.last_failure, endpoint.c.disabled).where(_is(endpoint_id))
    row = connection.execute(query).one()
    since = row.failing_since
    if since is None or row.last_failure is None or now - row.last_failure >= MAX_FAILURE_GAP_S:
        since = now
    columns = {"failing_since": since, "last_failure": now, "last_error": error}
    connection.execute(update(endpoint).where(_is(endpoint_id)).values(**columns))
    if row.disabled is None and (permanent or now - since >= DISABLE_AFTER_S):
        reason = error if permanent else f"no success for {DISABLE_AFTER_S / 86_400:.0f} days; last: {error}"
        disable_endpoint(connection, endpoint_id, now, reason, "failures")


def enable_endpoint(connection: Connection, row: RowMapping, now: float) -> None:
    """Enable an endpoint: it gets open incidents and missing resolutions, not incidents that resolved meanwhile."""
    connection.execute(update(endpoint).where(_is(row["endpoint_id"])).values(**_enabled(row, now)))
    _replan_resolved(connection, row["endpoint_id"])


def disable_endpoint(connection: Connection, endpoint_id: int, now: float, reason: str, by: By) -> None:
    """Disable an endpoint and its pending messages.

    The last messages about deleted runs stay pending until it is enabled: they cannot be composed again.
    """
    columns = {"disabled": now, "disabled_reason": reason, "disabled_by": by}
    connection.execute(update(endpoint).where(_is(endpoint_id)).values(**columns))
    pending = (delivery.c.endpoint_id == endpoint_id, delivery.c.state == "pending", HAS_INCIDENT)
    connection.execute(update(delivery).where(*pending).values(state="disabled", lease_until=None))


def _rotated_columns(old: str, new: str, now: float) -> dict[str, object]:
    return {"secret": new, "previous_secret": old, "previous_until": now + ROTATION_S}


def signing_secrets(row: RowMapping, now: float) -> tuple[str, ...]:
    """Return the secrets that sign messages to an endpoint, the newest first."""
    has_previous = row["previous_secret"] is not None and now < row["previous_until"]
    return (row["secret"], row["previous_secret"]) if has_previous else (row["secret"],)


def _replan_resolved(connection: Connection, endpoint_id: int) -> None:
    """Plan again the resolved incidents of which an endpoint has, or may have, a message but no resolution."""
    last = delivery.alias()
    of_last = (
        last.c.run_id == delivery.c.run_id,
        last.c.incident_id == delivery.c.incident_id,
        last.c.endpoint_id == endpoint_id,
    )
    newest = select(func.max(last.c.delivered)).where(*of_last).correlate(delivery).scalar_subquery()
    arrived = func.coalesce(delivery.c.delivered, delivery.c.maybe_delivered_at) >= func.coalesce(newest, 0.0)
    unresolved = (delivery.c.endpoint_id == endpoint_id, delivery.c.kind.not_in(("resolved", "ended")), arrived)
    keys = select(delivery.c.run_id, delivery.c.incident_id).where(*unresolved)
    is_unresolved = tuple_(incident.c.run_id, incident.c.incident_id).in_(keys)
    done = (incident.c.notifications_done.is_(True), is_unresolved)
    connection.execute(update(incident).where(*done).values(notifications_done=False))


def _enabled(row: RowMapping, now: float) -> dict[str, object]:
    columns: dict[str, object] = dict.fromkeys(("disabled", "disabled_reason", "disabled_by", "failing_since"))
    return {**columns, "created": row["created"] if row["disabled"] is None else now}


def _check(url: str, secret: str | None) -> None:
    try:
        egress.check_url(url)
        if secret is not None:
            webhook.check_secret(secret)
    except AddressError as error:
        raise SettingsError(f"--webhook {error}.") from error
    except SecretError as error:
        raise SettingsError(f"GRADCANARY_WEBHOOK_SECRET {error}.") from error


def _is(endpoint_id: int) -> ColumnElement[bool]:
    return endpoint.c.endpoint_id == endpoint_id


def find_endpoint(connection: Connection, number: int, *, lock: bool = False) -> RowMapping:
    """Return an endpoint that was not deleted, and ``lock`` it; raises RequestError 404."""
    query = select(endpoint).where(_is(number), endpoint.c.deleted.is_(None))
    query = query.with_for_update(key_share=True) if lock else query
    row = connection.execute(query).mappings().one_or_none() if 0 <= number <= MAX_ID else None
    if row is None:
        raise RequestError(404, "unknown_endpoint", f"There is no endpoint {number} here.", "endpoint")
    return row


def read_endpoint(connection: Connection, number: int) -> RowMapping:
    """Return an endpoint that exists, also a deleted one."""
    return connection.execute(select(endpoint).where(_is(number))).mappings().one()


def read_labels(connection: Connection, numbers: Collection[int]) -> dict[int, str]:
    """Return the labels of endpoints, also of deleted ones, by their ids."""
    query = select(endpoint).where(endpoint.c.endpoint_id.in_(numbers))
    return {row["endpoint_id"]: label(row) for row in connection.execute(query).mappings()} if numbers else {}


def all_endpoints(connection: Connection) -> list[RowMapping]:
    """Return all endpoints that were not deleted, in the order of their creation."""
    query = select(endpoint).where(endpoint.c.deleted.is_(None)).order_by(endpoint.c.endpoint_id)
    return list(connection.execute(query).mappings())


def create_endpoint(connection: Connection, url: str, values: dict[str, Any], secret: str | None, now: float) -> int:
    """Create an endpoint with the ``values`` of other columns, and return its id.

    Raises RequestError 409 if its address exists, or there are too many.
    """
    count = connection.execute(select(func.count()).where(endpoint.c.deleted.is_(None))).scalar_one()
    if count >= MAX_ENDPOINTS:
        raise RequestError(409, "too_many_endpoints", f"There are {MAX_ENDPOINTS} endpoints already: remove some.")
    values = {**values, **new_id(connection, endpoint), "url": url, "secret": secret or webhook.new_secret()}
    statement = insert(endpoint).values(**values, kind="webhook", origin="api", created=now)
    return int(_execute(connection, statement.returning(endpoint.c.endpoint_id)).scalar_one())


def change_endpoint(
    connection: Connection, number: int, values: dict[str, Any], enabled: bool | None, now: float
) -> None:
    """Change an endpoint; raises RequestError 404, and 409 for a value of the command line."""
    row = find_endpoint(connection, number, lock=True)
    changed = [name for name in ("url", "min_severity", "sends_ended") if name in values and values[name] != row[name]]
    if changed and row["origin"] == "operator":
        message = f"Its {changed[0].replace('_', ' ')} is given on the command line, as [SEVERITY][,ended]=URL."
        raise _operators_endpoint(message, changed[0])
    if "url" in changed:
        values = {**values, "failing_since": None}
    if values:
        _execute(connection, update(endpoint).where(_is(number)).values(**values))
    if enabled is False and row["disabled"] is None:
        disable_endpoint(connection, number, now, "disabled over HTTP", "api")
    elif enabled and row["disabled"] is not None:
        enable_endpoint(connection, row, now)


def rotate_secret(connection: Connection, number: int, now: float, *, is_given: bool) -> str:
    """Give an endpoint a new secret and return it; ``is_given``: the operator's is in the environment.

    Raises RequestError 404, and 409 for another kind than webhook and for a secret of the environment.
    """
    row = find_endpoint(connection, number, lock=True)
    if row["kind"] != "webhook":
        message = "Messages through apprise are not signed: there is no secret."
        raise RequestError(409, "not_signed", message, "endpoint")
    if is_given and row["origin"] == "operator":
        raise _operators_endpoint("Its secret is that of GRADCANARY_WEBHOOK_SECRET: change it there.", "secret")
    secret = webhook.new_secret()
    connection.execute(update(endpoint).where(_is(number)).values(**_rotated_columns(row["secret"], secret, now)))
    return secret


def delete_endpoint(connection: Connection, number: int, now: float) -> None:
    """Delete an endpoint, its address and its secrets; its deliveries stay with the incidents.

    Raises RequestError 404, and 409 if the command line names it.
    """
    row = find_endpoint(connection, number, lock=True)
    if row["origin"] == "operator" and row["disabled"] is None:
        raise _operators_endpoint(
            "It is given on the command line: start without it, then it can be removed.", "endpoint"
        )
    disable_endpoint(connection, number, now, "deleted over HTTP", "api")
    connection.execute(delete(delivery).where(delivery.c.endpoint_id == number, ~HAS_INCIDENT))
    cleared = dict.fromkeys(("previous_secret", "previous_until", "last_error"))
    values = {"url": f"deleted:{number}", "secret": "", "deleted": now, **cleared}
    connection.execute(update(endpoint).where(_is(number)).values(**values))


def _execute(connection: Connection, statement: Executable) -> Result[Any]:
    """Execute a statement that sets an address; raises RequestError 409 if another endpoint has it."""
    try:
        return connection.execute(statement)
    except IntegrityError as error:
        raise RequestError(409, "known_endpoint", "There is an endpoint of this address already.", "url") from error


def _operators_endpoint(message: str, field: str) -> RequestError:
    return RequestError(409, "operators_endpoint", message, field)
