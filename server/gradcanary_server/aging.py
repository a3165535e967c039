"""How far a launch is: its grace, which are its first steps and those at which the learning rate still rises. Pure."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gradcanary_server.fold_state import Progress
from gradcanary_server.layer_rules import LayerRules
from gradcanary_server.moment import BY_SCALER, Mask, Moment
from gradcanary_server.observations import Jump, Launch
from gradcanary_server.rules import Grace
from gradcanary_server.scores import MAX_WEIGHT_IDLE

JUMP = 3.0
"""A rate that is so many times what it was at the sample before was set; schedules move less, but for their steps."""

REMEMBERED = 100
"""Steps in which a learning rate that jumped may have done what is seen now."""


def advance(progress: Progress, moment: Moment, launch: Launch, grace: Grace) -> Progress:
    """Return where the launch is at this step."""
    by_scaler = moment.skipped == BY_SCALER
    begun = progress.skipped_since if progress.skipped else moment.step
    moved = replace(
        progress,
        last_step=moment.step,
        skipped=progress.skipped + min(moment.every, MAX_WEIGHT_IDLE) if by_scaler else 0,
        skipped_since=begun if by_scaler else -1,
    )
    if moment.skipped:
        return moved  # A scheduler does not move on in a skipped window, and that does not end a warm-up.
    step, given = np.array([moment.step]), moment.lr[None]
    lr, over = age(moved, step, given, launch, grace)
    most, found = highest(moved, given), jumps(moved, step, given, over)
    return replace(moved, lr=lr, lr_most=most, jumps=found, grace_over=bool(over[0]))


def age(
    progress: Progress, steps: NDArray[np.int64], given: NDArray[np.float32], launch: Launch, grace: Grace
) -> tuple[tuple[float, ...], Mask]:
    """Return the learning rates after these steps, and for each step whether grace is over.

    ``given`` is float32[n, groups], n at least 1; a rate that was not logged at a step (NaN) may still be rising.
    """
    if progress.grace_over and not np.isnan(given[-1]).any():
        return tuple(given[-1].tolist()), np.ones(len(steps), np.bool_)
    known = _known(progress, given)
    now, then = given, known[:-1]
    rising = ((now > then) | (np.isnan(now) & ~np.isnan(then))).any(axis=1)
    ages = steps - launch.first_step
    is_over = (ages >= grace.max_steps) | ((ages >= grace.steps) & ~rising)
    return tuple(known[-1].tolist()), np.logical_or.accumulate(is_over) | progress.grace_over


def jumps(progress: Progress, steps: NDArray[np.int64], given: NDArray[np.float32], is_old: Mask) -> tuple[Jump, ...]:
    """Return a jump of each group's learning rate after these steps, as :func:`age` has them: the last one, but for
    those that follow within ``REMEMBERED`` steps, as the way back from a spike does.

    ``is_old`` bool[n] tells at which steps grace is over: before, rates rise from nearly nothing.
    """
    if progress.lr == tuple(given[-1].tolist()) and (given == given[-1]).all():
        return progress.jumps
    known = _known(progress, given)
    then, now = known[:-1], known[1:]
    jumped = (np.maximum(then, now) >= JUMP * np.minimum(then, now)) & (then > 0) & is_old[:, None]
    found = {jump.group: jump for jump in progress.jumps}
    for row, group in np.argwhere(jumped).tolist():
        step = int(steps[row])
        if group not in found or step - found[group].step > REMEMBERED:
            found[group] = Jump(group, step, float(then[row, group]), float(now[row, group]))
    return tuple(found[group] for group in sorted(found))


def _known(progress: Progress, given: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the rates before these steps and at each, float64[1 + n, groups], where none was logged the last one."""
    groups = given.shape[1]
    last = progress.lr if len(progress.lr) == groups else (math.nan,) * groups
    rates = np.vstack([np.array(last, np.float64)[None], given])
    logged = np.where(np.isnan(rates), 0, np.arange(len(rates))[:, None])
    return np.take_along_axis(rates, np.maximum.accumulate(logged, axis=0), axis=0)


def highest(progress: Progress, given: NDArray[np.float32]) -> tuple[float, ...]:
    """Return the highest learning rate of each group after some steps, ``given`` float32[n, groups]."""
    most = progress.lr_most
    if len(most) == given.shape[1] and not any(map(math.isnan, most)) and not (given > most).any():
        return most
    known = np.array(progress.lr_most or (math.nan,) * given.shape[1], np.float64)
    if len(known) != given.shape[1]:
        known = np.full(given.shape[1], np.nan)
    return tuple(np.fmax(known, np.fmax.reduce(given, axis=0)).tolist())


def learning(progress: Progress, view: LayerRules, least: float) -> Mask:
    """Tell of which layers the learning rate is known, after grace, and at least this share of its highest."""
    now, most = np.array([*progress.lr, math.nan]), np.array([*progress.lr_most, math.nan])
    if len(now) != len(most) or not progress.grace_over:
        return np.zeros(len(view.columns), np.bool_)
    found: Mask = (now >= least * most)[np.minimum(view.group, len(now) - 1)]
    return found


def joined_steps(grace: Grace, every: int) -> int:
    """Return how many steps of a launch that was joined late are its beginning: as long as grace, and long enough for
    the observations that fire, however few are sampled.
    """
    return max(grace.steps, 10 * every)
