"""Access tokens, web sessions and the audit log in the tables.

Of a secret only its SHA-256 is stored. A secret is 32 random bytes, so no attacker can try them all: a slow hash
protects passwords, and would cost each request of an agent as much as a batch.
"""

import hashlib
import re
import secrets
from dataclasses import dataclass, replace
from typing import cast

from sqlalchemy import ColumnElement, Connection, and_, delete, func, insert, or_, select, update
from typing_extensions import TypedDict

from gradcanary_server.auth.policy import SCOPES, Principal, Scope
from gradcanary_server.clock import UnixTime
from gradcanary_server.errors import RequestError, invalid
from gradcanary_server.storage.database import Record
from gradcanary_server.storage.pagination import PageOrder
from gradcanary_server.storage.schema import audit, new_id, token, web_session

DAY_S = 86_400.0

MAX_TOKENS = 1_000
"""Valid tokens at a time: every collector keeps them in memory."""

MAX_DAYS = 3_650
REMEMBERED_S = 30 * DAY_S
"""A token is listed for so long after its end."""

WEB_SESSION_S = 7 * DAY_S
MAX_WEB_SESSIONS = 50
"""Of one token at a time; the oldest ends when another one begins."""

FIRST_TOKENS: dict[Scope, str] = {"admin": "first administrator", "ingest": "agents"}
"""Names of the tokens that a collector creates in a store without a valid admin token."""

NAME = r"^[^\u0000-\u001f\u007f-\u009f]{1,100}$"
_NAME = re.compile(NAME.replace("$", r"\Z"))

_SECRET_BYTES = 32

REFUSED = "refused"
"""The audit record of an unknown secret."""

KEPT_S = 366 * DAY_S
REFUSED_KEPT_S = 30 * DAY_S
"""Any client can cause these records: they must not fill the disk, nor replace others."""

PAGE = 100


@dataclass(frozen=True)
class Token:
    """A token without its secret; times are of the database's clock, ``last_used`` to the minute."""

    id: int
    name: str
    scope: Scope
    created: UnixTime
    expires: UnixTime | None
    last_used: UnixTime | None
    revoked: UnixTime | None

    def is_valid(self, now: float) -> bool:
        return self.revoked is None and (self.expires is None or self.expires > now)


@dataclass(frozen=True)
class Credential:
    """A valid token or web session; ``last_used`` is that of the token, as stored."""

    token_id: int
    principal: Principal
    expires: float | None
    last_used: float | None


class AuditRecord(TypedDict):
    """The actor of a change, the action and its target; ``token`` is null for a change without one."""

    id: int
    at: UnixTime
    actor: str
    token: int | None
    address: str
    action: str
    target: str


_TOKEN = [token.c[name] for name in ("token_id", "name", "scope", "created", "expires", "last_used", "revoked")]

_RECORD = (
    audit.c.audit_id.label("id"),
    audit.c.at,
    audit.c.actor,
    audit.c.token_id.label("token"),
    audit.c.address,
    audit.c.action,
    audit.c.target,
)
_NEWEST = PageOrder((audit.c.audit_id,))


def secret_digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def create_token(connection: Connection, name: str, scope: str, days: float | None, now: float) -> tuple[Token, str]:
    """Store a new token and return it with its secret, which cannot be read again; raises RequestError 409 or 422.

    No two valid tokens have the same name: acknowledgements and the audit log name a token by it.
    """
    if not _NAME.match(name):
        raise invalid("A name has 1 to 100 characters, and no control characters: where the token is used.", "name")
    if scope not in SCOPES:
        raise invalid(f"A scope is one of {', '.join(SCOPES)}.", "scope")
    if days is not None and not 0 < days <= MAX_DAYS:
        raise invalid(f"A token holds for a number of days over 0, at most {MAX_DAYS}, or for ever.", "days")
    forgotten = now - REMEMBERED_S
    connection.execute(delete(token).where(or_(token.c.revoked < forgotten, token.c.expires < forgotten)))
    if connection.execute(select(func.count()).select_from(token).where(_is_valid(now))).scalar_one() >= MAX_TOKENS:
        raise invalid(f"There are {MAX_TOKENS} tokens already: revoke some.")
    twin = connection.scalar(select(token.c.token_id).where(token.c.name == name, _is_valid(now)))
    if twin is not None:
        message = (
            f"Token {twin} has the name {name!r}, and changes are recorded by name: choose another one, or revoke that "
            f"token before ('gradcanary token revoke {twin}')."
        )
        raise RequestError(409, "conflict", message, "name")
    secret = f"gc_{scope}_{secrets.token_urlsafe(_SECRET_BYTES)}"
    expires = None if days is None else now + days * DAY_S
    values = {"name": name, "scope": scope, "secret_hash": secret_digest(secret), "created": now, "expires": expires}
    row = connection.execute(insert(token).values(**values, **new_id(connection, token)).returning(*_TOKEN)).one()
    return Token(*row), secret


