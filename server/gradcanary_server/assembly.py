"""Batches of several ranks as the columns of one stream; pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from gradcanary_server.batches import NO_PHASE, Columns, MetricColumn
from gradcanary_server.log import Piece
from gradcanary_server.samples import FOR_EVER, inside
from gradcanary_server.shards import PARTIAL, Shard, combine


@dataclass(frozen=True)
class Part:
    """A batch of a rank; ``numel`` int64[L] counts the elements that it has of each layer of its set."""

    rank: int
    piece: Piece
    numel: NDArray[np.int64]

    @property
    def steps(self) -> NDArray[np.int64]:
        """Return the steps that it measured."""
        return self.piece.columns.steps

    def inside(self, begin: int, end: int) -> "Part":
        """Return the samples from one step to before another."""
        return Part(self.rank, inside(self.piece, begin, end), self.numel)


@dataclass(frozen=True)
class Holding:
    """What a rank holds that sent nothing: elements ``numel`` int64[L] of the layers ``numbers`` int32[L].

    ``numbers`` is None where nobody knows: maybe of each layer.
    """

    numbers: NDArray[np.int32] | None = None
    numel: NDArray[np.int64] | None = None


@dataclass(frozen=True)
class Assembled:
    """Some steps of all ranks together; ``numbers`` int32[L] are the layers of the columns."""

    numbers: NDArray[np.int32]
    columns: Columns

    def divided(self, most: int) -> "Iterator[Assembled]":
        """Yield it in parts of at most so many points, each with the metrics of its steps: readers refuse more."""
        steps = self.columns.steps
        rows = max(most // (max(len(self.columns.values), 1) * len(self.numbers)), 1)
        if len(steps) <= rows:
            yield self
            return
        whole = Piece(0, "", 0, self.numbers, self.columns)
        bounds = [0, *steps[rows::rows].tolist(), int(steps[-1]) + 1]
        for begin, end in pairwise(bounds):
            mine = inside(whole, begin, end).columns
            metrics = _metrics_inside(self.columns.metrics, begin, FOR_EVER if end == bounds[-1] else end)
            yield Assembled(self.numbers, replace(mine, metrics=metrics))


def assemble(
    parts: Sequence[Part], absent: Sequence[Holding], metrics: tuple[MetricColumn, ...], every: int
) -> Assembled:
    """Return the samples of at least one part together, at the widest interval that any of them has, and ``every``.

    Layers that only an absent rank has are there, too: they did not go. What holds for a step as a whole is that of the
    lowest rank which has it; a clip is one that any rank saw.
    """
    known = [holding.numbers for holding in absent if holding.numbers is not None]
    numbers = np.unique(np.concatenate([*(part.piece.numbers for part in parts), *known])).astype(np.int32)
    every = max(every, *(part.piece.columns.every for part in parts))
    steps = np.unique(np.concatenate([part.steps for part in parts]))
    steps = steps[steps % every == 0]
    ranks = sorted({part.rank for part in parts})
    held = [_shard([part for part in parts if part.rank == rank], steps, numbers) for rank in ranks]
    state, values = combine([*held, *(_absent(holding, len(steps), numbers) for holding in absent)])
    columns = Columns(
        layer_set=sha256(numbers.tobytes()).hexdigest()[:16],
        every=every,
        steps=steps,
        **_of_steps(sorted(parts, key=lambda part: -part.rank), steps),  # type: ignore[arg-type]  # by their names
        state=state if len(steps) else np.empty((0, 0), np.uint8),
        values=values,
        phases=_phases(parts, steps, values),
        accumulators=(),
        metrics=metrics,
        dropped_steps=0,
    )
    return Assembled(numbers, columns)


def _metrics_inside(metrics: Sequence[MetricColumn], begin: int, end: int) -> tuple[MetricColumn, ...]:
    found = []
    for metric in metrics:
        mine = (metric.steps >= begin) & (metric.steps < end)
        if mine.any():
            found.append(replace(metric, steps=metric.steps[mine], values=metric.values[mine]))
    return tuple(found)


def _shard(parts: Sequence[Part], steps: NDArray[np.int64], numbers: NDArray[np.int32]) -> Shard:
    """Return what a rank has of some steps and layers."""
    shape = (len(steps), len(numbers))
    numel, state = np.zeros(len(numbers), np.int64), np.full(shape, PARTIAL, np.uint8)
    values: dict[str, NDArray[np.float32]] = {}
    for part in parts:
        columns, places = part.piece.columns, np.searchsorted(numbers, part.piece.numbers)
        numel[places] = part.numel
        theirs, mine = _common(part, steps)
        cells = np.ix_(mine, places)
        state[cells] = columns.state[theirs]
        for stat, plane in columns.values.items():
            values.setdefault(stat, np.full(shape, np.nan, np.float32))[cells] = plane[theirs]
    return Shard(numel, state, values)


def _absent(holding: Holding, steps: int, numbers: NDArray[np.int32]) -> Shard:
    numel = np.ones(len(numbers), np.int64)
    if holding.numbers is not None and holding.numel is not None:
        numel = np.zeros(len(numbers), np.int64)
        _, mine, theirs = np.intersect1d(numbers, holding.numbers, assume_unique=True, return_indices=True)
        numel[mine] = holding.numel[theirs]
    return Shard(numel, np.full((steps, len(numbers)), PARTIAL, np.uint8), {})


def _common(part: Part, steps: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the rows of a part that are steps of the whole, and which ones."""
    _, theirs, mine = np.intersect1d(part.steps, steps, assume_unique=True, return_indices=True)
    return theirs, mine


def _of_steps(lowest_last: Sequence[Part], steps: NDArray[np.int64]) -> dict[str, NDArray[np.generic]]:
    kinds = {"times": np.float64, "micro_steps": np.int16, "skipped": np.uint8, "clipped": np.bool_}
    found: dict[str, NDArray[np.generic]] = {name: np.zeros(len(steps), kind) for name, kind in kinds.items()}
    clipped = np.zeros(len(steps), np.bool_)
    for part in lowest_last:
        theirs, mine = _common(part, steps)
        for name, column in found.items():
            column[mine] = getattr(part.piece.columns, name)[theirs]
        clipped[mine] |= part.piece.columns.clipped[theirs]
    return {**found, "clipped": clipped}


def _phases(
    parts: Sequence[Part], steps: NDArray[np.int64], values: dict[str, NDArray[np.float32]]
) -> dict[str, NDArray[np.uint8]]:
    """Return the phase of each stat by step: of several the one that promises least, none where no value is."""
    found: dict[str, NDArray[np.uint8]] = {}
    for part in parts:
        theirs, mine = _common(part, steps)
        for stat, seen in part.piece.columns.phases.items():
            if stat in values:
                # One more makes NO_PHASE 0, the lowest.
                phase = found.setdefault(stat, np.zeros(len(steps), np.uint8))
                phase[mine] = np.maximum(phase[mine], seen[theirs] + np.uint8(1))
    has_value = {stat: ~np.isnan(plane).all(axis=1) for stat, plane in values.items()}
    return {
        stat: np.where(has_value[stat], phase - np.uint8(1), NO_PHASE).astype(np.uint8) for stat, phase in found.items()
    }
