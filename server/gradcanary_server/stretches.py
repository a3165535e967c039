"""Steps at which nothing can begin or end, folded many at once: nearly all steps of nearly all runs. Pure.

What comes out is what :class:`gradcanary_server.walk.Walk` makes of them one by one, to the last bit: a stretch ends
before a step at which a vote could be +1 or a block of observations closes, and while any score counts there is none.
So no vote moves anything, and what is left of a step is that it was there.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gradcanary_server import baselines, beginnings, collapse, duty, explosion, idleness, precision, scale_drop
from gradcanary_server.aging import age, highest, joined_steps, jumps
from gradcanary_server.fold_state import FoldState
from gradcanary_server.layer_rules import Floats, compile_rules
from gradcanary_server.losses import Losses
from gradcanary_server.moment import Mask, Moments
from gradcanary_server.observations import Launch
from gradcanary_server.rules import Rules
from gradcanary_server.tracks import IDLE, MOVING, NONFINITE_LOSS, NOTHING, ZEROS


class Stretches:
    """The stretches of one batch; ``state`` is the one that walks through it."""

    def __init__(self, state: FoldState, launch: Launch, rules: Rules, moments: Moments, losses: Losses) -> None:
        self._state, self._launch, self._rules = state, launch, rules
        self._moments, self._losses = moments, losses
        self._view = compile_rules(launch.layers, rules)
        self._needed = baselines.needed(self._view.observations, moments.every)
        self._low: Mask = (moments.absmax < self._view.enter) & self._view.enabled
        self._is_low = _any(self._low)
        self._all_had: Mask = np.asarray(moments.had.all(axis=1))
        self._busy = False
        self._way: tuple[Mask, Mask] | None = None
        self._restless: Mask = self._is_restless()

    def end(self, row: int) -> int:
        """Return the row before which the stretch that begins at ``row`` ends; ``row`` where there is none."""
        if self._restless[row] or not self._is_still():
            return row
        moments = self._moments
        end = row + _first(self._restless[row:])
        end = row + _first(moments.can_fall[row:end] != moments.can_fall[row])
        over = self._aged(row, end)[1]
        is_over = bool(over[0])
        end = row + _first(over != is_over)
        is_watched = is_over and bool(moments.can_fall[row])
        if is_watched:
            seen = moments.seen[row:end]
            end = row + baselines.room(self._state.baselines, self._view.columns, seen, self._needed)
        return row if end == row else row + self._calm(row, end, is_over=is_over, is_watched=is_watched)

    def hears(self, begin: int, end: int) -> bool:
        """Tell whether nothing begins or ends with the losses from one place to before another."""
        losses = self._losses.between(begin, end)
        is_still = not self._state.of_run.score[NONFINITE_LOSS].any() and not losses.skipped.any()
        return is_still and bool(np.isfinite(losses.values).all())

    def pass_over(self, begin: int, end: int, losses: Losses) -> None:
        """Remember the steps of a stretch, and the losses that came with them."""
        state, moments = self._state, self._moments
        if len(losses):
            state.progress, state.losses = scale_drop.remember(state.progress, state.losses, losses.values)
            state.progress = replace(state.progress, last_loss_step=int(losses.steps[-1]))
        if begin == end:
            return
        steps = moments.steps[begin:end]
        lr, over = self._aged(begin, end)
        moved = {"last_step": int(steps[-1]), "skipped": 0, "skipped_since": -1, "lr": lr}
        moved["lr_most"] = highest(state.progress, moments.lr[begin:end])
        moved["jumps"] = jumps(state.progress, steps, moments.lr[begin:end], over)
        state.progress = replace(state.progress, **moved, grace_over=bool(over[-1]))  # type: ignore[arg-type]  # by name
        columns, seen = self._view.columns, moments.seen[begin:end]
        if "zero_fraction" in moments.values and (is_half := self._is_half()).any():
            precision.remember(state.precision, columns, moments.values["zero_fraction"][begin:end], is_half)
        if self._busy:
            duty.add_present(state.duty, columns, end - begin)
        else:
            duty.add(state.duty, columns, steps, moments.between(begin, end))
        if moments.can_fall[begin]:
            beginnings.observe(state.began, columns, moments.level[begin:end])
        if moments.can_fall[begin] and over[0]:
            if self._way is not None:
                is_far, is_known = (each[: end - begin] for each in self._way)
                state.progress = scale_drop.follow_small(state.progress, steps, is_far, is_known)
            state.alive[columns] |= (seen & ~moments.zero[begin:end]).any(axis=0)
            baselines.add(state.baselines, columns, moments.level[begin:end], seen)
        state.low[columns] = _last(self._low[begin:end], seen, state.low[columns])

    def _aged(self, begin: int, end: int) -> tuple[tuple[float, ...], Mask]:
        moments, grace = self._moments, self._rules.grace
        return age(self._state.progress, moments.steps[begin:end], moments.lr[begin:end], self._launch, grace)

    def _is_still(self) -> bool:
        state, scores = self._state, self._state.scores
        if state.of_run.score.any() or state.progress.scale_severity != NOTHING:
            return False
        if not scores.score.any():
            return True
        if scores.score[MOVING].any() or scores.score[ZEROS].any():
            return False
        waiting = scores.score[IDLE]
        return not waiting.any() or bool(((waiting == 0) | (waiting == state.resolve_after)).all())

    def _is_busy(self, begin: int, end: int) -> bool:
        """Tell whether every layer had a gradient at these steps and at the one before."""
        return bool(self._all_had[begin:end].all()) and not self._state.duty.idle[self._view.columns].any()

    def _is_restless(self) -> Mask:
        """Return the steps that no stretch holds, whatever the state is."""
        moments, losses = self._moments, self._losses
        restless: Mask = (moments.skipped != 0) | moments.nonfinite.any(axis=1)
        progress = self._state.progress
        if moments.micro_steps.max(initial=0) > progress.micro_steps:
            micro_steps = np.where(moments.steps > progress.last_step, moments.micro_steps, 0)
            before = np.maximum.accumulate(np.concatenate([[progress.micro_steps], micro_steps]))[:-1]
            restless |= micro_steps > before
        for stat in precision.STATS:
            if stat in moments.values:
                restless |= ~np.isnan(moments.values[stat]).all(axis=1)
        if self._launch.absmax_below or self._launch.norm_below or self._view.has_threshold:
            restless |= _any(collapse.by_threshold(moments, self._view, self._launch))
        if not np.isfinite(losses.values).all():
            heard = np.searchsorted(moments.steps, losses.steps[~np.isfinite(losses.values)])
            restless[heard[heard < len(restless)]] = True
        return restless

    def _calm(self, begin: int, end: int, *, is_over: bool, is_watched: bool) -> int:
        """Return how many of these steps come before one at which a vote could move something; they are passed over
        next."""
        view, moments = self._view, self._moments.between(begin, end)
        baseline = self._state.baselines.levels(view.columns)
        restless = np.zeros(end - begin, np.bool_)
        self._busy, self._way = self._is_busy(begin, end), None
        if not self._busy or self._state.scores.score[IDLE].any():
            firing = self._state.scores.firing[:, view.columns]
            restless |= idleness.restless(moments, self._state.duty, view, firing)
        if view.explosion.is_on:
            began = self._state.began.level[view.columns]
            if moments.can_fall[0]:
                began = beginnings.first(began, moments.level)
            most = explosion.limits(baseline, began, view.explosion, is_relative=is_over)
            restless |= np.any(moments.absmax > most, axis=1)
        if "zero_fraction" in moments.values and (is_half := self._is_half()).any():
            zeros, growth = moments.values["zero_fraction"], view.fp16_underflow.growth
            restless |= precision.grown(self._state.precision, view.columns, zeros, is_half, growth)
        if not moments.can_fall[0]:
            return _first(restless)
        fall, shared = collapse.falls(moments, baseline), np.full(end - begin, np.nan)
        alive, told = self._alive(moments), self._may_fall_to_zero(end - begin)
        if is_watched and self._rules.scale_drop.enabled:
            limit = self._rules.scale_drop.common_decades
            limits = (limit, scale_drop.GENTLE_SHARE * limit)
            (is_common, is_far), is_known = collapse.reached(fall, moments, alive, told, baseline, view, limits)
            restless |= is_common & is_known
            self._way = is_far, is_known
        if self._is_low[begin:end].any():
            if is_watched:
                shared = collapse.common(fall, moments, alive, told, baseline, view)
                restless |= np.isinf(shared)  # whose zeros are told of is known step by step only
            restless |= self._has_fallen(moments, fall, shared, told, baseline)
        return _first(restless)

    def _has_fallen(self, moments: Moments, fall: Floats, shared: Floats, told: Mask, baseline: Floats) -> Mask:
        """Return at which of these steps a layer that is low has evidence of a fall, of any kind."""
        view = self._view
        quartiles = collapse.sibling_quartiles(moments, view)
        beginning = joined_steps(self._rules.grace, moments.every)
        joined = (moments.steps - self._launch.first_step < beginning) & self._launch.late
        accepted = self._state.accepted[view.columns]
        found = _any(collapse.by_fall(moments, view, fall, shared, told, baseline))
        found |= _any(collapse.by_siblings(moments, view, quartiles, fall, shared, told, accepted))
        return found | _any(collapse.by_lateness(moments, view, baseline, joined))

    def _may_fall_to_zero(self, steps: int) -> Mask:
        """Return which layers may be told to have fallen when they are exactly zero in so many steps."""
        rule = self._view.vanished
        return self._state.duty.may_be_steady(self._view.columns, rule.steady_share, rule.observations, steps)

    def _is_half(self) -> Mask:
        """Return which layers' gradients were born in float16."""
        known: Mask = self._state.precision.sums[self._view.columns] == precision.FLOAT16
        return known | self._view.is_half

    def _alive(self, moments: Moments) -> Mask:
        """Return which layers had a gradient by each of these steps, bool[n, L]; bool[L] where all had one before."""
        known = self._state.alive[self._view.columns]
        if known.all():
            return known
        return known | np.logical_or.accumulate(moments.seen & ~moments.zero, axis=0)


def _any(found: NDArray[np.generic]) -> Mask:
    """Tell of each step whether something above 0 is there."""
    places: Mask = np.greater(found, 0).any(axis=1)
    return places


def _first(found: Mask) -> int:
    """Return the place of the first, the length where there is none."""
    return int(np.argmax(found)) if found.any() else len(found)


def _last(values: Mask, seen: Mask, before: Mask) -> Mask:
    """Return the value, bool[n, L], of the last step at which each layer was seen, ``before`` where it never was."""
    last: Mask = values[-1]
    if not seen[-1].all():
        row = len(seen) - 1 - np.argmax(seen[::-1], axis=0)
        last = np.where(seen.any(axis=0), np.take_along_axis(values, row[None], axis=0)[0], before)
    return last
