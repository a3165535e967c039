"""Baseline and initial level of each layer: what falls and rises are measured against.

A baseline is the high-water mark of medians over blocks of observations. It never follows a value down: a moving
average does, and misses slow falls for ever. The initial level is the first gradient that was not zero: a layer that
is large from its first step on did not rise.

The medians of successive blocks also tell a fall in one straight line: a factor that shrinks by the same part in each
step. What saturates or dies falls at once, and what is learnt falls ever more slowly, as a rule. Pure.
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


LINE_BLOCKS = 4
"""Blocks that make a line, 200 steps: as many as a job needs to forget its start, and three pairs to compare."""

LEAST_PACE = 0.1
"""Decades that a line falls from block to block: three times the error of a median of 50 that vary by 0.2."""

LINE_SHARE = 0.25
"""Of its pace, by which a line may change. Over the 1.5 decades of a collapse, 1 / t changes its own twenty times."""

LINE_NOISE, PACE_NOISE = 0.1, 0.03
"""Decades: twice the error of the difference of two such medians, and that of the present pace. Both grow with the root
of ``NOISE_BLOCK`` over the observations of a block."""

NOISE_BLOCK = 50

RECENT_SHARE = 0.5
"""Weight of the newest block in the present pace: that of about the last two, half of the shortest line."""

ON_LINE = 0.5
"""Decades that one observation may lie off its line: a batch seldom does more."""


@dataclass
class Baselines(LayerArrays):
    """``level`` float32[N], log10, NaN = none yet. The open block is the first ``filled`` uint16[N] rows of ``block``
    int16[B, N], in milli-decades; rows after them are left from the block before, so a batch changes few packed bytes.

    The last ``blocks`` uint8[N] medians are on a falling line (1: the last one alone), from ``begin`` to ``end``
    float32[N], log10, with a present ``pace`` float32[N] in decades from block to block.
    """

    level: NDArray[np.float32] = layer_array(np.float32, np.nan)
    block: NDArray[np.int16] = layer_array(np.int16, is_table=True)
    filled: NDArray[np.uint16] = layer_array(np.uint16)
    blocks: NDArray[np.uint8] = layer_array(np.uint8)
    begin: NDArray[np.float32] = layer_array(np.float32, np.nan)
    end: NDArray[np.float32] = layer_array(np.float32, np.nan)
    pace: NDArray[np.float32] = layer_array(np.float32, np.nan)

    def falls_straight(self, columns: Ints, levels: Floats, lengths: Ints) -> Mask:
        """Return the layers that have fallen in one line until now, where they have these levels, log10.

        ``lengths`` int64[L] are those of a block.
        """
        begin, end, pace = (array[columns].astype(np.float64) for array in (self.begin, self.end, self.pace))
        between = np.maximum(self.blocks[columns].astype(np.int64) - 1, 1)
        whole_pace = (begin - end) / between
        expected = end - pace * (0.5 + self.filled[columns] / lengths)
        with np.errstate(invalid="ignore"):
            is_straight = np.abs(pace - whole_pace) <= LINE_SHARE * whole_pace + PACE_NOISE * np.sqrt(
                NOISE_BLOCK / lengths
            )
            is_near = np.abs(expected - levels) <= ON_LINE
        straight: Mask = (self.blocks[columns] >= LINE_BLOCKS) & is_straight & is_near
        return straight

    def levels(self, columns: Ints | slice) -> Floats:
        return self.level[columns].astype(np.float64)

    def absmax(self, columns: Ints) -> list[float | None]:
        """Return the baselines of these layers as absmax, None = none yet."""
        levels: list[float] = self.level[columns].tolist()
        return [None if math.isnan(level) else 10.0**level for level in levels]

    def drop_blocks(self) -> None:
        """Drop the open block of every layer, as a new launch does; the levels stay."""
        self.filled[:] = 0
        self.block[:] = 0
        self.blocks[:] = 0


def rows_before_close(baselines: Baselines, columns: Ints | slice, is_measured: Mask, lengths: Ints) -> int:
    """Return the number of observations, ``is_measured`` bool[n, L], before the first one that closes a block."""
    left = lengths - baselines.filled[columns]
    if is_measured.all():
        return max(0, min(len(is_measured), int(left.min(initial=len(is_measured) + 1)) - 1))
    closes = (np.cumsum(is_measured, axis=0) >= left).any(axis=1)
    return int(np.argmax(closes)) if closes.any() else len(is_measured)


def add_levels(baselines: Baselines, columns: Ints | slice, levels: Floats, is_measured: Mask) -> None:
    """Add observations, float64[n, L], that close no block."""
    filled = baselines.filled[columns]
    if is_measured.all() and (filled == filled[:1]).all():
        begin = int(filled[0]) if len(filled) else 0
        baselines.block[begin : begin + len(levels), columns] = _milli_decades(levels)
        baselines.filled[columns] = filled + len(levels)
        return
    block_rows = filled + np.cumsum(is_measured, axis=0) - 1
    rows, layers = np.nonzero(is_measured)
    numbers = np.arange(baselines.block.shape[1])[columns]
    baselines.block[block_rows[rows, layers], numbers[layers]] = _milli_decades(levels[rows, layers])
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
    middle = np.partition(block, length // 2, axis=1)[:, length // 2]
    # A layer that was exactly zero at its best has no baseline: zeros would be an infinite fall under it.
    median = np.where(middle > ZERO_LEVEL, middle / 1000, np.nan).astype(np.float32)
    _follow_line(baselines, layers, median, LINE_NOISE * math.sqrt(NOISE_BLOCK / length))
    level = baselines.level[layers]
    rose = (median > level) | (np.isnan(level) & ~np.isnan(median))
    baselines.level[layers] = np.fmax(level, median)
    return int(rose.sum())


def _follow_line(baselines: Baselines, layers: Ints, median: NDArray[np.float32], noise: float) -> None:
    """Add the median of a block of these layers to their lines, or begin new ones; one without a median has none."""
    blocks, begin, end = baselines.blocks[layers], baselines.begin[layers], baselines.end[layers]
    pace, fall = baselines.pace[layers], end - median
    whole_pace = (begin - end) / np.maximum(blocks.astype(np.float32) - 1, 1)
    with np.errstate(invalid="ignore"):  # or the present pace: a line may begin while the layer still learns
        is_like = [np.abs(fall - each) <= LINE_SHARE * each + noise for each in (whole_pace, pace)]
        goes_on = (blocks >= 2) & (is_like[0] | is_like[1])
        begins = (blocks >= 1) & (fall >= LEAST_PACE)
    length = np.where(goes_on, np.minimum(blocks, 254) + 1, np.where(begins, 2, 1))
    baselines.blocks[layers] = np.where(np.isnan(median), 0, length)
    baselines.begin[layers] = np.where(goes_on, begin, np.where(begins, end, median))
    baselines.end[layers] = median
    baselines.pace[layers] = np.where(goes_on, pace + RECENT_SHARE * (fall - pace), fall)


@dataclass
class Weights(LayerArrays):
    """The norm of each layer's weights as it was measured last, and at its highest; float32[N], NaN = not yet."""

    last: NDArray[np.float32] = layer_array(np.float32, np.nan)
    highest: NDArray[np.float32] = layer_array(np.float32, np.nan)

    def observe(self, columns: Ints, norms: NDArray[np.float32]) -> None:
        """Add the norms of n steps, float32[n, L], NaN where not measured."""
        is_measured = ~np.isnan(norms)
        row = len(norms) - 1 - np.argmax(is_measured[::-1], axis=0)
        last = np.take_along_axis(norms, row[None], axis=0)[0]
        self.last[columns] = np.where(is_measured.any(axis=0), last, self.last[columns])
        self.highest[columns] = np.fmax(self.highest[columns], np.fmax.reduce(norms, axis=0))

    def largest_fall(self, columns: Ints) -> float:
        """Return the most decades by which weights of any of these layers are under their highest norm."""
        last, highest = self.last[columns].astype(np.float64), self.highest[columns].astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            falls = np.log10(highest) - np.log10(last)
        return float(np.fmax.reduce(falls, initial=0.0))


@dataclass
class InitialLevels(LayerArrays):
    """``level`` float32[N] is log10 of the first absmax that was not zero, NaN = none yet."""

    level: NDArray[np.float32] = layer_array(np.float32, np.nan)


def observe_initial(initial: InitialLevels, columns: Ints | slice, levels: Floats) -> None:
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
