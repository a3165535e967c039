"""Gradients far over what they were. Pure."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gradcanary_server.moment import Floats, Planes
from gradcanary_server.rules import Explosion
from gradcanary_server.thresholds import OfExplosion
from gradcanary_server.tracks import CRITICAL, WARNING

QUARTILE = 0.75

RECENT = 3
"""The loss is over its level when the median of so many last ones is: one bad batch is no explosion."""

FEWEST = 10
"""Losses before these, of which the median is the level."""


RISE = 10
"""Times what a layer began with: under it no absmax is a rise."""


def limits(baseline: Floats, began: NDArray[np.float32], rule: OfExplosion, *, is_relative: bool) -> Floats:
    """Return for each layer, float64[L], the absmax over which it explodes.

    1. The absolute limit. One that somebody gave is taken at its word; by the default nothing is a rise that is under
       ten times what the layer ``began`` with (log10, NaN = nothing yet): errors summed over pixels, features as they
       come have so large gradients. A baseline would rise with a slow explosion.
    2. ``rule.ratio`` times the larger of the layer's own baseline (log10, NaN = none, then what it began with) and the
       upper quartile of all, where ``is_relative``: a layer that was tiny is not exploding when it is as large as the
       others.

    The smaller one counts; infinite where the rule is switched off.
    """
    return _limits(baseline.tobytes(), began.tobytes(), rule, is_relative)


@lru_cache(maxsize=64)
def _limits(raw: bytes, raw_began: bytes, rule: OfExplosion, is_relative: bool) -> Floats:
    # Baselines rise a few times in the life of a run, and are asked for with each stretch of steps.
    baseline, began = np.frombuffer(raw, np.float64), np.frombuffer(raw_began, np.float32)
    first = began.astype(np.float64)
    usual = np.where(rule.absmax == Explosion.absmax, RISE * np.power(10.0, first), np.nan)
    absolute = np.where(rule.enabled, np.fmax(rule.absmax, usual), np.inf)
    known = baseline[~np.isnan(baseline)]
    if not is_relative or not len(known):
        return absolute
    quartile = np.partition(known, rank := int(QUARTILE * (len(known) - 1)))[rank]
    own = np.where(np.isnan(baseline), first, baseline)
    relative = rule.ratio * np.power(10.0, np.fmax(own, quartile))
    return np.where(rule.enabled, np.minimum(absolute, relative), np.inf)


def votes(moment: Planes, limit: Floats, *, can_fall: bool) -> NDArray[np.int8]:
    """Vote +1 over the limit, -1 under it, 0 where nothing was seen; after clipping nobody knows how large it was."""
    over = moment.absmax > limit
    good = (moment.absmax <= limit) & can_fall
    return over.astype(np.int8) - good.astype(np.int8)


def severity(losses: Floats, rule: Explosion, *, is_nonfinite: bool) -> int:
    """Return how bad an explosion is, as an index into SEVERITIES; ``losses`` are the last ones."""
    before, now = losses[:-RECENT], losses[-RECENT:]
    if is_nonfinite:
        return CRITICAL
    if len(before) < FEWEST:
        return WARNING
    level = float(np.median(before))
    return CRITICAL if level > 0 and float(np.median(now)) > rule.loss_ratio * level else WARNING
