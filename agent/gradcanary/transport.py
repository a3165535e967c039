"""One connection to the collector, kept open: a request goes out, an answer comes back or the network failed."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import math
import os
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import formatdate
from typing import Any
from urllib.parse import quote, urlsplit

TIMEOUT_S = 10.0
"""For a request as a whole, however its bytes come; its body has the time beside that which it takes at ``SLOWEST``.

But to look up the name of the collector takes as long as the system's resolver does: that can be neither timed nor cut.
"""

SLOWEST = 2**17
"""Bytes a second of the slowest line that is worth waiting for: the largest body, of 4 MiB, has 32 s."""

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


class _Timely(socket.socket):
    """A socket that waits ``TIMEOUT_S`` for a byte to come or to go, and for none any more from ``ends_at`` on.

    ``ends_at`` is of the monotonic clock. A timeout of the socket alone begins anew with each byte.
    """

    ends_at = math.inf

    def hurry(self, tries: int = 1) -> None:
        """Have the next operation end in its share of the time, of so many; raises TimeoutError if none is left."""
        left_s = self.ends_at - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the answer is not complete in time")
        self.settimeout(min(left_s / tries, TIMEOUT_S))

    def recv_into(self, *arguments: Any) -> int:  # noqa: ANN401 -- those of a socket, or of one over TLS
        self.hurry()
        return super().recv_into(*arguments)

    def sendall(self, data: Any, *_flags: Any) -> None:  # noqa: ANN401 -- likewise
        rest = memoryview(data)
        while rest:
            self.hurry()
            rest = rest[self.send(rest) :]


class _TimelyTls(_Timely, ssl.SSLSocket):
    """The same over TLS."""


class Connection(http.client.HTTPConnection):
    """Opens with its first request, over TLS where there is a context for it; can be cut off at any time."""

    def __init__(self, host: str, port: int | None, context: ssl.SSLContext | None) -> None:
        self.default_port = http.client.HTTP_PORT if context is None else http.client.HTTPS_PORT
        super().__init__(host, port)
        self._trusted = context
        self._ends_at = math.inf
        self._latest: _Timely | None = None
        self._is_cut = False

    def connect(self) -> None:
        """Open a socket to the first address that takes it; as http.client does, but within the time of the request.

        An address that swallows what is sent to it, as where IPv6 is broken, leaves the others their share of the time.
        """
        error: OSError | None = None
        try:
            addresses = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except UnicodeError as why:  # of two dots in a row, for example: a typo is told like any other
            raise OSError(f"{self.host} is no name of a machine ({why})") from why
        for tried, (family, kind, protocol, _, address) in enumerate(addresses):
            tries = len(addresses) - tried
            try:
                opened = self._opened(_Timely(family, kind, protocol), address, tries)
            except OSError as refused:
                error = refused
            else:
                self.sock = opened if self._trusted is None else self._secured(opened, self._trusted)
                return
        raise error or OSError(f"{self.host} has no address")

    def end_at(self, ends_at: float) -> None:
        """Set when the present request is over, by the monotonic clock."""
        self._ends_at = ends_at
        if self._latest is not None:
            self._latest.ends_at = ends_at
            if self._is_cut:  # looked at last: it may be cut just now
                self._latest.ends_at = -math.inf

    def cut(self) -> None:
        """Make what is under way in another thread fail now, and all that comes after it."""
        self._is_cut = True  # first: who holds another socket from here on sees it
        self.end_at(-math.inf)
        if self._latest is not None:
            with contextlib.suppress(OSError):  # closed meanwhile, or not connected yet: then it hangs up at once
                # Not that of a socket over TLS, which forgets TLS before: what is sent meanwhile would be plain text.
                socket.socket.shutdown(self._latest, socket.SHUT_RDWR)

    def _opened(self, opened: _Timely, address: Any, tries: int) -> _Timely:  # noqa: ANN401 -- each family has its own
        """Return the socket, connected; the time that is left is for so many tries."""
        try:
            self._hold(opened)
            opened.hurry(tries)
            opened.connect(address)
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except BaseException:
            opened.close()
            raise
        return opened

    def _secured(self, opened: _Timely, context: ssl.SSLContext) -> _Timely:
        wrapped = context.wrap_socket(opened, server_hostname=self.host, do_handshake_on_connect=False)
        secure = self._hold(wrapped)
        try:
            secure.hurry()
            wrapped.do_handshake()
        except BaseException:
            secure.close()
            raise
        return secure

    def _hold(self, opened: Any) -> _Timely:  # noqa: ANN401 -- a context cannot tell which kind of socket it makes
        # A reference of its own: http.client lets go of the socket while the last answer on it still comes.
        held: _Timely = opened
        self._latest = held
        self.end_at(self._ends_at)
        return held


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
        # The time of now, so that the collector can tell by how much the clock here is off.
        headers = {"content-type": "application/json", "date": formatdate(usegmt=True)}
        if self._token is not None:
            headers["authorization"] = f"Bearer {self._token}"
        if compress:
            headers["content-encoding"] = "gzip"
            body = gzip.compress(body, mtime=0)
        was_open = self._connection is not None
        ends_at = time.monotonic() + TIMEOUT_S + len(body) / SLOWEST
        try:
            return self._exchange(method, path, body, headers, ends_at)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if isinstance(error, ssl.SSLCertVerificationError):
                self._trusted = None  # the authority may have been renewed
            # A connection that idled may have been closed by the other side: that is no news about the collector.
            if not (was_open and isinstance(error, (http.client.RemoteDisconnected, ConnectionError))):
                raise UnreachableError(f"{type(error).__name__}: {error}") from error
        try:
            return self._exchange(method, path, body, headers, ends_at)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise UnreachableError(f"{type(error).__name__}: {error}") from error

    def abort(self) -> None:
        """Make the request that is under way in another thread fail now, and each one after it."""
        self.is_aborted = True
        connection = self._connection
        if connection is not None:
            connection.cut()

    def close(self) -> None:
        """Close the connection; the next request opens another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _exchange(self, method: str, path: str, body: bytes, headers: dict[str, str], ends_at: float) -> Answer:
        self._stop_if_aborted()
        if self._connection is None:
            self._connection = self._connect()
            self._stop_if_aborted()  # again: who aborted meanwhile had nothing to cut
        self._connection.end_at(ends_at)
        self._connection.request(method, self._base + path, body, headers)
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
            self._trusted = trusted(os.environ)  # once: to read the authorities takes longer than to connect
        return Connection(self._host, self._port, self._trusted)


def trusted(environ: Mapping[str, str]) -> ssl.SSLContext:
    """Return whom TLS is believed: the authority of ``GRADCANARY_CA_FILE``, else those of the system.

    Raises OSError that names the file.
    """
    authority = environ.get("GRADCANARY_CA_FILE")
    try:
        context = ssl.create_default_context(cafile=authority or None)
    except OSError as error:
        if not authority:
            raise
        raise OSError(f"GRADCANARY_CA_FILE={authority!r} is no certificate in PEM: {error}") from error
    context.sslsocket_class = _TimelyTls
    return context


def _seconds(header: str | None) -> float | None:
    return float(header) if header is not None and header.isascii() and header.isdigit() else None
