"""What a layer's gradient was at its best: the high-water mark of medians over blocks of observations. Pure.

It never follows a value down. A moving average does, and misses slow falls for ever.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LOWEST = -32_767
"""Milli-decades that stand for exact zero."""

COARSE_EVERY = 10
COARSE_OBSERVATIONS = 10
"""From this sampling interval on, this many observations make a block."""


@dataclass
class Baselines:
    """``level`` float32[N], log10, NaN = none yet; the open block: ``block`` int16[B, N] milli-decades, ``filled``.

    One observation of all layers lies together in the block, and what is behind ``filled`` is left from the one before:
    so few of the packed bytes are others after a batch than before it.
    """

    level: NDArray[np.float32]
    block: NDArray[np.int16]
    filled: NDArray[np.uint16]

    @classmethod
    def none(cls, layers: int, observations: int) -> Baselines:
        """Return baselines of layers that were never seen, with room for blocks of so many observations."""
        return cls(
            np.full(layers, np.nan, np.float32),
            np.zeros((observations, layers), np.int16),
            np.zeros(layers, np.uint16),
        )

    def copy(self) -> Baselines:
        """Return baselines that can be moved without moving these."""
        return Baselines(self.level.copy(), self.block.copy(), self.filled.copy())

    def widen(self, layers: int, observations: int) -> Baselines:
        """Return these baselines with room for more layers and longer blocks."""
        length, width = self.block.shape
        wider = Baselines.none(layers, max(observations, length))
        wider.level[:width], wider.filled[:width] = self.level, self.filled
        wider.block[:length, :width] = self.block
        return wider

    def levels(self, columns: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return log10 of the baselines of these layers, NaN = none yet."""
        return self.level[columns].astype(np.float64)

    def absmax(self, columns: NDArray[np.int64]) -> list[float | None]:
        """Return the baselines of these layers as absmax, None while one has none."""
        levels: list[float] = self.level[columns].tolist()
        return [None if math.isnan(level) else 10.0**level for level in levels]

    def forget(self, columns: NDArray[np.int64]) -> None:
        """Forget everything of these layers."""
        self.level[columns], self.block[:, columns], self.filled[columns] = np.nan, 0, 0

    def drop_blocks(self) -> None:
        """Begin every block anew, as a launch does; the levels stay."""
        self.filled[:] = 0
        self.block[:] = 0


def room(baselines: Baselines, columns: NDArray[np.int64], seen: NDArray[np.bool_], needed: NDArray[np.int64]) -> int:
    """Return how many of these observations, ``seen`` bool[n, L], come before one that closes a block."""
    left = needed - baselines.filled[columns]
    if seen.all():
        return max(0, min(len(seen), int(left.min(initial=len(seen) + 1)) - 1))
    closes = (np.cumsum(seen, axis=0) >= left).any(axis=1)
    return int(np.argmax(closes)) if closes.any() else len(seen)


def add(baselines: Baselines, columns: NDArray[np.int64], levels: NDArray[np.float64], seen: NDArray[np.bool_]) -> None:
    """Add observations, float64[n, L], that close no block."""
    filled = baselines.filled[columns]
    if seen.all() and (filled == filled[:1]).all():
        begin = int(filled[0]) if len(filled) else 0
        baselines.block[begin : begin + len(levels), columns] = _milli_decades(levels)
        baselines.filled[columns] = filled + len(levels)
        return
    place = filled + np.cumsum(seen, axis=0) - 1
    rows, layers = np.nonzero(seen)
    baselines.block[place[rows, layers], columns[layers]] = _milli_decades(levels[rows, layers])
    baselines.filled[columns] = filled + seen.sum(axis=0)


def needed(observations: NDArray[np.int64], every: int) -> NDArray[np.int64]:
    """Return how many observations make a block at a sampling interval."""
    return np.minimum(observations, COARSE_OBSERVATIONS) if every >= COARSE_EVERY else observations


def observe(
    baselines: Baselines,
    columns: NDArray[np.int64],
    levels: NDArray[np.float64],
    observations: NDArray[np.int64],
    every: int,
) -> int:
    """Add one observation of the layers at ``columns`` (int64[L]) and return how many baselines rose.

    ``levels`` float64[L] is log10: -inf = exact zero, NaN = nothing was seen, which is no observation.
    ``observations`` int64[L] is how many make a block. Blocks do not overlap; one is closed by its last observation,
    and its median becomes the baseline if it is higher.
    """
    seen = ~np.isnan(levels)
    if not seen.all():
        columns, levels, observations = columns[seen], levels[seen], observations[seen]
    filled = baselines.filled[columns]
    baselines.block[filled, columns] = _milli_decades(levels)
    filled = filled + 1
    full = filled >= needed(observations, every)
    baselines.filled[columns] = np.where(full, 0, filled)
    closing = ((columns[full & (filled == length)], int(length)) for length in np.unique(filled[full]))
    return sum(_close(baselines, layers, length) for layers, length in closing)


def _milli_decades(levels: NDArray[np.float64]) -> NDArray[np.int16]:
    found = levels * 1000
    np.rint(found, out=found)
    np.maximum(found, LOWEST, out=found)
    np.minimum(found, -LOWEST, out=found)
    return found.astype(np.int16)


def _close(baselines: Baselines, layers: NDArray[np.int64], length: int) -> int:
    """Take the medians of these layers' blocks of so many observations; return how many baselines rose."""
    # Of an even number the upper one: between a value and an exact zero there is nothing.
    # As a row per layer, and of four bytes: numpy selects among these several times faster.
    block = np.ascontiguousarray(baselines.block[:length, layers].T, np.int32)
    median = np.partition(block, length // 2, axis=1)[:, length // 2]
    # What was exactly zero at its best has nothing to fall from: else zeros would be an infinite fall under zero.
    median = np.where(median > LOWEST, median / 1000, np.nan).astype(np.float32)
    known = baselines.level[layers]
    rose = (median > known) | (np.isnan(known) & ~np.isnan(median))
    baselines.level[layers] = np.fmax(known, median)
    return int(rose.sum())
