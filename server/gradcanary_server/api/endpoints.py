"""Routes of endpoints and their deliveries, and the JSON of both, which never holds a secret."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Request
from fastapi.concurrency import run_in_threadpool
from sqlalchemy import Connection, RowMapping, func, select, tuple_
from typing_extensions import TypedDict

from gradcanary_server.api.http import Json, JsonRoute, select_keys
from gradcanary_server.api.models import Count
from gradcanary_server.api.services import DatabaseDep, SenderDep, Services, ServicesDep, SettingsDep
from gradcanary_server.clock import Moment, UnixTime, timestamp
from gradcanary_server.errors import invalid
from gradcanary_server.notify import egress, outbox, payload, webhook
from gradcanary_server.notify import endpoints as notify_endpoints
from gradcanary_server.notify.egress import AddressError
from gradcanary_server.notify.endpoints import By
from gradcanary_server.notify.payload import Notification
from gradcanary_server.notify.planner import DeliveryKey, Kind
from gradcanary_server.notify.sender import Attempt, Sender
from gradcanary_server.notify.webhook import OutgoingMessage
from gradcanary_server.rules.types import Severity
from gradcanary_server.storage.database import Database
from gradcanary_server.storage.pagination import PageOrder
from gradcanary_server.storage.schema import attempt, delivery, incident, is_of_incident, run
from gradcanary_server.validation import Body, check_text

MAX_URL = 2_000
MAX_NAME = 100

PAGE = 50
"""Deliveries of one answer."""

_KEYS_OF_A_QUERY = 1_000
"""Deliveries whose attempts one query reads: databases limit the parameters of a query."""

DELIVERY_ID = r"^[0-9]{1,9}-[0-9]{1,9}-[0-9]{1,9}$"
"""INCIDENT-ENDPOINT-VERSION."""

_NEWEST = PageOrder((delivery.c.enqueued_at, delivery.c.incident_id, delivery.c.version))

router = APIRouter(prefix="/api/v1", route_class=JsonRoute)
webhooks = APIRouter()

DeliveryId = Annotated[str, Path(json_schema_extra={"pattern": DELIVERY_ID})]
DeliveryState = Literal["pending", "delivered", "expired", "disabled"]


class EndpointShape(TypedDict):
    """An endpoint and its health; ``url`` is null where only the configuration has it."""

    id: int
    kind: Literal["webhook", "apprise"]
    origin: Literal["operator", "api"]
    name: str
    url: str | None
    min_severity: Severity
    sends_ended: bool
    state: Literal["enabled", "disabled"]
    since: UnixTime
    reason: str | None
    disabled_by: By | None
    failing_since: UnixTime | None
    last_success: UnixTime | None
    last_failure: UnixTime | None
    last_error: str | None
    pending: Count


class EndpointList(TypedDict):
    """All endpoints in the order of their creation."""

    endpoints: list[EndpointShape]


class NewEndpointShape(EndpointShape):
    """A new endpoint, with its secret."""

    secret: str


class RotatedShape(NewEndpointShape):
    """An endpoint with a new secret; until ``old_secret_until`` messages are signed with both."""

    old_secret_until: UnixTime


class OutcomeShape(TypedDict):
    """The outcome of an attempt that a request made; ``status`` is null if there was no response."""

    is_delivered: bool
    status: int | None
    ms: Count
    error: str | None


class RedeliveredShape(OutcomeShape):
    """The outcome of another attempt at a delivery."""

    id: str
    webhook_id: str


class AttemptShape(TypedDict):
    """An attempt at a delivery; ``status`` is null if there was no response."""

    at: Moment
    status: int | None
    ms: Count
    error: str | None


class DeliveryBase(TypedDict):
    """A delivery without its body, and the attempts at it."""

    id: str
    endpoint: int
    version: int
    kind: Kind
    state: DeliveryState
    enqueued: Moment
    delivered: Moment | None
    next_attempt: Moment | None
    attempts: list[AttemptShape]


class DeliveryShape(DeliveryBase):
    """A delivery with its incident."""

    webhook_id: str
    run: str
    incident: int


class DeliveryList(TypedDict):
    """The deliveries to an endpoint, newest first; ``next`` is the ``before`` of the following page."""

    deliveries: list[DeliveryShape]
    next: str | None


class NewEndpoint(Body):
    """An endpoint to create; without a ``secret`` the collector makes one.

    With ``sends_ended`` it also gets a message when a run ends on an incident.
    """

    url: str
    name: str = ""
    min_severity: Severity = "warning"
    sends_ended: bool = False
    secret: str | None = None


class EndpointChange(Body):
    """Changes of an endpoint; null changes nothing."""

    url: str | None = None
    name: str | None = None
    min_severity: Severity | None = None
    sends_ended: bool | None = None
    enabled: bool | None = None


class EmptyRequest(Body):
    """An empty object, or no body: the path holds everything.

    The request still has to be of type JSON: a page of another site can let a browser send any other POST.
    """


@webhooks.post("notification", responses={"4XX": {"description": "It is not delivered."}})
def notification(message: Notification) -> None:
    """A message to an endpoint: about an incident, or a test."""


@router.get("/endpoints", response_model=EndpointList)
def list_endpoints(database: DatabaseDep) -> Json:
    """Answer all endpoints in the order of their creation."""
    with database.read() as connection:
        pending = _count_pending(connection)
        rows = notify_endpoints.all_endpoints(connection)
    return {"endpoints": [_endpoint_to_json(row, pending.get(row["endpoint_id"], 0)) for row in rows]}


@router.get("/endpoints/{number}", response_model=EndpointShape)
def show_endpoint(database: DatabaseDep, number: int) -> Json:
    """Answer one endpoint."""
    with database.read() as connection:
        row = notify_endpoints.find_endpoint(connection, number)
        return _endpoint_to_json(row, _count_pending(connection).get(number, 0))


@router.post("/endpoints", status_code=201, response_model=NewEndpointShape)
async def add_endpoint(request: Request, database: DatabaseDep, sender: SenderDep, new: NewEndpoint) -> Json:
    """Create an endpoint, and answer 201 with it and its secret, which no later answer has."""
    await _check_url(sender, new.url)
    check_text(new.name, "name", MAX_NAME)
    if new.secret is not None:
        try:
            webhook.check_secret(new.secret)
        except webhook.SecretError as error:
            raise invalid(f"A secret {error}.", "secret") from error
    return await run_in_threadpool(_add, request, database, new)


@router.patch("/endpoints/{number}", response_model=EndpointShape)
async def change_endpoint(
    request: Request, database: DatabaseDep, sender: SenderDep, number: int, patch: EndpointChange
) -> Json:
    """Change an endpoint, and answer it."""
    if patch.url is not None:
        await _check_url(sender, patch.url)
    check_text(patch.name, "name", MAX_NAME)
    return await run_in_threadpool(_change, request, database, number, patch)


@router.delete("/endpoints/{number}", status_code=204)
def remove_endpoint(request: Request, database: DatabaseDep, number: int) -> None:
    """Delete an endpoint: it gets no more messages, and its deliveries stay with the incidents."""
    with database.write() as connection:
        request.state.about = notify_endpoints.label(notify_endpoints.find_endpoint(connection, number))
        notify_endpoints.delete_endpoint(connection, number, database.now(connection))


@router.post("/endpoints/{number}/rotate", response_model=RotatedShape)
def rotate_secret(request: Request, database: DatabaseDep, settings: SettingsDep, number: int, _: EmptyRequest) -> Json:
    """Answer the endpoint with a new secret; for a day messages are signed with both."""
    is_given = settings.webhook_secret is not None
    with database.write() as connection:
        now = database.now(connection)
        secret = notify_endpoints.rotate_secret(connection, number, now, is_given=is_given)
        request.state.about = notify_endpoints.label(notify_endpoints.find_endpoint(connection, number))
    until = now + notify_endpoints.ROTATION_S
    return {**show_endpoint(database, number), "secret": secret, "old_secret_until": until}


@router.post("/endpoints/{number}/test")
async def send_test(services: ServicesDep, number: int, _: EmptyRequest) -> OutcomeShape:
    """Send a message of type ``gradcanary.test`` now, also to a disabled endpoint, and answer the outcome."""
    message = await run_in_threadpool(_test_message, services, number)
    return _outcome_to_json(await _send(services.sender, message))


@router.get("/endpoints/{number}/deliveries")
def list_deliveries(database: DatabaseDep, number: int, before: str | None = None) -> DeliveryList:
    """Answer the deliveries to an endpoint, newest first; ``next`` is the ``before`` of the following page."""
    with database.read() as connection:
        notify_endpoints.find_endpoint(connection, number)
        return delivery_page(connection, number, before)


@router.post("/deliveries/{name}/redeliver")
async def redeliver(database: DatabaseDep, sender: SenderDep, name: DeliveryId, _: EmptyRequest) -> RedeliveredShape:
    """Send a message again now, with the same id and body, and answer the outcome."""
    if not re.fullmatch(DELIVERY_ID, name):
        raise invalid("A delivery is INCIDENT-ENDPOINT-VERSION, as the log of its endpoint lists it.", "delivery")
    claim = await run_in_threadpool(_claim, database, *map(int, name.split("-")))
    outcome = await _send(sender, claim.message)
    await run_in_threadpool(_finish, database, claim, outcome)
    return {"id": name, "webhook_id": claim.message.id, **_outcome_to_json(outcome)}


def delivery_page(connection: Connection, number: int, before: str | None) -> DeliveryList:
    """Return a page of the deliveries to an endpoint, newest first."""
    query = select(*(column for column in delivery.c if column.name != "body"), run.c.name.label("run"))
    query = query.join(incident, is_of_incident(delivery, incident.c.run_id, incident.c.incident_id))
    query = query.join(run, run.c.run_id == incident.c.run_id).where(delivery.c.endpoint_id == number)
    rows, following = _NEWEST.page(connection, query, before, PAGE)
    deliveries: list[DeliveryShape] = [
        {
            **sent,
            "webhook_id": f"msg_{row['incident_id']}_{row['version']}",
            "run": row["run"],
            "incident": row["incident_id"],
        }
        for row, sent in zip(rows, deliveries_to_json(connection, rows), strict=True)
    ]
    return {"deliveries": deliveries, "next": following}


def deliveries_to_json(connection: Connection, rows: Sequence[RowMapping]) -> list[DeliveryBase]:
    """Return deliveries without their bodies, with the attempts at each in order."""
    keys = [outbox.delivery_key(row) for row in rows]
    attempts: dict[DeliveryKey, list[AttemptShape]] = defaultdict(list)
    columns = (attempt.c.run_id, attempt.c.incident_id, attempt.c.endpoint_id, attempt.c.version)
    query = select(*columns, attempt.c.at, attempt.c.status, attempt.c.ms, attempt.c.error).order_by(attempt.c.number)
    for begin in range(0, len(keys), _KEYS_OF_A_QUERY):
        is_of_some = tuple_(*columns).in_(keys[begin : begin + _KEYS_OF_A_QUERY])
        for *key, at, status, ms, error in connection.execute(query.where(is_of_some)):
            attempts[DeliveryKey(*key)].append({"at": timestamp(at), "status": status, "ms": ms, "error": error})
    return [
        {
            "id": f"{key.incident_id}-{key.endpoint_id}-{key.version}",
            "endpoint": key.endpoint_id,
            "version": key.version,
            "kind": row["kind"],
            "state": row["state"],
            "enqueued": timestamp(row["enqueued_at"]),
            "delivered": timestamp(row["delivered"]),
            "next_attempt": timestamp(row["next_attempt"]) if row["state"] == "pending" else None,
            "attempts": attempts[key],
        }
        for key, row in zip(keys, rows, strict=True)
    ]


def _count_pending(connection: Connection) -> dict[int, int]:
    """Return the number of pending messages by endpoint."""
    query = select(delivery.c.endpoint_id, func.count()).where(delivery.c.state == "pending")
    return {row[0]: row[1] for row in connection.execute(query.group_by(delivery.c.endpoint_id))}


def _endpoint_to_json(row: RowMapping, pending: int) -> Json:
    is_enabled = row["disabled"] is None
    computed = {
        "id": row["endpoint_id"],
        "url": notify_endpoints.redacted_address(row),
        "state": "enabled" if is_enabled else "disabled",
        "since": row["created"] if is_enabled else row["disabled"],
        "reason": row["disabled_reason"],
        "pending": pending,
    }
    return select_keys(EndpointShape, {**row, **computed})


def _outcome_to_json(outcome: Attempt) -> OutcomeShape:
    error = None if outcome.error is None else str(outcome.error)
    return {"is_delivered": error is None, "status": outcome.status, "ms": outcome.ms, "error": error}


def _add(request: Request, database: Database, new: NewEndpoint) -> Json:
    with database.write() as connection:
        now = database.now(connection)
        values = new.model_dump(include={"name", "min_severity", "sends_ended"})
        number = notify_endpoints.create_endpoint(connection, new.url, values, new.secret, now)
        row = notify_endpoints.find_endpoint(connection, number)
        request.state.about = f"{number} {notify_endpoints.label(row)}"
        return {**_endpoint_to_json(row, 0), "secret": row["secret"]}


def _change(request: Request, database: Database, number: int, patch: EndpointChange) -> Json:
    values = {name: value for name, value in patch if name != "enabled" and value is not None}
    with database.write() as connection:
        notify_endpoints.change_endpoint(connection, number, values, patch.enabled, database.now(connection))
        label = notify_endpoints.label(notify_endpoints.find_endpoint(connection, number))
    changed = [*values, *([] if patch.enabled is None else ["enabled" if patch.enabled else "disabled"])]
    request.state.about = f"{label}: {', '.join(changed)}"
    return show_endpoint(database, number)


def _test_message(services: Services, number: int) -> OutgoingMessage:
    with services.database.read() as connection:
        row = notify_endpoints.find_endpoint(connection, number)
        now = services.database.now(connection)
    body = payload.build_test_payload(services.settings.public_url, now)
    return outbox.outgoing_message(row, f"msg_test_{number}_{round(now * 1000)}", body, now)


def _claim(database: Database, incident_id: int, endpoint_id: int, version: int) -> outbox.Claim:
    with database.write() as connection:
        now = database.now(connection)
        return outbox.claim_for_redelivery(connection, incident_id, endpoint_id, version, now)


async def _send(sender: Sender, message: OutgoingMessage) -> Attempt:
    async with webhook.open_client() as client:
        return await sender.send(client, message)


def _finish(database: Database, claim: outbox.Claim, outcome: Attempt) -> None:
    jitter = random.uniform(-1.0, 1.0)  # noqa: S311 -- spreads retries, keeps no secret
    with database.write() as connection:
        outbox.finish_attempt(connection, claim, outcome, database.now(connection), jitter)


async def _check_url(sender: Sender, url: str) -> None:
    """Raise RequestError 422 if this address cannot work; a host name that does not resolve yet may do so later."""
    check_text(url, "url", MAX_URL, shortest=1)
    try:
        egress.check_url(url)
        await sender.guard.addresses(*egress.host_and_port(url))
    except AddressError as error:
        raise invalid(f"{error}.", "url") from error
    except OSError:
        pass  # a test delivery shows it
