"""Which layers are looked at when not all of them are, and how often."""

from __future__ import annotations

from collections.abc import Sequence


def some(layers: Sequence[int], turn: int, most: int) -> list[int]:
    """Return up to ``most`` of the layers, in the turn of this number: one turn after the other takes all of them."""
    first = turn * most % max(len(layers), 1)
    return [*layers[first:], *layers[:first]][:most]
