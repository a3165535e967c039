"""Whose fault it is that a gradient is not finite, where other processes add to it between two backward passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from gradcanary.statistics import bounds_of, readable, stacked

Bounds = tuple[Tensor, Tensor]


class Claims:
    """Least and greatest elements of gradients as this process made them in a window, by position of the layer.

    ``bounds`` are not finite where the layer was not finite in this process while what it added to was: without
    ``no_sync`` each pass adds to what the last one left in all processes. All of it are tensors that nobody has read.
    """

    def __init__(self) -> None:
        self.bounds: dict[int, Bounds] = {}
        self._looked: dict[int, Bounds] = {}
        self._settled: dict[int, Bounds] = {}

    def look(self, position: int, gradient: Tensor) -> None:
        """Measure a gradient of this process alone, in a backward pass."""
        self._looked[position] = bounds_of(gradient)

    def fold(self) -> list[int]:
        """At the end of a pass: take over what was looked at; return the positions.

        A layer that a former pass had, too, is claimed only where that left it finite, as far as is known.
        """
        looked, self._looked = self._looked, {}
        settled = {at: self._settled.pop(at) for at in looked if at in self._settled}
        again = {at: each for at, each in looked.items() if at in self.bounds and at in settled}
        self.bounds.update((at, each) for at, each in looked.items() if at not in self.bounds)
        columns = (again, {at: settled[at] for at in again}, {at: self.bounds[at] for at in again})
        with torch.no_grad():
            for (places, now), (_, before), (_, claimed) in zip(*map(stacked, columns), strict=True):
                added = torch.where(before.isfinite().all(0), now, torch.zeros_like(now))
                ends = torch.where(claimed.isfinite().all(0), added, claimed)
                self.bounds.update(zip(places, zip(*map(torch.unbind, ends), strict=True), strict=True))
        return list(looked)

    def settle(self, positions: Iterable[int], gradient_of: Callable[[int], Tensor | None]) -> None:
        """After a pass: measure what it left to the next one, the parts of other processes in it."""
        for position in positions:
            gradient = gradient_of(position)
            if gradient is not None and readable(gradient):
                self._settled[position] = bounds_of(gradient)
