"""Which layers are looked at when not all of them are."""

from __future__ import annotations

from collections.abc import Sequence

_MULTIPLIER = 0xA55A15D46DF9CE17
"""Of 10,000 random ones the one that leaves out no slot for more than three rounds, whether each step, each 10th,
100th or 1000th is sampled."""


def some(layers: Sequence[int], turn: int, most: int) -> list[int]:
    """Return up to ``most`` of the layers, in the turn of this number: one turn after the other takes all of them."""
    first = turn * most % max(len(layers), 1)
    return [*layers[first:], *layers[:first]][:most]


def slot_of(step: int, slots: int) -> int:
    """Return one of the slots by the number of the step alone: multiplicative hashing (Knuth, TAOCP 3, 6.4).

    ``step // interval % slots`` would not do: ranks that sample at different intervals are to meet on the same layers.
    """
    return (step * _MULTIPLIER) % 2**64 * slots >> 64
