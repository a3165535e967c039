"""The library of another tracker: its active run, and a thread that calls it.

Its calls write to a disk or a network, and may hang: neither the training nor the sender waits for them.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from gradcanary.guard import describe, log

MOST_WAITING = 100
"""Calls that wait for one that hangs; of more the oldest are dropped."""


class Library:
    """What the first rank of a watch knows of a library, and its calls, one after the other.

    ``run`` is the run that was active when the latest step was sampled. The thread is a daemon. It ends with the last
    call, unless :meth:`keep` was called: Python 3.12 and newer start no thread at their exit, where the last incident
    of a training arrives.
    """

    def __init__(self, name: str) -> None:
        self.run: Any = None
        self._name = name
        self._is_followed = False
        self._reset()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._is_kept = False
        self._waiting: deque[tuple[str, Callable[[], object]]] = deque(maxlen=MOST_WAITING)
        self._thread: threading.Thread | None = None

    def follow(self, run: object) -> object:
        """Keep and return the active run, None if there is none. Called in the training's thread."""
        self.run, self._is_followed = run, True
        return run

    def call_with_run(self, what: str, call: Callable[[Any], object]) -> None:
        """Make a call with the active run; without one the log says so, on the first rank."""
        run = self.run
        if run is not None:
            self.call(what, lambda: call(run))
        elif self._is_followed:
            self._warn(what, "no run was active when the latest step was sampled")

    def keep(self) -> None:
        """Start the thread, and keep it until :meth:`wait`."""
        with self._changed:
            self._is_kept = True
            self._start()

    def call(self, what: str, call: Callable[[], object]) -> None:
        """Make a call soon, on the thread. It waits for the next call, or :meth:`wait`, if no thread can be started."""
        with self._changed:
            self._waiting.append((what, call))
            self._start()
            self._changed.notify()

    def wait(self, timeout_s: float) -> None:
        """Wait until all calls are made, for ``timeout_s`` at most; if no thread can be started, drop them.

        The caller's thread makes no call: it could not give up one that hangs.
        """
        dropped = []
        with self._changed:
            self._is_kept = False
            self._changed.notify()
            if self._waiting:
                self._start()
            thread = self._thread
            if thread is None:
                dropped = [what for what, _ in self._waiting]
                self._waiting.clear()
        if thread is not None:
            thread.join(max(timeout_s, 0.0))
        elif dropped:
            self._warn(", ".join(dropped), "no thread could be started")

    def _start(self) -> None:
        if self._thread is not None:
            return
        thread = threading.Thread(target=self._run, name=f"gradcanary-{self._name}", daemon=True)
        with contextlib.suppress(RuntimeError):  # at the exit of Python, or at the system's limit
            thread.start()
            self._thread = thread

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or not self._is_kept)
                if not self._waiting:
                    self._thread = None
                    return
                what, call = self._waiting.popleft()
            try:
                call()
            except (Exception, SystemExit) as error:  # noqa: BLE001 -- of another library; the training goes on
                self._warn(what, describe(error))

    def _warn(self, what: str, why: str | None) -> None:
        with contextlib.suppress(Exception):  # the handlers of the training's logging may raise
            log.warning("gradcanary: %s did not get %s: %s", self._name, what, why)
