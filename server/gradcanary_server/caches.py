"""A cache bounded by bytes, and the shares of the caches in a process's memory.

A number of entries bounds nothing: a batch of 20,000 layers takes a thousand times the memory of one of 20.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, NamedTuple, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

MIB = 2**20

DEFAULT_MB = 576
"""MiB: the sum that the caches for batches, tiles and rule states had when each had a bound of its own."""

ENTRY_BYTES = 1_000
"""About the size of the objects around the arrays of an entry."""


class CacheSizes(NamedTuple):
    """Bytes for each cache of a process; ``backtests`` is for all caches of the child process of a backtest."""

    batches: int
    tiles: int
    states: int
    layers: int
    rules: int
    backtests: int


PERCENT = CacheSizes(batches=30, tiles=30, states=14, layers=13, rules=3, backtests=10)


def split_cache_budget(max_bytes: int = DEFAULT_MB * MIB) -> CacheSizes:
    return CacheSizes(*(max_bytes * percent // 100 for percent in PERCENT))


class Cache(Generic[Key, Value]):
    """The values that were used last, up to a number of bytes; safe to share between threads.

    ``size`` returns the bytes of the arrays or texts of a value, which must not change while it is cached.
    """

    def __init__(self, max_bytes: int, size: Callable[[Value], int]) -> None:
        self._size = size
        self._capacity = self._free = max_bytes
        self._lock = Lock()
        self._entries: OrderedDict[Key, tuple[Value, int]] = OrderedDict()

    def get(self, key: Key) -> Value | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def keep(self, key: Key, value: Value) -> Value:
        size = ENTRY_BYTES + self._size(value)
        with self._lock:
            _, replaced = self._entries.pop(key, (None, 0))
            self._entries[key] = value, size
            self._free += replaced - size
            self._evict()
        return value

    def resize(self, max_bytes: int) -> None:
        with self._lock:
            self._free += max_bytes - self._capacity
            self._capacity = max_bytes
            self._evict()

    def _evict(self) -> None:
        while self._free < 0:
            _, (_, freed) = self._entries.popitem(last=False)
            self._free += freed
