"""What comes true in a while, on a machine that does other things, too."""

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_S = 120.0

T = TypeVar("T")


def eventually(probe: Callable[[], T], seconds: float = PATIENCE_S) -> T:
    """Return the first answer that is true."""
    end = time.monotonic() + seconds
    while not (found := probe()):
        assert time.monotonic() < end, "it never became true"
        time.sleep(0.05)
    return found
