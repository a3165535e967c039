"""Routes of access tokens and of the audit log, for administrators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Path, Request
from pydantic import Field
from typing_extensions import TypedDict

from gradcanary_server.api.http import JsonRoute
from gradcanary_server.api.models import one_of
from gradcanary_server.api.services import GateDep
from gradcanary_server.auth import tokens
from gradcanary_server.auth.policy import SCOPES
from gradcanary_server.auth.tokens import AuditRecord, Token
from gradcanary_server.errors import invalid
from gradcanary_server.storage.schema import MAX_ID
from gradcanary_server.validation import Body

router = APIRouter(prefix="/api/v1", route_class=JsonRoute)

Days = Annotated[float, Field(json_schema_extra={"exclusiveMinimum": 0, "maximum": tokens.MAX_DAYS})]


class TokenCreate(Body):
    """A token to create; without ``days`` it is valid until it is revoked."""

    name: Annotated[str, Field(json_schema_extra={"pattern": tokens.NAME})]
    scope: Annotated[str, one_of(*SCOPES)]
    days: Days | None = None


@dataclass(frozen=True)
class TokenShape(Token):
    """A token without its secret; ``active``: it is valid now."""

    active: bool


class TokenList(TypedDict):
    """The valid tokens, and for thirty days those that are not valid any more."""

    tokens: list[TokenShape]


@dataclass(frozen=True)
class NewTokenShape(TokenShape):
    """A new token, with its secret."""

    secret: str


class AuditPage(TypedDict):
    """Records of changes, newest first; ``next`` is the ``before`` of the following page."""

    audit: list[AuditRecord]
    next: str | None


@router.get("/tokens")
def list_tokens(gate: GateDep) -> TokenList:
    """Answer the tokens without their secrets, also those that ended in the last thirty days."""
    with gate.database.read() as connection:
        now = gate.database.now(connection)
        listed = tokens.all_tokens(connection)
    return {"tokens": [TokenShape(**vars(token), active=token.is_valid(now)) for token in listed]}


@router.post("/tokens", status_code=201)
def create_token(request: Request, gate: GateDep, new: TokenCreate) -> NewTokenShape:
    """Create a token, and answer 201 with it and its secret, which no other answer has."""
    with gate.database.write() as connection:
        now = gate.database.now(connection)
        token, secret = tokens.create_token(connection, new.name, new.scope, new.days, now)
    gate.token_cache.invalidate()
    request.state.about = f"{token.id} {token.name} ({token.scope})"
    return NewTokenShape(**vars(token), active=True, secret=secret)


@router.delete("/tokens/{number}", status_code=204)
def revoke_token(
    request: Request, gate: GateDep, number: Annotated[int, Path(json_schema_extra={"minimum": 1, "maximum": MAX_ID})]
) -> None:
    """Revoke a token; other collectors of the store refuse it within five seconds."""
    if not 0 < number <= MAX_ID:
        raise invalid(f"A token's number is 1 to {MAX_ID}.", "token")
    with gate.database.write() as connection:
        token = tokens.revoke_token(connection, number, gate.database.now(connection))
    gate.token_cache.invalidate()
    request.state.about = f"{token.name} ({token.scope})"


@router.get("/audit")
def list_audit(gate: GateDep, before: str | None = None) -> AuditPage:
    """Answer records of changes, newest first; ``next`` is the ``before`` of the following page."""
    with gate.database.read() as connection:
        records, following = tokens.audit_page(connection, before)
    return {"audit": records, "next": following}
