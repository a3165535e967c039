"""Which hooks of an optimizer's layers may rest in windows that are not sampled; pure.

Thousands of hooks cost a backward pass more than everything else there, and all they do is to count what is the same
in each window. So those of regular layers rest, which had a gradient in each window that was seen. What tells of
windows, passes and K stays awake: layers that were the first in a backward pass, those that had most of them, those
that were ever without a gradient, and some more over the whole model.
"""

from __future__ import annotations

from collections.abc import Sequence

SEEN = 100
"""Windows in which all hooks were awake, before any rests."""

TIMED_EACH = 16
"""One hook in so many has a clock: two readings are half of such a call."""

SPREAD, PART = 16, 8
"""Hooks over the whole model that stay awake, so that one of them is called whatever part of it is trained: so many at
most, and of fewer layers one in eight."""


class Resting:
    """Of one optimizer, by position of its layers; ``positions`` rest now, and of the others each clock speaks for
    ``hooks_per_clock``."""

    def __init__(self, layers: int) -> None:
        self._layers = layers
        self._have_rest(())
        self._seen = 0
        self._known: Sequence[int] | None = None
        self._last: Sequence[int] = ()
        spread = min(SPREAD, layers // PART + 1)
        stride = layers // spread | 1  # odd: so each 16th of them has a clock, as of all layers
        self._awake = set(range(0, layers, stride))

    def keep(self, position: int) -> None:
        """Leave a layer's hook awake from now on."""
        if position not in self._awake:
            self._awake.add(position)
            self._known = None

    def saw(self, counts: Sequence[int]) -> None:
        """Learn from a window in which all hooks were awake, and some were called: how often each."""
        self._seen += 1
        if counts == self._last:
            return
        self._last = counts
        if 0 in counts:
            for position in [at for at, count in enumerate(counts) if not count]:
                self.keep(position)
        most = max(counts)
        if max(counts[at] for at in self._awake) < most:
            self.keep(counts.index(most))

    def rest(self, counts: Sequence[int]) -> Sequence[int]:
        """Have them rest, and return their positions; not those that were just now without a gradient, for the first
        time: they are to be watched."""
        self._have_rest([position for position in self.able() if counts[position]])
        return self.positions

    def awake(self) -> Sequence[int]:
        """Return the positions of those that do not rest now."""
        resting = set(self.positions)
        return [at for at in range(self._layers) if at not in resting]

    def wake(self) -> None:
        """Have none rest."""
        self._have_rest(())

    def _have_rest(self, positions: Sequence[int]) -> None:
        self.positions = positions
        clocks = -(-self._layers // TIMED_EACH) - sum(not position % TIMED_EACH for position in positions)
        self.hooks_per_clock = (self._layers - len(positions)) / max(clocks, 1)

    @property
    def is_learned(self) -> bool:
        """Whether enough windows were seen."""
        return self._seen >= SEEN

    def able(self) -> Sequence[int]:
        """Return the positions of those that may rest."""
        if not self.is_learned:
            return ()
        if self._known is None:
            self._known = [at for at in range(self._layers) if at not in self._awake]
        return self._known
