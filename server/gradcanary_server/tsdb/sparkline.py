"""The sparkline of a run: its small gradients in 64 numbers; pure."""

import math
import struct
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

POINTS = 64
"""Numbers that the list shows."""

WORST_SHARE = 0.05
"""Of the layers of a step; the largest absmax among them stands for the step."""

FLOOR = -12.0
"""Decades at which an exact zero is drawn."""

_BUCKETS = 2 * POINTS
_HEAD = struct.Struct("<IIqq")


@dataclass(frozen=True)
class Sparkline:
    """Minima over buckets of ``width`` steps; ``first`` is the bucket number of ``levels[0]``, NaN = no data."""

    width: int = 1
    first: int = 0
    levels: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))

    def add(self, steps: NDArray[np.int64], levels: NDArray[np.float32]) -> "Sparkline":
        """Return the line with these steps (in any order); buckets double when they become too many."""
        steps, levels = steps[~np.isnan(levels)], levels[~np.isnan(levels)]
        if not len(steps):
            return self
        width, begin, end = self.width, int(steps.min()), int(steps.max())
        if len(self.levels):  # neither the first nor the last one is empty
            begin, end = min(begin, width * self.first), max(end, width * (self.first + len(self.levels) - 1))
        while end // width - begin // width >= _BUCKETS:
            width *= 2
        first = begin // width
        merged = np.full(end // width - first + 1, np.nan, np.float32)
        buckets = self.width * np.arange(self.first, self.first + len(self.levels)) // width
        np.fmin.at(merged, buckets - first, self.levels)
        np.fmin.at(merged, steps // width - first, levels)
        return Sparkline(width, first, merged)

    def points(self) -> NDArray[np.float32]:
        """Return float32[64], the run's life from left to right."""
        if not len(self.levels):
            return np.full(POINTS, np.nan, np.float32)
        edges = np.linspace(0, len(self.levels), POINTS + 1)
        spans = zip(np.floor(edges[:-1]).astype(int), np.ceil(edges[1:]).astype(int), strict=True)
        return np.array([np.fmin.reduce(self.levels[begin:end]) for begin, end in spans], np.float32)

    def pack(self) -> bytes:
        return _HEAD.pack(1, len(self.levels), self.width, self.first) + self.levels.astype("<f4").tobytes()

    @classmethod
    def unpack(cls, packed: bytes | None) -> "Sparkline":
        """Return the line that :meth:`pack` wrote; None is an empty one."""
        if packed is None:
            return cls()
        _version, count, width, first = _HEAD.unpack_from(packed)
        return cls(width, first, np.frombuffer(packed, "<f4", count, _HEAD.size).astype(np.float32))


def levels(absmax: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return log10 of the largest absmax among the worst 5 % of layers, per step of float32[n, L]; NaN = no layer."""
    is_missing = np.isnan(absmax)
    if absmax.size and not is_missing.any():
        rank_of_all = max(math.ceil(WORST_SHARE * absmax.shape[1]) - 1, 0)
        worst = np.partition(absmax, rank_of_all, axis=1)[:, rank_of_all]
    else:
        measured = np.count_nonzero(~is_missing, axis=1)
        rank = np.maximum(np.ceil(WORST_SHARE * measured).astype(int) - 1, 0)
        ordered = np.partition(absmax, np.unique(rank), axis=1)  # NaN last
        worst = np.take_along_axis(ordered, rank[:, None], axis=1)[:, 0]
    with np.errstate(divide="ignore"):
        decades: NDArray[np.float32] = np.maximum(np.log10(worst), np.float32(FLOOR))
    return decades
