"""A webhook receiver as a user would write it: verify the signature, keep the message."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
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


@dataclass
class Receiver:
    """Listens on a free port of this machine; ``refused`` counts bodies whose signature was wrong."""

    secret: str
    told: Callable[[Message], None]
    messages: list[Message] = field(default_factory=list)
    refused: int = 0

    def __enter__(self) -> Receiver:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:  # noqa: N802 -- the name http.server calls
                body = self.rfile.read(int(self.headers["content-length"]))
                self.send_response(204 if receiver.take(body, dict(self.headers.items())) else 401)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Stay silent: the messages themselves are printed."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
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
        self.told(message)
        return True
