"""The dashboard as a Dash app on a FastAPI server: on the collector's own, or alone."""

from __future__ import annotations

from dash import Dash
from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from gradcanary_dashboard import callbacks, news, shell
from gradcanary_dashboard.client import Collector


def mount(server: FastAPI, collector_url: str) -> Dash:
    """Put the pages onto a server at ``/``; they ask the collector at ``collector_url`` over HTTP."""
    collector = Collector(collector_url)
    news.register(server, collector)
    app = Dash(
        "gradcanary_dashboard",
        server=server,  # type: ignore[arg-type]  # Dash takes a FastAPI app; its annotation still says Flask
        title="gradcanary",
        update_title=None,  # type: ignore[arg-type]  # None, its documented way to leave the title alone
        serve_locally=True,
        index_string=shell.INDEX,
        assets_ignore=shell.PLOTLY,
        suppress_callback_exceptions=True,
        add_log_handler=False,
    )
    # Every callback answers by HTTP; with the capability each tab would open a WebSocket that nothing uses.
    app.backend.websocket_capability = False
    app.layout = shell.layout(collector_url)
    callbacks.register(app, collector)

    server.add_middleware(RunDocuments)
    return app


class RunDocuments:
    """Answer the address of a run's page with the document of ``/``.

    Dash's own route for paths below ``/`` skips its set-up: the first request of a process would fail on a deep link.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] in ("GET", "HEAD") and scope["path"].startswith("/runs/"):
            scope = {**scope, "path": "/", "raw_path": b"/"}
        await self.app(scope, receive, send)


def create_app(collector_url: str) -> FastAPI:
    """Return a server that holds the dashboard and nothing else."""
    server = FastAPI(openapi_url=None)
    mount(server, collector_url)
    return server
