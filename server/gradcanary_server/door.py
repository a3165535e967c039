"""A door that is shut now and then until whoever is inside has left."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE_S = 1.0
"""How long one waits before it: who holds it shut may wait for him, where he is inside already."""


class Door:
    """Counts who is inside; any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._is_shut = False

    @contextmanager
    def passed(self) -> Iterator[None]:
        """Be inside while the block lasts."""
        with self._changed:
            if self._is_shut:
                self._changed.wait_for(lambda: not self._is_shut, PATIENCE_S)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                if self._is_shut:
                    self._changed.notify_all()

    @contextmanager
    def shut(self, wait_s: float) -> Iterator[None]:
        """Let nobody in while the block lasts, which begins when the last one left, or after so long."""
        with self._changed:
            self._is_shut = True
            self._changed.wait_for(lambda: not self._inside, wait_s)
        try:
            yield
        finally:
            with self._changed:
                self._is_shut = False
                self._changed.notify_all()
