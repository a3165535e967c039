"""How much of something one may have: buckets that fill slowly and empty quickly. No clock: time is an argument."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from ipaddress import IPv6Address, ip_address

MOST_BUCKETS = 10_000
"""Remembered; the one that was not asked for the longest goes first."""


class Buckets:
    """One bucket per key, of ``size`` requests, filled by ``per_s``; safe to share between threads."""

    def __init__(self, size: float, per_s: float) -> None:
        self._size, self._per_s = size, per_s
        self._levels: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, key: Hashable, now: float) -> float:
        """Take one and return 0.0, or return after how many seconds there is one; ``now`` in seconds, of any origin."""
        with self._lock:
            level, since = self._levels.pop(key, (self._size, now))
            level = min(self._size, level + max(0.0, now - since) * self._per_s)
            wait_s = 0.0 if level >= 1.0 else (1.0 - level) / self._per_s
            self._levels[key] = (level - 1.0 if wait_s == 0.0 else level, max(now, since))
            while len(self._levels) > MOST_BUCKETS:
                self._levels.popitem(last=False)
        return wait_s


def neighbourhood(address: str) -> str:
    """Return what shares a bucket: an address of IPv4, the network of 64 bits that a customer has in IPv6."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(found, IPv6Address):
        return str(found)
    return str(found.ipv4_mapped or IPv6Address(int(found) >> 64 << 64))
