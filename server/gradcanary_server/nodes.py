"""The pyramid: what the samples of some steps have in common, so that a picture need not look at each; pure.

A node sums up the samples of ``width`` steps from a multiple of it on. Nodes are made of nodes, factor 8 at a time, in
one order, and rounded as they are made: a node is the same to the last bit whether it was made long ago from tiles or
just now from the log. Samples are never rounded.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FACTOR = 8

MINIMUM, MEAN, MAXIMUM, COUNT, NONFINITE = PLANES = ("minimum", "mean", "maximum", "count", "nonfinite")

EXTREME_BITS, MEAN_BITS = 12, 14
"""Of the 23 behind the point of a float32, those that nodes keep: the others are as good as random, so no code makes
them smaller. A minimum is at most 2.5e-4 too small, a maximum as much too large, a tenth of what a heatmap's cells tell
apart; a mean, rounded anew on each of seven levels, is within 2.2e-4."""

Plane = NDArray[np.number]
Planes = Mapping[str, Plane]
"""By name, each [n, L]: of the finite samples the minimum, mean and maximum, float (NaN where the count is 0), and the
count, int32; and how many samples, int32, were not finite and are in none of the others. A mean needs its count."""


@dataclass(frozen=True)
class Ticks:
    """n nodes without their measurements: ``start`` int64[n] rising, the ``first`` and ``last`` step in each, the
    smallest agent's time float64[n], and per stat the phases seen, uint8[n] (bit p: wire.PHASES[p]).
    """

    start: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    time: NDArray[np.float64]
    phases: dict[str, NDArray[np.uint8]]


@dataclass(frozen=True)
class Nodes:
    """n nodes of L series, as far as somebody wants to know: some of the planes. ``start`` int64[n] rises."""

    start: NDArray[np.int64]
    planes: Planes


def leaves(
    steps: NDArray[np.int64],
    values: Plane | None,
    nonfinite: NDArray[np.generic] | None,
    wanted: Collection[str] = PLANES,
) -> Nodes:
    """Return samples [n, L] as nodes of their own; NaN is no sample. What nobody wants to know may be None."""
    planes: dict[str, Plane] = {}
    if values is not None:
        planes |= {name: values for name in (MINIMUM, MEAN, MAXIMUM) if name in wanted}
        planes |= {COUNT: (~np.isnan(values)).astype(np.int32)} if COUNT in wanted else {}
    if nonfinite is not None and NONFINITE in wanted:
        planes[NONFINITE] = nonfinite.astype(np.int32, copy=False)
    return Nodes(steps, planes)


def blank(start: NDArray[np.int64], series: int, wanted: Collection[str]) -> Nodes:
    """Return nodes without data."""
    shape = (len(start), series)
    return Nodes(
        start,
        {
            name: np.zeros(shape, np.int32) if name in (COUNT, NONFINITE) else np.full(shape, np.nan, np.float32)
            for name in wanted
        },
    )


def joined(parts: Sequence[Nodes]) -> Nodes:
    """Return nodes of rising parts with the same planes, one at least, as one."""
    if len(parts) == 1:
        return parts[0]
    planes = {name: np.concatenate([part.planes[name] for part in parts]) for name in parts[0].planes}
    return Nodes(np.concatenate([part.start for part in parts]), planes)


def widened(nodes: Nodes, width: int) -> Nodes:
    """Return nodes of ``width`` steps made of narrower ones, whose planes of floats are float32 and not negative.

    The minimum is rounded down and the maximum up. The mean is the weighted mean of the parts' means, summed in float64
    in the order of the steps and rounded to the nearest.
    """
    if not len(nodes.start):
        return nodes
    index = nodes.start // width
    groups = Groups(index)
    planes = sums(nodes.planes, groups)
    if MEAN in planes:
        planes[MEAN] = means(planes).astype(np.float32)
    return Nodes(index[groups.starts] * width, {name: rounded(name, plane) for name, plane in planes.items()})


def rounded(name: str, plane: Plane) -> Plane:
    """Return a plane as nodes hold it: its floats with fewer bits, counts as they are.

    Zero stays zero and nothing else becomes it, nothing becomes infinite, and what was rounded stays as it is: at both
    ends of float32, below its normal numbers and from 2 ** 127 on, all bits are kept.
    """
    if name not in (MINIMUM, MEAN, MAXIMUM):
        return plane
    dropped = np.uint32(2 ** (23 - (MEAN_BITS if name == MEAN else EXTREME_BITS)) - 1)
    added = {MINIMUM: np.uint32(0), MEAN: dropped // 2 + np.uint32(1), MAXIMUM: dropped}[name]
    bits = np.ascontiguousarray(plane).view(np.uint32)  # of floats that are not negative they are in the same order
    found = ((bits + added) & ~dropped).view(np.float32)
    return np.where((plane >= _LEAST) & (plane < _MOST), found, plane)


def sums(planes: Planes, groups: "Groups") -> dict[str, Plane]:
    """Return the planes of whole groups; in the place of the mean there is the sum of all samples, float64."""
    found: dict[str, Plane] = {}
    for name, plane in planes.items():
        if name == MEAN:
            # With nothing there, a weighted mean is NaN times 0.
            count = planes[COUNT]
            found[name] = groups.folded(np.add, np.where(count > 0, plane.astype(np.float64) * count, 0.0))
        else:
            found[name] = groups.folded(FOLDS[name], plane)
    return found


def means(summed: Planes) -> NDArray[np.float64]:
    """Return the means of what :func:`sums` made."""
    found = np.full(summed[MEAN].shape, np.nan)
    np.divide(summed[MEAN], summed[COUNT], out=found, where=summed[COUNT] > 0)
    return found


_LEAST, _MOST = np.finfo(np.float32).smallest_normal, np.float32(2.0**127)

FOLDS = {MINIMUM: np.fmin, MEAN: np.add, MAXIMUM: np.fmax, COUNT: np.add, NONFINITE: np.add}
"""How the parts of a plane come together; means as sums."""


def ticks_of(steps: NDArray[np.int64], times: NDArray[np.float64], phases: dict[str, NDArray[np.uint8]]) -> Ticks:
    """Return samples as nodes of their own."""
    return Ticks(steps, steps, steps, times, phases)


def no_ticks() -> Ticks:
    """Return no ticks."""
    none = np.empty(0, np.int64)
    return Ticks(none, none, none, np.empty(0), {})


def joined_ticks(parts: Sequence[Ticks]) -> Ticks:
    """Return ticks of rising parts, one at least, as one; a stat that a part does not have was not seen there."""
    stats = {stat for part in parts for stat in part.phases}
    seen = {
        stat: np.concatenate([part.phases.get(stat, np.zeros(len(part.start), np.uint8)) for part in parts])
        for stat in sorted(stats)
    }
    return Ticks(
        np.concatenate([part.start for part in parts]),
        np.concatenate([part.first for part in parts]),
        np.concatenate([part.last for part in parts]),
        np.concatenate([part.time for part in parts]),
        seen,
    )


def widened_ticks(ticks: Ticks, width: int) -> Ticks:
    """Return ticks of ``width`` steps made of narrower ones."""
    if not len(ticks.start):
        return ticks
    index = ticks.start // width
    starts = Groups(index).starts
    return Ticks(
        index[starts] * width,
        np.minimum.reduceat(ticks.first, starts),
        np.maximum.reduceat(ticks.last, starts),
        np.fmin.reduceat(ticks.time, starts),
        {stat: np.bitwise_or.reduceat(seen, starts) for stat, seen in ticks.phases.items()},
    )


Rows = slice | NDArray[np.intp]


class Groups:
    """Neighbours with the same key (int64[n] or int64[n, k]): where each group begins, and its members by rank."""

    def __init__(self, keys: NDArray[np.int64]) -> None:
        differs = keys[1:] != keys[:-1]
        begins = differs if differs.ndim == 1 else differs.any(axis=1)
        self.starts = np.concatenate([[0], 1 + np.flatnonzero(begins)])
        self._sizes = np.diff(self.starts, append=len(keys))

    def folded(self, fold: np.ufunc, plane: Plane) -> Plane:
        """Return what each group's members [n, L] are together, taken one after the other."""
        found: Plane | None = None
        for rows, places in self.ranks():
            if found is None:
                found = plane[rows].copy()
            else:
                found[places] = fold(found[places], plane[rows])
        return plane if found is None else found

    def ranks(self) -> Iterator[tuple[Rows, Rows]]:
        """Yield for the first, second, ... members of all groups: their rows, and the groups that have one."""
        size = int(self._sizes.max(initial=0))
        if (self._sizes[:-1] == size).all():  # as it mostly is, and then nothing need be gathered
            rows = int(self._sizes.sum())
            for rank in range(size):
                yield slice(rank, None, size), slice(0, -(-(rows - rank) // size))
            return
        for rank in range(size):
            places = np.flatnonzero(self._sizes > rank)
            yield self.starts[places] + rank, places
