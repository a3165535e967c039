"""How often ``backward()`` was called since the main optimizer's last step, and on what."""

from __future__ import annotations

from torch import Tensor

_KEPT = 64
"""Losses kept for an optimizer that has not stepped yet. Of a window of more micro-steps there is none: the sum of some
would be another loss."""


class Calls:
    """All that is known of passes through layers that had no hooks yet; of others, what to take the loss from."""

    def __init__(self) -> None:
        self.count = 0
        self._present: list[Tensor] = []
        self._kept: list[Tensor] = []
        self._all: list[Tensor] = []
        self._is_cut = False
        self._unsynced = 0
        self.is_noted = True

    def add(self, roots: list[Tensor]) -> None:
        """Note a call, and keep a copy of what it starts from."""
        copies = [root.data.clone() for root in roots]  # detach() would be dispatched, for three times as long
        self.count += 1
        self._present = copies
        self.is_noted = False
        self._is_cut = self._is_cut or len(self._all) + len(copies) > _KEPT
        self._all = [] if self._is_cut else self._all + copies

    def skip(self) -> None:
        """Let a call pass that is not to be looked at."""
        self._present = []
        self.is_noted = True

    def keep(self) -> None:
        """Note that the present pass has reached a layer, maybe without reducing a shard and calling a hook."""
        if not self.is_noted:
            self._kept, self._present = [*self._kept, *self._present], []
            self._unsynced += 1
            self.is_noted = True

    def take(self) -> tuple[list[Tensor], int]:
        """Return what the present pass and those that were kept start from, once, and how many were kept."""
        is_present_kept = self.is_noted and self._unsynced > 0
        unsynced = self._unsynced - 1 if is_present_kept else self._unsynced
        taken = self._kept + self._present
        self._kept, self._present, self._unsynced, self.is_noted = [], [], 0, True
        return taken, unsynced

    def take_all(self) -> list[Tensor]:
        """Return what all passes since the last step started from, nothing where those were too many to be kept."""
        self._present, self._kept = [], []
        return self._all

    def forget(self) -> int:
        """Return how many there were, and begin anew."""
        count, self.count, self._all, self._is_cut = self.count, 0, [], False
        self._kept, self._unsynced = [], 0
        return count
