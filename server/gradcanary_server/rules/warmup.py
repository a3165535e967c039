"""Grace of a launch (first steps, and rising learning rates) and jumps of learning rates. Pure."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gradcanary_server.rules.config import Grace
from gradcanary_server.rules.layer_config import LayerRules
from gradcanary_server.rules.signals import MAX_WEIGHT_IDLE
from gradcanary_server.rules.steps import BY_SCALER, Sample
from gradcanary_server.rules.types import Floats, Ints, Jump, Launch, Mask, replaced

if TYPE_CHECKING:
    from gradcanary_server.rules.state import Progress

LR_JUMP_RATIO = 3.0
"""A rate that changes by this factor between two samples has jumped; schedules change less, except for their steps."""

LR_JUMP_WINDOW = 100
"""Steps after a jump of a learning rate in which it may be the cause, whatever the rate is then."""

LR_RISE_RATIO = 10.0
"""A rate that is this many times the highest one before its jump is still in force: no schedule restarts so high."""


def advance(progress: Progress, sample: Sample, launch: Launch, grace: Grace) -> Progress:
    """Return the progress at this step."""
    if sample.skipped == BY_SCALER:
        skipped = progress.skipped + min(sample.every, MAX_WEIGHT_IDLE)
        skipped_since = progress.skipped_since if progress.skipped else sample.step
        return replace(progress, last_step=sample.step, skipped=skipped, skipped_since=skipped_since)
    if sample.skipped:  # A scheduler does not advance in a skipped window; that does not end a warm-up.
        return replace(progress, last_step=sample.step, skipped=0, skipped_since=-1)
    return skip(progress, np.array([sample.step]), sample.lr[None], launch, grace)


def skip(progress: Progress, steps: Ints, lr: NDArray[np.float32], launch: Launch, grace: Grace) -> Progress:
    """Return the progress after steps that were not skipped."""
    last_step = int(steps[-1])
    if progress.grace_over and progress.lr == tuple(lr[-1].tolist()) and (lr == lr[-1]).all():  # the same all along
        highest = find_highest_lr(progress, lr)
        return replaced(progress, last_step=last_step, skipped=0, skipped_since=-1, highest_lr=highest)
    rates, is_over = find_grace_end(progress, steps, lr, launch, grace)
    return replace(
        progress,
        last_step=last_step,
        skipped=0,
        skipped_since=-1,
        lr=rates,
        highest_lr=find_highest_lr(progress, lr),
        jumps=find_lr_jumps(progress, steps, lr, is_over),
        last_rise=find_last_rise(progress, steps, lr),
        grace_over=bool(is_over[-1]),
    )


def find_grace_end(
    progress: Progress, steps: Ints, lr: NDArray[np.float32], launch: Launch, grace: Grace
) -> tuple[tuple[float, ...], Mask]:
    """Return the learning rates after these steps, and the steps, bool[n], at which grace is over.

    ``lr`` is float32[n, groups], n at least 1; a rate that was not logged at a step (NaN) may still be rising.
    """
    if progress.grace_over and not np.isnan(lr[-1]).any():
        return tuple(lr[-1].tolist()), np.ones(len(steps), np.bool_)
    rates = _logged_rates(progress, lr)
    before = rates[:-1]
    rising = ((lr > before) | (np.isnan(lr) & ~np.isnan(before))).any(axis=1)
    ages = steps - launch.first_step
    is_over = (ages >= grace.max_steps) | ((ages >= grace.steps) & ~rising)
    return tuple(rates[-1].tolist()), np.logical_or.accumulate(is_over) | progress.grace_over


def find_lr_jumps(progress: Progress, steps: Ints, lr: NDArray[np.float32], is_over: Mask) -> tuple[Jump, ...]:
    """Return the last jump of each group's learning rate after these steps. A jump within ``LR_JUMP_WINDOW`` steps of
    the one before is not a new one: it may be the way back from a spike.

    ``is_over`` bool[n] are the steps at which grace is over: in grace, rates rise from nearly nothing.
    """
    if progress.lr == tuple(lr[-1].tolist()) and (lr == lr[-1]).all():
        return progress.jumps
    rates = _logged_rates(progress, lr)
    before, after = rates[:-1], rates[1:]
    is_far = np.maximum(before, after) >= LR_JUMP_RATIO * np.minimum(before, after)
    has_jumped = is_far & (before > 0) & is_over[:, None]
    jumps = {jump.group: jump for jump in progress.jumps}
    earlier = _highest_before(progress, lr.shape[1])
    for row, group in np.argwhere(has_jumped).tolist():
        step = int(steps[row])
        if group not in jumps or step - jumps[group].step > LR_JUMP_WINDOW:
            highest = np.fmax.reduce(before[: row + 1, group], initial=earlier[group])
            jumps[group] = Jump(group, step, float(before[row, group]), float(after[row, group]), float(highest))
    return tuple(jumps[group] for group in sorted(jumps))


def find_last_rise(progress: Progress, steps: Ints, lr: NDArray[np.float32]) -> int:
    """Return the last step until the end of these at which a learning rate rose."""
    if progress.lr == tuple(lr[-1].tolist()) and (lr == lr[-1]).all():
        return progress.last_rise
    rates = _logged_rates(progress, lr)
    rises = np.flatnonzero((rates[1:] > rates[:-1]).any(axis=1))
    return int(steps[rises[-1]]) if len(rises) else progress.last_rise


def _logged_rates(progress: Progress, lr: NDArray[np.float32]) -> Floats:
    """Return the last logged rates before these steps and at each of them, float64[1 + n, groups]."""
    groups = lr.shape[1]
    last = progress.lr if len(progress.lr) == groups else (math.nan,) * groups
    rates = np.vstack([np.array(last, np.float64)[None], lr])
    logged = np.where(np.isnan(rates), 0, np.arange(len(rates))[:, None])
    return np.take_along_axis(rates, np.maximum.accumulate(logged, axis=0), axis=0)


def find_highest_lr(progress: Progress, lr: NDArray[np.float32]) -> tuple[float, ...]:
    """Return the highest learning rate of each group after some steps, ``lr`` float32[n, groups]."""
    highest = _highest_before(progress, lr.shape[1])
    if not any(map(math.isnan, highest)) and not (lr > highest).any():
        return highest
    return tuple(np.fmax(highest, np.fmax.reduce(lr, axis=0)).tolist())


def _highest_before(progress: Progress, groups: int) -> tuple[float, ...]:
    """Return the highest learning rate of each group so far, NaN where none is known of as many groups."""
    return progress.highest_lr if len(progress.highest_lr) == groups else (math.nan,) * groups


def find_learning(progress: Progress, config: LayerRules, least: float) -> Mask:
    """Return the layers whose learning rate is known, after grace, not zero, and at least this share of its highest."""
    rates, highest = np.array([*progress.lr, math.nan]), np.array([*progress.highest_lr, math.nan])
    if len(rates) != len(highest) or not progress.grace_over:
        return np.zeros(len(config.columns), np.bool_)
    is_learning: Mask = ((rates >= least * highest) & (rates > 0))[np.minimum(config.group, len(rates) - 1)]
    return is_learning


def late_join_steps(grace: Grace, every: int) -> int:
    """Return the number of first steps of a launch that was joined late: as long as grace, and long enough for the
    observations that fire, however few are sampled.
    """
    return max(grace.steps, 10 * every)
