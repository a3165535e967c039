"""Who may do what, and which requests are a browser's on behalf of a stranger's page: pure, on what a request says.

An *ingest* token sends measurements, a *read* token sees everything but tokens and the audit log, an *admin* token does
all of it. What is not named here takes an admin token.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args
from urllib.parse import urlsplit

Scope = Literal["ingest", "read", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)

PUBLIC = ("/healthz", "/readyz", "/sign-in", "/sign-out")
"""Answered to everybody: they tell nothing about a run."""

SAFE = ("GET", "HEAD", "OPTIONS")
"""Methods that change nothing."""

_INGEST = re.compile(r"/api/v1/runs/[^/]+/sessions/[^/]+(/.*)?", re.DOTALL)
_SECRETIVE = re.compile(r"/api/v1/(tokens|audit)(/.*)?", re.DOTALL)
_QUESTION = "/_dash-update-component"
"""A page asks for its contents with POST; it changes nothing."""


@dataclass(frozen=True)
class Asker:
    """Who makes a request; ``token_id`` is None where nobody is asked for a token."""

    name: str
    scope: Scope
    token_id: int | None = None

    def may(self, needed: Scope) -> bool:
        """Tell whether that is within the scope."""
        return self.scope in ("admin", needed)


LOOPBACK = Asker("loopback", "admin")
"""Whoever is on this machine, where the collector listens for nobody else."""


def needed(method: str, path: str) -> Scope | None:
    """Return the scope that a request takes, None where it takes none."""
    if path in PUBLIC:
        return None
    if _INGEST.fullmatch(path) and method in ("PUT", "POST"):
        return "ingest"
    if _SECRETIVE.fullmatch(path):
        return "admin"
    return "read" if method in SAFE or (path, method) == (_QUESTION, "POST") else "admin"


def is_write(method: str, path: str) -> bool:
    """Tell whether a person or a script changes something: what is kept in the audit log."""
    return path.startswith("/api/") and method not in SAFE and not _INGEST.fullmatch(path)


def is_own(headers: Mapping[str, str], public_url: str) -> bool:
    """Tell whether a request that may change something is not sent by a page of another site.

    Browsers say where a request comes from, in ``Sec-Fetch-Site`` or ``Origin``, which no page can change; other
    programs say neither.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site in ("same-origin", "none")
    origin = headers.get("origin")
    return origin is None or _place(origin) in (_place(f"//{headers.get('host', '')}"), _place(public_url))


def is_of_browser(headers: Mapping[str, str]) -> bool:
    """Tell whether a request says where it comes from, as each browser's does that may change something."""
    return "sec-fetch-site" in headers or "origin" in headers


def is_navigation(method: str, path: str, headers: Mapping[str, str]) -> bool:
    """Tell whether a person opens a page, who can be asked to sign in."""
    return method in ("GET", "HEAD") and not path.startswith("/api/") and "text/html" in headers.get("accept", "")


def local_path(wanted: str) -> str:
    """Return an address within these pages: the wanted one if it is, else the first page's."""
    is_local = wanted.startswith("/") and not wanted.startswith(("//", "/\\")) and wanted.isprintable()
    return wanted if is_local else "/"


def _place(url: str) -> tuple[str | None, int | None] | None:
    """Return host and port of an address; the default ports are none."""
    try:
        host, port = urlsplit(url).hostname, urlsplit(url).port
    except ValueError:
        return None
    return host, None if port in (80, 443) else port
