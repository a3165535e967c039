"""The hooks of one optimizer's layers: which of them are disabled between samples."""

from __future__ import annotations

from collections.abc import Sequence

SEEN = 100
"""Windows with all hooks enabled, before any is disabled."""

TIMED_EACH = 16
"""One hook in so many has a clock: two readings are half of such a call."""

SPREAD, PART = 16, 8
"""Hooks spread over the model that are always enabled, so that one is called whichever part of it is trained: 16 at
most, and one in eight of fewer layers."""


class HookSampler:
    """Divides the hooks of one optimizer's layers by position.

    ``disabled`` are the ones that are off now, and ``unknown`` all that were off since the last sample. Each hook with
    a clock counts for ``weight_of_timed_hook`` enabled ones.
    """

    def __init__(self, layers: int) -> None:
        self._layers = layers
        self._seen = 0
        stride = layers // min(SPREAD, layers // PART + 1) | 1  # odd: one in 16 of these has a clock, too
        self.always = set(range(0, layers, stride))
        self.unknown: set[int] = set()
        self.enable()

    @property
    def is_learned(self) -> bool:
        """Whether enough windows were seen."""
        return self._seen >= SEEN

    def observe(self, counts: Sequence[int], *, was_sampled: bool) -> None:
        """Learn from a window which layers had no gradient; after the first windows from sampled ones only."""
        if self.is_learned and not was_sampled:
            return
        self._seen += 1
        if 0 in counts:
            self.always.update(position for position, count in enumerate(counts) if not count)

    def disable(self, counts: Sequence[int]) -> Sequence[int]:
        """Disable what is not always enabled and had a gradient in the last window; return the positions."""
        if self.is_learned:
            self._set([at for at, count in enumerate(counts) if count and at not in self.always])
        return self.disabled

    def enable(self) -> None:
        """Enable all hooks."""
        self._set(())

    def sampled(self) -> None:
        """Forget which hooks were off before a sample."""
        self.unknown = set(self.disabled)

    def enabled(self) -> Sequence[int]:
        """Return the positions of the hooks that are enabled."""
        disabled = set(self.disabled)
        return [position for position in range(self._layers) if position not in disabled]

    def _set(self, disabled: Sequence[int]) -> None:
        self.disabled = disabled
        self.unknown.update(disabled)
        timed = -(-self._layers // TIMED_EACH) - sum(not position % TIMED_EACH for position in disabled)
        self.weight_of_timed_hook = (self._layers - len(disabled)) / max(timed, 1)
