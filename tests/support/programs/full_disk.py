"""What ``outages.py`` tells of a store, on a disk that is full: in a process of its own, whose files cannot grow.

Its logs go to stderr.
"""

import logging
import sys
from functools import partial
from pathlib import Path

from support.server.disks import limited

ROOM = 4096
"""Bytes: less than what any commit adds to the log of writes, also where that has just been emptied."""


if __name__ == "__main__":
    from support.server import outages

    logging.basicConfig(level=logging.WARNING)
    for loop in outages.QUICK:
        loop.WAKE_S = 0.1
    folder = Path(sys.argv[1])
    outages.tell(folder, f"sqlite:///{folder / 'gradcanary.db'}", partial(limited, ROOM))
