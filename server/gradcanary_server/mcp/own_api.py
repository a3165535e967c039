"""The collector's own API, called within the process with the rights of the person who calls a tool.

A request passes the whole app again: its token needs the scope of the route, a change is in the audit log with its
name, and a tool can answer nothing that the API does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import urlencode

import orjson
from anyio import from_thread
from starlette.requests import Request
from starlette.types import Message

KEPT_HEADERS = (b"host", b"authorization", b"cookie", b"origin", b"sec-fetch-site")
"""Of the caller: what access control looks at."""

KEPT = ("type", "asgi", "http_version", "scheme", "server", "client", "root_path")


class ApiError(Exception):
    """A refusal of the API: its status, code, message and field."""

    def __init__(self, status: int, error: Mapping[str, Any]) -> None:
        super().__init__(str(error["message"]))
        self.status, self.code, self.field = status, str(error["code"]), str(error["field"] or "")


class Api(Protocol):
    """The API as the tools call it, from a thread."""

    def request(self, method: str, path: str, /, *, body: object = None, **query: object) -> Any:  # noqa: ANN401 -- JSON
        """Return the JSON of an answer, None without a body; raises ApiError."""


class OwnApi:
    """The API of the app that serves a request, with the rights of its sender."""

    def __init__(self, request: Request) -> None:
        self._scope = request.scope

    def request(self, method: str, path: str, /, *, body: object = None, **query: object) -> Any:  # noqa: ANN401 -- JSON
        """Return the JSON of an answer, None without a body; raises ApiError. ``path`` follows /api/v1."""
        pairs = [(name, each) for name, value in query.items() for each in _values(value)]
        status, raw = from_thread.run(self._exchange, method, f"/api/v1{path}", urlencode(pairs), body)
        answer: Any = orjson.loads(raw) if raw else None
        if status >= 400:
            raise ApiError(status, answer["error"])
        return answer

    async def _exchange(self, method: str, path: str, query: str, body: object) -> tuple[int, bytes]:
        """Send a request to the app, and return the status and the body of its answer."""
        headers = [(name, value) for name, value in self._scope["headers"] if name in KEPT_HEADERS]
        scope = {
            **{key: self._scope[key] for key in KEPT if key in self._scope},
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [*headers, (b"content-type", b"application/json")],
            "state": {},
        }
        requests: asyncio.Queue[Message] = asyncio.Queue()  # after the one request: no disconnect
        requests.put_nowait({"type": "http.request", "body": b"" if body is None else orjson.dumps(body)})
        status, parts = 500, []

        async def send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body":
                parts.append(message.get("body", b""))

        await self._scope["app"](scope, requests.get, send)
        return status, b"".join(parts)


def _values(value: object) -> list[str]:
    """Return the values of a parameter of a query: none for None, several for a list."""
    if value is None:
        return []
    items = value if isinstance(value, (list, tuple)) else [value]
    return [str(item).lower() if isinstance(item, bool) else str(item) for item in items]
