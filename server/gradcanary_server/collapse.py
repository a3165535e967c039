"""Which layers stopped learning: the votes for each kind of evidence. Pure.

A bare ``absmax < 1e-4`` is wrong both ways: it fires on healthy jobs (lora_A is exactly 0 at a LoRA's start, key
biases stay at 1e-11 for ever) and says nothing about a layer that fell from 10 to 1e-3. So a layer is held against its
own past (*fall*), against its siblings, or against a threshold that somebody gave.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from gradcanary_server.layer_rules import LayerRules
from gradcanary_server.moment import Floats, Mask, Moment
from gradcanary_server.observations import Launch

Votes = NDArray[np.int8]

COMMON_QUANTILE = 0.05

FEW = 4
"""Layers, of which all but one are not yet all."""


def falls(moment: Moment, baseline: Floats) -> Floats:
    """Return decades under the baseline: NaN without one or where nothing was seen, infinite at exact zero."""
    return baseline - moment.level


def common(fall: Floats, moment: Moment, alive: Mask, baseline: Floats, view: LayerRules) -> float | None:
    """Return the decades that (nearly) all layers fell; None until half of the layers alive have a baseline.

    The 5th percentile, at least the second smallest, over alive layers that are not zero now (few common factors make
    an exact zero) and whose baseline is above ``enter`` (a layer under it at its best shows noise, and noise would pin
    the percentile at 0). Infinite where all of these are exactly zero: the one factor that does is 0. None when there
    is no such layer: then nobody can tell a fall from a rescaled loss. Of few layers the smallest: the second one
    would be a layer that fell.
    """
    if not alive.any() or 2 * int((alive & ~np.isnan(baseline)).sum()) < int(alive.sum()):
        return None
    told = alive & moment.seen & (baseline > view.enter_level)
    counted = fall[told & ~moment.zero]
    if not len(counted):
        return math.inf if told.any() else None
    rank = max(1, int(COMMON_QUANTILE * (len(counted) - 1))) if len(counted) > FEW else 0
    return float(np.partition(counted, rank)[rank])


def by_fall(moment: Moment, view: LayerRules, fall: Floats, shared: float | None) -> Votes:
    """Vote +1 where a layer is low, far under its baseline, and farther than all fell together."""
    is_low = moment.absmax < view.enter
    if shared is None or math.isinf(shared):
        return _votes(np.zeros(len(fall), np.bool_), moment, view, view.by_fall)
    fell = (fall >= view.fall) & (fall - shared >= view.over_common)
    return _votes(is_low & fell, moment, view, view.by_fall)


def by_siblings(moment: Moment, view: LayerRules, quartiles: Floats, fall: Floats, shared: float | None) -> Votes:
    """Vote +1 where a layer is low and far under the upper quartile of its siblings, without an own fall.

    An own fall is judged as such, once falls are looked for. A layer that was exactly zero ever since is unused, not
    collapsed.
    """
    own = view.by_fall & (fall >= view.fall) & (shared is not None)
    unused = moment.zero & np.isnan(fall)
    with np.errstate(divide="ignore", invalid="ignore"):
        under = np.log10(quartiles) - moment.level >= view.siblings
    return _votes(
        (moment.absmax < view.enter) & under & (quartiles > 0) & ~own & ~unused, moment, view, view.by_siblings
    )


def by_lateness(moment: Moment, view: LayerRules, baseline: Floats, joined: bool) -> Votes:
    """Vote +1 where a layer is low just after a running job was ``joined``: there is no past to hold it against."""
    known_higher = baseline > view.enter_level
    return _votes((moment.absmax < view.enter) & ~known_higher & joined, moment, view, view.enabled)


def by_threshold(moment: Moment, view: LayerRules, launch: Launch) -> Votes:
    """Vote by a threshold that somebody gave, at its word: no evidence, no grace.

    It recovers over the same multiple of it that ``exit`` is of ``enter``.
    """
    ratio = view.exit / view.enter
    absmax_below = np.where(view.by_threshold, view.enter, np.float32(launch.absmax_below or 0.0))
    norm_below = float(np.float32(launch.norm_below or 0.0))
    under = (moment.absmax < absmax_below) | (moment.norm < norm_below)
    over = (moment.absmax > absmax_below * ratio) & ~(moment.norm <= norm_below * ratio)
    # A rule that was switched off for a layer is the narrower word.
    given = view.enabled & moment.seen & ((absmax_below > 0) | (norm_below > 0))
    return ((under & given).astype(np.int8) - (over & given)).astype(np.int8)


def sibling_quartiles(moment: Moment, view: LayerRules) -> Floats:
    """Return the upper quartile of each low layer's siblings, NaN where too few were seen or none is low."""
    quartiles = np.full(len(moment.absmax), np.nan)
    low = moment.seen & (moment.absmax < view.enter)
    for family in view.families:
        if not low[family.members].any():
            continue
        seen = family.members[moment.seen[family.members]]
        if len(seen) >= family.least:
            # A value that some layer has, not one between two: where three of four are low, that is how they are.
            quartiles[seen] = np.quantile(moment.absmax[seen], 0.75, method="lower")
    return quartiles


def _votes(bad: Mask, moment: Moment, view: LayerRules, counts: Mask) -> Votes:
    # Losing evidence never recovers a layer: only a gradient over ``exit`` does.
    good = moment.absmax > view.exit
    return ((bad & counts).astype(np.int8) - (good & counts)).astype(np.int8)
