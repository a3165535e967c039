"""One series in buckets over the step axis, and the pieces without a hole in which it is drawn. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gradcanary_dashboard.analysis import arrays
from gradcanary_dashboard.analysis.arrays import decode
from gradcanary_dashboard.analysis.buckets import Buckets
from gradcanary_dashboard.analysis.events import Events
from gradcanary_dashboard.analysis.launches import Hole


@dataclass(frozen=True)
class Curve:
    """Buckets of one series: minimum, mean, maximum (NaN = none); numbers of samples and non-finite ones.

    In one that ``is_sparse`` a step without a value is not a hole: it is logged from time to time.
    """

    buckets: Buckets
    low: arrays.Floats
    mean: arrays.Floats
    high: arrays.Floats
    count: npt.NDArray[np.int32]
    nonfinite: npt.NDArray[np.int32]
    holes: Sequence[Hole] = ()
    is_sparse: bool = False

    @classmethod
    def read(cls, answer: Mapping[str, Any], series: Mapping[str, Any], events: Events) -> Curve:
        """Return one series or metric of an answer, with the holes of the events."""
        count = decode(series["count"])
        low, mean, high = (
            np.where(count > 0, decode(series[key]).astype(np.float64), np.nan) for key in ("min", "mean", "max")
        )
        broken = decode(series["nonfinite"])
        return cls(Buckets.of(answer, events.every), low, mean, high, count, broken, events.holes)

    @property
    def middle(self) -> arrays.Floats:
        """The middle step of each bucket."""
        return self.buckets.middle

    @property
    def is_empty(self) -> bool:
        """True if no bucket has a value."""
        return not self.pieces() and not self.nonfinite.any()

    @property
    def usual(self) -> float:
        """The median of the means; 0 without any. One slow step changes it little."""
        finite = self.mean[np.isfinite(self.mean)]
        return float(np.median(finite)) if finite.size else 0.0

    def scaled(self, size: float) -> Curve:
        """Return the curve in units of this size."""
        return replace(self, low=self.low / size, mean=self.mean / size, high=self.high / size)

    def smoothed(self, weight: float) -> Curve:
        """Return an exponential moving average of the means, with bias correction (Kingma and Ba, 2015).

        Non-finite means are left out; after a hole it starts again.
        """
        mean = np.full_like(self.mean, np.nan)
        for piece in self.pieces():
            found = total = 0.0
            for place in range(piece.start, piece.stop):
                found, total = weight * found + self.mean[place], weight * total + 1
                mean[place] = found / total
        return replace(self, low=mean, mean=mean, high=mean)

    def known(self) -> Curve:
        """Return the curve without empty buckets."""
        return replace(self.select((self.count > 0) | (self.nonfinite > 0)), is_sparse=True)

    def select(self, chosen: npt.NDArray[np.bool_]) -> Curve:
        """Return the curve with these buckets alone."""
        columns = ("buckets", "low", "mean", "high", "count", "nonfinite")
        return replace(self, **{name: getattr(self, name)[chosen] for name in columns})

    def pieces(self) -> list[slice]:
        """Return the stretches of buckets with values and without a hole between them."""
        known = np.isfinite(self.low) & np.isfinite(self.high)
        if not known.any():
            return []
        between, width = np.diff(self.buckets.first), self.buckets.width[:-1]
        usual = np.maximum(width, np.median(between) if len(between) else 0.0)
        near = between <= (np.inf if self.is_sparse else 1.5 * usual)
        joined = known[1:] & known[:-1] & near & ~self._torn()
        starts = np.flatnonzero(known & ~np.concatenate(([False], joined)))
        ends = np.flatnonzero(known & ~np.concatenate((joined, [False]))) + 1
        return [slice(int(start), int(end)) for start, end in zip(starts, ends, strict=True)]

    def _torn(self) -> npt.NDArray[np.bool_]:
        """Return for each bucket but the last True if a hole lies between its middle and the next one's.

        A bucket that is wider than the hole has values, but the line must not cross the hole.
        """
        middle = self.middle
        torn = np.zeros(max(0, len(middle) - 1), np.bool_)
        for hole in self.holes:
            first = max(0, int(np.searchsorted(middle, hole.first, "right")) - 1)
            torn[first : int(np.searchsorted(middle, hole.last, "left"))] = True
        return torn


def is_of_samples(answer: Mapping[str, Any], events: Events) -> bool:
    """Return True if each bucket of an answer has at most one sample, so that a zoom cannot go further.

    Where the interval changed a bucket may have several; where layers are measured in turns most have none.
    """
    told = [decode(series["count"]) + decode(series["nonfinite"]) for series in answer["series"]]
    are_single = Buckets.of(answer, events.every).are_single
    return bool(are_single.all()) and all((each <= 1).all() for each in told)
