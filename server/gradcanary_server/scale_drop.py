"""All gradients fell together: is it the loss that was rescaled, a job that converged, or a job that died? Pure.

A loss that ends at zero says it in decades. One that ends elsewhere does not (distillation ends at the entropy of its
teacher, a cosine at -1, smoothed labels at their own entropy), and batches may vary by more than is left to learn.
There the gradients' way down tells: learning takes them down step by step, while the loss came down to where it stays;
a factor takes them down at once, and a job that dies does not end at its lowest loss.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gradcanary_server.fold_state import LOSSES, Progress
from gradcanary_server.moment import Floats, Mask
from gradcanary_server.observations import Severity
from gradcanary_server.scores import MAX_WEIGHT_IDLE

CALM_DECADES = 1.0
"""A common fall under this is none."""

RECENT = 20
"""The median of so many last losses is the loss of now."""

EXPLAINED = 0.5
"""A loss that fell by this share of the gradients' decades explains them."""

TO_ZERO, LATELY = 2.0, 0.5
"""Decades that a loss fell before gradients of exactly zero are explained: in all, or in the last losses alone. A job
that reaches a margin came there; a loss that is multiplied by zero did not."""


ROUNDING = 1e-6
"""A loss so far under what it was is what rounding left of terms that cancel, be it negative."""


GENTLE_SHARE, GENTLE_STEPS, GENTLE_AGE = 0.5, 10, 0.05
"""A fall is gentle that took more steps than these, and than such a part of the run, from so large a share of
``common_decades`` to all of it; a factor takes one. What is learnt late takes long."""

PACE = 0.03
"""Decades a step that a gentle fall goes on by: half of ``common_decades`` in 25 steps, as small jobs of seconds do."""

AT_ONCE = -1.0
"""The way of a fall that no pace explains."""

AHEAD = 0.75
"""Decades that a fall may be ahead of that pace: noise, and half of the least fall that is one."""


def vote(shared: float, common_decades: float) -> int:
    """Return +1 for a fall of all layers, -1 for none, 0 between."""
    if shared >= common_decades:
        return 1
    return -1 if shared < min(CALM_DECADES, common_decades) else 0


def follow(progress: Progress, step: int, every: int, shared: float, common_decades: float) -> Progress:
    """Return where the launch is after a step with a common fall. NaN is not known, infinite are gradients of exactly
    zero: either may be a batch without any.

    ``reach`` is how far of it was gone step by step, at a pace; ``AT_ONCE`` where it came so, until it is small again.
    """
    if not math.isfinite(shared):
        return progress
    if shared < GENTLE_SHARE * common_decades:
        return replace(progress, calm_step=step, reach=0.0)
    if shared < common_decades:
        return progress if progress.calm_step >= 0 else replace(progress, calm_step=step)
    weight, known, took = min(every, MAX_WEIGHT_IDLE), progress.reach, step - progress.calm_step
    if not known:
        is_slow = took // every * weight > GENTLE_STEPS and took > GENTLE_AGE * step
        known = common_decades if is_slow and progress.calm_step >= 0 else AT_ONCE
    if known == AT_ONCE:
        return replace(progress, reach=AT_ONCE)
    pace = min(PACE * weight, (1 - GENTLE_SHARE) * common_decades * every / (GENTLE_AGE * max(step, 1)))
    return replace(progress, reach=min(shared, known + pace))


def follow_small(progress: Progress, steps: NDArray[np.int64], is_far: Mask, is_known: Mask) -> Progress:
    """Return what :func:`follow` makes of n steps that are all under ``common_decades``: ``is_far`` where the fall is
    not small, if it ``is_known``."""
    small = np.flatnonzero(is_known & ~is_far)
    if len(small):
        return replace(progress, calm_step=int(steps[small[-1]]), reach=0.0)
    if progress.calm_step >= 0 or not is_known.any():
        return progress
    return replace(progress, calm_step=int(steps[np.argmax(is_known)]))


def severity(shared: float, losses: Floats, progress: Progress) -> Severity:
    """Return how bad a common fall is: information when the loss explains it, critical when it did not fall.

    ``losses`` are the last ones. A loss that is absent or not finite explains nothing; one under zero does where it
    came down to its floor, as the gradients did.
    """
    if _has_settled(losses, progress) and (shared - progress.reach <= AHEAD or _is_flat(shared, losses, progress)):
        return "information"
    before = progress.loss_level
    loss_now = _now(losses[-RECENT:], before)
    if loss_now is None or before is None or before <= 0:
        return "warning"
    loss_fall = math.log10(before / loss_now)
    if loss_fall >= EXPLAINED * shared:
        return "information"
    if math.isinf(shared) and (loss_fall >= TO_ZERO or _fell_lately(losses, loss_now)):
        return "information"
    return "warning" if loss_fall > 0 else "critical"


def _has_settled(losses: Floats, progress: Progress) -> bool:
    """Tell whether the loss came down by more than it varies, and is where it was at the gradients' best, or lower."""
    first, before = progress.loss_first, progress.loss_level
    if first is None or before is None or len(losses) < RECENT or not bool(np.isfinite(losses).all()):
        return False
    now, (low, high) = float(np.median(losses[-RECENT:])), np.quantile(losses, (0.25, 0.75)).tolist()
    return bool(first - now > high - low and now - before <= (high - low) / 2)


def _is_flat(shared: float, losses: Floats, progress: Progress) -> bool:
    """Tell whether all that the loss still moves by is as small a part of what it came down by as the gradients are of
    theirs: what is left of a loss falls at least like its gradient (the inequality of Lojasiewicz)."""
    came_down = (progress.loss_first or 0.0) - float(np.median(losses[-RECENT:]))
    return float(np.ptp(losses)) <= came_down * 10**-shared


def _now(losses: Floats, loss_level: float | None) -> float | None:
    least = ROUNDING * max(loss_level or 0.0, 0.0)
    return least if len(losses) and least and bool((np.abs(losses) <= least).all()) else _positive(losses)


def _fell_lately(losses: Floats, loss_now: float) -> bool:
    before = _positive(losses[:RECENT])
    return before is not None and math.log10(before / loss_now) >= LATELY


def _positive(losses: Floats) -> float | None:
    return level(losses) if bool((losses > 0).all()) else None


def level(losses: Floats) -> float | None:
    """Return the median loss, None where one is not finite or there is none."""
    if not len(losses) or not bool(np.isfinite(losses).all()):
        return None
    return float(np.median(losses))


def remember(progress: Progress, losses: Floats, more: Floats) -> tuple[Progress, Floats]:
    """Return what is known of the losses with some more, and as many of the last ones as are kept.

    One of exactly zero is left out: whether a job came there by learning or by a mistake is told by the ones before it.
    The first ones of a run are those that it began with.
    """
    whole = np.concatenate([losses, more[more != 0]])
    if progress.loss_first is None and len(losses) < RECENT <= len(whole):
        began = whole[:RECENT]
        progress = replace(progress, loss_first=level(began[np.isfinite(began)]))
    return progress, whole[-LOSSES:]


def has_learnt(zeros: Mask, losses: Floats, progress: Progress) -> bool:
    """Tell whether all gradients, of those that there were, are exactly zero because of a loss that came to zero, if
    only batch by batch."""
    return len(zeros) > 0 and bool(zeros.all()) and severity(math.inf, losses, progress) == "information"


def is_due(losses: Floats, progress: Progress) -> bool:
    """Tell whether there is a loss that gradients are due of: not one that was exactly zero at all steps."""
    return bool(len(losses)) or progress.last_loss_step < 0
