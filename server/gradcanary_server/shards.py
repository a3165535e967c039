"""Shards of the same steps put together: what each rank measured of its part, as numbers of the whole. Pure.

Nothing is estimated: a number whose parts are not all there is not there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradcanary import wire

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

MEASURED, NO_GRADIENT, ZERO, NONFINITE, NOT_TRAINABLE, PARTIAL = range(len(wire.STATES))

ORDER = (NONFINITE, PARTIAL, MEASURED, ZERO, NO_GRADIENT, NOT_TRAINABLE)
"""Of the states that the shards of a layer have, the first one of these is the layer's."""

OF_WEIGHTS = ("update_ratio", "weight_norm", "frozen_fraction")
"""Stats that every shard has, whatever its gradient does."""

FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Shard:
    """What one rank sent of n steps of L layers.

    ``numel`` int64[L] counts its elements of each layer, 0 = none of them is here; ``state`` uint8[n, L] is PARTIAL
    where it sent nothing; ``values`` holds float32[n, L] per stat, NaN = not sent.
    """

    numel: NDArray[np.int64]
    state: NDArray[np.uint8]
    values: dict[str, NDArray[np.float32]]

    def has(self) -> Mask:
        """Return bool[n, L]: the shard has elements of the layer, and a gradient that could be measured."""
        return np.asarray((self.numel > 0) & ((self.state == MEASURED) | (self.state == ZERO)))

    def stat(self, stat: str) -> Floats:
        """Return float64[n, L] of a stat, NaN where there are no elements or nothing was sent."""
        found = self.values.get(stat)
        blank: Floats = np.full(self.state.shape, np.nan)
        plane = blank if found is None else found.astype(np.float64)
        if stat == "zero_fraction":
            plane = np.where(np.isnan(plane) & (self.state == ZERO), 1.0, plane)
        return np.where(self.numel > 0, plane, np.nan)


def combine(shards: Sequence[Shard]) -> tuple[NDArray[np.uint8], dict[str, NDArray[np.float32]]]:
    """Return state uint8[n, L] and float32[n, L] per stat of the whole layers, NaN = not known.

    1. The state is the first of ORDER that a shard with elements has; PARTIAL where no shard has any.
    2. absmax and accumulation_error are the largest, norm_ratio the least; norms add up in squares, non-finite elements
       by count, fractions by elements, update_ratio as the norm of all updates over the norm of all weights.
    3. absmax and norm of what is non-finite or partial are not known.
    """
    state = _state(shards)
    values = {}
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        for stat in wire.STATS:
            if any(stat in shard.values for shard in shards):
                plane = _KINDS[stat](shards, stat)
                if stat != "nonfinite":
                    plane = np.where(_is_whole(shards, stat, state), plane, np.nan)
                values[stat] = np.minimum(plane, FLOAT32_MAX).astype(np.float32)
    return state, {stat: plane for stat, plane in values.items() if not np.isnan(plane).all()}


def total(parts: Sequence[float]) -> float:
    """Return the norm of everything from the norms of the parts."""
    return float(np.sqrt(np.sum(np.square(np.array(parts, np.float64)))))


def _state(shards: Sequence[Shard]) -> NDArray[np.uint8]:
    place = np.zeros(len(wire.STATES), np.uint8)
    place[list(ORDER)] = np.arange(len(ORDER), dtype=np.uint8)
    nobody = np.uint8(len(ORDER))
    first = np.min([np.where(shard.numel > 0, place[shard.state], nobody) for shard in shards], axis=0)
    return np.asarray(np.array([*ORDER, PARTIAL], np.uint8)[first])


def _is_whole(shards: Sequence[Shard], stat: str, state: NDArray[np.uint8]) -> Mask:
    """Return where every shard that has to has sent a stat."""
    is_there = np.ones(state.shape, np.bool_)
    for shard in shards:
        is_due = (shard.numel > 0) if stat in OF_WEIGHTS else shard.has()
        is_there &= ~(is_due & np.isnan(shard.stat(stat)))
    return is_there if stat in OF_WEIGHTS else is_there & ((state == MEASURED) | (state == ZERO))


def _largest(shards: Sequence[Shard], stat: str) -> Floats:
    return np.asarray(np.fmax.reduce([shard.stat(stat) for shard in shards]))


def _least(shards: Sequence[Shard], stat: str) -> Floats:
    return np.asarray(np.fmin.reduce([shard.stat(stat) for shard in shards]))


def _count(shards: Sequence[Shard], stat: str) -> Floats:
    return _added([shard.stat(stat) for shard in shards])


def _length(shards: Sequence[Shard], stat: str) -> Floats:
    return np.asarray(np.sqrt(_added([np.square(shard.stat(stat)) for shard in shards])))


def _fraction(shards: Sequence[Shard], stat: str) -> Floats:
    planes = [shard.stat(stat) for shard in shards]
    weights = [np.where(np.isnan(plane), np.nan, shard.numel) for plane, shard in zip(planes, shards, strict=True)]
    counts = [plane * weight for plane, weight in zip(planes, weights, strict=True)]
    return np.asarray(_added(counts) / _added(weights))


def _update(shards: Sequence[Shard], stat: str) -> Floats:
    moved = [np.square(shard.stat(stat) * shard.stat("weight_norm")) for shard in shards]
    return np.asarray(np.sqrt(_added(moved)) / _length(shards, "weight_norm"))


def _added(planes: Sequence[Floats]) -> Floats:
    """Return the sum of what is there, NaN where nothing is."""
    return np.where(np.isnan(planes).all(axis=0), np.nan, np.nansum(planes, axis=0))


_KINDS: dict[str, Callable[[Sequence[Shard], str], Floats]] = {
    "absmax": _largest,
    "norm": _length,
    "zero_fraction": _fraction,
    "nonfinite": _count,
    "update_ratio": _update,
    "weight_norm": _length,
    "accumulation_error": _largest,
    "norm_ratio": _least,
    "frozen_fraction": _fraction,
}
