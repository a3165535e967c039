"""Tokens and the audit log over HTTP, for those who administer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from pydantic import Field

from gradcanary import wire
from gradcanary_server import audit, bodies, tokens
from gradcanary_server.access import Gate
from gradcanary_server.answer_shapes import answered
from gradcanary_server.errors import invalid
from gradcanary_server.requests import Reader
from gradcanary_server.rights import SCOPES
from gradcanary_server.run_shapes import one_of
from gradcanary_server.schema import MAX_ID
from gradcanary_server.timestamps import timestamp
from gradcanary_server.token_shapes import AuditRecord, NewTokenShape, TokenShape
from gradcanary_server.tokens import Token

router = APIRouter(prefix="/api/v1")


@dataclass(frozen=True)
class Wish(wire.Request):
    """A token that somebody asks for; without ``days`` it holds until it is revoked."""

    name: Annotated[str, Field(json_schema_extra={"pattern": tokens.NAME})]
    scope: Annotated[str, one_of(*SCOPES)]
    days: Annotated[float, Field(json_schema_extra={"exclusiveMinimum": 0, "maximum": tokens.LONGEST_DAYS})] | None = (
        None
    )


_WISH = Reader(Wish)


# Response models would check what was just built: the answers are plain JSON values.
@router.get("/tokens", response_model=None, responses=answered("tokens"))
def list_tokens(request: Request) -> JSONResponse:
    """Answer the tokens without their secrets, and for thirty days those that hold no more."""
    database = _gate(request).database
    with database.read() as connection:
        now = database.now(connection)
        return JSONResponse({"tokens": [shown(each, now) for each in tokens.every(connection)]})


@router.post("/tokens", response_model=None, status_code=201, responses=answered("made-token", 201))
async def create_token(request: Request) -> JSONResponse:
    """Make a token, and answer 201 with it and its secret: the only time that it is told."""
    wish = _WISH.read(await bodies.read(request))
    return JSONResponse(await run_in_threadpool(_create, request, wish), 201)


@router.delete("/tokens/{number}", status_code=204)
def revoke_token(
    request: Request, number: Annotated[int, Path(json_schema_extra={"minimum": 1, "maximum": MAX_ID})]
) -> None:
    """End a token; other collectors of the store refuse it within five seconds."""
    gate = _gate(request)
    if not 0 < number <= MAX_ID:
        raise invalid(f"A token's number is 1 to {MAX_ID}.", "token")
    with gate.database.write() as connection:
        ended = tokens.revoke(connection, number, gate.database.now(connection))
    gate.keyring.forget()
    request.state.about = f"{ended.name} ({ended.scope})"


@router.get("/audit", response_model=None, responses=answered("audit"))
def list_audit(request: Request, before: Annotated[int, Query(ge=0, le=MAX_ID)] = MAX_ID) -> JSONResponse:
    """Answer who changed what, the newest first; ``next`` is the ``before`` of the following page."""
    with _gate(request).database.read() as connection:
        found = audit.page(connection, before)
    records = [_record(each) for each in found[: audit.PAGE]]
    return JSONResponse({"audit": records, "next": records[-1]["id"] if len(found) > audit.PAGE else None})


def shown(token: Token, now: float) -> TokenShape:
    """Return a token as it is answered."""
    return {
        "id": token.id,
        "name": token.name,
        "scope": token.scope,
        "holds": token.holds(now),
        "created": timestamp(token.created),
        "expires": timestamp(token.expires),
        "last_used": timestamp(token.last_used),
        "revoked": timestamp(token.revoked),
    }


def _create(request: Request, wish: Wish) -> NewTokenShape:
    gate = _gate(request)
    with gate.database.write() as connection:
        now = gate.database.now(connection)
        made, secret = tokens.create(connection, wish.name, wish.scope, wish.days, now)
    gate.keyring.forget()
    request.state.about = f"{made.id} {made.name} ({made.scope})"
    return {**shown(made, now), "secret": secret}


def _record(row: dict[str, Any]) -> AuditRecord:
    return {
        "id": row["audit_id"],
        "at": timestamp(row["at"]),
        "who": row["who"],
        "token": row["token_id"],
        "address": row["address"],
        "what": row["what"],
        "on": row["on_what"],
    }


def _gate(request: Request) -> Gate:
    gate: Gate = request.app.state.gate
    return gate
