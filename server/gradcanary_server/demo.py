"""The demo that a page starts: two trainings in a child process of the collector, one demo at a time."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from typing import Literal

from gradcanary_server.errors import RequestError
from gradcanary_server.settings import Settings

State = Literal["none", "starting", "running", "ended", "failed"]

logger = logging.getLogger(__name__)


def is_offered(settings: Settings) -> bool:
    """Tell whether whoever asks may start processes here: only one who could start them anyhow, on this machine.

    A proxy in front may bring others here, who are asked for no token; to TLS of one's own the trainings do not talk.
    """
    return not (settings.auth or settings.hosts or settings.proxies or settings.tls)


class Demo:
    """At most one child with the trainings (``gradcanary.demo.pair``), which ends with this process, however that does.

    ``state`` is none, starting, running, ended or failed, ``runs`` the names of its two, ``why`` it failed.
    """

    def __init__(self) -> None:
        self.state: State = "none"
        self.runs: list[str] = []
        self.why: str | None = None
        self._process: subprocess.Popen[str] | None = None
        self._following: threading.Thread | None = None
        self._lock = threading.Lock()

    def start(self, url: str) -> None:
        """Start the trainings, which send to this address; raises RequestError 409 while they run."""
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                raise RequestError(409, "demo_runs", "The demo is running already.")
            self.state, self.runs, self.why = "starting", [], None
            try:
                self._process = _child(url)
            except OSError as error:
                self.state, self.why = "failed", f"No process could be started: {error}"
                return
            follow = threading.Thread(target=self._follow, args=(self._process,), name="gradcanary-demo", daemon=True)
            follow.start()
            self._following = follow

    def stop(self, within_s: float) -> None:
        """Let the trainings end, if there are any, and wait for that, for so long at most."""
        with self._lock:
            if self._process is not None and self._process.stdin is not None:
                self._process.stdin.close()
        if self._following is not None:
            self._following.join(within_s)

    def _follow(self, process: subprocess.Popen[str]) -> None:
        """Keep up with what the child says, until it has ended."""
        assert process.stdout is not None  # noqa: S101 -- asked for in _child
        last = ""
        with process.stdout as lines:
            for line in map(str.strip, lines):
                kind, *runs = line.split()[:3] or [""]
                if kind == "training" and self._is_mine(process) and self.state == "starting":
                    self.state, self.runs = "running", runs
                elif line:
                    last = line
                    logger.warning("demo: %s", line)
        status = process.wait()
        if process.stdin is not None:
            process.stdin.close()
        if self._is_mine(process):
            self.state, self.why = ("failed", last or f"It ended with status {status}.") if status else ("ended", None)

    def _is_mine(self, process: subprocess.Popen[str]) -> bool:
        """Tell whether it is the one that was started last, of which the state tells."""
        with self._lock:
            return process is self._process


def _child(url: str) -> subprocess.Popen[str]:
    """Start the process; its input stays open for as long as this process is there."""
    return subprocess.Popen(  # noqa: S603 -- our own module
        [sys.executable, "-m", "gradcanary.demo.pair", url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # a Ctrl-C at the terminal is the collector's, which ends its child in order
    )
