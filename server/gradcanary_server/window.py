"""Measurements over a range of steps, in at most so many buckets, such that no dip is ever lost.

The only way from the archive to a picture. Buckets are aligned to multiples of their width, so that a growing run
keeps its picture while it is extended, and made of the widest nodes that fit into them.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from gradcanary import wire
from gradcanary_server.archive import Archive, Stretch
from gradcanary_server.entries import Entries
from gradcanary_server.nodes import (
    COUNT,
    FOLDS,
    MAXIMUM,
    MEAN,
    MINIMUM,
    NONFINITE,
    PLANES,
    Groups,
    Plane,
    Planes,
    Ticks,
    means,
    sums,
)


@dataclass(frozen=True)
class Range:
    """Steps from ``begin`` to ``end``, both included, None = no bound; at most ``points`` buckets."""

    begin: int | None
    end: int | None
    points: int


@dataclass(frozen=True)
class Buckets:
    """``count`` buckets of ``width`` steps, the first from step ``first * width``."""

    width: int
    first: int
    count: int

    def steps(self) -> NDArray[np.float64]:
        """Return the first step of each bucket."""
        return (self.first + np.arange(self.count, dtype=np.float64)) * self.width

    def places(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bucket index of each step."""
        return steps // self.width - self.first


@dataclass(frozen=True)
class Window:
    """A stat of some layers, per bucket and layer [B, R].

    ``times`` float64[B] is the agent's time of a bucket's first sample, NaN = no sample.
    """

    stat: str
    phases: tuple[str, ...]
    buckets: Buckets
    times: NDArray[np.float64]
    layers: NDArray[np.int32]
    envelope: Planes


@dataclass(frozen=True)
class MetricWindow:
    """Some sparse series on the same buckets; column r of the envelope is series r."""

    buckets: Buckets
    times: NDArray[np.float64]
    envelope: Planes


def window(
    archive: Archive,
    connection: Connection,
    run_id: int,
    stat: str,
    layers: NDArray[np.int32],
    steps: Range,
    wanted: Collection[str] = PLANES,
) -> Window:
    """Return a stat of these layers between two steps, as far as it is ``wanted``."""
    found = archive.stretches(connection, run_id, steps.begin, steps.end)
    # Which buckets there are is known when the steps are read, and how to read them when the buckets are.
    rough = _buckets([(of.first, of.last) for of in found], _every(found), steps.points)
    ticks = [archive.ticks(connection, run_id, of, of.chain.level_for(rough.width)) for of in found]
    used = [(of, each) for of, each in zip(found, ticks, strict=True) if len(each.start)]
    bounds = [(int(each.first.min()), int(each.last.max())) for _, each in used]
    buckets = _buckets(bounds, _every([of for of, _ in used]), steps.points)
    gathered = _Gathered(buckets.count, len(layers), wanted)
    times, phases = np.full(buckets.count, np.nan), 0
    for of, each in used:
        level = of.chain.level_for(buckets.width)
        seen = each if buckets.width == rough.width else archive.ticks(connection, run_id, of, level)
        np.fmin.at(times, buckets.places(seen.start), seen.time)
        phases |= _phases(seen, stat)
        nodes = archive.nodes(connection, run_id, of, stat, layers, level, wanted)
        gathered.add(buckets.places(nodes.start), slice(None), nodes.planes)
    names = tuple(name for bit, name in enumerate(wire.PHASES) if phases >> bit & 1)
    return Window(stat, names, buckets, times, layers, gathered.envelope(np.float32))


def metric_window(
    archive: Archive, connection: Connection, run_id: int, series: Sequence[tuple[str, str]], steps: Range
) -> MetricWindow:
    """Return the metrics of these names and tags between two steps."""
    found = archive.of_metrics(connection, run_id, steps.begin, steps.end)
    numbered = {key: number for number, key in enumerate(series)}

    def read(width: int) -> list[Entries]:
        return [archive.entries(connection, run_id, of, numbered, of.chain.level_for(width)) for of in found]

    rough = _buckets([(of.first, of.last) for of in found], _every(found), steps.points)
    drawn = read(rough.width)
    bounds = [(int(each.first.min()), int(each.last.max())) for each in drawn if len(each.start)]
    buckets = _buckets(bounds, _every(found), steps.points)
    if buckets.width != rough.width:
        drawn = read(buckets.width)
    gathered, times = _Gathered(buckets.count, len(series), PLANES), np.full(buckets.count, np.nan)
    for each in drawn:
        np.fmin.at(times, buckets.places(each.start), each.time)
        for row in np.unique(each.series).tolist():
            mine = each.chosen(each.series == row)
            gathered.add(buckets.places(mine.start), slice(row, row + 1), _planes(mine))
    return MetricWindow(buckets, times, gathered.envelope(np.float64))


def _planes(each: Entries) -> Planes:
    """Return the entries of one series as planes [n, 1]."""
    return {name: getattr(each, name)[:, None] for name in PLANES}


def _every(stretches: Iterable[Stretch]) -> int:
    """Return the steps of the narrowest buckets into which all nodes fit: four times the widest node's at most."""
    return math.lcm(*(of.every() for of in stretches))


def _phases(ticks: Ticks, stat: str) -> int:
    seen = ticks.phases.get(stat)
    return 0 if seen is None else int(np.bitwise_or.reduce(seen))


def _buckets(bounds: Sequence[tuple[int, int]], every: int, points: int) -> Buckets:
    """Return buckets of ``every`` times a power of two, the narrowest of which ``points`` hold all steps."""
    if not bounds:
        return Buckets(every, 0, 0)
    low, high = min(begin for begin, _ in bounds), max(end for _, end in bounds)
    width = every
    while high // width - low // width >= points:
        width *= 2
    return Buckets(width, low // width, high // width - low // width + 1)


class _Gathered:
    """Puts nodes into buckets."""

    def __init__(self, buckets: int, series: int, wanted: Collection[str]) -> None:
        shape = (buckets, series)
        counts = {name: np.zeros(shape, np.int32) for name in wanted if name in (COUNT, NONFINITE)}
        extremes = {name: np.full(shape, np.nan) for name in wanted if name in (MINIMUM, MAXIMUM)}
        self._summed: dict[str, Plane] = {MEAN: np.zeros(shape)} if MEAN in wanted else {}
        self._summed |= counts | extremes

    def add(self, places: NDArray[np.int64], series: slice, planes: Planes) -> None:
        """Take nodes, of which number i belongs to bucket ``places[i]``; places rise."""
        if not len(places):
            return
        groups = Groups(places)
        at = (places[groups.starts], series)
        with np.errstate(over="ignore", invalid="ignore"):  # a mean of metrics near 1e308 is inf
            for name, plane in sums(planes, groups).items():
                mine = self._summed[name]
                mine[at] = FOLDS[name](mine[at], plane)

    def envelope(self, dtype: type[np.floating]) -> Planes:
        """Return what was taken."""
        found = self._summed | ({MEAN: means(self._summed)} if MEAN in self._summed else {})
        return {name: plane if plane.dtype == np.int32 else plane.astype(dtype) for name, plane in found.items()}
