"""Where the training thread leaves its records for the sender: bounded, without a lock, never waited for."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

Item = TypeVar("Item")

CAPACITY_BYTES = 64 * 2**20


class Ring(Generic[Item]):
    """One thread puts, another takes. A full ring drops what is put and counts it."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        # Each thread counts for itself: += of two on one number loses some.
        self._lost = self._lost_unread = 0
        self._items: deque[Item] = deque()
        self._given_up: deque[Item] = deque()

    def __len__(self) -> int:
        return len(self._items)

    @property
    def dropped(self) -> int:
        """How many items nobody takes."""
        return self._lost + self._lost_unread

    def drop(self, count: int = 1) -> None:
        """Count items that were never put; in the thread that puts."""
        self._lost += count

    def put(self, item: Item) -> bool:
        """Store an item and return whether there was room."""
        if len(self._items) >= self.capacity:
            self.drop()
            return False
        self._items.append(item)
        return True

    def take(self) -> Item | None:
        """Return the oldest item, None when there is none."""
        try:
            return self._items.popleft()
        except IndexError:
            return None

    def give_up(self) -> int:
        """Count all that is there as dropped, and return how many; it is held until :meth:`clear`. In the thread that
        takes: meanwhile the other one puts what comes next."""
        count = 0
        while (item := self.take()) is not None:
            self._given_up.append(item)
            count += 1
        self._lost_unread += count
        return count

    def clear(self) -> None:
        """Let go of what was given up. In the thread that puts: to free a tensor is work of torch, too."""
        self._given_up.clear()


def capacity_for(layers: int) -> int:
    """Return how many steps of so many layers fit: 8 to 4096; 16 bytes per layer and step is what a sample takes."""
    return max(8, min(4096, CAPACITY_BYTES // (16 * max(layers, 1))))
