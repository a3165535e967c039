"""What is sent, received and answered, as JSON Schemas: ``GET /api/v1/schemas``."""

from __future__ import annotations

from functools import cache
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import TypeAdapter

from gradcanary import wire
from gradcanary_server.answer_shapes import ANSWERS, answered
from gradcanary_server.endpoint_routes import EmptyRequest, EndpointChange, NewEndpoint
from gradcanary_server.errors import RequestError
from gradcanary_server.incident_routes import Acknowledgement
from gradcanary_server.messages import Notification
from gradcanary_server.run_routes import Wish as RunChange
from gradcanary_server.silence_routes import Change as SilenceChange
from gradcanary_server.silence_routes import Wish
from gradcanary_server.token_routes import Wish as NewToken
from gradcanary_server.trial_routes import Wish as Trial

DIALECT = "https://json-schema.org/draft/2020-12/schema"

KINDS: dict[str, tuple[str, Any]] = {
    "notification": ("a message to an endpoint: of an incident, or a test", Notification),
    "hello": ("PUT /runs/{run}/sessions/{session}", wire.Hello),
    "batch": ("POST /runs/{run}/sessions/{session}/batches/{seq}", wire.Batch),
    "heartbeat": ("POST /runs/{run}/sessions/{session}/heartbeat", wire.Heartbeat),
    "end": ("POST /runs/{run}/sessions/{session}/end", wire.End),
    "new-endpoint": ("POST /endpoints", NewEndpoint),
    "endpoint-change": ("PATCH /endpoints/{id}", EndpointChange),
    "empty": ("POST /endpoints/{id}/rotate, POST /endpoints/{id}/test, POST /deliveries/{id}/redeliver", EmptyRequest),
    "run-change": ("PATCH /runs/{run}", RunChange),
    "new-token": ("POST /tokens", NewToken),
    "silence": ("POST /silences", Wish),
    "silence-change": ("PATCH /silences/{id}", SilenceChange),
    "trial": ("POST /rules/trials", Trial),
    "acknowledgement": ("POST /incidents/{id}/ack", Acknowledgement),
}
"""What each is the schema of that is sent, and its type; answers are :data:`answer_shapes.ANSWERS`."""

router = APIRouter(prefix="/api/v1")


_SCHEMA = {"schema": {"type": "object"}}
_AS_SCHEMA: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/json": _SCHEMA, "application/schema+json": _SCHEMA}}
}


@router.get("/schemas", response_model=None, responses=answered("schemas"))
def list_schemas(request: Request) -> JSONResponse:
    """Answer which schemas there are, and what each is of."""
    known = {**KINDS, **ANSWERS}
    listed = [{"name": name, "of": of, "url": _url(request, name)} for name, (of, _) in known.items()]
    return JSONResponse({"schemas": listed})


@router.get("/schemas/{name}", response_model=None, responses=_AS_SCHEMA)
def show_schema(request: Request, name: str) -> JSONResponse:
    """Answer one schema, JSON Schema 2020-12."""
    if name not in KINDS and name not in ANSWERS:
        raise RequestError(404, "unknown_schema", f"A schema is one of {', '.join([*KINDS, *ANSWERS])}.", "name")
    head = {"$schema": DIALECT, "$id": _url(request, name)}
    return JSONResponse({**head, **schema(name)}, media_type="application/schema+json")


@cache
def schema(name: str) -> dict[str, Any]:
    """Return a schema by name, without its address."""
    if name in ANSWERS:
        return TypeAdapter(ANSWERS[name][1]).json_schema(mode="serialization")
    return TypeAdapter(KINDS[name][1]).json_schema()


def _url(request: Request, name: str) -> str:
    return f"{request.app.state.settings.public_url}/api/v1/schemas/{name}"
