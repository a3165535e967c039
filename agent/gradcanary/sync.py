"""``gradcanary sync``: delivers what trainings had to leave in their spool files. Standard library only, no torch.

A file is deleted when all of it arrived. Each batch is let go as it is acknowledged, so that a sync which is killed
goes on where it was. Collectors that do not answer are asked again between rounds over all files, so that the wait for
the dead ones is one, and those that live do not wait for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
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

PAUSES_S = (1.0, 2.0, 4.0)
"""Before collectors that did not answer are asked again, all of them."""

KEPT = "what was not sent stays in its file"

Prints = Callable[[str], None]


def find(places: Iterable[Path]) -> list[Path]:
    """Return spool files and those of folders, the oldest first; raises ValueError for a place that is neither."""
    found: list[Path] = []
    for place in places:
        if place.is_dir():
            found += place.glob(f"*{SUFFIX}")
        elif place.is_file() and place.suffix == SUFFIX:
            found.append(place)
        else:
            raise ValueError(f"{place} is no folder, and no file *{SUFFIX} that a training left")
    return sorted(dict.fromkeys(found), key=_age)


def sync(paths: Sequence[Path], url: str | None, token: str | None, tell: Prints) -> bool:
    """Deliver files in their order and tell of each; True when nothing is left that could go.

    ``url`` is the collector's, None for the one that the training had. Files that a process has open are its own.
    """
    if len(paths) > 1:
        tell(f"{len(paths):,} files to send")
    rounds = Rounds(len(paths), url, token, tell)
    left = rounds.go(paths)
    for pause_s in PAUSES_S:
        if not rounds.may_go_on(left):
            break
        time.sleep(pause_s)
        left = rounds.go(left)
    rounds.leave(left)
    return rounds.is_all_sent


def _age(path: Path) -> tuple[float, str]:
    try:
        return path.stat().st_mtime, path.name
    except OSError:  # its process has deleted it meanwhile
        return 0.0, path.name


class Rounds:
    """Goes through files again and again; in each round a collector that does not answer is asked once."""

    def __init__(self, count: int, url: str | None, token: str | None, tell: Prints) -> None:
        self.is_all_sent = True
        self._count, self._url, self._token, self._tell = count, url, token, tell
        self._told = 0
        self._known: dict[Path, tuple[str, int]] = {}
        self._guards: dict[str, Guard] = {}
        self._given_up: set[str] = set()
        self._worn: set[str] = set()

    def go(self, paths: Sequence[Path]) -> list[Path]:
        """Deliver files; return those whose collector does not answer."""
        silent = set(self._given_up)
        return [path for path in paths if not self._is_settled(path, silent)]

    def may_go_on(self, left: Sequence[Path]) -> bool:
        """Tell whether another round may bring anything."""
        return any(self._known[path][0] not in self._given_up for path in left)

    def leave(self, left: Sequence[Path]) -> None:
        """Tell what stays, in one line for each collector."""
        by_url: dict[str, list[Path]] = {}
        for path in left:
            by_url.setdefault(self._known[path][0], []).append(path)
        for url, paths in by_url.items():
            steps = _steps(sum(self._known[path][1] for path in paths))
            place = str(paths[0]) if len(paths) == 1 else f"{len(paths):,} files"
            why = f"{url} does not take them; --url URL sends them elsewhere"
            self._say(f"{steps} left in {place}: {why}", len(paths))
            self.is_all_sent = False

    def _is_settled(self, path: Path, silent: set[str]) -> bool:
        """Deliver a file and tell of it, or note that it has to wait."""
        if path in self._known and self._known[path][0] in silent:
            return False
        try:
            spool = Spool.open(path)
        except LockedError as error:
            self._say(f"{path.name}: skipped, {error}")
            return True
        except SpoolError as error:
            if path.exists():  # else its process has deleted it meanwhile
                self._say(f"{path.name}: not sent, {error}")
                self.is_all_sent = False
            return True
        url = self._url or spool.url
        self._known[path] = url, spool.totals.steps
        if url in silent:
            spool.close()
            return False
        return self._deliver(spool, url, silent)

    def _deliver(self, spool: Spool, url: str, silent: set[str]) -> bool:
        guard = self._guards.pop(url, None) or Guard()  # what was said of a collector's silence is not said again
        leftover = Leftover(spool, url, self._token, guard)
        is_done = leftover.deliver(1 if url in self._worn else TRIES)
        if leftover.is_unheard:
            silent.add(url)
            self._guards[url] = guard
            if leftover.has_to_wait:
                self._given_up.add(url)
            return False
        (self._worn.discard if is_done else self._worn.add)(url)
        self._say(leftover.said)
        self.is_all_sent &= is_done
        return True

    def _say(self, line: str, files: int = 1) -> None:
        first, self._told = self._told + 1, self._told + files
        which = f"{first:,}" if files == 1 else f"{first:,} to {self._told:,}"
        self._tell(line if self._count == 1 else f"{which} of {self._count:,}: {line}")


class Stored:
    """The hello that a training would say; ``was_ever_said`` stays where the collector forgets it."""

    def __init__(self, hello: bytes) -> None:
        self._hello = hello
        self.was_said = self.was_ever_said = False

    @property
    def is_due(self) -> bool:
        return not self.was_said

    def body(self) -> bytes:
        return self._hello

    def said(self) -> None:
        self.was_said = self.was_ever_said = True

    def forgotten(self) -> None:
        self.was_said = False


class Leftover:
    """One file on its way; ``said`` tells how that went."""

    def __init__(self, spool: Spool, url: str, token: str | None, guard: Guard) -> None:
        self.said = ""
        self._spool, self._url = spool, url
        self._backlog = Backlog.of(spool, guard.say)
        self._outbox = Outbox(self._backlog)
        self._hello = Stored(spool.hello)
        self._transport = Transport(url, token, spool.run, spool.session)
        self._delivery = Delivery(url, self._transport, self._hello, self._outbox, guard, lambda _: None, KEPT)

    @property
    def is_unheard(self) -> bool:
        """Whether nothing was sent, as no collector answers there, or it takes nothing of us."""
        delivery = self._delivery
        return not self._hello.was_ever_said and not delivery.is_over and (not delivery.is_there or delivery.is_barred)

    @property
    def has_to_wait(self) -> bool:
        """Whether the collector is not to be asked again for longer than a sync may take."""
        return self._delivery.retry_at - time.monotonic() > PATIENCE_S

    def deliver(self, tries: int) -> bool:
        """Send all of it and the end; True when nothing is left and nothing was lost on the way.

        So many tries has a collector that answers; one that does not has one.
        """
        steps, lost = self._backlog.steps, self._backlog.lost
        try:
            is_done = self._send_all(tries)
            left, lost = self._backlog.steps, self._backlog.lost - lost
            if is_done or self._delivery.is_deleted:
                self._backlog.delete()
        finally:
            self._transport.close()
            self._backlog.close()
        sent = _steps(steps - left - lost)
        self.said = f"{self._spool.run}, session {self._spool.session}: {sent} sent to {self._url}"
        self.said += f", {_steps(left)} left in {self._spool.path}" if not is_done else ""
        self.said += f", {lost} lost" if lost else ""
        return is_done and not lost

    def _send_all(self, most: int) -> bool:
        tries = 0
        while not self._delivery.is_over:
            if self._delivery.send_next():
                tries = 0
            elif self._outbox.is_empty and self._is_ended():
                return True
            else:
                tries += 1
                if tries >= most or self.is_unheard or self.has_to_wait or self._delivery.is_over:
                    break
                time.sleep(max(self._delivery.retry_at - time.monotonic(), 0.0))
        return False

    def _is_ended(self) -> bool:
        """Say how the session ended; one that was killed did not say."""
        if self._outbox.is_untold:
            self._delivery.beat(wire.Heartbeat(None, 0, self._outbox.dropped_steps, 0.0))
        return self._spool.ending is None or self._delivery.end(self._spool.ending)


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count:,} steps"
