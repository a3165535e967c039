"""The process of ``gradcanary up``: uvicorn, which opens and closes the app in the open."""

import contextlib
import socket
from collections.abc import Iterator, Sequence

import uvicorn
from fastapi import FastAPI

from gradcanary_server.settings import Settings

GRACE_S = 5
"""For the requests that are under way when it ends."""


class Server(uvicorn.Server):
    """Opens and closes the app itself: uvicorn would turn a refusal of ours into a stack trace."""

    def __init__(self, app: FastAPI, url: str) -> None:
        """``url`` is where requests are taken, which is said once they are."""
        super().__init__(uvicorn.Config(app, lifespan="off", log_level="warning", timeout_graceful_shutdown=GRACE_S))
        self._app = app
        self._url = url
        self._lifetime = contextlib.AsyncExitStack()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the app, then listen; raises CollectorError where the app cannot be opened."""
        await self._lifetime.enter_async_context(self._app.router.lifespan_context(self._app))
        await super().startup(sockets)
        if self.started:
            state = self._app.state
            lines = (*told(state.settings, state.told), f"gradcanary is listening on {self._url}")
            print("\n".join(lines), flush=True)  # noqa: T201 -- what the operator waits for

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer what is under way, then close the app."""
        await super().shutdown(sockets)
        await self._lifetime.aclose()


def told(settings: Settings, whom: Sequence[str]) -> Iterator[str]:
    """Yield what an operator who starts a collector should know: where data is, which rules hold, and who is told."""
    place = settings.db.removeprefix("sqlite:///")
    yield f"data is kept in {'the database of --db' if '://' in place else place}"
    yield "rules are the defaults: --rules FILE" if settings.rules is None else f"rules are those of {settings.rules}"
    yield from whom or ("incidents are told to nobody: --webhook URL",)
