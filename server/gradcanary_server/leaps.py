"""What to make of stored times when the clock that wrote them is set; pure.

Every time in the tables is by the database's clock, and that may leap: NTP sets it, a person does, a machine slept.
After a leap forward it looks as if time had gone by in which nothing happened; after one back, what was just written
lies in the future.
"""

import threading
from dataclasses import dataclass, replace

AHEAD_S = 60.0
"""What was written as now, and lies further ahead than this, is of before the clock was set back. As much as statements
that wait for each other, and clocks that are slewed, are apart by far.
"""

LEAP_S = 10.0
"""A difference to a clock that nobody sets that is no leap: answers of a database may take a few seconds."""


@dataclass(frozen=True)
class Leap:
    """The clock was set forward: times up to ``until`` are of before that, and are ``by_s`` older than they look."""

    until: float
    by_s: float


Leaps = tuple[Leap, ...]
"""Oldest first."""

MOST = 64
"""Remembered; whoever sets a clock more often than that, within what messages are apart, hears of some sooner."""


def is_ahead(moment: float, now: float) -> bool:
    """Tell whether a time that was written as now is of before the clock was set back."""
    return moment > now + AHEAD_S


def since(moment: float, leaps: Leaps) -> float:
    """Return a stored time as the clock would say it now, if it had always been what it is."""
    for leap in leaps:
        if moment <= leap.until:
            moment += leap.by_s
    return moment


def after(leaps: Leaps, by_s: float, now: float) -> Leaps:
    """Return the leaps with one more: what is set back takes back what was set forward last."""
    if by_s > 0:
        return (*leaps, Leap(now - by_s, by_s))[-MOST:]
    left = list(leaps)
    while left and by_s < 0:
        last = left.pop()
        if last.by_s + by_s > 0:
            left.append(replace(last, by_s=last.by_s + by_s))
        by_s += last.by_s
    return tuple(left)


class Pulse:
    """Holds a clock against one that nobody sets; threads may share it."""

    def __init__(self) -> None:
        self._apart: float | None = None
        self._lock = threading.Lock()

    def leap(self, now: float, steady: float) -> float:
        """Return by how much the clock was set since it was last asked, in seconds; 0.0 where it was not.

        An answer that came late makes the two look nearer than they are, so the widest distance counts.
        """
        with self._lock:
            apart = now - steady
            by_s = 0.0 if self._apart is None else apart - self._apart
            if self._apart is None or abs(by_s) > LEAP_S:
                self._apart = apart
                return by_s
            self._apart = max(self._apart, apart)
            return 0.0
