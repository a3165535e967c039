"""Ranks of a training, as processes."""

import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from support import warm

TIME_S = 240.0
"""Less than the suite allows a test, so that ranks that hang tell where they are."""


def said_by(rank: warm.Process) -> str:
    with rank.stdout as lines:
        return lines.read()


def finish(ranks: Sequence[warm.Process]) -> list[str]:
    """Wait until all ranks have ended well, and return what each said.

    If one fails or the time is over, the others are ended, too: they would wait for it in a collective, and what it
    said would be told to nobody. As they are ended they print where each of their threads is.
    """
    with ThreadPoolExecutor(len(ranks)) as readers:
        reading = [readers.submit(said_by, rank) for rank in ranks]
        end = time.monotonic() + TIME_S
        while any(rank.poll() is None for rank in ranks):
            if any(rank.poll() for rank in ranks) or time.monotonic() > end:
                break
            time.sleep(0.05)
        for rank in ranks:
            rank.send_signal(signal.SIGABRT)
        said = [each.result() for each in reading]
    assert [rank.wait(60) for rank in ranks] == [0] * len(ranks), "\n".join(said)
    return said
