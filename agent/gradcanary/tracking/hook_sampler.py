"""The choice of the hooks that are disabled between samples, for the layers of one optimizer."""

from __future__ import annotations

from collections.abc import Sequence

LEARNED_AFTER = 100
"""Windows with all hooks enabled, before any is disabled."""

TIMED_EACH = 16
"""One hook in 16 has a clock: two readings of a clock take half the time of a hook."""

SPREAD, PART = 16, 8
"""Always enabled hooks, spread over the model: at most 16, and one in eight of fewer layers. One of them is called
whichever part of the model is trained."""


class HookSampler:
    """Divides the hooks of one optimizer's layers; layers go by position.

    ``disabled`` are off now, and ``unknown`` were off at some time since the last sample. The time of a hook with a
    clock counts for ``weight_of_timed_hook`` enabled ones.
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
        """True after enough windows."""
        return self._seen >= LEARNED_AFTER

    def observe(self, counts: Sequence[int], *, was_sampled: bool) -> None:
        """Keep the hooks of layers without a gradient enabled; later only sampled windows are complete evidence."""
        if self.is_learned and not was_sampled:
            return
        self._seen += 1
        if 0 in counts:
            self.always.update(position for position, count in enumerate(counts) if not count)

    def disable(self, counts: Sequence[int]) -> Sequence[int]:
        """Disable the hooks of layers that had a gradient, but for those always enabled; return the positions."""
        if self.is_learned:
            self._set([at for at, count in enumerate(counts) if count and at not in self.always])
        return self.disabled

    def enable(self) -> None:
        """Enable all hooks."""
        self._set(())

    def sampled(self) -> None:
        """After a sample, begin to note disabled hooks again."""
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
