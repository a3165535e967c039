"""The dashboard as a Dash app on a FastAPI server: that of the collector, or its own."""

from __future__ import annotations

import ssl
from collections.abc import Sequence

from dash import Dash
from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware

from gradcanary_dashboard import callbacks, shell
from gradcanary_dashboard.collector.client import Collector
from gradcanary_dashboard.pages import registry
from gradcanary_dashboard.routes import downloads, figures, refresh, trial
from gradcanary_dashboard.web import assets
from gradcanary_dashboard.web.documents import Documents


def mount(
    server: FastAPI,
    collector_url: str,
    *,
    public_url: str | None = None,
    signs_in: bool = False,
    trusted: ssl.SSLContext | None = None,
    framed_by: Sequence[str] = (),
) -> Dash:
    """Mount the pages on a collector's server at ``/``; they read from ``collector_url`` with the reader's credentials.

    ``public_url`` is the address for people, ``signs_in`` is True if they need a token, ``trusted`` are the trusted
    certificates of TLS, ``framed_by`` are the origins whose pages may show them in a frame.
    """
    collector = Collector(collector_url, as_reader=signs_in, public_url=public_url, trusted=trusted)
    return _mount(server, collector, framed_by)


def _mount(server: FastAPI, collector: Collector, framed_by: Sequence[str] = ()) -> Dash:
    assets.register(server)
    refresh.register(server, collector)
    figures.register(server, collector)
    downloads.register(server, collector)
    trial.register(server, collector)
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

    # The collector's own come first: Dash reads bodies before the token is checked, and the sign-in needs the path.
    # Dash may add its own at either end.
    of_dash = [each for each in server.user_middleware if each not in others]
    documents = Middleware(
        Documents,
        policy=shell.policy(app, framed_by),
        is_page=registry.is_page,
        read_whole=(trial.PATH, refresh.PATH),
    )
    server.user_middleware[:] = [*others, documents, *of_dash]
    return app


def create_app(collector_url: str, *, token: str | None = None, trusted: ssl.SSLContext | None = None) -> FastAPI:
    """Return a server with the dashboard alone; it reads with one token for all readers."""
    server = _server()
    _mount(server, Collector(collector_url, token=token, trusted=trusted))
    return server


def create_pages(
    collector_url: str,
    *,
    public_url: str | None,
    signs_in: bool,
    trusted: ssl.SSLContext | None,
    framed_by: Sequence[str],
) -> FastAPI:
    """Return a server with what :func:`mount` puts on a collector's, which sends it the requests for pages."""
    server = _server()
    mount(server, collector_url, public_url=public_url, signs_in=signs_in, trusted=trusted, framed_by=framed_by)
    return server


def _server() -> FastAPI:
    server = FastAPI(openapi_url=None)
    server.add_middleware(GZipMiddleware, minimum_size=1000, compresslevel=1)
    return server
