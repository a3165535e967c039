"""Baseline and initial level of each layer: what falls and rises are measured against.

A baseline is the high-water mark of medians over blocks of observations. It never follows a value down: a moving
average does, and misses slow falls for ever. The initial level is the first gradient that was not zero: a layer that
is large from its first step on did not rise. Pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradcanary_server.rules.types import Floats, Ints, LayerArrays, Mask, layer_array

ZERO_LEVEL = -32_767
"""Milli-decades that stand for exact zero."""

COARSE_EVERY = 10
COARSE_OBSERVATIONS = 10
"""From this sampling interval on, at most this many observations make a block."""


@dataclass
class Baselines(LayerArrays):
    """``level`` float32[N], log10, NaN = none yet. The open block is the first ``filled`` uint16[N] rows of ``block``
    int16[B, N], in milli-decades; rows after them are left from the block before, so a batch changes few packed bytes.
    """

    level: NDArray[np.float32] = layer_array(np.float32, np.nan)
    block: NDArray[np.int16] = layer_array(np.int16, is_table=True)
    filled: NDArray[np.uint16] = layer_array(np.uint16)

    def levels(self, columns: Ints) -> Floats:
        return self.level[columns].astype(np.float64)

    def absmax(self, columns: Ints) -> list[float | None]:
        """Return the baselines of these layers as absmax, None = none yet."""
        levels: list[float] = self.level[columns].tolist()
        return [None if math.isnan(level) else 10.0**level for level in levels]

    def drop_blocks(self) -> None:
        """Drop the open block of every layer, as a new launch does; the levels stay."""
        self.filled[:] = 0
        self.block[:] = 0


def rows_before_close(baselines: Baselines, columns: Ints, is_measured: Mask, lengths: Ints) -> int:
    """Return the number of observations, ``is_measured`` bool[n, L], before the first one that closes a block."""
    left = lengths - baselines.filled[columns]
    if is_measured.all():
        return max(0, min(len(is_measured), int(left.min(initial=len(is_measured) + 1)) - 1))
    closes = (np.cumsum(is_measured, axis=0) >= left).any(axis=1)
    return int(np.argmax(closes)) if closes.any() else len(is_measured)


def add_levels(baselines: Baselines, columns: Ints, levels: Floats, is_measured: Mask) -> None:
    """Add observations, float64[n, L], that close no block."""
    filled = baselines.filled[columns]
    if is_measured.all() and (filled == filled[:1]).all():
        begin = int(filled[0]) if len(filled) else 0
        baselines.block[begin : begin + len(levels), columns] = _milli_decades(levels)
        baselines.filled[columns] = filled + len(levels)
        return
    block_rows = filled + np.cumsum(is_measured, axis=0) - 1
    rows, layers = np.nonzero(is_measured)
    baselines.block[block_rows[rows, layers], columns[layers]] = _milli_decades(levels[rows, layers])
    baselines.filled[columns] = filled + is_measured.sum(axis=0)


def block_lengths(observations: Ints, every: int) -> Ints:
    """Return the number of observations that make a block at a sampling interval."""
    return np.minimum(observations, COARSE_OBSERVATIONS) if every >= COARSE_EVERY else observations


def observe_levels(
    baselines: Baselines,
    columns: Ints,
    levels: Floats,
    observations: Ints,
    every: int,
) -> int:
    """Add one observation of the layers at ``columns`` (int64[L]) and return the number of baselines that rose.

    ``levels`` float64[L] is log10: -inf = exact zero, NaN = not measured, which is not an observation.
    ``observations`` int64[L] make a block. Blocks do not overlap. The last observation closes a block, and its median
    becomes the baseline if it is higher.
    """
    is_measured = ~np.isnan(levels)
    if not is_measured.all():
        columns, levels, observations = columns[is_measured], levels[is_measured], observations[is_measured]
    filled = baselines.filled[columns]
    baselines.block[filled, columns] = _milli_decades(levels)
    filled = filled + 1
    full = filled >= block_lengths(observations, every)
    baselines.filled[columns] = np.where(full, 0, filled)
    closing = ((columns[full & (filled == length)], int(length)) for length in np.unique(filled[full]))
    return sum(_close(baselines, layers, length) for layers, length in closing)


def _milli_decades(levels: Floats) -> NDArray[np.int16]:
    rounded = levels * 1000
    np.rint(rounded, out=rounded)
    np.maximum(rounded, ZERO_LEVEL, out=rounded)
    np.minimum(rounded, -ZERO_LEVEL, out=rounded)
    return rounded.astype(np.int16)


def _close(baselines: Baselines, layers: Ints, length: int) -> int:
    """Take the medians of these layers' blocks of ``length`` observations; return the number of baselines that rose."""
    # The upper median of an even number: there is nothing between a value and an exact zero.
    # A row per layer, of four bytes: numpy selects among these several times faster.
    block = np.ascontiguousarray(baselines.block[:length, layers].T, np.int32)
    median = np.partition(block, length // 2, axis=1)[:, length // 2]
    # A layer that was exactly zero at its best has no baseline: zeros would be an infinite fall under it.
    median = np.where(median > ZERO_LEVEL, median / 1000, np.nan).astype(np.float32)
    level = baselines.level[layers]
    rose = (median > level) | (np.isnan(level) & ~np.isnan(median))
    baselines.level[layers] = np.fmax(level, median)
    return int(rose.sum())


@dataclass
class InitialLevels(LayerArrays):
    """``level`` float32[N] is log10 of the first absmax that was not zero, NaN = none yet."""

    level: NDArray[np.float32] = layer_array(np.float32, np.nan)


def observe_initial(initial: InitialLevels, columns: Ints, levels: Floats) -> None:
    """Take the first level of each layer from n steps, float64[n, L]: log10, -inf = exact zero, NaN = not measured."""
    initial.level[columns] = initial_levels(initial.level[columns], levels)


def initial_levels(initial: NDArray[np.float32], levels: Floats) -> NDArray[np.float32]:
    """Return the initial levels of L layers after n steps."""
    is_unknown = np.isnan(initial)
    if not is_unknown.any():
        return initial
    rows = np.argmax(np.isfinite(levels), axis=0)
    first = np.take_along_axis(levels, rows[None], axis=0)[0]
    return np.where(is_unknown & np.isfinite(first), first, initial).astype(np.float32)
