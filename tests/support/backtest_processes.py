"""The processes that play runs again, as Linux lists them."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from support.collectors import Collector


def player_of(collector: Collector) -> int:
    """Return the process that plays runs again for a collector."""
    assert collector.process is not None
    for each in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            is_one = b"backtest_worker" in (each / "cmdline").read_bytes()
            if is_one and _fields_of(each)[1] == str(collector.process.pid):
                return int(each.name)
    raise AssertionError("no runs are played again")


def is_over(process: int) -> bool:
    """Tell whether a process has ended: one whose status was not asked for is still there, as a name."""
    try:
        return _fields_of(Path(f"/proc/{process}"))[0] == "Z"
    except OSError:
        return True


@contextmanager
def frozen(process: int) -> Iterator[None]:
    """Let a process stand still in the block, and end it after it."""
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def _fields_of(process: Path) -> list[str]:
    """Return what Linux says of a process after its name: its state, its parent, and more."""
    return (process / "stat").read_text().rpartition(")")[2].split()
