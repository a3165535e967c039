"""A port for a server that another process starts."""

import contextlib
import random
import socket
from pathlib import Path

GIVEN_AWAY = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""The ports from which the kernel takes one for whoever does not name any."""


def free_port() -> int:
    """Return a port on which nothing listens now.

    The kernel does not give it away before the server starts, as it may do with one that a test asked it for and gave
    back: this suite opens hundreds of connections and servers a minute, in several processes.
    """
    first, last = map(int, GIVEN_AWAY.read_text().split())
    kept = [*range(10_000, first), *range(last + 1, 65_536)] or range(10_000, 65_536)
    while True:
        port = random.SystemRandom().choice(kept)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
