"""How often a layer has a gradient, and for how long it has had none now: its duty. Pure.

An idle expert, the rows of a rare word, a ReLU behind which a batch is dead: such layers are without a gradient now
and then, and that is how they are. Only one that nearly always had a gradient is missed when there is none.

What is remembered of a layer is the open block of up to 100 observations and the one before it: of the last 100 to 199
observations before the present idle span, how many had a gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gradcanary_server.per_layer import PerLayer

BLOCK = 100
NONE = 255
"""Of ``before``: there is no block before the open one."""

NEVER = -1

Mask = NDArray[np.bool_]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Presence(Protocol):
    """Who had a gradient at a step, [L], or at n of them, [n, L]; a layer that is neither was not seen."""

    @property
    def had(self) -> Mask: ...
    @property
    def idle(self) -> Mask: ...
    @property
    def untrained(self) -> Mask: ...


@dataclass
class Duty(PerLayer):
    """Arrays [N] by layer number: ``before`` and ``ones`` uint8, observations with a gradient in the last whole block
    and in the open one, which holds ``seen`` uint8; the present idle span: ``idle`` uint32 observations since step
    ``since`` int64, ``still`` bool where the script froze the layer in it; ``longest`` uint32, the longest one before.
    """

    before: NDArray[np.uint8]
    ones: NDArray[np.uint8]
    seen: NDArray[np.uint8]
    longest: NDArray[np.uint32]
    idle: NDArray[np.uint32]
    since: Ints
    still: Mask

    @classmethod
    def none(cls, layers: int) -> Duty:
        """Return the duty of layers that were never seen."""
        return cls(
            before=np.full(layers, NONE, np.uint8),
            ones=np.zeros(layers, np.uint8),
            seen=np.zeros(layers, np.uint8),
            longest=np.zeros(layers, np.uint32),
            idle=np.zeros(layers, np.uint32),
            since=np.full(layers, NEVER, np.int64),
            still=np.zeros(layers, np.bool_),
        )

    def known(self, columns: Ints) -> tuple[Ints, Ints]:
        """Return of how many observations something is known, int64[L], and how many of them had a gradient."""
        before, ones, seen = (array[columns].astype(np.int64) for array in (self.before, self.ones, self.seen))
        has_before = before != NONE
        return seen + BLOCK * has_before, ones + before * has_before

    def steady(self, columns: Ints, share: Floats, least: Ints) -> Mask:
        """Tell which layers had a gradient in ``share`` of at least so many observations before their idle span.

        Both are [L], or [] where they are the same for all.
        """
        number, ones = self.known(columns)
        found: Mask = (number >= least) & (ones >= share * number)
        return found

    def may_be_steady(self, columns: Ints, share: Floats, least: Ints, more: int) -> Mask:
        """Tell which layers can be steady before so many more observations are over."""
        number, ones = self.known(columns)
        open_ones, seen = self.ones[columns].astype(np.int64), self.seen[columns].astype(np.int64)
        closes = (seen + more >= BLOCK) & (open_ones + more >= share * (seen + more))
        may: Mask = (number + more >= least) & ((ones + more >= share * (number + more)) | closes)
        return may | (seen + more >= 2 * BLOCK)


def observe(duty: Duty, columns: Ints, step: int, seen: Presence) -> None:
    """Add one observation of the layers at ``columns``.

    An idle span that is over is part of what is known. One that the script made by freezing the layer ends when the
    layer is trainable again, and is not: its first gradient may take a window.
    """
    had, idle, untrained = seen.had, seen.idle, seen.untrained
    spans = duty.idle[columns]
    if not spans.any() and had.all():
        add_present(duty, columns, 1)
        return
    back = had & (spans > 0)
    if back.any():
        whose = columns[back]
        duty.longest[whose] = np.maximum(duty.longest[whose], spans[back])
        _add_absent(duty, whose, spans[back].astype(np.int64))
        duty.idle[whose], duty.since[whose], duty.still[whose] = 0, NEVER, False
    if had.any():
        add_present(duty, columns[had], 1)
    if idle.any():
        whose = columns[idle]
        thawed = duty.still[whose] & ~untrained[idle]
        number = np.where(thawed, 0, duty.idle[whose])
        duty.since[whose] = np.where(number == 0, step, duty.since[whose])
        duty.idle[whose], duty.still[whose] = number + 1, untrained[idle]


def add(duty: Duty, columns: Ints, steps: Ints, seen: Presence) -> None:
    """Add the observations of n steps at once, [n, L]: what :func:`observe` makes of them one by one."""
    always = seen.had.all(axis=0) & (duty.idle[columns] == 0)
    if always.any():
        add_present(duty, columns[always], len(steps))
    rest, others = ~always, columns[~always]
    planes = [plane[:, rest] for plane in (seen.had, seen.idle, seen.untrained)]
    if (planes[0] | planes[1]).all() and not planes[2].any() and not duty.still[others].any():
        _add_spans(duty, others, steps, planes[0])
        return
    for row, step in enumerate(steps.tolist()):
        observe(duty, others, step, _Rows(*(plane[row] for plane in planes)))


def runs(duty: Duty, columns: Ints, seen: Presence) -> NDArray[np.int64]:
    """Return the length of the idle span at each of n steps, int64[n, L], that go on from what is known."""
    counted = np.cumsum(seen.idle, axis=0) + duty.idle[columns].astype(np.int64)
    ended = np.where(seen.had, counted, 0)
    return np.asarray(np.where(seen.idle, counted - np.maximum.accumulate(ended, axis=0), 0), np.int64)


@dataclass(frozen=True)
class _Rows:
    had: Mask
    idle: Mask
    untrained: Mask


def add_present(duty: Duty, columns: Ints, number: int) -> None:
    """Add so many observations with a gradient to layers that are in no idle span."""
    more = np.int64(number)
    seen, ones = duty.seen[columns] + more, duty.ones[columns] + more
    closes = seen >= BLOCK
    if closes.any():
        over = seen - BLOCK
        last = np.where(over >= BLOCK, BLOCK, ones - over)
        duty.before[columns] = np.where(closes, last, duty.before[columns])
        seen = seen % BLOCK
        ones = np.where(closes, seen, ones)
    duty.seen[columns], duty.ones[columns] = seen, ones


def _add_absent(duty: Duty, columns: Ints, number: Ints) -> None:
    """Add so many observations without one to each of these layers, int64[L]."""
    ones = duty.ones[columns]
    closed, left = np.divmod(duty.seen[columns].astype(np.int64) + number, BLOCK)
    last = np.where(closed == 1, ones, 0)
    duty.before[columns] = np.where(closed == 0, duty.before[columns], last)
    duty.ones[columns], duty.seen[columns] = np.where(closed == 0, ones, 0), left


def _add_spans(duty: Duty, columns: Ints, steps: Ints, had: Mask) -> None:
    """Add n steps of layers that were seen at all of them, ``had`` bool[n, L] a gradient or none."""
    rows, count = np.arange(len(steps))[:, None], len(steps)
    pending = duty.idle[columns].astype(np.int64)
    last = np.where(had, rows, -1).max(axis=0)
    ones = np.vstack([np.zeros(len(columns), np.int64), np.cumsum(had, axis=0)])
    length = np.where(last >= 0, pending + last + 1, 0)  # what is known by now: up to the last gradient

    def until(place: Ints) -> Ints:
        """Return how many of the first so many of these observations had a gradient."""
        return np.asarray(np.take_along_axis(ones, np.clip(place - pending, 0, count)[None], axis=0)[0], np.int64)

    seen, before = duty.seen[columns].astype(np.int64), duty.ones[columns].astype(np.int64)
    closed, left = np.divmod(seen + length, BLOCK)
    border = closed * BLOCK - seen
    whole = until(border) - np.where(closed > 1, until(border - BLOCK), -before)
    duty.before[columns] = np.where(closed == 0, duty.before[columns], whole)
    duty.ones[columns] = until(length) - np.where(closed == 0, -before, until(border))
    duty.seen[columns] = left
    earlier = np.maximum.accumulate(np.vstack([-1 - pending, np.where(had, rows, -1 - pending)]), axis=0)[:-1]
    gaps = np.where(had, rows - earlier - 1, 0).max(axis=0)
    duty.longest[columns] = np.maximum(duty.longest[columns], gaps)
    idle = np.where(last >= 0, count - 1 - last, pending + count)
    begun = steps[np.minimum(last + 1, count - 1)]
    goes_on = (last < 0) & (pending > 0)
    duty.since[columns] = np.where(idle == 0, NEVER, np.where(goes_on, duty.since[columns], begun))
    duty.idle[columns] = idle
