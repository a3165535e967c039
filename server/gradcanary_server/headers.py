"""What every answer says to browsers: what it may load, where it may be shown, and over what it is asked for."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

ALWAYS = {
    # Pages say what they load; anything else is no document and loads nothing.
    "content-security-policy": "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    # Not no-referrer, for which browsers send "Origin: null" with a form.
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}

OVER_TLS = {"strict-transport-security": "max-age=31536000"}
"""Only on TLS's own port: browsers hold it for every port of a name, and TensorBoard beside us may have no TLS."""

_ALWAYS = [(name.encode(), value.encode()) for name, value in ALWAYS.items()]
_OVER_TLS = [(name.encode(), value.encode()) for name, value in OVER_TLS.items()]


class SecurityHeaders:
    """Add these headers to every answer that does not have its own of that name."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message["headers"]}
                added = [*_ALWAYS, *_OVER_TLS] if _is_on_tls_port(scope) else _ALWAYS
                message["headers"] = [*message["headers"], *(each for each in added if each[0] not in given)]
            await send(message)

        await self.app(scope, receive, sending)


def _is_on_tls_port(scope: Scope) -> bool:
    host = Headers(scope=scope).get("host", "")
    return scope["scheme"] == "https" and host.rpartition("]")[2].partition(":")[2] in ("", "443")
