"""Work that goes on beside requests, in a thread of this process."""

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

from gradcanary_server.outages import Outage

STUCK_S = 120.0
"""A round of work that takes longer is not healthy: PostgreSQL gives up a statement after 30 s."""


class Loop(ABC):
    """A daemon thread that works until it is told to stop."""

    def __init__(self, name: str, logger: logging.Logger) -> None:
        self.name = name
        self._outage = Outage(logger, name)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._beat_at = self._done_at = time.monotonic()

    def start(self) -> None:
        """Begin; the tables must exist."""
        self._stopping.clear()
        self._beat_at = self._done_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=f"gradcanary-{self.name}", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Let it end after what it is at, without waiting for that."""
        self._stopping.set()

    def stop(self, timeout_s: float | None = None) -> None:
        """End after what it is at, and wait for that, for so long at most."""
        self.end()
        if self._thread is not None:
            self._thread.join(timeout_s)
            self._thread = None

    def trouble(self) -> str | None:
        """Return why it does not do its work, None where all is well."""
        thread = self._thread
        if thread is None or not thread.is_alive():
            return "It does not run: the collector's log says why; start the collector anew."
        if self._outage.reason is not None:
            return self._outage.reason
        busy_s = time.monotonic() - self._beat_at
        return f"It has been at one thing for {busy_s:.0f} s." if busy_s > STUCK_S else None

    def lag_s(self) -> float:
        """Return how long ago it had last done all that there was to do."""
        return time.monotonic() - self._done_at

    def _beat(self) -> None:
        """Note that it goes on."""
        self._beat_at = time.monotonic()

    def _done(self) -> None:
        """Note that it did all that there was to do."""
        self._outage.end()
        self._beat_at = self._done_at = time.monotonic()

    @abstractmethod
    def _run(self) -> None:
        """Work until ``_stopping`` is set."""


class Stoppable(Protocol):
    """What goes on until it is told to stop."""

    def end(self) -> None:
        """Let it end, without waiting for that."""

    def stop(self, timeout_s: float | None = None) -> None:
        """End, and wait for that, for so long at most."""


def stop_all(loops: Sequence[Stoppable], within_s: float) -> None:
    """End loops at the same time, each after what it is at, and wait for that, for so long at most."""
    until = time.monotonic() + within_s
    for loop in loops:
        loop.end()
    for loop in loops:
        loop.stop(max(until - time.monotonic(), 0.0))
