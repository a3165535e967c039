"""What to make of stored times when the clock that wrote them is set; pure.

Every time in the tables is by the database's clock, and that may leap: NTP sets it, a person does, a machine slept.
After a leap forward it looks as if time had gone by in which nothing happened; after one back, what was just written
lies in the future.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

AHEAD_S = 60.0
"""What was written as now, and lies further ahead than this, is of before the clock was set back. As much as statements
that wait for each other, and clocks that are slewed, are apart by far.
"""

LEAP_S = 10.0
"""A difference to a clock that nobody sets that is no leap: clocks are slewed."""

QUICK_S = 2.0
"""An answer that takes longer is asked for again: it says little of what the clock was when."""

TRIES = 3


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
        self._apart: tuple[float, float] | None = None
        self._lock = threading.Lock()

    def look(self, now: Callable[[], float], steady: Callable[[], float], tries: int = TRIES) -> tuple[float, float]:
        """Ask both clocks; return the time, and by how much the clock was set since this was asked last.

        ``tries`` is 1 where somebody waits for a row that is held: the next look, elsewhere, is as good.
        """
        for _ in range(tries):
            asked, moment, answered = steady(), now(), steady()
            if answered - asked <= QUICK_S:
                break
        return moment, self.leap(moment, asked, answered)

    def leap(self, now: float, asked: float, answered: float) -> float:
        """Return by how much the clock was set since it was last asked, in seconds; 0.0 where it was not.

        ``now`` is what it answered at some moment between the other two, which are of the clock that nobody sets. So
        how far the two are apart is known to within a span, and what two spans leave possible is no leap.
        """
        least, most = now - answered, now - asked
        with self._lock:
            if self._apart is None:
                self._apart = least, most
            before_least, before_most = self._apart
            by_s = least - before_most if least > before_most else min(most - before_least, 0.0)
            if abs(by_s) > LEAP_S:
                self._apart = least, most
                return by_s
            both = max(least, before_least), min(most, before_most)
            self._apart = both if both[0] <= both[1] else (least, most)
            return 0.0
