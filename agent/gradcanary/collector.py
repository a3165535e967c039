"""A collector asked by somebody at a terminal: JSON in, JSON out, one connection per question."""

from __future__ import annotations

import http.client
import json
import os
from typing import Any
from urllib.parse import urlencode, urlsplit

from gradcanary.transport import Answer, Connection, trusted

TOKEN = "Give a token with --token or GRADCANARY_TOKEN, which ps does not show."  # noqa: S105 -- what to do for one


class CollectorError(Exception):
    """The collector did not do what it was asked; the message says why. ``is_refusal``: because of what was typed."""

    def __init__(self, message: str, *, is_refusal: bool = False) -> None:
        super().__init__(message)
        self.is_refusal = is_refusal


class Collector:
    """The API of one collector."""

    def __init__(self, url: str, token: str | None) -> None:
        self.url = url
        self._token = token

    def ask(self, method: str, path: str, body: object = None, **query: str | int | None) -> Any:  # noqa: ANN401 -- JSON
        """Return the JSON that the collector answers, None where there is none; raises CollectorError."""
        asked = urlencode({name: value for name, value in query.items() if value is not None})
        try:
            answer = self._exchange(method, f"{path}?{asked}" if asked else path, body)
        except (OSError, http.client.HTTPException) as error:
            raise CollectorError(
                f"the collector at {self.url} does not answer ({error or type(error).__name__}): "
                "start it with 'gradcanary up', or say where it is with --url or GRADCANARY_URL"
            ) from error
        if answer.status in (401, 403) and answer.message:
            raise CollectorError(f"{answer.message} {TOKEN}", is_refusal=True)
        if 400 <= answer.status < 500 and answer.message:
            raise CollectorError(answer.message, is_refusal=True)
        try:
            if answer.status < 300:
                return json.loads(answer.body) if answer.body else None
        except ValueError:
            pass  # somebody else listens there
        raise CollectorError(f"{self.url} answered {answer.status} {answer.message or 'and no JSON of a collector'}")

    def _exchange(self, method: str, path: str, body: object) -> Answer:
        parts = urlsplit(self.url)
        headers = {"content-type": "application/json"}
        if self._token is not None:
            headers["authorization"] = f"Bearer {self._token}"
        context = trusted(os.environ) if parts.scheme == "https" else None
        connection = Connection(parts.hostname or "", parts.port, context)
        try:
            content = None if body is None else json.dumps(body).encode()
            connection.request(method, f"{parts.path.rstrip('/')}/api/v1{path}", content, headers)
            response = connection.getresponse()
            return Answer(response.status, response.read(), None)
        finally:
            connection.close()
