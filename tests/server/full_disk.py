"""What ``test_outages.py`` tells of a store, on a disk that is full: in a process of its own, whose files cannot grow.

Its logs go to stderr.
"""

import logging
import sys
from functools import partial
from pathlib import Path

from disks import limited

ROOM = 4096
"""Bytes: less than what any commit adds to the log of writes, also where that has just been emptied."""


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[1]))
    import test_outages

    logging.basicConfig(level=logging.WARNING)
    for loop in test_outages.QUICK:
        loop.WAKE_S = 0.1
    folder = Path(sys.argv[1])
    test_outages.tell(folder, f"sqlite:///{folder / 'gradcanary.db'}", partial(limited, ROOM))
