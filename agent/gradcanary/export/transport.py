"""One connection to the collector, kept open: a request returns an answer, or raises if the network failed."""

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
from typing import Any
from urllib.parse import quote, urlsplit

TIMEOUT_S = 10.0
"""For bytes to come or to go. An answer that trickles takes as long as it likes, until the request is aborted.

To look up the name of the collector takes as long as the system's resolver does: that can be neither timed nor aborted.
"""

CONNECT_S = 3.0
"""For each address of the collector. One may swallow everything, as where IPv6 is broken."""

SLOWEST = 2**17
"""Bytes a second of the slowest line that is worth waiting for: the largest body, of 4 MiB, has 32 s more."""

MAX_ANSWER = 2**20
"""Bytes of an answer that are read: a reply names open incidents and is far smaller."""


class UnreachableError(Exception):
    """The collector did not answer; the message is the network's error."""


@dataclass(frozen=True)
class Answer:
    """A status, a body, and how long the collector asks to wait.

    ``code``, ``message`` and ``field`` are those of an error body, else empty.
    """

    status: int
    body: bytes
    retry_after_s: float | None

    @property
    def code(self) -> str:
        return str(self._error().get("code", ""))

    @property
    def message(self) -> str:
        return str(self._error().get("message", ""))[:500]

    @property
    def field(self) -> str:
        return str(self._error().get("field") or "")

    def _error(self) -> dict[str, object]:
        try:
            error = json.loads(self.body)["error"]
        except (ValueError, KeyError, TypeError, RecursionError):
            return {}
        return error if isinstance(error, dict) else {}


class Connection(http.client.HTTPConnection):
    """Opens with its first request, over TLS where there is a context for it; can be aborted at any time."""

    def __init__(self, host: str, port: int | None, context: ssl.SSLContext | None) -> None:
        self.default_port = http.client.HTTP_PORT if context is None else http.client.HTTPS_PORT
        super().__init__(host, port)
        self._trusted = context
        self._latest: socket.socket | None = None
        self.is_aborted = False

    def connect(self) -> None:
        """Open a socket to the first address that takes it."""
        error: OSError | None = None
        try:
            addresses = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except UnicodeError as why:  # of two dots in a row, for example: a typo is reported like any other
            raise OSError(f"{self.host} is not the name of a machine ({why})") from why
        for family, kind, protocol, _, address in addresses:
            try:
                self.sock = self._open(socket.socket(family, kind, protocol), address)
                return  # noqa: TRY300 -- the first that takes it
            except OSError as refused:  # noqa: PERF203 -- a few addresses
                error = refused
        raise error or OSError(f"{self.host} has no address")

    def request_within(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Send a request. Its body has the time that a slow line takes."""
        if self.sock is None:
            self.connect()
        self.sock.settimeout(TIMEOUT_S + len(body) / SLOWEST)
        self.request(method, path, body, headers)
        self.sock.settimeout(TIMEOUT_S)

    def abort(self) -> None:
        """Make what is under way in another thread fail now, and all that comes after it."""
        self.is_aborted = True  # first: a thread that takes another socket from here on sees it
        if self._latest is not None:
            with contextlib.suppress(OSError):  # closed meanwhile, or not connected yet: then it hangs up at once
                # Not that of a socket over TLS, which forgets TLS before: what is sent meanwhile would be plain text.
                socket.socket.shutdown(self._latest, socket.SHUT_RDWR)

    def _open(self, opened: socket.socket, address: Any) -> socket.socket:  # noqa: ANN401 -- each family has its own
        """Return the socket, connected, and over TLS if there is a context."""
        try:
            self._hold(opened, CONNECT_S)
            opened.connect(address)
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._trusted is not None:
                opened = secure = self._trusted.wrap_socket(
                    opened, server_hostname=self.host, do_handshake_on_connect=False
                )
                self._hold(secure, TIMEOUT_S)
                secure.do_handshake()
            self._hold(opened, TIMEOUT_S)  # again: after an abort a socket looks as if it were connected
        except BaseException:
            opened.close()
            raise
        return opened

    def _hold(self, opened: socket.socket, timeout_s: float) -> None:
        # A reference of its own: http.client lets go of the socket while the last answer on it still comes.
        self._latest = opened
        opened.settimeout(timeout_s)
        if self.is_aborted:  # looked at last: it may be aborted just now
            raise ConnectionAbortedError("the watch has ended")


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
        self._connection: Connection | None = None
        self.is_aborted = False

    def send(self, method: str, path: str, body: bytes, *, compress: bool = False) -> Answer:
        """Return the answer; raises UnreachableError."""
        # By this time the collector measures the offset of the clock here.
        headers = {"content-type": "application/json", "date": formatdate(usegmt=True)}
        if self._token is not None:
            headers["authorization"] = f"Bearer {self._token}"
        if compress:
            headers["content-encoding"] = "gzip"
            body = gzip.compress(body, mtime=0)
        return self._send(method, path, body, headers)

    def abort(self) -> None:
        """Make the request that is under way in another thread fail now, and each one after it."""
        self.is_aborted = True
        connection = self._connection
        if connection is not None:
            connection.abort()

    def close(self) -> None:
        """Close the connection; the next request opens another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _send(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        was_open = self._connection is not None
        try:
            return self._exchange(method, path, body, headers)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if isinstance(error, ssl.SSLCertVerificationError):
                self._trusted = None  # the authority may have been renewed
            # A connection that idled may have been closed by the other side: that is no news about the collector.
            if was_open and isinstance(error, (http.client.RemoteDisconnected, ConnectionError)):
                return self._send(method, path, body, headers)
            raise UnreachableError(f"{type(error).__name__}: {error}") from error

    def _exchange(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        self._stop_if_aborted()
        if self._connection is None:
            self._connection = self._connect()
            self._stop_if_aborted()  # again: an abort meanwhile had no connection
        self._connection.request_within(method, self._base + path, body, headers)
        response = self._connection.getresponse()
        content = response.read(MAX_ANSWER)
        self._stop_if_aborted()  # it was cut off, and may look as if it were complete
        if response.will_close or not response.isclosed():
            self.close()
        return Answer(response.status, content, _seconds(response.getheader("retry-after")))

    def _stop_if_aborted(self) -> None:
        if self.is_aborted:
            raise ConnectionAbortedError("the watch has ended")

    def _connect(self) -> Connection:
        if self._is_tls and self._trusted is None:
            self._trusted = tls_context(os.environ)  # once: to read the authorities takes longer than to connect
        return Connection(self._host, self._port, self._trusted)


def tls_context(environ: Mapping[str, str]) -> ssl.SSLContext:
    """Return the TLS context: it trusts the authority of ``GRADCANARY_CA_FILE``, else those of the system.

    Raises OSError that names the file.
    """
    authority = environ.get("GRADCANARY_CA_FILE")
    try:
        context = ssl.create_default_context(cafile=authority or None)
    except OSError as error:
        if not authority:
            raise
        raise OSError(f"GRADCANARY_CA_FILE={authority!r} is not a certificate in PEM: {error}") from error
    return context


def _seconds(header: str | None) -> float | None:
    return float(header) if header is not None and header.isascii() and header.isdigit() else None
