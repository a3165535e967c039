"""What ends a pause of a training without an optimizer: gradients that are cleared, or sums that are complete."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gradcanary.window import REPLACED, UNCHANGED, GradientIdentity, Window

if TYPE_CHECKING:
    from gradcanary.gauge import Gauge


class Pause:
    """Follows, from the corner of an eye, the windows of a track that is not looked at; where there is an optimizer,
    nothing: its next step ends the pause."""

    def __init__(self, gauge: Gauge, identity: GradientIdentity, has_optimizer: Callable[[], bool]) -> None:
        self._gauge, self._identity, self._has_optimizer = gauge, identity, has_optimizer
        self._has_passed = False
        self._summed: set[int] = set()

    def is_cleared(self, window: Window) -> bool:
        """Say whether gradients were cleared since the window's last pass, where that is what ends it."""
        layer, gauge = self._identity.layer, self._gauge
        if layer is None or not window.micro_steps or gauge.observed:
            return False
        if self._has_optimizer() or gauge.parameter(layer) is None:
            return False
        return self._identity.change(gauge.gradient(layer)) != UNCHANGED

    def begin(self) -> None:
        """Take passes from now on for those of a window that nobody is to see."""
        self._has_passed = False

    def accumulated(self, position: int) -> None:
        """Note that a layer took part in a pass."""
        if self._identity.layer in (None, position) and not self._has_optimizer():
            self._identity.mark(position, self._gauge.gradient(position))
            self._has_passed = True

    def is_over(self) -> bool:
        """Say, before a pass, whether a window has ended that nobody saw."""
        layer = self._identity.layer
        if layer is None or not self._has_passed or self._gauge.observed or self._has_optimizer():
            return bool(self._summed)
        gradient = self._gauge.gradient(layer)
        change = self._identity.change(gradient)
        if change == REPLACED and gradient is not None:  # put back: the window of before goes on
            self._identity.mark(layer, gradient)
        return change != UNCHANGED

    def has_summed(self, position: int) -> bool:
        """Note that a layer's sum is complete; say whether one was before, so that this is the next window's."""
        is_known = position in self._summed
        self._summed.add(position)
        return is_known

    def end(self, window: Window) -> None:
        """Let go of what was noted; sums that were completed meanwhile end the window that was open."""
        window.summed |= self._summed if window.begun else set()
        self._summed = set()
