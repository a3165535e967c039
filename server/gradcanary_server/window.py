"""Measurements over a range of steps, in at most so many buckets, such that no dip is ever lost.

The only way from the archive to a picture. Buckets are aligned to multiples of their width, so that a growing run
keeps its picture while it is extended, and made of the widest nodes that fit into them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from gradcanary import wire
from gradcanary_server.archive import Archive, Stretch
from gradcanary_server.entries import Entries
from gradcanary_server.nodes import Nodes, Ticks


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
class Envelope:
    """float32[B, R] (metrics: float64) of the finite samples per bucket and row.

    NaN where ``count`` int32[B, R] is 0. ``nonfinite`` int32[B, R] counts the samples that were not finite; they are in
    none of the others.
    """

    minimum: NDArray[np.floating]
    mean: NDArray[np.floating]
    maximum: NDArray[np.floating]
    count: NDArray[np.int32]
    nonfinite: NDArray[np.int32]


@dataclass(frozen=True)
class Window:
    """A stat of some layers; ``times`` float64[B] is the agent's time of a bucket's first sample, NaN = no sample."""

    stat: str
    phases: tuple[str, ...]
    buckets: Buckets
    times: NDArray[np.float64]
    layers: NDArray[np.int32]
    envelope: Envelope


@dataclass(frozen=True)
class MetricWindow:
    """Some sparse series on the same buckets; row r of the envelope is series r."""

    buckets: Buckets
    times: NDArray[np.float64]
    envelope: Envelope


def window(
    archive: Archive, connection: Connection, run_id: int, stat: str, layers: NDArray[np.int32], steps: Range
) -> Window:
    """Return a stat of these layers between two steps."""
    found = archive.stretches(connection, run_id, steps.begin, steps.end)
    # Which buckets there are is known when the steps are read, and how to read them when the buckets are.
    rough = _buckets([(of.first, of.last) for of in found], _every(found), steps.points)
    ticks = [archive.ticks(connection, run_id, of, of.chain.level_for(rough.width)) for of in found]
    used = [(of, each) for of, each in zip(found, ticks, strict=True) if len(each.start)]
    bounds = [(int(each.first.min()), int(each.last.max())) for _, each in used]
    buckets = _buckets(bounds, _every([of for of, _ in used]), steps.points)
    gathered, times, phases = _Gathered(buckets.count, len(layers)), np.full(buckets.count, np.nan), 0
    for of, each in used:
        level = of.chain.level_for(buckets.width)
        seen = each if buckets.width == rough.width else archive.ticks(connection, run_id, of, level)
        np.fmin.at(times, buckets.places(seen.start), seen.time)
        phases |= _phases(seen, stat)
        nodes = archive.nodes(connection, run_id, of, stat, layers, level)
        gathered.add(buckets.places(nodes.start), slice(None), nodes)
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
    gathered, times = _Gathered(buckets.count, len(series)), np.full(buckets.count, np.nan)
    for each in drawn:
        np.fmin.at(times, buckets.places(each.start), each.time)
        for row in np.unique(each.series).tolist():
            mine = each.chosen(each.series == row)
            gathered.add(buckets.places(mine.start), slice(row, row + 1), _planes(mine))
    return MetricWindow(buckets, times, gathered.envelope(np.float64))


def _planes(each: Entries) -> Nodes:
    """Return the entries of one series as nodes [n, 1]."""
    low, mean, high = (plane[:, None] for plane in (each.minimum, each.mean, each.maximum))
    return Nodes(each.start, low, mean, high, each.count[:, None], each.nonfinite[:, None])


def _every(stretches: Iterable[Stretch]) -> int:
    return max((of.every() for of in stretches), default=1)


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

    def __init__(self, buckets: int, rows: int) -> None:
        self._low = np.full((buckets, rows), np.nan)
        self._high = np.full((buckets, rows), np.nan)
        self._sum = np.zeros((buckets, rows))
        self._count = np.zeros((buckets, rows), np.int32)
        self._nonfinite = np.zeros((buckets, rows), np.int32)

    def add(self, places: NDArray[np.int64], rows: slice, nodes: Nodes) -> None:
        """Take nodes, of which number i belongs to bucket ``places[i]``; places rise."""
        starts = np.flatnonzero(np.diff(places, prepend=-1))
        if not len(starts):
            return
        at = (places[starts], rows)
        self._low[at] = np.fmin(self._low[at], np.fmin.reduceat(nodes.minimum, starts))
        self._high[at] = np.fmax(self._high[at], np.fmax.reduceat(nodes.maximum, starts))
        with np.errstate(over="ignore", invalid="ignore"):  # a mean of metrics near 1e308 is inf
            terms = np.where(nodes.count > 0, nodes.mean.astype(np.float64) * nodes.count, 0.0)
            self._sum[at] += np.add.reduceat(terms, starts)
        self._count[at] += np.add.reduceat(nodes.count, starts, dtype=np.int32)
        self._nonfinite[at] += np.add.reduceat(nodes.nonfinite, starts, dtype=np.int32)

    def envelope(self, dtype: type[np.floating]) -> Envelope:
        """Return what was taken."""
        mean = np.divide(self._sum, self._count, out=np.full(self._sum.shape, np.nan), where=self._count > 0)
        low, mean, high = (plane.astype(dtype) for plane in (self._low, mean, self._high))
        return Envelope(low, mean, high, self._count, self._nonfinite)
