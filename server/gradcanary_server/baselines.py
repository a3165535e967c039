"""What a layer's gradient was at its best: the high-water mark of medians over blocks of observations. Pure.

It never follows a value down. A moving average does, and misses slow falls for ever.
"""

from __future__ import annotations

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
    """``level`` float32[N], log10, NaN = none yet; the open block: ``block`` int16[N, B] milli-decades, ``filled``."""

    level: NDArray[np.float32]
    block: NDArray[np.int16]
    filled: NDArray[np.uint16]

    @classmethod
    def none(cls, layers: int, observations: int) -> Baselines:
        """Return baselines of layers that were never seen, with room for blocks of so many observations."""
        return cls(
            np.full(layers, np.nan, np.float32),
            np.zeros((layers, observations), np.int16),
            np.zeros(layers, np.uint16),
        )

    def copy(self) -> Baselines:
        """Return baselines that can be moved without moving these."""
        return Baselines(self.level.copy(), self.block.copy(), self.filled.copy())

    def widen(self, layers: int, observations: int) -> Baselines:
        """Return these baselines with room for more layers and longer blocks."""
        wider = Baselines.none(layers, max(observations, self.block.shape[1]))
        width, length = self.block.shape
        wider.level[:width], wider.filled[:width] = self.level, self.filled
        wider.block[:width, :length] = self.block
        return wider

    def drop_blocks(self) -> None:
        """Begin every block anew, as a launch does; the levels stay."""
        self.filled[:] = 0
        self.block[:] = 0


def observe(
    baselines: Baselines,
    columns: NDArray[np.int64],
    levels: NDArray[np.float64],
    observations: NDArray[np.int64],
    every: int,
) -> NDArray[np.bool_]:
    """Add one observation of some layers, in log10, and tell whose baseline rose.

    ``columns`` int64[k], ``levels`` float64[k] (-inf = exact zero), ``observations`` int64[k] is how many make a block.
    Blocks do not overlap; one is closed by its last observation and its median becomes the baseline if it is higher.
    """
    milli = np.clip(np.round(levels * 1000), LOWEST, -LOWEST).astype(np.int16)
    filled = baselines.filled[columns]
    baselines.block[columns, filled] = milli
    filled = filled + 1
    needed = np.minimum(observations, COARSE_OBSERVATIONS) if every >= COARSE_EVERY else observations
    full = filled >= needed
    rose = np.zeros(len(columns), np.bool_)
    for length in np.unique(filled[full]):
        closing = np.flatnonzero(full & (filled == length))
        median = (np.median(baselines.block[columns[closing], :length], axis=1) / 1000).astype(np.float32)
        known = baselines.level[columns[closing]]
        rose[closing] = np.isnan(known) | (median > known)
        baselines.level[columns[closing]] = np.fmax(known, median)
        baselines.block[columns[closing]] = 0
    baselines.filled[columns] = np.where(full, 0, filled)
    return rose
