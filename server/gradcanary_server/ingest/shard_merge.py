"""Shards of the same steps merged into one batch, with the statistics of the whole layers. Pure.

Nothing is estimated: a number is missing where one of its parts is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from gradcanary import wire
from gradcanary_server.rules.types import MEASURED, NO_GRADIENT, NONFINITE, NOT_TRAINABLE, PARTIAL, ZERO
from gradcanary_server.tsdb.batch import NO_PHASE, Columns, MetricColumn
from gradcanary_server.tsdb.log import LoggedBatch
from gradcanary_server.tsdb.samples import MAX_STEP_EXCLUSIVE, slice_steps

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

ORDER = (NONFINITE, PARTIAL, MEASURED, ZERO, NO_GRADIENT, NOT_TRAINABLE)
"""The state of a layer is the first of these that one of its shards has."""

WEIGHT_STATS = ("update_ratio", "weight_norm", "frozen_fraction")
"""Stats that every shard sends, in any state of its gradient."""

FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class RankBatch:
    """A batch of a rank; ``numel`` int64[L] counts its elements of each layer of its set."""

    rank: int
    piece: LoggedBatch
    numel: NDArray[np.int64]

    @property
    def steps(self) -> NDArray[np.int64]:
        return self.piece.columns.steps

    def slice_steps(self, begin: int, end: int) -> RankBatch:
        return RankBatch(self.rank, slice_steps(self.piece, begin, end), self.numel)


@dataclass(frozen=True)
class AbsentRank:
    """A rank that sent nothing, and holds ``numel`` int64[L] elements of the layers ``numbers`` int32[L].

    Both are None if its layers are unknown: it may hold a part of each layer.
    """

    numbers: NDArray[np.int32] | None = None
    numel: NDArray[np.int64] | None = None


@dataclass(frozen=True)
class MergedBatch:
    """Some steps of all ranks merged; ``numbers`` int32[L] are the layers of the columns."""

    numbers: NDArray[np.int32]
    columns: Columns

    def split(self, max_points: int) -> Iterator[MergedBatch]:
        """Yield parts of at most ``max_points``, the limit of readers, each with the metrics of its steps."""
        steps = self.columns.steps
        rows = max(max_points // (max(len(self.columns.values), 1) * len(self.numbers)), 1)
        if len(steps) <= rows:
            yield self
            return
        whole = LoggedBatch(0, "", 0, self.numbers, self.columns)
        bounds = [0, *steps[rows::rows].tolist(), int(steps[-1]) + 1]
        for begin, end in pairwise(bounds):
            part = slice_steps(whole, begin, end).columns
            metrics = _slice_metrics(self.columns.metrics, begin, MAX_STEP_EXCLUSIVE if end == bounds[-1] else end)
            yield MergedBatch(self.numbers, replace(part, metrics=metrics))


def merge(
    parts: Sequence[RankBatch], absent: Sequence[AbsentRank], metrics: tuple[MetricColumn, ...], every: int
) -> MergedBatch:
    """Return the samples of at least one part merged, at the widest interval of the parts and ``every``.

    The layers of absent ranks are included. Columns without layers are those of the lowest rank that sampled the step;
    a step was clipped if any rank saw a clip.
    """
    of_absent = [rank.numbers for rank in absent if rank.numbers is not None]
    numbers = np.unique(np.concatenate([*(part.piece.numbers for part in parts), *of_absent])).astype(np.int32)
    every = max(every, *(part.piece.columns.every for part in parts))
    steps = np.unique(np.concatenate([part.steps for part in parts]))
    steps = steps[steps % every == 0]
    ranks = sorted({part.rank for part in parts})
    shards = [_shard([part for part in parts if part.rank == rank], steps, numbers) for rank in ranks]
    shards += [_absent_shard(rank, len(steps), numbers) for rank in absent]
    state, values = combine_shards(shards)
    columns = Columns(
        layer_set=sha256(numbers.tobytes()).hexdigest()[:16],
        every=every,
        steps=steps,
        **_step_columns(sorted(parts, key=lambda part: -part.rank), steps),  # type: ignore[arg-type]  # by their names
        state=state if len(steps) else np.empty((0, 0), np.uint8),
        values=values,
        phases=_phases(parts, steps, values),
        accumulators=(),
        metrics=metrics,
        dropped_steps=0,
    )
    return MergedBatch(numbers, columns)


def _slice_metrics(metrics: Sequence[MetricColumn], begin: int, end: int) -> tuple[MetricColumn, ...]:
    masks = [(metric.steps >= begin) & (metric.steps < end) for metric in metrics]
    return tuple(
        replace(metric, steps=metric.steps[mask], values=metric.values[mask])
        for metric, mask in zip(metrics, masks, strict=True)
        if mask.any()
    )


def _shard(parts: Sequence[RankBatch], steps: NDArray[np.int64], numbers: NDArray[np.int32]) -> Shard:
    """Return the part of a rank in some steps and layers."""
    shape = (len(steps), len(numbers))
    numel, state = np.zeros(len(numbers), np.int64), np.full(shape, PARTIAL, np.uint8)
    values: dict[str, NDArray[np.float32]] = {}
    for part in parts:
        columns, layers = part.piece.columns, np.searchsorted(numbers, part.piece.numbers)
        numel[layers] = part.numel
        if not len(part.steps):
            continue  # its state has no width
        part_rows, rows = _common_rows(part, steps)
        cells = np.ix_(rows, layers)
        state[cells] = columns.state[part_rows]
        for stat, plane in columns.values.items():
            values.setdefault(stat, np.full(shape, np.nan, np.float32))[cells] = plane[part_rows]
    return Shard(numel, state, values)


def _absent_shard(rank: AbsentRank, steps: int, numbers: NDArray[np.int32]) -> Shard:
    numel = np.ones(len(numbers), np.int64)
    if rank.numbers is not None and rank.numel is not None:
        numel = np.zeros(len(numbers), np.int64)
        _, layers, rank_layers = np.intersect1d(numbers, rank.numbers, assume_unique=True, return_indices=True)
        numel[layers] = rank.numel[rank_layers]
    return Shard(numel, np.full((steps, len(numbers)), PARTIAL, np.uint8), {})


def _common_rows(part: RankBatch, steps: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the rows of the common steps, in the part and in ``steps``."""
    _, part_rows, rows = np.intersect1d(part.steps, steps, assume_unique=True, return_indices=True)
    return part_rows, rows


