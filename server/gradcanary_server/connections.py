"""Connections on which a request does not come to its end: they are closed.

uvicorn closes a connection that is idle between two requests, and waits for the rest of one for ever: some hundred that
send a byte now and then (slow-loris) would be all that a process may have open.
"""

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

REQUEST_S = 60.0
"""From the first byte of a request to its last; the largest body takes 70 kB/s."""


class Connection(HttpToolsProtocol):
    """One connection, with a deadline for each request; how long the answer takes is our own affair."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Wait for the first request."""
        super().connection_made(transport)
        self._wait()

    def on_message_begin(self) -> None:
        """Wait for the rest of a request."""
        super().on_message_begin()
        self._wait()

    def on_message_complete(self) -> None:
        """Wait no longer: it is all here."""
        super().on_message_complete()
        self._wait_no_longer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        self._wait_no_longer()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._wait_no_longer()
        self._deadline = self.loop.call_later(REQUEST_S, self.transport.abort)

    def _wait_no_longer(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
