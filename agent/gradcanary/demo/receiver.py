"""A webhook receiver as a user would write it: verify the signature, keep the message."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Message:
    """A verified webhook: when it came (unix seconds), its id, and what it said."""

    at: float
    id: str
    content: dict[str, Any]

    @property
    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = self.content["data"]
        return found


class Receiver:
    """Listens on a free port of this machine; ``refused`` counts bodies whose signature was wrong."""

    def __init__(self, secret: str, told: Callable[[Message], None]) -> None:
        self.secret = secret
        self.messages: list[Message] = []
        self.refused = 0
        self._told = told
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                self.send_response(204 if receiver.take(body, dict(self.headers.items())) else 401)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Stay silent: the messages themselves are printed."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Listen no more."""
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/"

    def take(self, body: bytes, headers: dict[str, str]) -> bool:
        """Keep a body whose signature is right, and tell of it."""
        from standardwebhooks import Webhook, WebhookVerificationError

        try:
            Webhook(self.secret).verify(body, {name.lower(): value for name, value in headers.items()})
        except WebhookVerificationError:
            self.refused += 1
            return False
        lower = {name.lower(): value for name, value in headers.items()}
        message = Message(time.time(), lower["webhook-id"], json.loads(body))
        self.messages.append(message)
        self._told(message)
        return True
