"""When steps were taken: the axis of time beside that of steps; no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gradcanary_dashboard.analysis.arrays import decode

Floats: TypeAlias = npt.NDArray[np.float64]

PAUSE = 3.0
"""A bucket that took so many times as long as usual: the training stood still within it."""

SKEW = 0.01
"""Part of the whole time by which a clock may step back: it was set."""


@dataclass(frozen=True)
class Clock:
    """Steps and when each was taken, in milliseconds of Unix time by the agent's clock; both rise."""

    steps: Floats
    times: Floats

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Clock | None:
        """Return the clock of an answer with ``steps`` and ``times``; None where time does not rise with the steps.

        It does not where a launch went back and ended sooner than the one before it: behind its steps are older ones.
        """
        steps, times = decode(answer["steps"]).astype(np.float64), decode(answer["times"]).astype(np.float64) * 1e3
        known = np.isfinite(times)
        steps, times = steps[known], times[known]
        if len(steps) < 2 or times.max() <= times.min():
            return None
        back = -np.minimum(np.diff(times), 0).sum()
        if back > SKEW * (times.max() - times.min()):
            return None
        return cls(*_without_pauses(steps, np.maximum.accumulate(times)))

    def at(self, step: float | Floats) -> Floats:
        """Return when a step was, or would be at the usual pace beyond the ends."""
        place = np.asarray(step, np.float64)
        pace = self.pace
        inside = np.interp(place, self.steps, self.times)
        before, behind = np.minimum(place - self.steps[0], 0), np.maximum(place - self.steps[-1], 0)
        return np.asarray(inside + (before + behind) * pace, np.float64)

    def knots(self) -> dict[str, Any]:
        """Return it as JSON, for the browser, which leads from times back to steps."""
        return {"steps": self.steps.tolist(), "times": self.times.tolist(), "pace": self.pace}

    @property
    def pace(self) -> float:
        """The usual milliseconds from one step to the next."""
        return _pace(self.steps, self.times)


def _pace(steps: Floats, times: Floats) -> float:
    taken = np.diff(times) / np.maximum(np.diff(steps), 1e-9)
    moving = taken[taken > 0]
    return float(np.median(moving)) if moving.size else 1.0


def _without_pauses(steps: Floats, times: Floats) -> tuple[Floats, Floats]:
    """Return the knots with one more before each pause: what came before it ended at the usual pace."""
    pace, width = _pace(steps, times), np.diff(steps)
    paused = np.flatnonzero(np.diff(times) > PAUSE * pace * width)
    ends, when = steps[paused + 1] - 0.5, times[paused] + pace * (width[paused] - 0.5)
    return np.insert(steps, paused + 1, ends), np.insert(times, paused + 1, when)
