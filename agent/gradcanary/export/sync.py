"""``gradcanary sync``: delivers what trainings left in their spools. Standard library only, no torch.

A spool is deleted when all of it has arrived. Each batch is removed as it is acknowledged, so that a sync that was
killed continues where it was. A collector that does not answer is tried for seconds, with the first of its spools.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from gradcanary import wire
from gradcanary.export.delivery import HOW_TO_CREATE, Delivery
from gradcanary.export.outbox import Outbox, RetryQueue
from gradcanary.export.spool import SUFFIX, LockedError, Spool, SpoolError, remove_abandoned
from gradcanary.export.transport import Transport
from gradcanary.guard import Guard
from gradcanary.wording import count

TRIES = 4
"""Without an acknowledgement, before the sync gives a collector up."""

MAX_WAIT_S = 15.0
"""Between two of them."""

KILLED = wire.End("crashed", None, "the process left no end: it was killed, or could not write in time")
"""The end of a session whose process is gone."""

SAMPLED = "sampled step"
KEPT = "what was not sent stays in its spool"
LEFT = "{steps} left in {path}: {url} {why}"
NOT_TAKEN = "does not take them; --url URL sends them elsewhere"
REFUSED_TOKEN = f"refuses the token: give a valid one with --token or GRADCANARY_TOKEN; {HOW_TO_CREATE}"

Prints = Callable[[str], None]


def find_spools(folders: Iterable[Path]) -> list[Path]:
    """Return the folders that are spools and the spools in the others, oldest first; raises ValueError on a file."""
    found: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(
                f"{folder} is not a folder" if folder.exists() else f"{folder} is not there, or was sent already"
            )
        if folder.suffix != SUFFIX:
            remove_abandoned(folder)
        found += [folder] if folder.suffix == SUFFIX else folder.glob(f"*{SUFFIX}")
    return sorted(dict.fromkeys(found), key=_age)


def sync_spools(paths: Sequence[Path], url: str | None, token: str | None, print_line: Prints) -> bool:
    """Deliver spools in their order and print a line for each; return True if nothing is left that could be sent.

    ``url`` is the collector's, None for the one of the training. A spool that a process uses is skipped.
    """
    if len(paths) > 1:
        print_line(f"{len(paths):,} sessions to send")
    is_all_sent = True
    silent: dict[str, str] = {}
    for number, path in enumerate(paths, 1):
        line, is_sent = _deliver(path, url, token, silent)
        is_all_sent &= is_sent
        print_line(line if len(paths) == 1 else f"{number:,} of {len(paths):,}: {line}")
    return is_all_sent


def _age(path: Path) -> tuple[float, str]:
    try:
        return path.stat().st_mtime, path.name
    except OSError:  # its process has deleted it meanwhile
        return 0.0, path.name


def _deliver(path: Path, url: str | None, token: str | None, silent: dict[str, str]) -> tuple[str, bool]:
    """Deliver a spool unless its collector is silent; return a line about it, and True if nothing is left."""
    try:
        spool = Spool.open(path)
    except LockedError as error:
        return f"{path.name}: skipped, {error}", True
    except SpoolError as error:
        if not path.exists():
            return f"{path.name}: its process has sent it", True
        return f"{path.name}: not sent, {error}", False
    leftover = Leftover(spool, url or spool.url, token)
    try:
        return leftover.deliver(silent)
    finally:
        leftover.close()


class StoredHello:
    """The hello of the training."""

    def __init__(self, hello: bytes) -> None:
        self._hello = hello
        self.was_sent = False

    def leave_out_extras(self) -> bool:
        before, self._hello = self._hello, wire.dump(wire.without_extras(json.loads(self._hello)))
        return self._hello != before

    @property
    def is_due(self) -> bool:
        return not self.was_sent

    def body(self) -> bytes:
        return self._hello

    def mark_sent(self) -> None:
        self.was_sent = True

    def mark_unknown(self) -> None:
        self.was_sent = False


class Leftover:
    """One spool on its way to a collector."""

    def __init__(self, spool: Spool, url: str, token: str | None) -> None:
        guard = Guard()
        self._spool, self._url = spool, url
        if spool.ending is None:
            with suppress(OSError):  # a folder that is read-only now: the session stays without an end
                spool.end(wire.dump_end(KILLED), spool.made)
        self._outbox = Outbox(RetryQueue(None, guard.print_once, spool), spool)
        self._transport = Transport(url, token, spool.run, spool.session)
        hello = StoredHello(spool.hello)
        self._delivery = Delivery(url, self._transport, hello, self._outbox, guard, lambda _: None, KEPT)

    def deliver(self, silent: dict[str, str]) -> tuple[str, bool]:
        """Send all of it and the end; return a line about it, and True if nothing is left and nothing was lost.

        ``silent`` has the reason of each collector that did not take anything; this one is added if it does not either.
        """
        outbox = self._outbox
        steps, delivered = outbox.steps, outbox.progress.delivered
        is_done = self._url not in silent and self._send_all()
        sent = outbox.progress.delivered - delivered
        if is_done or self._delivery.is_deleted:
            outbox.queue.discard_all()
        elif not self._delivery.is_closed:
            why = silent.setdefault(self._url, REFUSED_TOKEN if self._delivery.is_unauthorized else NOT_TAKEN)
            if not sent:
                return LEFT.format(
                    steps=count(outbox.steps, SAMPLED), path=self._spool.path, url=self._url, why=why
                ), False
        left = outbox.steps
        lost = steps - left - sent
        line = f"{self._spool.run}, session {self._spool.session}: {count(sent, SAMPLED)} sent to {self._url}"
        line += f", {count(left, SAMPLED)} left in {self._spool.path}" if left else ""
        line += f", {lost} lost" if lost else ""
        return line, is_done and not lost

    def close(self) -> None:
        """Leave the spool to the next sync if it is still there."""
        self._transport.close()
        self._outbox.queue.close()

    def _send_all(self) -> bool:
        tries = 0
        while not self._delivery.is_closed:
            if self._delivery.send_next():
                tries = 0
                continue
            if self._outbox.is_empty and self._send_end():
                return True
            tries += 1
            wait_s = self._delivery.retry_at - time.monotonic()
            if tries >= TRIES or wait_s > MAX_WAIT_S or self._delivery.is_closed:
                break
            time.sleep(max(wait_s, 0.0))
        return False

    def _send_end(self) -> bool:
        """Send how the session ended."""
        if self._outbox.has_unreported_drops:
            self._delivery.send_heartbeat(wire.Heartbeat(None, 0, self._outbox.dropped_steps, 0.0))
        return self._spool.ending is None or self._delivery.send_end(self._spool.ending)
