"""One series over the step axis, bucket by bucket, and the pieces in which it is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gradcanary_dashboard.analysis import arrays
from gradcanary_dashboard.analysis.arrays import decode
from gradcanary_dashboard.analysis.events import Events
from gradcanary_dashboard.analysis.launches import Hole


@dataclass(frozen=True)
class Curve:
    """Buckets of one series: first step, smallest, mean and largest value (NaN = none), samples, not finite ones.

    Of one that ``is_sparse`` steps without a value are no hole: it is logged when there is something to log.
    """

    steps: arrays.Floats
    bucket_steps: int
    low: arrays.Floats
    mean: arrays.Floats
    high: arrays.Floats
    count: npt.NDArray[np.int32]
    nonfinite: npt.NDArray[np.int32]
    holes: Sequence[Hole] = ()
    every: int = 1
    is_sparse: bool = False

    @classmethod
    def read(cls, answer: Mapping[str, Any], series: Mapping[str, Any], events: Events) -> Curve:
        """Return one series or metric of an answer; no line is drawn over the holes among the events."""
        count = decode(series["count"])
        low, mean, high = (
            np.where(count > 0, decode(series[key]).astype(np.float64), np.nan) for key in ("min", "mean", "max")
        )
        bucket = max(1, int(answer["bucket_steps"]))
        broken = decode(series["nonfinite"])
        return cls(decode(answer["steps"]), bucket, low, mean, high, count, broken, events.holes, events.every)

    @property
    def middle(self) -> arrays.Floats:
        """The middle step of each bucket."""
        return self.steps + (self.bucket_steps - 1) / 2

    @property
    def is_empty(self) -> bool:
        """Whether nothing at all is known."""
        return not self.pieces() and not self.nonfinite.any()

    @property
    def usual(self) -> float:
        """The median of its means, which one slow step does not lift far; 0 where there is none."""
        finite = self.mean[np.isfinite(self.mean)]
        return float(np.median(finite)) if finite.size else 0.0

    def scaled(self, size: float) -> Curve:
        """Return the curve in units of this size."""
        return replace(self, low=self.low / size, mean=self.mean / size, high=self.high / size)

    def smoothed(self, weight: float) -> Curve:
        """Return an exponential moving average of its means, not biased at its beginning (Kingma and Ba, 2015).

        What is not finite is left out; it begins anew behind a hole, of which it knows nothing.
        """
        mean = np.full_like(self.mean, np.nan)
        for piece in self.pieces():
            found = total = 0.0
            for place in range(piece.start, piece.stop):
                found, total = weight * found + self.mean[place], weight * total + 1
                mean[place] = found / total
        return replace(self, low=mean, mean=mean, high=mean)

    def known(self) -> Curve:
        """Return the curve without buckets of which nothing is known."""
        there = (self.count > 0) | (self.nonfinite > 0)
        columns = ("steps", "low", "mean", "high", "count", "nonfinite")
        return replace(self, **{name: getattr(self, name)[there] for name in columns}, is_sparse=True)

    def pieces(self) -> list[slice]:
        """Return the stretches of buckets that hold values and follow each other without a hole."""
        known = np.isfinite(self.low) & np.isfinite(self.high)
        if not known.any():
            return []
        between = np.diff(self.steps)
        usual = max(float(self.bucket_steps), float(np.median(between)) if len(between) else 0.0)
        near = between <= (np.inf if self.is_sparse else 1.5 * usual)
        joined = known[1:] & known[:-1] & near & ~self._torn()
        starts = np.flatnonzero(known & ~np.concatenate(([False], joined)))
        ends = np.flatnonzero(known & ~np.concatenate((joined, [False]))) + 1
        return [slice(int(start), int(end)) for start, end in zip(starts, ends, strict=True)]

    def _torn(self) -> npt.NDArray[np.bool_]:
        """Return, for each bucket but the last, whether a hole lies between its middle and the next one's.

        A hole that is thinner than a bucket leaves values in it, and still nothing was measured there.
        """
        torn = np.zeros(max(0, len(self.steps) - 1), np.bool_)
        middle = self.middle
        for hole in self.holes:
            first = max(0, int(np.searchsorted(middle, hole.first, "right")) - 1)
            torn[first : int(np.searchsorted(middle, hole.last, "left"))] = True
        return torn


def is_of_samples(answer: Mapping[str, Any], events: Events) -> bool:
    """Whether each bucket of an answer holds one sample at most: as far as a zoom goes where not each step is one.

    An interval that changed in sight leaves several in a bucket, and a stat that is measured in turns one of many.
    """
    told = [decode(series["count"]) + decode(series["nonfinite"]) for series in answer["series"]]
    return int(answer["bucket_steps"]) <= events.every and all((each <= 1).all() for each in told)
