"""ASGI middleware: access control with the audit log, and the security headers of every answer."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote

from fastapi.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gradcanary_server.api import errors
from gradcanary_server.api.http import SECURITY_HEADERS, TLS_HEADERS
from gradcanary_server.auth import policy
from gradcanary_server.auth.gate import AccessControl, address_of, path_of
from gradcanary_server.auth.policy import Principal
from gradcanary_server.errors import RequestError

MISSING = b"gradcanary-missing"
"""The header of an answer that may lack runs: the nodes of the cluster that do not answer."""


class Access:
    """Refuses a request that access control does not admit, and audits changes.

    ``request.state.asker`` is the principal.
    """

    def __init__(self, app: ASGIApp, gate: AccessControl) -> None:
        self.app = app
        self.gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})  # no route is a websocket
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        try:
            principal = await self.gate.authenticate(request)
        except RequestError as error:
            await _refusal(request, error)(scope, receive, send)
            return
        request.state.asker = principal
        if principal is not None and policy.is_write(request.method, path_of(request)):
            send = self._audited(request, principal, send)
        await self.app(scope, receive, send)

    def _audited(self, request: Request, principal: Principal, send: Send) -> Send:
        async def audit_and_send(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] < 400:
                change = f"{request.method} {path_of(request).removeprefix('/api/v1')}"
                subject = getattr(request.state, "about", "")
                await run_in_threadpool(self.gate.audit, principal, address_of(request), change, subject)
            await send(message)

        return audit_and_send


def _refusal(request: Request, error: RequestError) -> Response:
    path = path_of(request)
    if error.status == 401 and policy.is_navigation(request.method, path, request.headers):
        target = f"{path}?{request.url.query}" if request.url.query else path
        return RedirectResponse("/sign-in" if target == "/" else f"/sign-in?next={quote(target, safe='/')}", 303)
    response = errors.error_response(error)
    if error.status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


class SecurityHeaders:
    """Adds the security headers that an answer does not set itself, and MISSING while ``missing`` returns nodes."""

    def __init__(self, app: ASGIApp, missing: Callable[[], str | None]) -> None:
        self.app = app
        self.missing = missing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def add_and_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name.lower() for name, _ in message["headers"]}
                added = [*_HEADERS, *_TLS_HEADERS] if _is_on_tls_port(scope) else _HEADERS
                if (missing := self.missing()) is not None:
                    added = [*added, (MISSING, missing.encode())]
                message["headers"] = [*message["headers"], *(header for header in added if header[0] not in present)]
            await send(message)

        await self.app(scope, receive, add_and_send)


_HEADERS = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]
_TLS_HEADERS = [(name.encode(), value.encode()) for name, value in TLS_HEADERS.items()]


def _is_on_tls_port(scope: Scope) -> bool:
    host = Headers(scope=scope).get("host", "")
    return scope["scheme"] == "https" and host.rpartition("]")[2].partition(":")[2] in ("", "443")