def _step_columns(lowest_last: Sequence[RankBatch], steps: NDArray[np.int64]) -> dict[str, NDArray[np.generic]]:
    dtypes = {"times": np.float64, "micro_steps": np.int16, "skipped": np.uint8}
    columns: dict[str, NDArray[np.generic]] = {name: np.zeros(len(steps), dtype) for name, dtype in dtypes.items()}
    clipped = np.zeros(len(steps), np.bool_)
    for part in lowest_last:
        part_rows, rows = _common_rows(part, steps)
        for name, column in columns.items():
            column[rows] = getattr(part.piece.columns, name)[part_rows]
        clipped[rows] |= part.piece.columns.clipped[part_rows]
    return {**columns, "clipped": clipped}


def _phases(
    parts: Sequence[RankBatch], steps: NDArray[np.int64], values: dict[str, NDArray[np.float32]]
) -> dict[str, NDArray[np.uint8]]:
    """Return the phase of each stat by step: the weakest of several, none where there is no value."""
    weakest: dict[str, NDArray[np.uint8]] = {}
    for part in parts:
        part_rows, rows = _common_rows(part, steps)
        for stat, phases in part.piece.columns.phases.items():
            if stat in values:
                # One more makes NO_PHASE 0, the lowest.
                phase = weakest.setdefault(stat, np.zeros(len(steps), np.uint8))
                phase[rows] = np.maximum(phase[rows], phases[part_rows] + np.uint8(1))
    is_empty = {stat: np.isnan(plane).all(axis=1) for stat, plane in values.items()}
    return {
        stat: np.where(is_empty[stat], NO_PHASE, phase - np.uint8(1)).astype(np.uint8)
        for stat, phase in weakest.items()
    }


