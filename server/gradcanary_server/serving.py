"""The process of ``gradcanary up``: uvicorn, which opens and closes the app in the open."""

import contextlib
import socket
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI

GRACE_S = 5
"""For the requests that are under way when it ends."""


class Server(uvicorn.Server):
    """Opens and closes the app itself: uvicorn would turn a refusal of ours into a stack trace."""

    def __init__(self, app: FastAPI, announce: Callable[[], None]) -> None:
        """``announce`` is called once requests are taken."""
        super().__init__(uvicorn.Config(app, lifespan="off", log_level="warning", timeout_graceful_shutdown=GRACE_S))
        self._app = app
        self._announce = announce
        self._lifetime = contextlib.AsyncExitStack()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the app, then listen; raises CollectorError where the app cannot be opened."""
        await self._lifetime.enter_async_context(self._app.router.lifespan_context(self._app))
        await super().startup(sockets)
        if self.started:
            self._announce()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer what is under way, then close the app."""
        await super().shutdown(sockets)
        await self._lifetime.aclose()
