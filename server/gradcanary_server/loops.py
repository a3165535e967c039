"""Work that goes on beside requests, in a thread of this process."""

import threading
from abc import ABC, abstractmethod


class Loop(ABC):
    """A daemon thread that works until it is told to stop."""

    def __init__(self, name: str) -> None:
        self._name = f"gradcanary-{name}"
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin; the tables must exist."""
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float | None = None) -> None:
        """End after what it is at, and wait for that, for so long at most."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout_s)
            self._thread = None

    @abstractmethod
    def _run(self) -> None:
        """Work until ``_stopping`` is set."""
