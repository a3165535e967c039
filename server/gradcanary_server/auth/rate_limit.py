"""Rate limits: token buckets by key. No clock: time is an argument."""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from ipaddress import IPv6Address, ip_address

MAX_BUCKETS = 10_000
"""The least recently used goes first."""


class RateLimiter:
    """One bucket per key, of ``size`` requests, filled by ``per_s``; safe to share between threads."""

    def __init__(self, size: float, per_s: float) -> None:
        self._size, self._per_s = size, per_s
        self._levels: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def acquire(self, key: Hashable, now: float) -> float:
        """Take one request and return 0.0, or return the seconds until there is one; ``now`` is of any origin."""
        with self._lock:
            level, since = self._levels.pop(key, (self._size, now))
            level = min(self._size, level + max(0.0, now - since) * self._per_s)
            wait_s = 0.0 if level >= 1.0 else (1.0 - level) / self._per_s
            self._levels[key] = (level - 1.0 if wait_s == 0.0 else level, max(now, since))
            while len(self._levels) > MAX_BUCKETS:
                self._levels.popitem(last=False)
        return wait_s


def rate_limit_key(address: str) -> str:
    """Return the key of a client: its address of IPv4, in IPv6 the network of 64 bits that a customer has."""
    try:
        client = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(client, IPv6Address):
        return str(client)
    return str(client.ipv4_mapped or IPv6Address(int(client) >> 64 << 64))
