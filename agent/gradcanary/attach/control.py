"""The socket of an attached process, from outside: one JSON object asks, one answers."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

PATIENCE_S = 5.0
LONGEST = 1 << 20


def ask(path: Path, asked: dict[str, Any], timeout_s: float = PATIENCE_S) -> dict[str, Any] | None:
    """Return the answer of the process that listens there, None where nobody does (any more).

    Raises TimeoutError where it takes longer.
    """
    with socket.socket(socket.AF_UNIX) as door:
        door.settimeout(timeout_s)
        try:
            door.connect(str(path))
            write(door, asked)
            return read(door)
        except TimeoutError:
            raise
        except BlockingIOError as error:  # as many wait there as may
            raise TimeoutError from error
        except (OSError, ValueError):
            return None


def write(door: socket.socket, said: dict[str, Any]) -> None:
    """Say one thing."""
    door.sendall(json.dumps(said).encode() + b"\n")


def read(door: socket.socket) -> dict[str, Any]:
    """Return one thing that is said; raises ValueError on anything else."""
    held = b""
    while not held.endswith(b"\n"):
        part = door.recv(65536)
        if not part or len(held) > LONGEST:
            raise ValueError("not a whole answer")
        held += part
    said = json.loads(held)
    if not isinstance(said, dict):
        raise ValueError("not an object")  # noqa: TRY004 -- as all that is no message
    return said
