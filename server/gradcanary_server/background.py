"""Daemon threads of this process: background loops with their health and an outage log, and single pieces of work."""

import asyncio
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

from gradcanary_server.errors import NodeUnavailable, StoreUnavailable

T = TypeVar("T")

STUCK_S = 120.0
"""A round that takes longer is unhealthy: PostgreSQL cancels a statement after 30 s."""


class OutageLog:
    """Logs the beginning of an outage of the store in one line, and its end in another."""

    def __init__(self, logger: logging.Logger, name: str) -> None:
        self._logger, self._name = logger, name
        self._lasts = False
        self.reason: str | None = None  # why the last round failed

    def handles(self, error: Exception) -> bool:
        """Return True if a round failed because the store is away for now."""
        self._lasts, lasted = isinstance(error, StoreUnavailable), self._lasts
        self.reason = str(error) if self._lasts else f"{type(error).__name__}: the log says where."
        if isinstance(error, NodeUnavailable):  # the next round leaves out the runs of this node
            self.reason = None
        if self._lasts and not lasted:
            self._logger.warning("%s: %s Trying again until it is back.", self._name, error)
        return self._lasts

    def end(self) -> None:
        if self._lasts:
            # As loud as the beginning: a log of problems alone would have outages without an end.
            self._logger.warning("%s: the database is back.", self._name)
        self._lasts = False
        self.reason = None


class BackgroundLoop(ABC):
    """A daemon thread that works until it is stopped."""

    def __init__(self, name: str, logger: logging.Logger) -> None:
        self.name = name
        self._logger = logger
        self._outage = OutageLog(logger, name)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._heartbeat_at = self._done_at = time.monotonic()

    def start(self) -> None:
        """Start the thread; the tables must exist."""
        self._stopping.clear()
        self._heartbeat_at = self._done_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=f"gradcanary-{self.name}", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Ask the thread to end after its present work, without waiting."""
        self._stopping.set()

    def stop(self, timeout_s: float | None = None) -> None:
        """End the thread after its present work, and wait at most ``timeout_s``."""
        self.end()
        if self._thread is not None:
            self._thread.join(timeout_s)
            self._thread = None

    def health(self) -> str | None:
        """Return the reason why the loop does not work, None if it is healthy."""
        thread = self._thread
        if thread is None or not thread.is_alive():
            return "It does not run: the collector's log says why. Restart the collector."
        if self._outage.reason is not None:
            return self._outage.reason
        busy_s = time.monotonic() - self._heartbeat_at
        return f"It has been at one thing for {busy_s:.0f} s." if busy_s > STUCK_S else None

    def lag_s(self) -> float:
        """Return the seconds since all work was last done."""
        return time.monotonic() - self._done_at

    def _heartbeat(self) -> None:
        self._heartbeat_at = time.monotonic()

    def _mark_done(self) -> None:
        self._outage.end()
        self._heartbeat_at = self._done_at = time.monotonic()

    @contextmanager
    def _tracked_round(self) -> Iterator[None]:
        """Record the success or failure of a round of work; the loop survives every error."""
        try:
            yield
            self._mark_done()
        except Exception as error:  # the next round tries again
            if not self._outage.handles(error):
                self._logger.exception("a round of the %s failed", self.name)
        self._heartbeat()

    @abstractmethod
    def _run(self) -> None:
        """Work until ``_stopping`` is set."""


def stop_all(loops: Sequence[BackgroundLoop], within_s: float) -> None:
    """End loops at the same time, each after its present work, and wait at most ``within_s``."""
    until = time.monotonic() + within_s
    for loop in loops:
        loop.end()
    for loop in loops:
        loop.stop(max(until - time.monotonic(), 0.0))


async def run_in_daemon_thread(work: Callable[[], T], name: str) -> T:
    """Run work in a thread and return its result; the end of the process does not wait for it."""
    result: Future[T] = Future()
    result.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:  # noqa: BLE001 -- the caller raises it
            result.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await asyncio.wrap_future(result)
