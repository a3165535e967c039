"""The API of a collector for scripts and commands: JSON in, JSON out.

Whatever needs HTTP or TLS is imported by the function that uses it: ``gradcanary run`` starts a training.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

if TYPE_CHECKING:
    import ssl

    from gradcanary.export.transport import Answer, Connection

BLOCK_BYTES = 2**18
"""Bytes of a streamed answer that are read at a time, at most."""

STREAM_TIMEOUT_S = 120.0
"""For the next bytes of a streamed answer: the collector may have to look for samples through a long run."""

TOKEN = """\
Give a token with --token or GRADCANARY_TOKEN, which ps does not show. 'gradcanary token create' makes one where the \
collector runs."""  # noqa: S105 -- a sentence


class CollectorError(Exception):
    """A request to the collector failed; ``is_refusal``: because of the arguments of the command.

    ``field`` is the argument in the API, empty if the collector names none.
    """

    def __init__(self, message: str, *, is_refusal: bool = False, field: str = "") -> None:
        super().__init__(message)
        self.is_refusal, self.field = is_refusal, field


class CollectorClient:
    """The API of one collector: JSON in, JSON out, one connection per request."""

    def __init__(self, url: str, token: str | None) -> None:
        self.url = url
        self._token = token

    def request(self, method: str, path: str, body: object = None, **query: str | int | None) -> Any:  # noqa: ANN401 -- JSON
        """Return the JSON of the answer, None if it has no body; raises CollectorError."""
        import http.client

        given = urlencode({name: value for name, value in query.items() if value is not None})
        try:
            answer = self._exchange(method, f"{path}?{given}" if given else path, body)
        except (OSError, http.client.HTTPException) as error:
            raise self._no_answer(error) from error
        try:
            if answer.status < 300:
                return json.loads(answer.body) if answer.body else None
        except ValueError:
            pass  # another program listens there
        raise self._refusal(answer)

    def stream(self, path: str, query: Sequence[tuple[str, str | int]] = ()) -> Generator[bytes]:
        """Yield the body of a GET in blocks as it comes; raises CollectorError, also if it is cut off.

        To be closed (:func:`contextlib.closing`) where it is not read to its end.
        """
        import http.client

        from gradcanary.export.transport import Answer

        response: http.client.HTTPResponse | None = None
        try:
            with closing(self._connection()) as connection:
                self._send(connection, "GET", f"{path}?{urlencode(query)}" if query else path, None)
                connection.sock.settimeout(STREAM_TIMEOUT_S)
                response = connection.getresponse()
                if response.status >= 300:
                    raise self._refusal(Answer(response.status, response.read(), None))
                while block := response.read1(BLOCK_BYTES):
                    yield block
                if response.length:
                    raise http.client.IncompleteRead(b"", response.length)
        except (OSError, http.client.HTTPException) as error:
            if response is None:
                raise self._no_answer(error) from error
            reason = f"the answer of {self.url} was cut off ({error or type(error).__name__})"
            raise CollectorError(reason) from error

    def _no_answer(self, error: Exception) -> CollectorError:
        return CollectorError(
            f"the collector at {self.url} does not answer ({error or type(error).__name__}): "
            "start it with 'gradcanary up', or give its address with --url or GRADCANARY_URL"
        )

    def _refusal(self, answer: Answer) -> CollectorError:
        if answer.status in (401, 403) and answer.message:
            return CollectorError(f"{answer.message} {TOKEN}", is_refusal=True)
        if 400 <= answer.status < 500 and answer.message:
            return CollectorError(answer.message, is_refusal=True, field=answer.field)
        return CollectorError(f"{self.url} answered {answer.status} {answer.message or 'and no JSON of a collector'}")

    def pages(self, path: str, key: str, cursor: str, most: int, **query: str | None) -> tuple[list[Any], str | None]:
        """Return the items under ``key`` of up to ``most`` pages, and the cursor of the next page if there is one."""
        items: list[Any] = []
        for _ in range(most):
            page = self.request("GET", path, **query)
            items += page[key]
            query[cursor] = page["next"]
            if query[cursor] is None:
                break
        return items, query[cursor]

    def _exchange(self, method: str, path: str, body: object) -> Answer:
        from gradcanary.export.transport import Answer

        with closing(self._connection()) as connection:
            self._send(connection, method, path, None if body is None else json.dumps(body).encode())
            response = connection.getresponse()
            return Answer(response.status, response.read(), None)

    def _connection(self) -> Connection:
        from gradcanary.export.transport import Connection

        parts = urlsplit(self.url)
        return Connection(parts.hostname or "", parts.port, tls_context(self.url))

    def _send(self, connection: Connection, method: str, path: str, content: bytes | None) -> None:
        headers = {"content-type": "application/json"}
        if self._token is not None:
            headers["authorization"] = f"Bearer {self._token}"
        connection.request(method, f"{urlsplit(self.url).path.rstrip('/')}/api/v1{path}", content, headers)


def tls_context(url: str) -> ssl.SSLContext | None:
    """Return the TLS context for a collector, None for one without TLS; raises OSError on a wrong CA file."""
    from gradcanary.export import transport

    return transport.tls_context(os.environ) if urlsplit(url).scheme == "https" else None
