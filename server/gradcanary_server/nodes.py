"""The pyramid: what the samples of some steps have in common, so that a picture need not look at each; pure.

A node sums up the samples of ``width`` steps from a multiple of it on. Nodes are made of nodes, factor 8 at a time, in
one order: a node is the same to the last bit whether it was made long ago from tiles or just now from the log.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FACTOR = 8

Planes = NDArray[np.floating]


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
    """n nodes of L series: the finite samples' minimum, mean, maximum float[n, L] (NaN where ``count`` int32[n, L] is
    0), and ``nonfinite`` int32[n, L], samples that are in none of the others. ``start`` int64[n] rises.
    """

    start: NDArray[np.int64]
    minimum: Planes
    mean: Planes
    maximum: Planes
    count: NDArray[np.int32]
    nonfinite: NDArray[np.int32]


def leaves(steps: NDArray[np.int64], values: Planes, nonfinite: NDArray[np.bool_]) -> Nodes:
    """Return samples [n, L] as nodes of their own; NaN is no sample."""
    count = (~np.isnan(values)).astype(np.int32)
    return Nodes(steps, values, values, values, count, nonfinite.astype(np.int32))


def nothing(series: int) -> Nodes:
    """Return no nodes of so many series."""
    plane, counts = np.empty((0, series), np.float32), np.empty((0, series), np.int32)
    return Nodes(np.empty(0, np.int64), plane, plane, plane, counts, counts)


def joined(parts: Sequence[Nodes]) -> Nodes:
    """Return nodes of rising parts, one at least, as one."""
    if len(parts) == 1:
        return parts[0]
    columns = ("start", "minimum", "mean", "maximum", "count", "nonfinite")
    return Nodes(*(np.concatenate([getattr(part, name) for part in parts]) for name in columns))


def widened(nodes: Nodes, width: int) -> Nodes:
    """Return nodes of ``width`` steps made of narrower ones.

    The mean is the weighted mean of the parts' means, summed in float64 in the order of the steps and rounded.
    """
    if not len(nodes.start):
        return nodes
    index = nodes.start // width
    groups = Groups(index)
    shape = (len(groups.starts), nodes.count.shape[1])
    low, high = np.full(shape, np.nan, nodes.minimum.dtype), np.full(shape, np.nan, nodes.maximum.dtype)
    total, count, nonfinite = np.zeros(shape), np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    # With nothing there, a weighted mean is NaN times 0.
    terms = np.where(nodes.count > 0, nodes.mean.astype(np.float64) * nodes.count, 0.0)
    for rows, places in groups.ranks():
        low[places] = np.fmin(low[places], nodes.minimum[rows])
        high[places] = np.fmax(high[places], nodes.maximum[rows])
        total[places] += terms[rows]
        count[places] += nodes.count[rows]
        nonfinite[places] += nodes.nonfinite[rows]
    mean = np.divide(total, count, out=np.full(shape, np.nan), where=count > 0).astype(nodes.mean.dtype)
    return Nodes(index[groups.starts] * width, low, mean, high, count, nonfinite)


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


class Groups:
    """Neighbours with the same key (int64[n] or int64[n, k]): where each group begins, and its members by rank."""

    def __init__(self, keys: NDArray[np.int64]) -> None:
        differs = keys[1:] != keys[:-1]
        begins = differs if differs.ndim == 1 else differs.any(axis=1)
        self.starts = np.concatenate([[0], 1 + np.flatnonzero(begins)])
        self._sizes = np.diff(self.starts, append=len(keys))

    def ranks(self) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
        """Yield for the first, second, ... members of all groups: their rows, and the groups that have one."""
        for rank in range(int(self._sizes.max())):
            places = np.flatnonzero(self._sizes > rank)
            yield self.starts[places] + rank, places
