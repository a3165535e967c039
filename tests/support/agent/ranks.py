"""Ranks of a training, as processes."""

import socket

from support import warm


def said_by(rank: warm.Process) -> str:
    with rank.stdout as lines:
        return lines.read()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
