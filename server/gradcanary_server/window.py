"""Measurements over a range of steps, in at most so many buckets, such that no dip is ever lost; pure.

The only way from the log to a picture. Buckets are aligned to multiples of their width, so that a growing run keeps
its picture while it is extended.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from gradcanary import wire
from gradcanary_server.batches import NO_PHASE, NONFINITE
from gradcanary_server.log import Piece, later_wins

Number = TypeVar("Number", bound=np.generic)


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


def window(pieces: Sequence[Piece], stat: str, layers: NDArray[np.int32], points: int) -> Window:
    """Return a stat of these layers over all steps of the pieces, in at most ``points`` buckets."""
    used = [piece for piece in pieces if len(piece.rows)]
    buckets = _buckets([piece.steps() for piece in used], max((p.columns.every for p in used), default=1), points)
    gathered = _Gathered(buckets.count, len(layers))
    times = np.full(buckets.count, np.inf)
    phases: set[int] = set()
    for piece in used:
        places = buckets.places(piece.steps())
        np.minimum.at(times, places, piece.columns.times[piece.rows])
        if stat in piece.columns.phases:
            phases.update(np.unique(piece.columns.phases[stat][piece.rows]).tolist())
        _gather(gathered, piece, stat, layers, places)
    names = tuple(wire.PHASES[phase] for phase in sorted(phases - {NO_PHASE}))
    return Window(stat, names, buckets, np.where(np.isinf(times), np.nan, times), layers, gathered.envelope(np.float32))


@dataclass(frozen=True)
class MetricPart:
    """Points of a sparse series from one batch; ``steps`` int64[m], ``values`` float64[m]."""

    priority: tuple[int, float, str]
    steps: NDArray[np.int64]
    values: NDArray[np.float64]
    times: NDArray[np.float64]


@dataclass(frozen=True)
class MetricWindow:
    """Some sparse series on the same buckets; row r of the envelope is series r."""

    buckets: Buckets
    times: NDArray[np.float64]
    envelope: Envelope


def metric_window(series: Sequence[Sequence[MetricPart]], points: int) -> MetricWindow:
    """Return sparse series, a later launch winning per step, in at most ``points`` buckets."""
    won = [_won(parts) for parts in series]
    buckets = _buckets([part.steps for parts in won for part in parts], 1, points)
    gathered = _Gathered(buckets.count, len(series))
    times = np.full(buckets.count, np.inf)
    for row, parts in enumerate(won):
        for part in parts:
            places = buckets.places(part.steps)
            np.fmin.at(times, places, part.times)
            finite = np.where(np.isfinite(part.values), part.values, np.nan)[:, None]
            gathered.add(places, np.array([row]), finite, ~np.isfinite(part.values)[:, None])
    return MetricWindow(buckets, np.where(np.isinf(times), np.nan, times), gathered.envelope(np.float64))


def _won(parts: Sequence[MetricPart]) -> list[MetricPart]:
    rows = later_wins((part.priority, part.steps) for part in parts)
    return [
        MetricPart(part.priority, part.steps[mine], part.values[mine], part.times[mine])
        for part, mine in zip(parts, rows, strict=True)
        if len(mine)
    ]


def _buckets(steps: Iterable[NDArray[np.int64]], every: int, points: int) -> Buckets:
    """Return buckets of ``every`` times a power of two, the narrowest of which ``points`` hold all steps."""
    filled = [part for part in steps if len(part)]
    if not filled:
        return Buckets(every, 0, 0)
    low, high = min(int(part.min()) for part in filled), max(int(part.max()) for part in filled)
    width = every
    while high // width - low // width >= points:
        width *= 2
    return Buckets(width, low // width, high // width - low // width + 1)


class _Gathered:
    """Accumulates envelopes bucket by bucket."""

    def __init__(self, buckets: int, rows: int) -> None:
        self._low = np.full((buckets, rows), np.inf)
        self._high = np.full((buckets, rows), -np.inf)
        self._sum = np.zeros((buckets, rows))
        self._count = np.zeros((buckets, rows), np.int32)
        self._nonfinite = np.zeros((buckets, rows), np.int32)

    def add(
        self,
        places: NDArray[np.int64],
        rows: NDArray[np.intp],
        values: NDArray[np.floating],
        nonfinite: NDArray[np.bool_],
    ) -> None:
        """Take values [step][row], NaN = none, of which step i belongs to bucket ``places[i]``."""
        if (np.diff(places) < 0).any():
            order = np.argsort(places, kind="stable")
            places, values, nonfinite = places[order], values[order], nonfinite[order]
        starts = np.flatnonzero(np.diff(places, prepend=-1))
        cells = np.ix_(places[starts], rows)
        absent = np.isnan(values)
        # Most batches miss nothing, and filling holes in is most of the work.
        low, high, terms = (
            (np.where(absent, hole, values) for hole in (np.inf, -np.inf, 0.0)) if absent.any() else (values,) * 3
        )
        self._low[cells] = np.minimum(self._low[cells], np.minimum.reduceat(low, starts))
        self._high[cells] = np.maximum(self._high[cells], np.maximum.reduceat(high, starts))
        with np.errstate(over="ignore", invalid="ignore"):  # a mean of metrics near 1e308 is inf
            self._sum[cells] += np.add.reduceat(terms, starts, dtype=np.float64)
        self._count[cells] += np.add.reduceat(~absent, starts, dtype=np.int32)
        if nonfinite.any():
            self._nonfinite[cells] += np.add.reduceat(nonfinite, starts, dtype=np.int32)

    def envelope(self, dtype: type[np.floating]) -> Envelope:
        """Return what was taken."""
        empty = self._count == 0
        mean = np.divide(self._sum, self._count, out=np.full(self._sum.shape, np.nan), where=~empty)
        return Envelope(
            minimum=np.where(empty, np.nan, self._low).astype(dtype),
            mean=mean.astype(dtype),
            maximum=np.where(empty, np.nan, self._high).astype(dtype),
            count=self._count,
            nonfinite=self._nonfinite,
        )


def _gather(gathered: _Gathered, piece: Piece, stat: str, layers: NDArray[np.int32], places: NDArray[np.int64]) -> None:
    wanted, rows, columns = np.intersect1d(layers, piece.numbers, assume_unique=True, return_indices=True)
    if len(wanted) == 0:
        return
    plane = piece.columns.values.get(stat)
    state = _cells(piece.columns.state, piece.rows, columns)
    values = np.full(state.shape, np.nan, np.float32) if plane is None else _cells(plane, piece.rows, columns)
    gathered.add(places, rows, values, state == NONFINITE)


def _cells(plane: NDArray[Number], rows: NDArray[np.intp], columns: NDArray[np.intp]) -> NDArray[Number]:
    """Return some rows and columns of a plane, without a copy where they are all of it."""
    whole = len(columns) == plane.shape[1] and bool((np.diff(columns) == 1).all())
    if len(rows) < len(plane):
        plane = plane[rows]
    return plane if whole else plane[:, columns]
