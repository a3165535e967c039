"""Gradient activity of each layer: how often it had a gradient, how long its idle span is.

An idle expert, the rows of a rare word and a dead ReLU have no gradient now and then, and are healthy. Only a layer
that nearly always had a gradient is missed. So the state keeps 100 to 199 observations of a layer before its present
idle span: an open block of up to 100 and the block before it. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gradcanary_server.rules.types import Floats, Ints, LayerArrays, Mask, layer_array

BLOCK = 100
NO_BLOCK = 255
"""``previous_hits`` while there is no block before the open one."""

NOT_IDLE = -1
"""``idle_since`` of a layer whose last observation had a gradient."""

NEVER_GAINED = -1
"""``gained`` of a layer that was never long without a gradient."""

LONG_IDLE = 5
"""Observations without a gradient after which the next gradient is a gain: as few as decide anywhere in the rules."""


class Presence(Protocol):
    """Gradients of L layers at a step, [L], or at n steps, [n, L]; one with neither was not measured."""

    @property
    def has_gradient(self) -> Mask: ...
    @property
    def idle(self) -> Mask: ...
    @property
    def not_trainable(self) -> Mask: ...


@dataclass
class Activity(LayerArrays):
    """Arrays [N] by layer number.

    ``previous_hits`` uint8 and ``hits`` uint8 are observations with a gradient in the last closed block and in the open
    one, which holds ``observed`` uint8. ``idle`` uint32 is the length of the present idle span in observations,
    ``idle_since`` int64 its first step, ``frozen_by_script`` bool its reason. ``longest_idle`` uint32 is the longest
    span before it. ``gained`` int64 is the step of the last gradient that came after at least ``LONG_IDLE``
    observations without one.
    ``was_dense`` bool are layers that mostly had a gradient when the last collapse was found.
    """

    previous_hits: NDArray[np.uint8] = layer_array(np.uint8, NO_BLOCK)
    hits: NDArray[np.uint8] = layer_array(np.uint8)
    observed: NDArray[np.uint8] = layer_array(np.uint8)
    longest_idle: NDArray[np.uint32] = layer_array(np.uint32)
    idle: NDArray[np.uint32] = layer_array(np.uint32)
    idle_since: Ints = layer_array(np.int64, NOT_IDLE)
    frozen_by_script: Mask = layer_array(np.bool_)
    gained: Ints = layer_array(np.int64, NEVER_GAINED)
    was_dense: Mask = layer_array(np.bool_)

    def history(self, columns: Ints) -> tuple[Ints, Ints]:
        """Return the number of observations in both blocks, int64[L], and how many of them had a gradient."""
        arrays = (self.previous_hits, self.hits, self.observed)
        previous, hits, observed = (array[columns].astype(np.int64) for array in arrays)
        has_previous = previous != NO_BLOCK
        return observed + BLOCK * has_previous, hits + previous * has_previous

    def has_gains(self, columns: Ints) -> bool:
        """Return True if any of these layers ever gained its gradient."""
        return bool((self.gained[columns] != NEVER_GAINED).any())

    def regular(self, columns: Ints, share: Floats, least: Ints) -> Mask:
        """Return the layers that had a gradient in ``share`` of at least ``least`` observations before their idle span.

        Both are [L], or [] where they are the same for all.
        """
        number, hits = self.history(columns)
        is_regular: Mask = (number >= least) & (hits >= share * number)
        return is_regular

    def may_be_regular(self, columns: Ints, share: Floats, least: Ints, more: int) -> Mask:
        """Return the layers that can be regular within the next ``more`` observations."""
        number, hits = self.history(columns)
        open_hits, observed = self.hits[columns].astype(np.int64), self.observed[columns].astype(np.int64)
        closes = (observed + more >= BLOCK) & (open_hits + more >= share * (observed + more))
        may: Mask = (number + more >= least) & ((hits + more >= share * (number + more)) | closes)
        return may | (observed + more >= 2 * BLOCK)


def observe_step(activity: Activity, columns: Ints, step: int, presence: Presence) -> None:
    """Add one observation of the layers at ``columns``.

    An idle span that is over becomes part of the history. A span that the script made by freezing the layer ends when
    the layer is trainable again, and does not: its first gradient may take a window.
    """
    has_gradient, is_idle, not_trainable = presence.has_gradient, presence.idle, presence.not_trainable
    idle = activity.idle[columns]
    if not idle.any() and has_gradient.all():
        add_hits(activity, columns, 1)
        return
    ends = has_gradient & (idle > 0)
    if ends.any():
        active = columns[ends]
        activity.longest_idle[active] = np.maximum(activity.longest_idle[active], idle[ends])
        _add_misses(activity, active, idle[ends].astype(np.int64))
        activity.gained[active[idle[ends] >= LONG_IDLE]] = step
        activity.idle[active], activity.idle_since[active], activity.frozen_by_script[active] = 0, NOT_IDLE, False
    if has_gradient.any():
        add_hits(activity, columns[has_gradient], 1)
    if is_idle.any():
        inactive = columns[is_idle]
        thawed = activity.frozen_by_script[inactive] & ~not_trainable[is_idle]
        length = np.where(thawed, 0, activity.idle[inactive])
        activity.idle_since[inactive] = np.where(length == 0, step, activity.idle_since[inactive])
        activity.idle[inactive], activity.frozen_by_script[inactive] = length + 1, not_trainable[is_idle]


def observe_steps(activity: Activity, columns: Ints, steps: Ints, presence: Presence) -> None:
    """Add the observations of n steps at once, [n, L], with the result of :func:`observe_step` one by one."""
    always = presence.has_gradient.all(axis=0) & (activity.idle[columns] == 0)
    if always.any():
        add_hits(activity, columns[always], len(steps))
    some, some_columns = ~always, columns[~always]
    planes = _Planes(*(plane[:, some] for plane in (presence.has_gradient, presence.idle, presence.not_trainable)))
    is_plain = bool((planes.has_gradient | planes.idle).all()) and not planes.not_trainable.any()
    if is_plain and not activity.frozen_by_script[some_columns].any():
        _observe_measured_steps(activity, some_columns, steps, planes.has_gradient)
        return
    for row, step in enumerate(steps.tolist()):
        observe_step(activity, some_columns, step, planes.at(row))


def idle_lengths(activity: Activity, columns: Ints, presence: Presence) -> Ints:
    """Return the length of the idle span at each of the next n steps, int64[n, L]."""
    counted = np.cumsum(presence.idle, axis=0) + activity.idle[columns].astype(np.int64)
    ended = np.where(presence.has_gradient, counted, 0)
    return np.asarray(np.where(presence.idle, counted - np.maximum.accumulate(ended, axis=0), 0), np.int64)


@dataclass(frozen=True)
class _Planes:
    has_gradient: Mask
    idle: Mask
    not_trainable: Mask

    def at(self, row: int) -> _Planes:
        return _Planes(self.has_gradient[row], self.idle[row], self.not_trainable[row])


def add_hits(activity: Activity, columns: Ints | slice, number: int) -> None:
    """Add ``number`` observations with a gradient to layers that are in no idle span."""
    more = np.int64(number)
    observed, hits = activity.observed[columns] + more, activity.hits[columns] + more
    closes = observed >= BLOCK
    if closes.any():
        excess = observed - BLOCK
        closed_hits = np.where(excess >= BLOCK, BLOCK, hits - excess)
        activity.previous_hits[columns] = np.where(closes, closed_hits, activity.previous_hits[columns])
        observed = observed % BLOCK
        hits = np.where(closes, observed, hits)
    activity.observed[columns], activity.hits[columns] = observed, hits


def _add_misses(activity: Activity, columns: Ints, number: Ints) -> None:
    """Add ``number`` int64[L] observations without a gradient to each of these layers."""
    hits = activity.hits[columns]
    closed, remainder = np.divmod(activity.observed[columns].astype(np.int64) + number, BLOCK)
    closed_hits = np.where(closed == 1, hits, 0)
    activity.previous_hits[columns] = np.where(closed == 0, activity.previous_hits[columns], closed_hits)
    activity.hits[columns], activity.observed[columns] = np.where(closed == 0, hits, 0), remainder


def _observe_measured_steps(activity: Activity, columns: Ints, steps: Ints, has_gradient: Mask) -> None:
    """Add n steps of layers that were measured at all of them, ``has_gradient`` bool[n, L].

    The pending idle observations and the new ones are one sequence. Only its part up to the last gradient is counted
    in blocks; the rest is the idle span. For one layer with blocks of 4, no idle span, ``observed`` 2 and ``hits`` 2:

        has_gradient             1 1 0 0 1 0
        counted                  1 1|0 0 1          the open block closes after two more observations
        previous_hits            2 + 2 = 4          and the new open block is 0 0 1:
        hits, observed           1, 3
        longest_idle             2
        idle, idle_since         1, the last step

    The property tests of tests/unit/server/rules/test_activity.py hold it against :func:`observe_step`.
    """
    count, rows = len(steps), np.arange(len(steps))[:, None]
    pending = activity.idle[columns].astype(np.int64)
    last_hit = np.where(has_gradient, rows, -1).max(axis=0)
    hits_by_row = np.vstack([np.zeros(len(columns), np.int64), np.cumsum(has_gradient, axis=0)])

    def hits_before(end: Ints) -> Ints:
        """Return the hits among the first ``end`` observations of the sequence."""
        row = np.clip(end - pending, 0, count)
        return np.asarray(np.take_along_axis(hits_by_row, row[None], axis=0)[0], np.int64)

    counted = np.where(last_hit >= 0, pending + last_hit + 1, 0)
    observed, open_hits = activity.observed[columns].astype(np.int64), activity.hits[columns].astype(np.int64)
    closed, remainder = np.divmod(observed + counted, BLOCK)
    block_end = closed * BLOCK - observed
    closed_hits = hits_before(block_end) - np.where(closed > 1, hits_before(block_end - BLOCK), -open_hits)
    activity.previous_hits[columns] = np.where(closed == 0, activity.previous_hits[columns], closed_hits)
    activity.hits[columns] = hits_before(counted) - np.where(closed == 0, -open_hits, hits_before(block_end))
    activity.observed[columns] = remainder

    before_first = -1 - pending
    previous_hit = np.maximum.accumulate(np.vstack([before_first, np.where(has_gradient, rows, before_first)]), axis=0)[
        :-1
    ]
    gaps = np.where(has_gradient, rows - previous_hit - 1, 0)
    activity.longest_idle[columns] = np.maximum(activity.longest_idle[columns], gaps.max(axis=0))
    gain = np.where(gaps >= LONG_IDLE, rows, -1).max(axis=0)
    activity.gained[columns] = np.where(gain >= 0, steps[gain], activity.gained[columns])

    idle = np.where(last_hit >= 0, count - 1 - last_hit, pending + count)
    first_idle_step = steps[np.minimum(last_hit + 1, count - 1)]
    continues = (last_hit < 0) & (pending > 0)
    since = np.where(continues, activity.idle_since[columns], first_idle_step)
    activity.idle_since[columns], activity.idle[columns] = np.where(idle == 0, NOT_IDLE, since), idle
