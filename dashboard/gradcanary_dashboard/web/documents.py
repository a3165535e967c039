"""Middleware of the pages: their document, its Content-Security-Policy, and requests that are refused before Dash."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http import HTTPStatus
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gradcanary_dashboard.collector import client
from gradcanary_dashboard.web import assets

MAX_BODY = 2**20
"""Bytes of a request's body; a few thousand are usual."""

_DOCUMENT = {"path": "/", "raw_path": b"/"}
"""The address of the document of all pages, as a part of a scope."""


class Documents:
    """Answers the address of each page with the document of ``/``, and adds its Content-Security-Policy.

    Dash's own route for paths below ``/`` skips its set-up: the first request of a process would fail on a deep link.
    Requests to the collector have the credentials of the reader. An unknown address has the same document, with the
    status 404. Bodies for ``/``, for Dash and for the paths ``read_whole`` are read at once, and have a limit.
    """

    def __init__(self, app: ASGIApp, policy: str, is_page: Callable[[str], bool], read_whole: Sequence[str]) -> None:
        self.app = app
        self.files = assets.CompressedAssets(app)
        self.policy = policy
        self.is_page = is_page
        self.read_whole = read_whole

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if scope["method"] in ("GET", "HEAD") and self.is_page(scope["path"]):
            scope = {**scope, **_DOCUMENT}

        is_read_whole = scope["path"] in ("/", *self.read_whole) or scope["path"].startswith("/_dash-")
        if is_read_whole and not _is_small(Headers(scope=scope), scope["method"]):
            await Response("This is more than a page says.", 413)(scope, receive, send)
            return

        if scope["method"] not in ("GET", "HEAD") and not _is_own(Headers(scope=scope)):
            await Response("A page of another site may not change anything here.", 403)(scope, receive, send)
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if headers.get("content-type", "").startswith("text/html"):
                    headers.setdefault("content-security-policy", self.policy)
                    headers.setdefault("x-content-type-options", "nosniff")
                    headers.setdefault("referrer-policy", "same-origin")
            await send(message)

        with client.as_reader(Headers(scope=scope)):
            if _is_visit(scope):
                await _Visit(self.app, sending).answer(scope, receive)
                return
            answering = self.files if _is_file(scope) else self.app
            await answering(scope, receive, sending)


class _Visit:
    """Answers a browser with the pages' document for an unknown address; programs get the API's 404."""

    def __init__(self, app: ASGIApp, send: Send) -> None:
        self._app, self._send = app, send
        self._is_nowhere = False

    async def answer(self, scope: Scope, receive: Receive) -> None:
        """Answer a request."""
        await self._app(dict(scope), receive, self._passing)
        if self._is_nowhere:
            await self._app({**scope, **_DOCUMENT}, receive, self._sending_not_found)

    async def _passing(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._is_nowhere = message["status"] == HTTPStatus.NOT_FOUND
        if not self._is_nowhere:
            await self._send(message)

    async def _sending_not_found(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "status": HTTPStatus.NOT_FOUND.value}
        await self._send(message)


def _is_visit(scope: Scope) -> bool:
    """Return True if a browser navigates: only then is a document the first type that it accepts."""
    wanted = Headers(scope=scope).get("accept", "")
    return scope["method"] == "GET" and wanted.startswith("text/html") and not scope["path"].startswith("/api/")


def _is_small(headers: Headers, method: str) -> bool:
    """Return True if a body has a known length within the limit."""
    size = headers.get("content-length")
    if size is None:
        return method in ("GET", "HEAD") and "transfer-encoding" not in headers
    return size.isdecimal() and int(size) <= MAX_BODY


def _is_file(scope: Scope) -> bool:
    """Return True for a path of the assets, ours or Dash's."""
    return str(scope["path"]).startswith(("/assets/", "/_dash-component-suites/"))


def _is_own(headers: Headers) -> bool:
    """Return False if a page of another site sent the request: it would be sent on with the reader's credentials."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:
        return site in ("same-origin", "none")
    return origin is None or urlsplit(origin).netloc == headers.get("host")
