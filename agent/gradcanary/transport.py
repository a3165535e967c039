"""One connection to the collector, kept open: a request goes out, an answer comes back or the network failed."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import os
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import formatdate
from urllib.parse import quote, urlsplit

TIMEOUT_S = 10.0
MAX_ANSWER = 2**20
"""Bytes of an answer that are read: a reply names open incidents and is far smaller."""


class UnreachableError(Exception):
    """The collector did not answer; the message says how."""


@dataclass(frozen=True)
class Answer:
    """A status, a body, and how long the collector asks to wait; ``code`` is that of an error body, else empty."""

    status: int
    body: bytes
    retry_after_s: float | None

    @property
    def code(self) -> str:
        return str(self._error().get("code", ""))

    @property
    def message(self) -> str:
        return str(self._error().get("message", ""))[:500]

    def _error(self) -> dict[str, object]:
        try:
            error = json.loads(self.body)["error"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return {}
        return error if isinstance(error, dict) else {}


class Transport:
    """Talks to one session's paths of one collector."""

    def __init__(self, url: str, token: str | None, run: str, session: str) -> None:
        parts = urlsplit(url)
        self._is_tls = parts.scheme == "https"
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if self._is_tls else 80)
        self._base = f"{parts.path.rstrip('/')}/api/v1/runs/{quote(run)}/sessions/{quote(session)}"
        self._token = token
        self._trusted: ssl.SSLContext | None = None
        self._connection: http.client.HTTPConnection | None = None
        self.is_aborted = False

    def send(self, method: str, path: str, body: bytes, *, compress: bool = False) -> Answer:
        """Return the answer; raises UnreachableError."""
        # The time of now, so that the collector can tell by how much the clock here is off.
        headers = {"content-type": "application/json", "date": formatdate(usegmt=True)}
        if self._token is not None:
            headers["authorization"] = f"Bearer {self._token}"
        if compress:
            headers["content-encoding"] = "gzip"
            body = gzip.compress(body, mtime=0)
        was_open = self._connection is not None
        try:
            return self._exchange(method, path, body, headers)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if isinstance(error, ssl.SSLCertVerificationError):
                self._trusted = None  # the authority may have been renewed
            # A connection that idled may have been closed by the other side: that is no news about the collector.
            if not (was_open and isinstance(error, (http.client.RemoteDisconnected, ConnectionError))):
                raise UnreachableError(f"{type(error).__name__}: {error}") from error
        try:
            return self._exchange(method, path, body, headers)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise UnreachableError(f"{type(error).__name__}: {error}") from error

    def abort(self) -> None:
        """Make the request that is under way in another thread fail now, and each one after it."""
        self.is_aborted = True
        sock = None if self._connection is None else self._connection.sock
        if sock is not None:
            with contextlib.suppress(OSError):  # closed meanwhile
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection; the next request opens another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _exchange(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        if self.is_aborted:
            raise ConnectionAbortedError("the watch has ended")
        if self._connection is None:
            self._connection = self._connect()
        self._connection.request(method, self._base + path, body, headers)
        response = self._connection.getresponse()
        content = response.read(MAX_ANSWER)
        if response.will_close or not response.isclosed():
            self.close()
        return Answer(response.status, content, _seconds(response.getheader("retry-after")))

    def _connect(self) -> http.client.HTTPConnection:
        if self._is_tls and self._trusted is None:
            self._trusted = trusted(os.environ)  # once: to read the authorities takes longer than to connect
        return connect(self._host, self._port, self._trusted)


def trusted(environ: Mapping[str, str]) -> ssl.SSLContext:
    """Return whom TLS is believed: the authority of ``GRADCANARY_CA_FILE``, else those of the system.

    Raises OSError that names the file.
    """
    authority = environ.get("GRADCANARY_CA_FILE")
    try:
        return ssl.create_default_context(cafile=authority or None)
    except OSError as error:
        if not authority:
            raise
        raise OSError(f"GRADCANARY_CA_FILE={authority!r} is no certificate in PEM: {error}") from error


def connect(host: str, port: int | None, context: ssl.SSLContext | None) -> http.client.HTTPConnection:
    """Return a connection that opens with its first request, over TLS where there is a context for it."""
    if context is None:
        return http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    return http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=context)


def _seconds(header: str | None) -> float | None:
    return float(header) if header is not None and header.isascii() and header.isdigit() else None