def revoke_token(connection: Connection, number: int, now: float) -> Token:
    """Revoke a token, and so its web sessions, and return it; raises RequestError 404 if it is not valid."""
    where = token.c.token_id == number, _is_valid(now)
    row = connection.execute(update(token).where(*where).values(revoked=now).returning(*_TOKEN)).first()
    if row is None:
        raise RequestError(404, "unknown_token", f"There is no token {number} here that still holds.", "token")
    return Token(*row)


def all_tokens(connection: Connection) -> list[Token]:
    """Return the tokens in the order of their creation, also those that ended lately."""
    return [Token(*row) for row in connection.execute(select(*_TOKEN).order_by(token.c.token_id))]


def ensure_first(connection: Connection, now: float) -> dict[str, str]:
    """Create the first tokens if no admin token is valid, and return their secrets by scope; else nothing."""
    admins = select(token.c.token_id).where(token.c.scope == "admin", _is_valid(now))
    if connection.execute(admins.limit(1)).first() is not None:
        return {}
    secrets_by_scope: dict[str, str] = {}
    taken = set(connection.scalars(select(token.c.name).where(_is_valid(now))))
    for scope, first in FIRST_TOKENS.items():
        others = (f"{first} {number}" for number in range(2, MAX_TOKENS + 2))
        name = next(each for each in (first, *others) if each not in taken)
        created, secrets_by_scope[scope] = create_token(connection, name, scope, None, now)
        target = f"{created.id} {created.name} ({created.scope})"
        write_audit_record(connection, now, "the collector", "", "POST /tokens", target)
    return secrets_by_scope


def credentials(connection: Connection, now: float) -> dict[str, Credential]:
    """Return the valid tokens and web sessions by the digest of their secret."""
    rows = connection.execute(select(token).where(_is_valid(now)))
    by_digest = {row.secret_hash: _credential(row) for row in rows}
    sessions = select(
        web_session.c.secret_hash.label("cookie_hash"), web_session.c.expires.label("ends"), *_TOKEN
    ).join(token)
    for row in connection.execute(sessions.where(_is_valid(now), web_session.c.expires > now)):
        ends = min(row.ends, row.expires or row.ends)
        by_digest[row.cookie_hash] = replace(_credential(row), expires=ends)
    return by_digest


def write_last_use(connection: Connection, number: int, now: float) -> None:
    connection.execute(update(token).where(token.c.token_id == number).values(last_used=now))


def create_web_session(connection: Connection, number: int, now: float) -> str:
    """Store the sign-in of a browser with a token, and return the secret for its cookie."""
    connection.execute(delete(web_session).where(web_session.c.expires <= now))
    of_token = web_session.c.token_id == number
    age = (
        (web_session.c.created > now),
        web_session.c.created.desc(),
    )  # those ahead are of before the clock was set back
    newest = select(web_session.c.secret_hash).where(of_token).order_by(*age).limit(MAX_WEB_SESSIONS - 1)
    kept = list(connection.scalars(newest))
    connection.execute(delete(web_session).where(of_token, web_session.c.secret_hash.not_in(kept)))
    secret = secrets.token_urlsafe(_SECRET_BYTES)
    row = {"secret_hash": secret_digest(secret), "token_id": number, "created": now, "expires": now + WEB_SESSION_S}
    connection.execute(insert(web_session).values(**row))
    return secret


def end_web_session(connection: Connection, secret: str) -> None:
    connection.execute(delete(web_session).where(web_session.c.secret_hash == secret_digest(secret)))


def write_audit_record(
    connection: Connection,
    now: float,
    actor: str,
    address: str,
    action: str,
    target: str = "",
    token_id: int | None = None,
) -> None:
    """Add a record to the audit log, and delete those that are too old."""
    connection.execute(delete(audit).where(audit.c.at < now - KEPT_S))
    connection.execute(delete(audit).where(audit.c.at < now - REFUSED_KEPT_S, audit.c.action == REFUSED))
    texts = {"actor": actor[:200], "address": address[:100], "action": action[:200], "target": target[:500]}
    connection.execute(insert(audit).values(at=now, token_id=token_id, **texts, **new_id(connection, audit)))


def audit_page(connection: Connection, before: str | None) -> tuple[list[AuditRecord], str | None]:
    """Return a page of records, the newest first, and the ``before`` of the next page."""
    rows, following = _NEWEST.page(connection, select(*_RECORD), before, PAGE)
    return [cast(AuditRecord, row) for row in rows], following


def _credential(row: Record) -> Credential:
    return Credential(row.token_id, Principal(row.name, row.scope, row.token_id), row.expires, row.last_used)


def _is_valid(now: float) -> ColumnElement[bool]:
    return and_(token.c.revoked.is_(None), or_(token.c.expires.is_(None), token.c.expires > now))
