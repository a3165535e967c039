"""Layers without a gradient: those that had one until now, and those that never had. Pure.

Exact zero counts where every step is sampled: of a layer that is zero in one step of ten, others may have been not.
A layer that collapsed is not missed as well, and zeros of all layers are one scale_drop: one fault, one incident.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gradcanary_server import duty as duties
from gradcanary_server.duty import Duty, Ints
from gradcanary_server.layer_rules import LayerRules
from gradcanary_server.moment import Mask, Planes
from gradcanary_server.scores import MAX_WEIGHT_IDLE
from gradcanary_server.tracks import BY_SCRIPT, FALL, IDLE, NEVER, RARE, SIBLINGS, STEADY, THRESHOLD, UNUSED

FOREVER = np.iinfo(np.int64).max
"""Observations: of a layer of which too little is known."""

WAITING = [STEADY, RARE, UNUSED, NEVER]
"""What fires of a layer until it has a gradient again."""

OWNERS = (FALL, SIBLINGS, THRESHOLD)


class Sampled(Planes, Protocol):
    """Planes of steps that were sampled at an interval."""

    @property
    def every(self) -> int: ...


def votes(
    moment: Sampled, duty: Duty, view: LayerRules, firing: Mask, *, is_common: bool, is_due: bool
) -> dict[int, NDArray[np.int8]]:
    """Return the votes of one step by track, after the duty was told of it.

    ``firing`` bool[T, L] is of these layers; ``is_common`` tells that all gradients fell together; ``is_due`` that
    something is learnt from, so that a gradient is due: a loss that is not always zero, or one that nobody logs.
    Where no layer had one ever since, none of them is unused: together they have vanished.
    """
    columns, vanished = view.columns, view.vanished
    number, spans = duty.known(columns)[0], duty.idle[columns].astype(np.int64)
    steady = is_steady(duty, view)
    is_missed = spans >= needed(view, moment.every)
    counts = counted(moment, is_common=is_common)
    free = counts & ~firing[list(OWNERS)].any(axis=0) & ~firing[WAITING].any(axis=0)
    gone = free & (spans >= limits(duty, view, moment.every)) & (number > 0)
    unused = free & (number == 0) & (spans >= view.unused.observations)
    is_whole = is_due and bool(((number == 0) & (moment.idle | moment.untrained)).all())
    nobodys = unused & is_whole & vanished.enabled
    found = {
        STEADY: gone & steady & vanished.enabled,
        RARE: gone & ~steady & vanished.enabled,
        BY_SCRIPT: moment.untrained & steady & is_missed & vanished.enabled & ~firing[[STEADY, RARE]].any(axis=0),
        NEVER: nobodys,
        UNUSED: unused & ~nobodys & view.unused.enabled,
    }
    # Where any layer has a gradient, it is not all of them that never had one.
    good = dict.fromkeys(found, moment.had) | {NEVER: np.full(len(columns), moment.had.any())}
    return {track: bad.astype(np.int8) - (good[track] & ~bad).astype(np.int8) for track, bad in found.items()}


def restless(moments: Sampled, duty: Duty, view: LayerRules, firing: Mask) -> Mask:
    """Tell of each of n steps whether one of these votes could move something."""
    fires = firing[IDLE].any(axis=0)
    moves = np.zeros(len(moments.idle), np.bool_)
    if fires.any():
        moves |= (moments.had & fires).any(axis=1) | (~moments.untrained & firing[BY_SCRIPT]).any(axis=1)
        moves |= moments.had.any(axis=1) & firing[NEVER].any()
    if not moments.idle.any():
        return moves
    spans, least = duties.runs(duty, view.columns, moments), needed(view, moments.every)
    limit, steady = limits(duty, view, moments.every), is_steady(duty, view)
    # A span that began in these steps is held against what is known by then.
    is_new = np.maximum.accumulate(moments.had, axis=0)
    missed = counted(moments, is_common=False) & (spans >= np.where(is_new, least, limit))
    frozen = moments.untrained & (spans >= np.where(is_new | steady, least, FOREVER))
    found: Mask = moves | ((missed | frozen) & ~fires).any(axis=1)
    return found


def needed(view: LayerRules, every: int) -> Ints:
    """Return how many observations without a gradient make a layer missed, [L] or one for all."""
    least: Ints = -(-view.vanished.fire_after_steps // min(every, MAX_WEIGHT_IDLE))
    return least


def limits(duty: Duty, view: LayerRules, every: int) -> Ints:
    """Return for each layer, int64[L], how many observations without a gradient are news."""
    rule, number, steady = view.vanished, duty.known(view.columns)[0], is_steady(duty, view)
    least = needed(view, every)
    rare = np.maximum(least, rule.rare_factor * duty.longest[view.columns].astype(np.int64))
    seldom = np.where(number >= rule.observations, rare, FOREVER)
    return np.where(number == 0, view.unused.observations, np.where(steady, least, seldom)).astype(np.int64)


def counted(moment: Sampled, *, is_common: bool) -> Mask:
    """Tell where a layer is without a gradient that the script expects."""
    zeros_count = moment.every == 1 and not is_common
    found: Mask = moment.idle & ~moment.untrained
    return found if zeros_count else found & ~moment.zero


def zeros_that_fell(duty: Duty, view: LayerRules, firing: Mask) -> Mask:
    """Tell which layers fell when they are exactly zero: not those that are so now and then, nor those missed."""
    found: Mask = is_steady(duty, view) & ~firing[WAITING].any(axis=0)
    return found


def is_steady(duty: Duty, view: LayerRules) -> Mask:
    """Tell which layers nearly always had a gradient before the present idle span."""
    return duty.steady(view.columns, view.vanished.steady_share, view.vanished.observations)
