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

LEAST = 64
"""Hooks that rest, if any do: fewer are not worth it."""

SPREAD = 16


class Resting:
    """Of one optimizer, by position of its layers; ``positions`` rest now."""

    def __init__(self, layers: int) -> None:
        self.positions: Sequence[int] = ()
        self._layers = layers
        self._seen = 0
        self._known: Sequence[int] | None = None
        stride = layers // SPREAD | 1  # odd: so each 16th of them has a clock, as of all layers
        self._awake = set(range(0, layers, stride))

    def keep(self, position: int) -> None:
        """Leave a layer's hook awake from now on."""
        if position not in self._awake:
            self._awake.add(position)
            self._known = None

    def saw(self, counts: Sequence[int]) -> None:
        """Learn from a window in which all hooks were awake, and some were called: how often each."""
        self._seen += 1
        if 0 in counts:
            for position in [at for at, count in enumerate(counts) if not count]:
                self.keep(position)
        most = max(counts)
        if max(counts[at] for at in self._awake) < most:
            self.keep(counts.index(most))

    def able(self) -> Sequence[int]:
        """Return the positions of those that may rest."""
        if self._seen < SEEN:
            return ()
        if self._known is None:
            able = [at for at in range(self._layers) if at not in self._awake]
            self._known = able if len(able) >= LEAST else ()
        return self._known
