"""The dashboard as a Dash app on a FastAPI server: on the collector's own, or alone."""

from __future__ import annotations

import ssl
from http import HTTPStatus
from urllib.parse import urlsplit

from dash import Dash
from fastapi import FastAPI
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gradcanary_dashboard import callbacks, client, csv_files, files, news, on_demand, pages, rule_actions, shell
from gradcanary_dashboard.client import Collector

MAX_BODY = 2**20
"""Bytes that a page sends; a few thousand are usual."""


def mount(
    server: FastAPI,
    collector_url: str,
    *,
    public_url: str | None = None,
    signs_in: bool = False,
    trusted: ssl.SSLContext | None = None,
) -> Dash:
    """Put the pages onto a collector's server at ``/``; they ask it at ``collector_url`` over HTTP, as whoever reads.

    ``public_url`` is the address that people use, ``signs_in`` whether they have to, ``trusted`` whose TLS is believed.
    """
    return _mount(server, Collector(collector_url, as_reader=signs_in, public_url=public_url, trusted=trusted))


def _mount(server: FastAPI, collector: Collector) -> Dash:
    files.register(server)
    news.register(server, collector)
    on_demand.register(server, collector)
    csv_files.register(server, collector)
    rule_actions.register(server, collector)
    others = list(server.user_middleware)
    app = Dash(
        "gradcanary_dashboard",
        server=server,  # type: ignore[arg-type]  # Dash takes a FastAPI app; its annotation still says Flask
        title="gradcanary",
        update_title=None,  # type: ignore[arg-type]  # None, its documented way to leave the title alone
        serve_locally=True,
        index_string=shell.INDEX,
        assets_ignore=".*",  # they are in our own document, as two files
        suppress_callback_exceptions=True,
        add_log_handler=False,
    )
    # Every callback answers by HTTP; with the capability each tab would open a WebSocket that nothing uses.
    app.backend.websocket_capability = False
    app.layout = shell.layout(collector.public_url, signs_in=collector.as_reader)
    callbacks.register(app, collector)

    # Ours and Dash's come last, behind the collector's own: Dash reads bodies before it knows whether anybody may ask,
    # and who lets people in has to see which page they want.
    dashs = server.user_middleware[: len(server.user_middleware) - len(others)]
    server.user_middleware[:] = [*others, Middleware(Documents, policy=shell.policy(app)), *dashs]
    return app


class Documents:
    """Answer the address of each page with the document of ``/``, and say of each document what it may load.

    Dash's own route for paths below ``/`` skips its set-up: the first request of a process would fail on a deep link.
    What a page asks the collector is asked with the credentials of the reader.
    """

    def __init__(self, app: ASGIApp, policy: str) -> None:
        self.app = app
        self.files = files.Packed(app)
        self.policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if scope["method"] in ("GET", "HEAD") and pages.is_page(scope["path"]):
            scope = {**scope, "path": "/", "raw_path": b"/"}

        is_read_whole = scope["path"] in ("/", rule_actions.PATH) or scope["path"].startswith("/_dash-")
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

        with client.reading_as(Headers(scope=scope)):
            if _is_visit(scope):
                await _Visit(self.app, sending).answer(scope, receive)
                return
            answering = self.files if _is_file(scope) else self.app
            await answering(scope, receive, sending)


class _Visit:
    """Answers whoever looks for a page with one, where there is nothing: the API's 404 is for programs."""

    def __init__(self, app: ASGIApp, send: Send) -> None:
        self._app, self._send = app, send
        self._is_nowhere = False

    async def answer(self, scope: Scope, receive: Receive) -> None:
        """Answer a request."""
        await self._app(scope, receive, self._passing)
        if self._is_nowhere:
            await HTMLResponse(shell.NOWHERE, HTTPStatus.NOT_FOUND)(scope, receive, self._send)

    async def _passing(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._is_nowhere = message["status"] == HTTPStatus.NOT_FOUND
        if not self._is_nowhere:
            await self._send(message)


def _is_visit(scope: Scope) -> bool:
    """Tell whether a person looks for a page: only browsers that go somewhere want a document before all else."""
    wanted = Headers(scope=scope).get("accept", "")
    return scope["method"] == "GET" and wanted.startswith("text/html") and not scope["path"].startswith("/api/")


def _is_small(headers: Headers, method: str) -> bool:
    """Tell whether a body is one that pages send: each of them is read whole."""
    size = headers.get("content-length")
    if size is None:
        return method in ("GET", "HEAD") and "transfer-encoding" not in headers
    return size.isdecimal() and int(size) <= MAX_BODY


def _is_file(scope: Scope) -> bool:
    """Tell whether a file is asked for: one of ours or of Dash's."""
    return str(scope["path"]).startswith(("/assets/", "/_dash-component-suites/"))


def _is_own(headers: Headers) -> bool:
    """Tell whether a request does not come from a page of another site: a page here asks the collector in its name."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:
        return site in ("same-origin", "none")
    return origin is None or urlsplit(origin).netloc == headers.get("host")


def create_app(collector_url: str, *, token: str | None = None, trusted: ssl.SSLContext | None = None) -> FastAPI:
    """Return a server that holds the dashboard and nothing else; it reads with one token for all who ask it."""
    server = FastAPI(openapi_url=None)
    server.add_middleware(GZipMiddleware, minimum_size=1000, compresslevel=1)
    _mount(server, Collector(collector_url, token=token, trusted=trusted))
    return server
