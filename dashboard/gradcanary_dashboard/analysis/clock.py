"""The times of steps: the time axis of figures. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gradcanary_dashboard.analysis.arrays import decode

Floats: TypeAlias = npt.NDArray[np.float64]

PAUSE = 3.0
"""A bucket that took this many times the usual duration contains a pause."""

SKEW = 0.01
"""Share of the whole time by which the times may go back: the clock was set."""


@dataclass(frozen=True)
class Clock:
    """Steps and their times in Unix milliseconds by the agent's clock; both rise."""

    steps: Floats
    times: Floats

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Clock | None:
        """Return the clock of an answer with ``steps`` and ``times``; None if the times do not rise with the steps.

        They do not if a launch went back and ended before the last step of the earlier launch.
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
        """Return the time of a step; beyond the ends, at the usual pace."""
        place = np.asarray(step, np.float64)
        pace = self.pace
        inside = np.interp(place, self.steps, self.times)
        before, behind = np.minimum(place - self.steps[0], 0), np.maximum(place - self.steps[-1], 0)
        return np.asarray(inside + (before + behind) * pace, np.float64)

    def knots(self) -> dict[str, Any]:
        """Return the clock as JSON: the browser converts times to steps."""
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
    """Return the knots with one more at the start of each pause, where the step before it ended."""
    pace, width = _pace(steps, times), np.diff(steps)
    paused = np.flatnonzero(np.diff(times) > PAUSE * pace * width)
    ends, when = steps[paused + 1] - 0.5, times[paused] + pace * (width[paused] - 0.5)
    return np.insert(steps, paused + 1, ends), np.insert(times, paused + 1, when)