@dataclass(frozen=True)
class Shard:
    """The part of one rank in n steps of L layers.

    ``numel`` int64[L] counts its elements of each layer, 0 = it has none; ``state`` uint8[n, L] is PARTIAL
    where it sent nothing; ``values`` holds float32[n, L] per stat, NaN = not sent.
    """

    numel: NDArray[np.int64]
    state: NDArray[np.uint8]
    values: dict[str, NDArray[np.float32]]

    def is_measured(self) -> Mask:
        """Return bool[n, L]: the shard has elements of the layer, and their gradient was measured."""
        return np.asarray((self.numel > 0) & ((self.state == MEASURED) | (self.state == ZERO)))

    def stat(self, stat: str) -> Floats:
        """Return float64[n, L] of a stat, NaN where the shard has no elements or sent nothing."""
        empty = np.full(self.state.shape, np.nan, np.float32)
        plane: Floats = self.values.get(stat, empty).astype(np.float64)
        if stat == "zero_fraction":
            plane = np.where(np.isnan(plane) & (self.state == ZERO), 1.0, plane)
        return np.where(self.numel > 0, plane, np.nan)


def combine_shards(shards: Sequence[Shard]) -> tuple[NDArray[np.uint8], dict[str, NDArray[np.float32]]]:
    """Return state uint8[n, L] and float32[n, L] per stat of the whole layers, NaN = unknown.

    1. The state is the first of ORDER that a shard with elements has; PARTIAL where no shard has any.
    2. absmax and accumulation_error are the largest, norm_ratio the least; norms add up in squares, non-finite elements
       by count, fractions by elements, update_ratio as the norm of all updates over the norm of all weights.
    3. absmax and norm of a non-finite or partial layer are unknown.
    """
    state = _state(shards)
    values = {}
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        for stat in wire.STATS:
            if any(stat in shard.values for shard in shards):
                plane = _combine(shards, stat)
                if stat != "nonfinite":
                    plane = np.where(_is_complete(shards, stat, state), plane, np.nan)
                values[stat] = np.minimum(plane, FLOAT32_MAX).astype(np.float32)
    return state, {stat: plane for stat, plane in values.items() if not np.isnan(plane).all()}


def combine_norms(norms: Sequence[float]) -> float:
    return float(np.sqrt(np.sum(np.square(np.array(norms, np.float64)))))


def _state(shards: Sequence[Shard]) -> NDArray[np.uint8]:
    rank = np.zeros(len(wire.STATES), np.uint8)
    rank[list(ORDER)] = np.arange(len(ORDER), dtype=np.uint8)
    last = np.uint8(len(ORDER))
    first = np.min([np.where(shard.numel > 0, rank[shard.state], last) for shard in shards], axis=0)
    return np.asarray(np.array([*ORDER, PARTIAL], np.uint8)[first])


def _is_complete(shards: Sequence[Shard], stat: str, state: NDArray[np.uint8]) -> Mask:
    """Return True where each shard sent a stat that it has to send."""
    is_complete = np.ones(state.shape, np.bool_)
    for shard in shards:
        is_due = (shard.numel > 0) if stat in WEIGHT_STATS else shard.is_measured()
        is_complete &= ~(is_due & np.isnan(shard.stat(stat)))
    return is_complete if stat in WEIGHT_STATS else is_complete & ((state == MEASURED) | (state == ZERO))


def _combine(shards: Sequence[Shard], stat: str) -> Floats:
    planes = [shard.stat(stat) for shard in shards]
    if stat in ("absmax", "accumulation_error"):
        return np.asarray(np.fmax.reduce(planes))
    if stat == "norm_ratio":
        return np.asarray(np.fmin.reduce(planes))
    if stat == "nonfinite":
        return _sum(planes)
    if stat in ("norm", "weight_norm"):
        return _norm(planes)
    if stat == "update_ratio":
        weights = [shard.stat("weight_norm") for shard in shards]
        updates = [ratio * weight for ratio, weight in zip(planes, weights, strict=True)]
        return _norm(updates) / _norm(weights)
    elements = [np.where(np.isnan(plane), np.nan, shard.numel) for plane, shard in zip(planes, shards, strict=True)]
    counts = [fraction * number for fraction, number in zip(planes, elements, strict=True)]
    return _sum(counts) / _sum(elements)


def _norm(planes: Sequence[Floats]) -> Floats:
    return np.asarray(np.sqrt(_sum([np.square(plane) for plane in planes])))


def _sum(planes: Sequence[Floats]) -> Floats:
    """Return the sum of the known numbers, NaN where none is known."""
    return np.where(np.isnan(planes).all(axis=0), np.nan, np.nansum(planes, axis=0))
