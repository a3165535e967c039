"""The losses that travelled with some samples, in the order of their steps. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradcanary_server.observations import Samples


@dataclass(frozen=True)
class Loss:
    """A loss of a step, and who skipped that step: 0 nobody, or not known."""

    step: int
    value: float
    skipped: int


@dataclass(frozen=True)
class Losses:
    """``steps`` int64[m] never fall, ``values`` float64[m], ``skipped`` uint8[m]."""

    steps: NDArray[np.int64]
    values: NDArray[np.float64]
    skipped: NDArray[np.uint8]

    @classmethod
    def of(cls, samples: Samples, heard: int) -> Losses:
        """Return the losses of some samples that belong to steps after ``heard``."""
        order = np.argsort(samples.loss_steps, kind="stable")
        order = order[samples.loss_steps[order] > heard]
        steps = samples.loss_steps[order]
        skipped = np.zeros(len(steps), np.uint8)
        if samples.skipped.any():
            row = np.minimum(np.searchsorted(samples.steps, steps), len(samples.steps) - 1)
            skipped = np.where(samples.steps[row] == steps, samples.skipped[row], 0).astype(np.uint8)
        return cls(steps, samples.loss[order], skipped)

    def __len__(self) -> int:
        return len(self.steps)

    def until(self, step: int) -> int:
        """Return how many belong to this step or ones before."""
        return int(np.searchsorted(self.steps, step, side="right"))

    def at(self, place: int) -> Loss:
        """Return one of them."""
        return Loss(int(self.steps[place]), float(self.values[place]), int(self.skipped[place]))

    def between(self, begin: int, end: int) -> Losses:
        """Return those from one place to before another."""
        return Losses(self.steps[begin:end], self.values[begin:end], self.skipped[begin:end])
