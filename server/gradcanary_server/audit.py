"""Who changed what, in a table: writes of people and scripts, tokens, and who tried to get in."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, delete, insert, select

from gradcanary_server.schema import audit

REFUSED = "refused"
"""What is said of a secret that opens nothing."""

KEPT_S = 366 * 86_400.0
REFUSED_KEPT_S = 30 * 86_400.0
"""Strangers write these: they must not fill the disk, nor push anything else out."""

PAGE = 100


def write(
    connection: Connection,
    now: float,
    who: str,
    address: str,
    what: str,
    on_what: str = "",
    token_id: int | None = None,
) -> None:
    """Add a record, and forget those that are too old."""
    connection.execute(delete(audit).where(audit.c.at < now - KEPT_S))
    connection.execute(delete(audit).where(audit.c.at < now - REFUSED_KEPT_S, audit.c.what == REFUSED))
    texts = {"who": who[:200], "address": address[:100], "what": what[:200], "on_what": on_what[:500]}
    connection.execute(insert(audit).values(at=now, token_id=token_id, **texts))


def page(connection: Connection, before: int) -> list[dict[str, Any]]:
    """Return the newest records with a number under ``before``, and one more than a page where there are more."""
    query = select(audit).where(audit.c.audit_id < before).order_by(audit.c.audit_id.desc()).limit(PAGE + 1)
    return [dict(row) for row in connection.execute(query).mappings()]
