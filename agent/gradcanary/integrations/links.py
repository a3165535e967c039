"""Links between a watch and the runs of other trackers that were active while it sampled, in both directions."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace
from urllib.parse import urlsplit

from gradcanary import wire
from gradcanary.environment import MAX_VALUE, printable
from gradcanary.guard import Guard
from gradcanary.integrations import mlflow, wandb
from gradcanary.settings import UNPRINTABLE

TRACKERS = (wandb, mlflow)

MOST = 32
"""Runs of one session; of more the oldest are left out: a sweep may have thousands in one process."""


class Links:
    """Finds the runs of other trackers, and gives each of them the address of this run's page.

    Without ``links`` the runs are only known to ``alert()`` and ``tag()``: nothing is sent or written.
    """

    def __init__(self, page: str, guard: Guard, *, links: bool) -> None:
        self._page, self._guard, self._links = page, guard, links
        self._latest: list[object] = [None] * len(TRACKERS)
        self._linked: deque[object] = deque(maxlen=MOST)
        self._new: deque[tuple[int, object]] = deque(maxlen=MOST)
        self._found: tuple[wire.TrackerRun, ...] = ()

    def look(self) -> None:
        """Note the active runs, and begin to write our address into new ones: a run may be short.

        Called in the training's thread for each sample: no call here waits for anything.
        """
        for place, tracker in enumerate(TRACKERS):
            run = tracker.active_run()
            if run is self._latest[place]:
                continue
            self._latest[place] = run
            if run is not None:
                tracker.library.keep()
            if run is not None and self._links and not any(run is each for each in self._linked):
                self._linked.append(run)
                self._new.append((place, run))
                tracker.link(run, self._page)

    def find(self) -> tuple[wire.TrackerRun, ...]:
        """Return all runs so far. Called in the sender's thread."""
        while self._new:
            place, run = self._new.popleft()
            try:
                self._add(place, run)
            except Exception as error:  # noqa: BLE001 -- of another library, or of another version of it
                self._guard.catch(f"reading a run of {wire.TRACKERS[place]}", error)
        return self._found

    def wait(self, timeout_s: float) -> None:
        """Wait until the trackers have got what is for them, for ``timeout_s`` at most."""
        deadline = time.monotonic() + timeout_s
        for tracker in TRACKERS:
            tracker.library.wait(deadline - time.monotonic())

    def _add(self, place: int, run: object) -> None:
        described = TRACKERS[place].describe(run)
        if described is not None and (found := sendable(described)) not in self._found:
            self._found = (*self._found, found)[-MOST:]


def sendable(run: wire.TrackerRun) -> wire.TrackerRun:
    """Return a run as the collector takes it, its address without user, password and query.

    The query of an anonymous W&B run has a key.
    """
    texts = {name: printable(getattr(run, name), MAX_VALUE) for name in ("id", "name")}
    store = None if run.store is None else printable(run.store, MAX_VALUE)
    return replace(run, **texts, store=store, url=public_address(run.url))


def public_address(url: str | None) -> str | None:
    """Return an address of http or https without user, password and query; None for anything else."""
    try:
        parts = urlsplit(url or "")
    except ValueError:  # brackets of half an IPv6 address
        return None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return None
    address = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()
    # Half of an address opens nothing.
    return None if len(address) > wire.MAX_TRACKER_URL or UNPRINTABLE.search(address) else address
