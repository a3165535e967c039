"""Access tokens in the tables, and visits: browsers that signed in with one.

Of a secret only its SHA-256 is kept. It is 32 random bytes, so nobody can try them all: a slow hash protects words that
people choose, and would here cost each request of an agent what a batch costs.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass, replace

from sqlalchemy import ColumnElement, Connection, and_, delete, func, insert, or_, select, update

from gradcanary_server import audit
from gradcanary_server.database import Record
from gradcanary_server.errors import RequestError, invalid
from gradcanary_server.rights import SCOPES, Asker, Scope
from gradcanary_server.schema import token, visit

MOST = 1_000
"""Tokens that hold at a time: every collector keeps them in memory."""

LONGEST_DAYS = 3_650
VISIT_S = 7 * 86_400.0
MOST_VISITS = 50
"""Of one token at a time; the oldest ends where there is another one."""

FIRST: dict[Scope, str] = {"admin": "first administrator", "ingest": "agents"}
"""The tokens that a collector makes which asks for tokens and has nobody to make any, by their names."""

REMEMBERED_S = 30 * 86_400.0
"""How long a token is listed that holds no more."""

_SECRET_BYTES = 32
NAME = r"^[^\u0000-\u001f\u007f-\u009f]{1,100}$"
_NAME = re.compile(NAME.replace("$", r"\Z"))


@dataclass(frozen=True)
class Token:
    """A token without its secret; times are unix seconds by the database's clock, ``last_used`` to the minute."""

    id: int
    name: str
    scope: Scope
    created: float
    expires: float | None
    last_used: float | None
    revoked: float | None

    def holds(self, now: float) -> bool:
        """Tell whether it opens anything."""
        return self.revoked is None and (self.expires is None or self.expires > now)


@dataclass(frozen=True)
class Key:
    """What opens: until when it holds, by whom it is used, and when that was last noted."""

    token_id: int
    asker: Asker
    expires: float | None
    noted: float | None


_COLUMNS = [token.c[each] for each in ("token_id", "name", "scope", "created", "expires", "last_used", "revoked")]


def digest(secret: str) -> str:
    """Return what is kept of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


def create(connection: Connection, name: str, scope: str, days: float | None, now: float) -> tuple[Token, str]:
    """Store a new token and return it with its secret, which is not to be had again; raises RequestError 422."""
    _check(name, scope, days)
    _forget(connection, now)
    if connection.execute(select(func.count()).select_from(token).where(_holding(now))).scalar_one() >= MOST:
        raise invalid(f"There are {MOST} tokens already: revoke some.")
    secret = f"gc_{scope}_{secrets.token_urlsafe(_SECRET_BYTES)}"
    expires = None if days is None else now + days * 86_400.0
    values = {"name": name, "scope": scope, "secret_hash": digest(secret), "created": now, "expires": expires}
    row = connection.execute(insert(token).values(**values).returning(*_COLUMNS)).one()
    return Token(*row), secret


def revoke(connection: Connection, number: int, now: float) -> Token:
    """End a token, and so its visits, and return it; raises RequestError 404 where none of that number holds."""
    mine = token.c.token_id == number
    row = connection.execute(update(token).where(mine, _holding(now)).values(revoked=now).returning(*_COLUMNS)).first()
    if row is None:
        raise RequestError(404, "unknown_token", f"There is no token {number} here that still holds.", "token")
    return Token(*row)


def every(connection: Connection) -> list[Token]:
    """Return the tokens in the order in which they were made, those that ended lately among them."""
    return [Token(*row) for row in connection.execute(select(*_COLUMNS).order_by(token.c.token_id))]


def ensure_first(connection: Connection, now: float) -> dict[str, str]:
    """Make the first tokens where nobody can administer, and return their secrets by scope; else nothing."""
    admins = select(token.c.token_id).where(token.c.scope == "admin", _holding(now))
    if connection.execute(admins.limit(1)).first() is not None:
        return {}
    secrets_by_scope: dict[str, str] = {}
    for scope, name in FIRST.items():
        made, secrets_by_scope[scope] = create(connection, name, scope, None, now)
        audit.write(connection, now, "the collector", "", "POST /tokens", f"{made.id} {made.name} ({made.scope})")
    return secrets_by_scope


def keys(connection: Connection, now: float) -> dict[str, Key]:
    """Return what opens now, by the digest of its secret: tokens and visits."""
    found = {row.secret_hash: _key(row) for row in connection.execute(select(token).where(_holding(now)))}
    visits = select(visit.c.secret_hash.label("cookie_hash"), visit.c.expires.label("ends"), *_COLUMNS).join(token)
    for row in connection.execute(visits.where(_holding(now), visit.c.expires > now)):
        key = _key(row)
        found[row.cookie_hash] = replace(key, expires=min(row.ends, key.expires or row.ends))
    return found


def note_use(connection: Connection, number: int, now: float) -> None:
    """Store when a token was used."""
    connection.execute(update(token).where(token.c.token_id == number).values(last_used=now))


def begin_visit(connection: Connection, number: int, now: float) -> str:
    """Store that a browser signed in with a token, and return the secret for its cookie."""
    connection.execute(delete(visit).where(visit.c.expires <= now))
    mine = visit.c.token_id == number
    age = ((visit.c.created > now), visit.c.created.desc())  # those ahead are of before the clock was set back
    newest = select(visit.c.secret_hash).where(mine).order_by(*age).limit(MOST_VISITS - 1)
    kept = list(connection.scalars(newest))
    connection.execute(delete(visit).where(mine, visit.c.secret_hash.not_in(kept)))
    secret = secrets.token_urlsafe(_SECRET_BYTES)
    row = {"secret_hash": digest(secret), "token_id": number, "created": now, "expires": now + VISIT_S}
    connection.execute(insert(visit).values(**row))
    return secret


def end_visit(connection: Connection, secret: str) -> None:
    """Forget a browser that signed out."""
    connection.execute(delete(visit).where(visit.c.secret_hash == digest(secret)))


def _key(row: Record) -> Key:
    return Key(row.token_id, Asker(row.name, row.scope, row.token_id), row.expires, row.last_used)


def _check(name: str, scope: str, days: float | None) -> None:
    if not _NAME.match(name):
        raise invalid("A name has 1 to 100 characters, and no control characters: where the token is used.", "name")
    if scope not in SCOPES:
        raise invalid(f"A scope is one of {', '.join(SCOPES)}.", "scope")
    if days is not None and not 0 < days <= LONGEST_DAYS:
        raise invalid(f"A token holds for a number of days over 0, at most {LONGEST_DAYS}, or for ever.", "days")


def _forget(connection: Connection, now: float) -> None:
    gone = now - REMEMBERED_S
    connection.execute(delete(token).where(or_(token.c.revoked < gone, token.c.expires < gone)))


def _holding(now: float) -> ColumnElement[bool]:
    return and_(token.c.revoked.is_(None), or_(token.c.expires.is_(None), token.c.expires > now))
