"""Which layers stopped learning: the votes for each kind of evidence. Pure.

A bare ``absmax < 1e-4`` is wrong both ways: it fires on healthy jobs (lora_A is exactly 0 at a LoRA's start, key
biases stay at 1e-11 for ever) and says nothing about a layer that fell from 10 to 1e-3. So a layer is held against its
own past (*fall*), against its siblings, or against a threshold that somebody gave.

What is asked of one step can be asked of many at once: L layers are the last axis.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gradcanary_server.layer_rules import LayerRules
from gradcanary_server.moment import Floats, Mask, Planes
from gradcanary_server.observations import Launch

Votes = NDArray[np.int8]

COMMON_QUANTILE = 0.05

FEW = 4
"""Layers, of which all but one are not yet all."""


def falls(moment: Planes, baseline: Floats) -> Floats:
    """Return decades under the baseline: NaN without one or where nothing was seen, infinite at exact zero."""
    return baseline - moment.level


def common(fall: Floats, moment: Planes, alive: Mask, told: Mask, baseline: Floats, view: LayerRules) -> Floats:
    """Return the decades that (nearly) all layers fell, one number a step; NaN until half of those alive have a
    baseline.

    The 5th percentile, at least the second smallest, over alive layers that are not zero now (few common factors make
    an exact zero) and whose baseline is above ``enter`` (a layer under it at its best shows noise, and noise would pin
    the percentile at 0). Infinite where all of these are exactly zero: the one factor that does is 0. NaN when there
    is no such layer, then nobody can tell a fall from a rescaled loss; and at exact zeros of layers that are so now
    and then, all but the ``told`` ones: a batch in which all rewards are the same, or no triplet is hard, has none.
    Of few layers the smallest: the second one would be a layer that fell.
    """
    if not alive.any():
        return np.full(fall.shape[:-1], np.nan)
    counted, rank, is_known = _counted(moment, alive, told, baseline, view)
    ordered = np.partition(np.where(counted, fall, np.inf), np.unique(rank), axis=-1)
    return np.where(is_known, np.take_along_axis(ordered, rank[..., None], axis=-1)[..., 0], np.nan)


def reached(
    fall: Floats,
    moment: Planes,
    alive: Mask,
    told: Mask,
    baseline: Floats,
    view: LayerRules,
    decades: tuple[float, ...],
) -> tuple[list[Mask], Mask]:
    """Tell for each of these decades where :func:`common` is so far, which takes no sorting; and where it is known."""
    counted, rank, is_known = _counted(moment, alive, told, baseline, view)
    if fall.size and fall.max() < min(decades):  # false where one is NaN: nearly always none fell so far
        is_far = np.broadcast_to(np.count_nonzero(counted, axis=-1) <= rank, rank.shape)
        return [is_far] * len(decades), is_known
    falls = np.where(counted, fall, np.inf)
    return [np.count_nonzero(falls < each, axis=-1) <= rank for each in decades], is_known


def _counted(
    moment: Planes, alive: Mask, told: Mask, baseline: Floats, view: LayerRules
) -> tuple[Mask, NDArray[np.int64], Mask]:
    """Return which layers a common fall is told of, the rank of the one it is, and whether there is one."""
    heard = alive & (baseline > view.enter_level)  # the same at all steps, where all layers have been alive
    if moment.zero.any() or not moment.seen.all():
        heard = heard & moment.seen & (told | ~moment.zero)
        counted = heard & ~moment.zero
    else:
        counted = heard
    number = np.count_nonzero(counted, axis=-1)
    rank = np.where(number > FEW, np.maximum(1, (COMMON_QUANTILE * (number - 1)).astype(np.int64)), 0)
    living = np.count_nonzero(alive, axis=-1)
    known = 2 * np.count_nonzero(alive & ~np.isnan(baseline), axis=-1) >= living
    steps = moment.seen.shape[:-1]
    is_known = np.broadcast_to(known & (living > 0) & heard.any(axis=-1), steps)
    return counted, np.broadcast_to(rank, steps), is_known


def by_fall(moment: Planes, view: LayerRules, fall: Floats, shared: Floats, told: Mask, baseline: Floats) -> Votes:
    """Vote +1 where a layer is low, far under its baseline, and farther than all fell together, and than most others.

    ``told`` tells which layers fell when they are exactly zero; others are so now and then. Where most of the others
    are a decade down themselves, a few that are still lower are the last ones of a long row, not apart.
    """
    is_low = (moment.absmax < view.enter) & (told | ~moment.zero)
    with np.errstate(invalid="ignore"):  # infinite is no farther than infinite
        fell = is_low & (fall >= view.fall) & (fall - shared[..., None] >= view.over_common)
    if fell.any():
        others = _median(np.where(fell | moment.zero | (baseline <= view.enter_level), np.nan, fall))[..., None]
        with np.errstate(invalid="ignore"):
            fell &= (fall - others >= view.over_common) | np.isnan(others)
    return _votes(fell, moment, view, view.by_fall)


def by_siblings(
    moment: Planes, view: LayerRules, quartiles: Floats, fall: Floats, shared: Floats, told: Mask, accepted: Mask
) -> Votes:
    """Vote +1 where a layer is low and far under the upper quartile of its siblings, without an own fall.

    An own fall is judged as such, once falls are looked for. A layer that was exactly zero ever since is unused, not
    collapsed. One that was ``accepted`` as it is has only its own past to be held against.
    """
    own = view.by_fall & (fall >= view.fall) & ~np.isnan(shared[..., None])
    unused = moment.zero & (np.isnan(fall) | ~told)
    with np.errstate(divide="ignore", invalid="ignore"):
        under = np.log10(quartiles) - moment.level >= view.siblings
    return _votes(
        (moment.absmax < view.enter) & under & (quartiles > 0) & ~own & ~unused & ~accepted,
        moment,
        view,
        view.by_siblings,
    )


def by_lateness(moment: Planes, view: LayerRules, baseline: Floats, joined: Mask) -> Votes:
    """Vote +1 where a layer is low just after a running job was ``joined``: there is no past to hold it against."""
    known_higher = baseline > view.enter_level
    return _votes((moment.absmax < view.enter) & ~known_higher & joined[..., None], moment, view, view.enabled)


def by_threshold(moment: Planes, view: LayerRules, launch: Launch) -> Votes:
    """Vote by a threshold that somebody gave, at its word: no evidence, no grace.

    It recovers over the same multiple of it that ``exit`` is of ``enter``.
    """
    ratio = view.exit / view.enter
    absmax_below = np.where(view.by_threshold, view.enter, np.float32(launch.absmax_below or 0.0))
    norm_below = np.maximum(view.norm_below, np.float32(launch.norm_below or 0.0))
    under = (moment.absmax < absmax_below) | (moment.norm < norm_below)
    over = (moment.absmax > absmax_below * ratio) & ~(moment.norm <= norm_below * ratio)
    # A rule that was switched off for a layer is the narrower word.
    given = view.enabled & moment.seen & ((absmax_below > 0) | (norm_below > 0))
    return ((under & given).astype(np.int8) - (over & given)).astype(np.int8)


def sibling_quartiles(moment: Planes, view: LayerRules) -> Floats:
    """Return the upper quartile of each low layer's siblings, NaN where too few were seen or none is low."""
    quartiles = np.full(moment.absmax.shape, np.nan)
    low = moment.absmax < view.enter
    for family in view.families:
        if low[..., family.members].any():
            quartiles[..., family.members] = _quartile(moment.absmax[..., family.members], family.least)
    return quartiles


def _median(numbers: Floats) -> Floats:
    """Return the lower median over the last axis, NaN where there is nothing but NaN."""
    number = np.count_nonzero(~np.isnan(numbers), axis=-1)[..., None]
    rank = np.maximum((number - 1) // 2, 0)
    return np.take_along_axis(np.sort(numbers, axis=-1), rank, axis=-1)[..., 0]  # NaN last


def _quartile(absmax: Floats, least: int) -> Floats:
    there = ~np.isnan(absmax)
    number = np.count_nonzero(there, axis=-1)[..., None]
    # A value that some layer has, not one between two: where three of four are low, that is how they are.
    rank = np.maximum((0.75 * (number - 1)).astype(np.int64), 0)
    found = np.take_along_axis(np.sort(absmax, axis=-1), rank, axis=-1)  # NaN last
    return np.where(there & (number >= least), found, np.nan)


def _votes(bad: Mask, moment: Planes, view: LayerRules, counts: Mask) -> Votes:
    # Losing evidence never recovers a layer: only a gradient over ``exit`` does.
    good = moment.absmax > view.exit
    return ((bad & counts).astype(np.int8) - (good & counts)).astype(np.int8)
