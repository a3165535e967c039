"""``gradcanary sync``: delivers what trainings had to leave in their spool files. Standard library only, no torch.

A file is deleted when all of it arrived. Each batch is let go as it is acknowledged, so that a sync which is killed
goes on where it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from gradcanary import wire
from gradcanary.backlog import Backlog
from gradcanary.delivery import Delivery
from gradcanary.guard import Guard
from gradcanary.outbox import Outbox
from gradcanary.spool import SUFFIX, LockedError, Spool, SpoolError
from gradcanary.transport import Transport

TRIES = 4
"""Without an answer that settles anything, before a file is left for another day."""

PATIENCE_S = 15.0
"""The longest wait between two of them."""

KEPT = "what was not sent stays in its file"

Prints = Callable[[str], None]


def sync(folder: Path, url: str | None, token: str | None, tell: Prints) -> bool:
    """Deliver every file of a folder, the oldest first, and tell of each; True when nothing is left that could go.

    ``url`` is the collector's, None for the one that the training had. Files that a process has open are its own.
    """
    paths = sorted(folder.glob(f"*{SUFFIX}"), key=_age)
    if not paths:
        tell(f"nothing to send in {folder}")
    done = [_sync_file(path, url, token, tell) for path in paths]
    return all(done)


def _age(path: Path) -> tuple[float, str]:
    try:
        return path.stat().st_mtime, path.name
    except OSError:  # its process has deleted it meanwhile
        return 0.0, path.name


def _sync_file(path: Path, url: str | None, token: str | None, tell: Prints) -> bool:
    try:
        spool = Spool.open(path)
    except LockedError as error:
        tell(f"{path.name}: skipped, {error}")
        return True
    except SpoolError as error:
        if not path.exists():
            return True  # likewise
        tell(f"{path.name}: not sent, {error}")
        return False
    return Leftover(spool, url or spool.url, token, tell).deliver()


class Stored:
    """The hello that a training would say."""

    def __init__(self, hello: bytes) -> None:
        self._hello = hello
        self.was_said = False

    @property
    def is_due(self) -> bool:
        return not self.was_said

    def body(self) -> bytes:
        return self._hello

    def said(self) -> None:
        self.was_said = True

    def forgotten(self) -> None:
        self.was_said = False


class Leftover:
    """One file on its way."""

    def __init__(self, spool: Spool, url: str, token: str | None, tell: Prints) -> None:
        self._spool, self._url, self._tell = spool, url, tell
        self._guard = Guard()
        self._backlog = Backlog.of(spool, self._guard.say)
        self._outbox = Outbox(self._backlog)
        self._transport = Transport(url, token, spool.run, spool.session)
        self._delivery = Delivery(
            url, self._transport, Stored(spool.hello), self._outbox, self._guard, lambda _: None, KEPT
        )

    def deliver(self) -> bool:
        """Send all of it and the end, and tell; True when nothing is left and nothing was lost on the way."""
        steps, lost = self._backlog.steps, self._backlog.lost
        try:
            is_done = self._send_all()
            left, lost = self._backlog.steps, self._backlog.lost - lost
            if is_done or self._delivery.is_deleted:
                self._backlog.delete()
        finally:
            self._transport.close()
            self._backlog.close()
        sent = _steps(steps - left - lost)
        said = f"{self._spool.run}, session {self._spool.session}: {sent} sent to {self._url}"
        said += f", {_steps(left)} left in {self._spool.path}" if not is_done else ""
        self._tell(said + (f", {lost} lost" if lost else ""))
        return is_done and not lost

    def _send_all(self) -> bool:
        tries = 0
        while not self._delivery.is_over:
            if self._delivery.send_next():
                tries = 0
            elif self._outbox.is_empty and self._is_ended():
                return True
            else:
                tries += 1
                wait_s = max(self._delivery.retry_at - time.monotonic(), 0.0)
                if tries == TRIES or wait_s > PATIENCE_S or self._delivery.is_over:
                    break
                time.sleep(wait_s)
        return False

    def _is_ended(self) -> bool:
        """Say how the session ended; one that was killed did not say."""
        if self._outbox.is_untold:
            self._delivery.beat(wire.Heartbeat(None, 0, self._outbox.dropped_steps, 0.0))
        return self._spool.ending is None or self._delivery.end(self._spool.ending)


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count:,} steps"
