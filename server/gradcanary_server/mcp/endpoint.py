"""The endpoint /mcp: streamable HTTP without sessions; the SDK is imported at the first request.

Access control, host and origin checks and rate limits are those of every route: they come before this one. No state is
kept between two requests. Importing the SDK takes a second, which a collector that no assistant calls does not pay.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fastapi.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from gradcanary_server.errors import RequestError

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

PATH = "/mcp"

MAX_BODY = 2**18
"""Bytes of a request; the largest one has a note of 2,000 characters, and a hundred names of parameters."""

NEEDS_MCP = (
    "Assistants need the package mcp where the collector runs: pip install 'gradcanary[mcp]', or '.[mcp]' in a clone, "
    "and start the collector again."
)


class McpEndpoint:
    """The ASGI app of the endpoint of one collector."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        """Prepare for the next first request, which may come in another event loop."""
        self._starting = asyncio.Lock()
        self._ended = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None
        self._manager: StreamableHTTPSessionManager | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a POST; raises RequestError 501 without the SDK."""
        async with self._starting:
            if self._manager is None:
                await self._start()
        assert self._manager is not None  # noqa: S101 -- for the type checker: it was started
        await self._manager.handle_request(scope, receive, send)

    async def close(self) -> None:
        """End what the first request started; the next request starts it again."""
        self._ended.set()
        if self._serving is not None:
            await self._serving
        self._reset()

    async def _start(self) -> None:
        manager = await run_in_threadpool(_create_manager)
        started = asyncio.Event()
        # A task of its own: the SDK wants its task group closed by the task that opened it.
        self._serving = asyncio.create_task(self._serve(manager, started))
        await started.wait()
        self._manager = manager

    async def _serve(self, manager: StreamableHTTPSessionManager, started: asyncio.Event) -> None:
        async with manager.run():
            started.set()
            await self._ended.wait()


def _create_manager() -> StreamableHTTPSessionManager:
    try:
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
    except ModuleNotFoundError as error:
        raise RequestError(501, "no_mcp", NEEDS_MCP) from error
    from gradcanary_server.mcp.server import create_server

    return StreamableHTTPSessionManager(
        create_server(), json_response=True, stateless=True, max_request_body_size=MAX_BODY
    )
