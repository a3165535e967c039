"""What ``test_outages.py`` tells of a store, on a disk that is full: in a process of its own, whose files cannot grow.

Its logs go to stderr.
"""

import contextlib
import logging
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

ROOM = 4096
"""Bytes: less than what any commit adds to the log of writes, also where that has just been emptied."""


@contextlib.contextmanager
def full() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[1]))
    import test_outages

    logging.basicConfig(level=logging.WARNING)
    for loop in test_outages.QUICK:
        loop.WAKE_S = 0.1
    folder = Path(sys.argv[1])
    test_outages.tell(folder, f"sqlite:///{folder / 'gradcanary.db'}", full)
