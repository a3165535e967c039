"""Downsampling of samples: dense stats and sparse metrics; pure.

An aggregate covers the samples of ``width`` steps, from a multiple of it on. Aggregates are made of aggregates, factor
8 at a time, in one order and with one rounding: the result is the same to the last bit, whether it comes from tiles or
from the log. Samples are never rounded. Metrics are sparse, one row per series and aggregate: most have a point at
every step, some have ten, and there may be thousands, so a plane of steps by series would be large.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

FACTOR = 8

MINIMUM, MEAN, MAXIMUM, COUNT, NONFINITE = PLANES = ("minimum", "mean", "maximum", "count", "nonfinite")

EXTREME_BITS, MEAN_BITS = 12, 14
"""Mantissa bits of a float32, of 23, that aggregates keep: the others are nearly random and do not compress. A minimum
is at most 2.5e-4 too small, a maximum as much too large: a tenth of the resolution of a heatmap's cells. A mean, which
is rounded on each of seven levels, is within 2.2e-4."""

Scalar = TypeVar("Scalar", bound=np.generic)

Plane = NDArray[np.number]
Planes = Mapping[str, Plane]
"""By name, each [n, L]: minimum, mean and maximum of the finite samples, float (NaN where the count is 0), their count,
int32, and the count of the samples that were not finite, int32. A mean needs its count."""


@dataclass(frozen=True)
class StepIndex:
    """n aggregates without their measurements: ``start`` int64[n] rising, the ``first`` and ``last`` step in each, the
    smallest agent's time float64[n], and per stat the phases in it, uint8[n] (bit p: wire.PHASES[p]).
    """

    start: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    time: NDArray[np.float64]
    phases: dict[str, NDArray[np.uint8]]

    @classmethod
    def of_samples(
        cls, steps: NDArray[np.int64], times: NDArray[np.float64], phases: dict[str, NDArray[np.uint8]]
    ) -> "StepIndex":
        """Return samples as aggregates of one step."""
        return cls(steps, steps, steps, times, phases)

    @classmethod
    def concat(cls, parts: Sequence["StepIndex"]) -> "StepIndex":
        """Return rising parts as one; a stat that a part does not have has no phase there."""
        none = np.empty(0, np.int64)
        parts = parts or [cls(none, none, none, np.empty(0), {})]
        stats = sorted({stat for part in parts for stat in part.phases})
        blanks = [np.zeros(len(part.start), np.uint8) for part in parts]
        return cls(
            np.concatenate([part.start for part in parts]),
            np.concatenate([part.first for part in parts]),
            np.concatenate([part.last for part in parts]),
            np.concatenate([part.time for part in parts]),
            {
                stat: np.concatenate([part.phases.get(stat, blank) for part, blank in zip(parts, blanks, strict=True)])
                for stat in stats
            },
        )

    def downsample(self, width: int) -> "StepIndex":
        """Return aggregates of ``width`` steps made of these narrower ones."""
        if not len(self.start):
            return self
        index = self.start // width
        starts = Groups(index).starts
        return StepIndex(
            index[starts] * width,
            np.minimum.reduceat(self.first, starts),
            np.maximum.reduceat(self.last, starts),
            np.fmin.reduceat(self.time, starts),
            {stat: np.bitwise_or.reduceat(bits, starts) for stat, bits in self.phases.items()},
        )


@dataclass(frozen=True)
class Aggregates:
    """n aggregates of L series: the requested planes. ``start`` int64[n] rises."""

    start: NDArray[np.int64]
    planes: Planes

    @classmethod
    def of_samples(
        cls,
        steps: NDArray[np.int64],
        values: Plane | None,
        nonfinite: NDArray[np.generic] | None,
        wanted: Collection[str] = PLANES,
    ) -> "Aggregates":
        """Return samples [n, L] as aggregates of one step; NaN is no sample. Planes that are not wanted may be None."""
        planes: dict[str, Plane] = {}
        if values is not None:
            planes |= {name: values for name in (MINIMUM, MEAN, MAXIMUM) if name in wanted}
            planes |= {COUNT: (~np.isnan(values)).astype(np.int32)} if COUNT in wanted else {}
        if nonfinite is not None and NONFINITE in wanted:
            planes[NONFINITE] = nonfinite.astype(np.int32, copy=False)
        return cls(steps, planes)

    @classmethod
    def without_samples(cls, start: NDArray[np.int64], series: int, wanted: Collection[str]) -> "Aggregates":
        shape = (len(start), series)
        planes: dict[str, Plane] = {}
        for name in wanted:
            is_count = name in (COUNT, NONFINITE)
            planes[name] = np.zeros(shape, np.int32) if is_count else np.full(shape, np.nan, np.float32)
        return cls(start, planes)

    @classmethod
    def concat(cls, parts: Sequence["Aggregates"]) -> "Aggregates":
        """Return rising parts with the same planes, one at least, as one."""
        if len(parts) == 1:
            return parts[0]
        planes = {name: np.concatenate([part.planes[name] for part in parts]) for name in parts[0].planes}
        return cls(np.concatenate([part.start for part in parts]), planes)

    def downsample(self, width: int) -> "Aggregates":
        """Return aggregates of ``width`` steps made of these narrower ones, with float32 planes that are not negative.

        The minimum is rounded down and the maximum up. The mean is the weighted mean of the parts' means, summed in
        float64 in the order of the steps and rounded to the nearest.
        """
        if not len(self.start):
            return self
        index = self.start // width
        groups = Groups(index)
        planes = reduce_planes(self.planes, groups)
        if MEAN in planes:
            planes[MEAN] = means(planes).astype(np.float32)
        rounded = {name: round_plane(name, plane) for name, plane in planes.items()}
        return Aggregates(index[groups.starts] * width, rounded)


def round_plane(name: str, plane: Plane) -> Plane:
    """Return a plane as aggregates store it: floats with fewer bits, counts unchanged.

    Only zero is zero, nothing becomes infinite, and rounding twice is rounding once. At both ends of float32, below its
    normal numbers and from 2 ** 127 on, all bits are kept.
    """
    if name not in (MINIMUM, MEAN, MAXIMUM):
        return plane
    dropped = np.uint32(2 ** (23 - (MEAN_BITS if name == MEAN else EXTREME_BITS)) - 1)
    added = {MINIMUM: np.uint32(0), MEAN: dropped // 2 + np.uint32(1), MAXIMUM: dropped}[name]
    bits = np.ascontiguousarray(plane).view(np.uint32)  # in the order of the values, which are not negative
    rounded = ((bits + added) & ~dropped).view(np.float32)
    return np.where((plane >= _LEAST) & (plane < _MOST), rounded, plane)


def reduce_planes(planes: Planes, groups: "Groups") -> dict[str, Plane]:
    """Return the planes of whole groups, with the sum of all samples, float64, instead of the mean."""
    return {
        name: groups.reduce(REDUCTIONS[name], sample_sums(planes) if name == MEAN else plane)
        for name, plane in planes.items()
    }


def sample_sums(planes: Planes) -> NDArray[np.float64]:
    """Return the sums of the samples that have these means and counts."""
    count = planes[COUNT]
    # Without a sample, a weighted mean is NaN times 0.
    return np.where(count > 0, planes[MEAN].astype(np.float64) * count, 0.0)


def means(summed: Planes) -> NDArray[np.float64]:
    """Return the means for the sums of :func:`reduce_planes`."""
    result = np.full(summed[MEAN].shape, np.nan)
    np.divide(summed[MEAN], summed[COUNT], out=result, where=summed[COUNT] > 0)
    return result


_LEAST, _MOST = np.finfo(np.float32).smallest_normal, np.float32(2.0**127)

REDUCTIONS = {MINIMUM: np.fmin, MEAN: np.add, MAXIMUM: np.fmax, COUNT: np.add, NONFINITE: np.add}
"""How the parts of a plane are combined; means as sums."""

Rows = slice | NDArray[np.intp]


class Groups:
    """Neighbours with the same key (int64[n] or int64[n, k]): ``starts`` are the first rows of the groups."""

    def __init__(self, keys: NDArray[np.int64]) -> None:
        differs = keys[1:] != keys[:-1]
        begins = differs if differs.ndim == 1 else differs.any(axis=1)
        self.starts = np.concatenate([[0], 1 + np.flatnonzero(begins)])
        self._sizes = np.diff(self.starts, append=len(keys))

    def reduce(self, function: np.ufunc, plane: NDArray[Scalar]) -> NDArray[Scalar]:
        """Return the members [n, L] of each group combined in their order."""
        result = plane
        for rank, (rows, groups) in enumerate(self.ranks()):
            if rank == 0:
                result = plane[rows].copy()
            else:
                result[groups] = function(result[groups], plane[rows])
        return result

    def ranks(self) -> Iterator[tuple[Rows, Rows]]:
        """Yield for the first, second, ... members of all groups: their rows, and the groups that have one."""
        size = int(self._sizes.max(initial=0))
        if (self._sizes[:-1] == size).all():  # nearly always, and slices need no gathering
            rows = int(self._sizes.sum())
            for rank in range(size):
                yield slice(rank, None, size), slice(0, -(-(rows - rank) // size))
            return
        for rank in range(size):
            groups = np.flatnonzero(self._sizes > rank)
            yield self.starts[groups] + rank, groups


@dataclass(frozen=True)
class SparseAggregates:
    """n aggregates, by series and ``start``: ``series`` int64[n] is an index in a list that the caller has.

    ``first`` and ``last`` int64[n] are the steps of the points, ``time`` float64[n] the smallest agent's time (NaN =
    unknown); minimum, mean and maximum float64[n] of the finite points, NaN where ``count`` int32[n] is 0;
    ``nonfinite`` int32[n]. The mean of a single point is its value, also if that is not finite.
    """

    series: NDArray[np.int64]
    start: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    time: NDArray[np.float64]
    minimum: NDArray[np.float64]
    mean: NDArray[np.float64]
    maximum: NDArray[np.float64]
    count: NDArray[np.int32]
    nonfinite: NDArray[np.int32]

    @classmethod
    def of_points(
        cls,
        series: NDArray[np.int64],
        steps: NDArray[np.int64],
        values: NDArray[np.float64],
        times: NDArray[np.float64],
    ) -> "SparseAggregates":
        """Return points as aggregates of one step."""
        is_finite = np.isfinite(values)
        finite = np.where(is_finite, values, np.nan)
        count = is_finite.astype(np.int32)
        return cls.concat([cls(series, steps, steps, steps, times, finite, values, finite, count, 1 - count)])

    @classmethod
    def empty(cls) -> "SparseAggregates":
        integers, floats, counts = np.empty(0, np.int64), np.empty(0), np.empty(0, np.int32)
        return cls(integers, integers, integers, integers, floats, floats, floats, floats, counts, counts)

    @classmethod
    def concat(cls, parts: Sequence["SparseAggregates"]) -> "SparseAggregates":
        """Return all parts sorted; aggregates of the same series and start are in the order of the parts."""
        if not parts:
            return cls.empty()
        columns = [np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(cls)]
        order = np.lexsort([columns[1], columns[0]])
        return cls(*(column[order] for column in columns))

    def select(self, rows: NDArray[np.intp] | NDArray[np.bool_] | slice) -> "SparseAggregates":
        return SparseAggregates(*(getattr(self, field.name)[rows] for field in fields(self)))

    def downsample(self, width: int) -> "SparseAggregates":
        """Return aggregates of ``width`` steps made of these narrower ones; the mean as in :class:`Aggregates`."""
        if not len(self.series):
            return self
        index = self.start // width
        groups = Groups(np.stack([self.series, index], axis=1))
        starts = groups.starts
        total = np.zeros(len(starts))
        with np.errstate(over="ignore", invalid="ignore"):  # a mean of metrics near 1e308 is inf
            terms = np.where(self.count > 0, self.mean * self.count, 0.0)
            for rows, members in groups.ranks():
                total[members] += terms[rows]
        count = np.add.reduceat(self.count, starts, dtype=np.int32)
        return SparseAggregates(
            self.series[starts],
            index[starts] * width,
            np.minimum.reduceat(self.first, starts),
            np.maximum.reduceat(self.last, starts),
            np.fmin.reduceat(self.time, starts),
            np.fmin.reduceat(self.minimum, starts),
            np.divide(total, count, out=np.full(len(starts), np.nan), where=count > 0),
            np.fmax.reduceat(self.maximum, starts),
            count,
            np.add.reduceat(self.nonfinite, starts, dtype=np.int32),
        )
