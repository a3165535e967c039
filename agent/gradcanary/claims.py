"""Which process made a gradient not finite, where other processes add to it between two backward passes.

Only measured after a reduced gradient or a loss was not finite: a NaN comes back, and healthy runs pay nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gradcanary.records import Kind, Part
from gradcanary.statistics import bounds_of, readable


class LocalNonfinite:
    """Whether this process made gradients of a window not finite, by position of the layer; nothing of it is read.

    Without ``no_sync`` each pass adds to what the last one left in all processes. What was not finite before a pass was
    not made in it.
    """

    def __init__(self) -> None:
        self._found: dict[int, Tensor] = {}
        self._before: dict[int, Tensor] = {}

    def measure(self, position: int, gradient: Tensor) -> None:
        """Measure a gradient of this process alone, in a backward pass.

        One that a former pass had, too, only where it is known what that left.
        """
        found, before = self._found.get(position), self._before.pop(position, None)
        if found is None:
            self._found[position] = _is_nonfinite(gradient)
        elif before is not None:
            self._found[position] = found | (_is_nonfinite(gradient) & ~before)

    def remember(self, gradient_of: Callable[[int], Tensor | None]) -> None:
        """After a pass, measure what it left to the next one, with the parts of other processes in it."""
        for position in self._found:
            gradient = gradient_of(position)
            if gradient is not None and readable(gradient):
                self._before[position] = _is_nonfinite(gradient)

    def combine(self) -> list[Part]:
        """Return what was found, in one part per device."""
        devices: dict[torch.device, list[int]] = {}
        for position, found in self._found.items():
            devices.setdefault(found.device, []).append(position)
        return [Part(Kind.OWN, torch.stack([self._found[at] for at in some]), some) for some in devices.values()]


def _is_nonfinite(gradient: Tensor) -> Tensor:
    least, greatest = bounds_of(gradient)
    return ~(least.isfinite() & greatest.isfinite())
