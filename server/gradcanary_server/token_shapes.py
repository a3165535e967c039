"""What is answered of tokens and of who changed what, as types; see :mod:`gradcanary_server.run_shapes`."""

from __future__ import annotations

from typing import Annotated

from typing_extensions import TypedDict

from gradcanary_server.messages import Moment
from gradcanary_server.run_shapes import one_of


class TokenShape(TypedDict):
    """A token without its secret; ``holds``: it opens something now."""

    id: int
    name: str
    scope: Annotated[str, one_of("ingest", "read", "admin")]
    holds: bool
    created: Moment
    expires: Moment | None
    last_used: Moment | None
    revoked: Moment | None


class TokenList(TypedDict):
    """The tokens that hold, and for thirty days those that do no more."""

    tokens: list[TokenShape]


class NewTokenShape(TokenShape):
    """A token that was just made, with its secret."""

    secret: str


class AuditRecord(TypedDict):
    """Who did what on what, from where; ``token`` is null where it was done without one."""

    id: int
    at: Moment
    who: str
    token: int | None
    address: str
    what: str
    on: str


class AuditPage(TypedDict):
    """Who changed what, the newest first; ``next`` is the ``before`` of the following page."""

    audit: list[AuditRecord]
    next: int | None
