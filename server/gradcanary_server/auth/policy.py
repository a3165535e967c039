"""Authorization policy: the scope that a request needs, and the check against cross-site requests. Pure.

An *ingest* token sends measurements, a *read* token reads the paths named here (all but tokens and the audit log), an
*admin* token does everything. A path that is not named needs an admin token.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args
from urllib.parse import urlsplit

Scope = Literal["ingest", "read", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)

PUBLIC = ("/healthz", "/readyz", "/sign-in", "/sign-out")
"""Paths without a token: they show nothing of a run."""

METRICS = "/metrics"

SAFE = ("GET", "HEAD", "OPTIONS")
"""Methods that change nothing."""

_INGEST = re.compile(r"/api/v1/runs/[^/]+/sessions/[^/]+(/.*)?", re.DOTALL)
_READABLE = re.compile(
    r"""
    /api/v1/(
        runs | runs/[^/]+
        | runs/[^/]+/(layers(/.+)?|series|heatmap|metrics|export\.csv|metrics\.csv|samples|points|recording)
        | rules
        | incidents | incidents/[^/]+ | incidents/[^/]+/picture\.png
        | silences | silences/preview
        | endpoints | endpoints/[^/]+ | endpoints/[^/]+/deliveries
        | storage | openapi\.json
    )
    # What belongs to the pages.
    | /_(metrics | cell | download | download/[^/]+ | favicon\.ico | reload-hash)
    | /_dash-(layout | dependencies | component-suites/.+)
    # The pages, which are empty until they request the routes above, and addresses that are no page: a mistyped one
    # gets a 404. /metrics and /assets are here, too.
    | /(?!_ | api(/|$)).*
    """,
    re.DOTALL | re.VERBOSE,
)
"""The paths of a read token. A new route of the API needs an admin token until it is named here."""

_POSTED_READS = ("/_dash-update-component", "/_refresh", "/mcp")
"""Paths where pages and assistants read with POST. A tool that changes something does so by a route of the API, which
needs an admin token.
"""


@dataclass(frozen=True)
class Principal:
    """The identity behind a request; ``token_id`` is None where no tokens are required."""

    name: str
    scope: Scope
    token_id: int | None = None

    def may(self, scope: Scope) -> bool:
        return self.scope in ("admin", scope)


LOOPBACK = Principal("loopback", "admin")
"""Every program on this machine, where no other machine reaches the collector."""


def required_scope(method: str, path: str) -> Scope | None:
    """Return the scope that a request needs, None for a public path."""
    if path in PUBLIC:
        return None
    if _INGEST.fullmatch(path) and method in ("PUT", "POST"):
        return "ingest"
    is_read = method in SAFE and _READABLE.fullmatch(path)
    return "read" if is_read or (path in _POSTED_READS and method == "POST") else "admin"


def is_write(method: str, path: str) -> bool:
    """Return True if a person or a script changes something: that is recorded in the audit log."""
    return path.startswith("/api/") and method not in SAFE and not _INGEST.fullmatch(path)


def is_same_site(headers: Mapping[str, str], public_url: str) -> bool:
    """Return True unless a page of another site sent the request.

    Browsers set ``Sec-Fetch-Site`` or ``Origin``, which no page can change; other programs send neither.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site in ("same-origin", "none")
    origin = headers.get("origin")
    return origin is None or _host_port(origin) in (_host_port(f"//{headers.get('host', '')}"), _host_port(public_url))


def is_browser_request(headers: Mapping[str, str]) -> bool:
    """Return True if a request has the header of its origin, as every browser's has that may change something."""
    return "sec-fetch-site" in headers or "origin" in headers


def is_navigation(method: str, path: str, headers: Mapping[str, str]) -> bool:
    """Return True if a browser opens a page: it can be redirected to the sign-in."""
    return method in ("GET", "HEAD") and not path.startswith("/api/") and "text/html" in headers.get("accept", "")


def local_path(wanted: str) -> str:
    """Return an address within these pages: the wanted one if it is one, else that of the first page."""
    is_local = wanted.startswith("/") and not wanted.startswith(("//", "/\\")) and wanted.isprintable()
    return wanted if is_local else "/"


def _host_port(url: str) -> tuple[str | None, int | None] | None:
    """Return host and port of a URL; the port is None for 80 and 443."""
    try:
        host, port = urlsplit(url).hostname, urlsplit(url).port
    except ValueError:
        return None
    return host, None if port in (80, 443) else port
