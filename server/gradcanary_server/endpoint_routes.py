"""Endpoints over HTTP: who is told, since when, how that went, and what shall be sent once more."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Path, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

from gradcanary import wire
from gradcanary_server import (
    addresses,
    attempts,
    bodies,
    endpoint_changes,
    endpoint_views,
    endpoints,
    notifications,
    signing,
    webhooks,
)
from gradcanary_server.addresses import AddressError
from gradcanary_server.answer_shapes import answered
from gradcanary_server.channels import SEVERITIES
from gradcanary_server.courier import Courier, Outcome
from gradcanary_server.database import Database
from gradcanary_server.endpoint_shapes import EndpointShape, NewEndpointShape, OutcomeShape, RotatedShape
from gradcanary_server.errors import invalid
from gradcanary_server.planning import Key
from gradcanary_server.requests import Reader, check_member, check_text
from gradcanary_server.timestamps import timestamp
from gradcanary_server.webhooks import Message

MAX_URL = 2_000
MAX_NAME = 100

router = APIRouter(prefix="/api/v1")

Delivery = Annotated[str, Path(json_schema_extra={"pattern": endpoint_views.DELIVERY})]


@dataclass(frozen=True)
class NewEndpoint(wire.Request):
    """An endpoint that somebody asks for; without a ``secret`` one is made."""

    url: str
    name: str = ""
    min_severity: str = "warning"
    secret: str | None = None


@dataclass(frozen=True)
class EndpointChange(wire.Request):
    """What shall be otherwise of an endpoint; the rest stays."""

    url: str | None = None
    name: str | None = None
    min_severity: str | None = None
    enabled: bool | None = None


@dataclass(frozen=True)
class EmptyRequest(wire.Request):
    """An empty object: all is said by the path, and only what says that it is JSON was not sent by a strange page."""


_NEW = Reader(NewEndpoint)
_CHANGE = Reader(EndpointChange)
_EMPTY = Reader(EmptyRequest)


# Response models would check what was just built: the answers are plain JSON values.
@router.get("/endpoints", response_model=None, responses=answered("endpoints"))
def list_endpoints(request: Request) -> JSONResponse:
    """Answer all endpoints in the order in which they were made."""
    with _database(request).read() as connection:
        waiting = endpoint_views.pending(connection)
        rows = endpoint_changes.every(connection)
    return JSONResponse({"endpoints": [endpoint_views.shown(row, waiting.get(row["endpoint_id"], 0)) for row in rows]})


@router.get("/endpoints/{number}", response_model=None, responses=answered("endpoint"))
def show_endpoint(request: Request, number: int) -> JSONResponse:
    """Answer one endpoint."""
    return JSONResponse(_shown(request, number))


@router.post("/endpoints", response_model=None, status_code=201, responses=answered("made-endpoint", 201))
async def add_endpoint(request: Request) -> JSONResponse:
    """Make an endpoint, and answer 201 with it and, this once, its secret."""
    new = _NEW.read(await bodies.read(request))
    await _check_url(request, new.url)
    _check(new.name, new.min_severity)
    if new.secret is not None:
        _check_secret(new.secret)
    return JSONResponse(await run_in_threadpool(_add, request, new), 201)


@router.patch("/endpoints/{number}", response_model=None, responses=answered("endpoint"))
async def change_endpoint(request: Request, number: int) -> JSONResponse:
    """Change an endpoint, and answer it."""
    wished = _CHANGE.read(await bodies.read(request))
    if wished.url is not None:
        await _check_url(request, wished.url)
    _check(wished.name, wished.min_severity)
    return JSONResponse(await run_in_threadpool(_change, request, number, wished))


@router.delete("/endpoints/{number}", status_code=204)
def remove_endpoint(request: Request, number: int) -> None:
    """Delete an endpoint: it is told nothing more; what it was told stays with the incidents."""
    database = _database(request)
    with database.write() as connection:
        request.state.about = endpoint_views.label(endpoint_changes.find(connection, number))
        endpoint_changes.remove(connection, number, database.now(connection))


@router.post("/endpoints/{number}/rotate", response_model=None, responses=answered("rotated-endpoint"))
async def rotate_secret(request: Request, number: int) -> JSONResponse:
    """Answer the endpoint with another secret; for a day messages are signed with both."""
    await _check_sender(request)
    return JSONResponse(await run_in_threadpool(_rotate, request, number))


@router.post("/endpoints/{number}/test", response_model=None, responses=answered("tested-endpoint"))
async def test_endpoint(request: Request, number: int) -> JSONResponse:
    """Send a message of type ``gradcanary.test`` now, also to one that is disabled, and answer how that went."""
    await _check_sender(request)
    message = await run_in_threadpool(_test_message, request, number)
    return JSONResponse(_told(await _carry(request, message)))


@router.get("/endpoints/{number}/deliveries", response_model=None, responses=answered("deliveries"))
def list_deliveries(request: Request, number: int, before: str | None = None) -> JSONResponse:
    """Answer the messages to an endpoint, newest first; ``next`` is the ``before`` of the following page."""
    with _database(request).read() as connection:
        endpoint_changes.find(connection, number)
        return JSONResponse(endpoint_views.log(connection, number, before))


@router.post("/deliveries/{name}/redeliver", response_model=None, responses=answered("redelivered"))
async def redeliver(request: Request, name: Delivery) -> JSONResponse:
    """Send a message once more now, under its id and with its bytes, and answer how that went."""
    await _check_sender(request)
    key = endpoint_views.delivery_key(name)
    claim = await run_in_threadpool(_reclaim, request, key)
    outcome = await _carry(request, claim.message)
    await run_in_threadpool(_conclude, request, claim, outcome)
    return JSONResponse({"id": name, "webhook_id": claim.message.id, **_told(outcome)})


def _add(request: Request, new: NewEndpoint) -> NewEndpointShape:
    database = _database(request)
    with database.write() as connection:
        now = database.now(connection)
        number = endpoint_changes.add(connection, new.url, new.name, new.min_severity, new.secret, now)
        row = endpoint_changes.find(connection, number)
        request.state.about = f"{number} {endpoint_views.label(row)}"
        return {**endpoint_views.shown(row, 0), "secret": row["secret"]}


def _change(request: Request, number: int, wished: EndpointChange) -> EndpointShape:
    database = _database(request)
    columns = {name: getattr(wished, name) for name in ("url", "name", "min_severity")}
    given = {name: value for name, value in columns.items() if value is not None}
    with database.write() as connection:
        endpoint_changes.change(connection, number, given, wished.enabled, database.now(connection))
        label = endpoint_views.label(endpoint_changes.find(connection, number))
    changed = [*given, *([] if wished.enabled is None else ["enabled" if wished.enabled else "disabled"])]
    request.state.about = f"{label}: {', '.join(changed)}"
    return _shown(request, number)


def _rotate(request: Request, number: int) -> RotatedShape:
    database = _database(request)
    is_given = request.app.state.settings.webhook_secret is not None
    with database.write() as connection:
        now = database.now(connection)
        secret = endpoint_changes.rotate(connection, number, now, is_given=is_given)
        request.state.about = endpoint_views.label(endpoint_changes.find(connection, number))
    until = timestamp(now + endpoints.ROTATION_S)
    return {**_shown(request, number), "secret": secret, "old_secret_until": until}


def _shown(request: Request, number: int) -> EndpointShape:
    with _database(request).read() as connection:
        row = endpoint_changes.find(connection, number)
        return endpoint_views.shown(row, endpoint_views.pending(connection).get(number, 0))


def _test_message(request: Request, number: int) -> Message:
    database = _database(request)
    with database.read() as connection:
        row = endpoint_changes.find(connection, number)
        now = database.now(connection)
    body = notifications.test(request.app.state.settings.public_url, now)
    return attempts.message(row, f"msg_test_{number}_{round(now * 1000)}", body, now)


def _reclaim(request: Request, key: Key) -> attempts.Claim:
    database = _database(request)
    with database.write() as connection:
        return attempts.reclaim(connection, key, database.now(connection))


def _conclude(request: Request, claim: attempts.Claim, outcome: Outcome) -> None:
    database = _database(request)
    jitter = random.uniform(-1.0, 1.0)  # noqa: S311 -- spreads retries, keeps no secret
    with database.write() as connection:
        attempts.conclude(connection, claim, outcome.result, outcome.ms, database.now(connection), jitter)


async def _carry(request: Request, message: Message) -> Outcome:
    courier: Courier = request.app.state.courier
    async with webhooks.open_client() as client:
        return await courier.carry(client, message)


def _told(outcome: Outcome) -> OutcomeShape:
    error = None if outcome.error is None else str(outcome.error)
    return {"is_delivered": error is None, "status": outcome.status, "ms": outcome.ms, "error": error}


async def _check_sender(request: Request) -> None:
    """Raise RequestError 415 unless the request says that it is JSON, though there is nothing to say in its body: a
    page of somebody else's can let a browser send any other POST. One without a body is as good as an empty object.
    """
    _EMPTY.read(await bodies.read(request) or b"{}")


async def _check_url(request: Request, url: str) -> None:
    """Raise RequestError 422 where this address can be seen not to work; one that is not known yet may later."""
    check_text(url, "url", MAX_URL, shortest=1)
    courier: Courier = request.app.state.courier
    try:
        addresses.check_url(url)
        await courier.guard.addresses(*addresses.host_and_port(url))
    except AddressError as error:
        raise invalid(f"{error}.", "url") from error
    except OSError:
        pass  # a test says so


def _check(name: str | None, min_severity: str | None) -> None:
    check_text(name, "name", MAX_NAME)
    check_member(min_severity, "min_severity", SEVERITIES)


def _check_secret(secret: str) -> None:
    try:
        signing.check(secret)
    except signing.SecretError as error:
        raise invalid(f"A secret {error}.", "secret") from error


def _database(request: Request) -> Database:
    database: Database = request.app.state.database
    return database
