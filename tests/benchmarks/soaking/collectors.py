"""The other side of the soak: the collector, receivers of webhooks in any mood, and disks that are full."""

import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil

from support import receivers
from support.ports import free_port

STARTUP_S = 300.0

MOODS = (
    *[receivers.status(200)] * 6,
    *[receivers.hang] * 2,
    *(receivers.trickle, receivers.stutter, receivers.flood, receivers.close_mid_answer),
    *(receivers.status(500), receivers.status(429, retry_after="3")),
)


class Moody(list):
    """Answers of a receiver without end, at random until it is well."""

    def __init__(self, seed: int) -> None:
        self.is_well, self._random = False, random.Random(seed)

    def __bool__(self) -> bool:
        return not self.is_well

    def pop(self, _: int = 0) -> receivers.Answer:
        """Return the next answer."""
        return self._random.choice(MOODS)


class Collector:
    """``gradcanary up`` on one port; it comes back after a kill."""

    def __init__(self, log: Path, where: list[str], webhooks: list[str]) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        self._log = log
        self._words = ["up", "--port", self.url.rsplit(":", 1)[1], *where]
        self._words += [word for each in webhooks for word in ("--webhook", each)]
        self.environ = {**os.environ, "OMP_NUM_THREADS": "1", "GRADCANARY_CACHE_MB": "64"}
        self.process: psutil.Popen | None = None

    def start(self) -> None:
        """Start it and wait until it answers."""
        with self._log.open("a") as log:
            self.process = psutil.Popen(
                [sys.executable, "-m", "gradcanary.cli", *self._words],
                env=self.environ,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Linux shares its cores among sessions: one of 20 trainings would starve
            )
        until = time.monotonic() + STARTUP_S
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the collector did not start: {self._log}")
            time.sleep(0.2)

    def end(self, number: int) -> None:
        """Send a signal that ends it."""
        self.process.send_signal(number)
        self.process.wait(60)

    def answers(self) -> bool:
        """Return True if it takes requests."""
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(self.url + "/healthz", timeout=5).is_success
        return False


def every_incident(client: httpx.Client) -> list[dict[str, object]]:
    """Return all incidents, page by page."""
    found: list[dict[str, object]] = []
    before: dict[str, object] = {}
    while True:
        page = client.get("/api/v1/incidents", params={"limit": 100, **before}).raise_for_status().json()
        found += page["incidents"]
        if page["next"] is None:
            return found
        before = {"before": page["next"]}


@contextlib.contextmanager
def small_disk(folder: Path, mib: int) -> Iterator[Path]:
    """Mount a file system in memory that is soon full; needs root."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m,mode=0777", "soak", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> None:
    """Take the last byte of its disk."""
    with (folder / "filler").open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(2**20)):
            pass
    with (folder / "filler").open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(512)):
            pass
