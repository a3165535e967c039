"""How often ``backward()`` was called since the main optimizer's last step, and on what."""

from __future__ import annotations

from torch import Tensor

_KEPT = 64
"""Losses kept for an optimizer that has not stepped yet: as many micro-steps as a window has, hardly more."""


class Calls:
    """All that is known of passes through layers that had no hooks yet; of others, what to take the loss from."""

    def __init__(self) -> None:
        self.count = 0
        self._present: list[Tensor] = []
        self._all: list[Tensor] = []

    def add(self, roots: list[Tensor]) -> None:
        """Note a call, and keep a copy of what it starts from."""
        copies = [root.detach().clone() for root in roots]
        self.count += 1
        self._present = copies
        self._all = [*self._all, *copies][-_KEPT:]

    def skip(self) -> None:
        """Let a call pass that is not to be looked at."""
        self._present = []

    def take_present(self) -> list[Tensor]:
        """Return what the present pass starts from, once."""
        taken, self._present = self._present, []
        return taken

    def take_all(self) -> list[Tensor]:
        """Return what all passes since the last step started from."""
        self._present = []
        return self._all

    def forget(self) -> int:
        """Return how many there were, and begin anew."""
        count, self.count, self._all = self.count, 0, []
        return count
