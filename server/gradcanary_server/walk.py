"""The state of a run while it moves through the steps and losses of one batch. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gradcanary.wire import Accumulator
from gradcanary_server import (
    baselines,
    beginnings,
    changes,
    collapse,
    duty,
    explosion,
    givens,
    idleness,
    precision,
    roster,
    scale_drop,
)
from gradcanary_server.aging import advance, joined_steps, learning
from gradcanary_server.changes import Sight
from gradcanary_server.fold_state import FoldState
from gradcanary_server.layer_rules import compile_rules
from gradcanary_server.losses import Loss
from gradcanary_server.moment import BY_SCALER, Floats, Mask, Moment
from gradcanary_server.observations import Change, Launch
from gradcanary_server.rules import Rules
from gradcanary_server.scores import MAX_WEIGHT_IDLE, Cast, count
from gradcanary_server.tracks import (
    ALL_ZERO,
    COLLAPSE,
    EXPLOSION,
    FALL,
    IDLE,
    INFORMATION,
    LATE,
    NONFINITE,
    NONFINITE_LOSS,
    NOTHING,
    SCALE_DROP,
    SCALE_WORSE,
    SEVERITIES,
    SIBLINGS,
    THRESHOLD,
    UNDERFLOW,
)

AT_ONCE = 1.0
"""``fire_after`` of a rule that one observation decides."""

ONE = np.array(1)
"""Observation."""

UNKNOWN = np.array(np.nan)
"""A common fall."""

_WHOLE_RUN = np.zeros(1, np.int64)


class Walk:
    """Moves ``state`` event by event; ``gone`` is what left before the first one."""

    def __init__(self, state: FoldState, launch: Launch, rules: Rules) -> None:
        self.state = state
        self._launch = launch
        self._rules = rules
        self._view = compile_rules(launch.layers, rules)
        self.gone = roster.call(state, launch, self._view)
        self.has_news = False
        self._standing: changes.Standing | None = None
        self._tipped = False
        self._at_once = np.full(len(launch.layers), AT_ONCE, np.float32)
        self._no_siblings = np.full(len(launch.layers), np.nan)
        self._has_threshold = bool(launch.absmax_below or launch.norm_below or self._view.has_threshold)

    def learn(self, records: tuple[Accumulator, ...]) -> None:
        """Take what is known of layers from the next step on."""
        facts = givens.digest(self._launch.facts)
        self.has_news = bool(records) or facts != self.state.progress.facts
        if self.has_news:
            self.state.precision.learn(self._view.columns, records)
            self.state.progress = replace(self.state.progress, facts=facts)

    def take(self, event: Moment | Loss) -> Iterator[Change]:
        """Fold one event and return what it changed."""
        self._tipped = False
        self._standing = self._standing or changes.standing(self.state)
        sight = self._hear(event) if isinstance(event, Loss) else self._observe(event)
        if self._tipped:
            before, self._standing = self._standing, changes.standing(self.state)
            yield from changes.between(before, self._standing, self.state, sight)

    def _hear(self, loss: Loss) -> Sight:
        state, rule = self.state, self._rules.nonfinite
        state.progress = replace(state.progress, last_loss_step=loss.step)
        if not loss.skipped:  # A skipped window feeds only nonfinite.
            state.progress, state.losses = scale_drop.remember(state.progress, state.losses, np.array([loss.value]))
        # The step itself comes after its loss, so the row it belongs to is one longer than known.
        counts = loss.skipped != BY_SCALER or state.progress.skipped + 1 >= rule.skipped_in_row
        if math.isfinite(loss.value):
            self._count_run(NONFINITE_LOSS, loss.step, 1, -1, AT_ONCE)
        elif counts and rule.enabled:
            self._count_run(NONFINITE_LOSS, loss.step, 1, 1, AT_ONCE)
        return Sight(loss.step)

    def _observe(self, moment: Moment) -> Sight:
        state, view = self.state, self._view
        state.progress = advance(state.progress, moment, self._launch, self._rules.grace)
        if self.has_news or moment.micro_steps > state.progress.micro_steps:
            self._settle(moment)
        self._count_nonfinite(moment)
        if moment.skipped:
            return Sight(moment.step, moment.every, view.columns, moment.absmax, self._no_siblings)
        low = (moment.absmax < view.enter) & view.enabled
        duty.observe(state.duty, view.columns, moment.step, moment)
        if moment.can_fall:
            beginnings.observe(state.began, view.columns, moment.level[None])
        explodes = self._count_explosion(moment)
        shared = UNKNOWN
        if moment.can_fall and state.progress.grace_over:
            shared = self._watch_falls(moment, np.where(explodes, np.nan, moment.level))
        siblings = self._no_siblings
        if self._has_threshold:
            self._count(THRESHOLD, moment, collapse.by_threshold(moment, view, self._launch))
        # On healthy steps there is nothing to vote about, and no score that a vote could move.
        if moment.can_fall and (low.any() or state.scores.score[COLLAPSE].any()):
            siblings = self._count_evidence(moment, shared)
        self._count_idle(moment, shared)
        if moment.values:
            self._count_precision(moment)
        # A layer that was not seen is as low as it was: missing data decides nothing.
        state.low[view.columns] = np.where(moment.seen, low, state.low[view.columns])
        state.low[view.columns] &= ~state.scores.firing[COLLAPSE][:, view.columns].any(axis=0)
        common = None if np.isnan(shared) else float(shared)
        return Sight(moment.step, moment.every, view.columns, moment.absmax, siblings, common, moment.values)

    def _count_nonfinite(self, moment: Moment) -> None:
        rule, progress = self._rules.nonfinite, self.state.progress
        by_scaler = moment.skipped == BY_SCALER
        counts = self._view.nonfinite.enabled & (not by_scaler or progress.skipped >= rule.skipped_in_row)
        good = moment.seen & (moment.skipped == 0)
        votes = ((moment.nonfinite & counts).astype(np.int8) - good).astype(np.int8)
        self._count(NONFINITE, moment, votes, self._at_once, progress.skipped_since if by_scaler else moment.step)

    def _count_explosion(self, moment: Moment) -> Mask:
        """Count what is far over its baseline, and return which layers are: that sets no baseline."""
        state, rule, columns = self.state, self._view.explosion, self._view.columns
        if not rule.is_on:
            return np.zeros(len(columns), np.bool_)
        baseline, began = state.baselines.levels(columns), state.began.level[columns]
        limit = explosion.limits(baseline, began, rule, is_relative=state.progress.grace_over)
        votes = explosion.votes(moment, limit, can_fall=moment.can_fall)
        weight = min(moment.every, MAX_WEIGHT_IDLE)
        self._count(EXPLOSION, moment, votes, (rule.observations * weight).astype(np.float32))
        severity = NOTHING
        if state.scores.firing[EXPLOSION].any():
            is_nonfinite = bool(state.scores.firing[NONFINITE].any() or state.of_run.firing[NONFINITE_LOSS].any())
            found = explosion.severity(state.losses, self._rules.explosion, is_nonfinite=is_nonfinite)
            severity = max(state.progress.explosion_severity, found)
        if severity != state.progress.explosion_severity:
            state.progress = replace(state.progress, explosion_severity=severity)
            self._tipped = True
        return votes > 0

    def _count_idle(self, moment: Moment, shared: Floats) -> None:
        """Count layers that have no gradient, once it is known which of them collapsed."""
        state, columns = self.state, self._view.columns
        if not (moment.idle.any() or state.scores.score[IDLE].any()):
            return
        drops, known = self._rules.scale_drop, (state.losses, state.progress)
        zeros = moment.zero[state.alive[columns] & moment.seen]
        falls = drops.enabled and (bool(shared >= drops.common_decades) or scale_drop.has_learnt(zeros, *known))
        is_common, is_due = falls or state.progress.scale_severity != NOTHING, scale_drop.is_due(*known)
        firing = state.scores.firing[:, columns]
        votes = idleness.votes(moment, state.duty, self._view, firing, is_common=is_common, is_due=is_due)
        for track, each in votes.items():
            self._count(track, moment, each, self._at_once, state.duty.since[columns])

    def _settle(self, moment: Moment) -> None:
        """Let fire what is given."""
        state, self.has_news = self.state, False
        most = max(moment.micro_steps, state.progress.micro_steps)
        state.progress = replace(state.progress, micro_steps=most)
        known = (state.scores, state.precision, self._launch, self._view)
        self._tipped |= givens.settle(*known, most, self._rules, moment.step)

    def _count_precision(self, moment: Moment) -> None:
        """Count what was measured of some layers at this step."""
        state, view = self.state, self._view
        is_half = view.is_half | (state.precision.sums[view.columns] == precision.FLOAT16)
        is_learning = learning(state.progress, view, self._rules.frozen.least_lr_share)
        votes = precision.votes(moment, state.precision, view, is_half, is_learning)
        for track, each in votes.items():
            observations = view.fp16_underflow.observations if track in (UNDERFLOW, ALL_ZERO) else ONE
            limit = (observations * MAX_WEIGHT_IDLE).astype(np.float32)
            cast = Cast(moment.step, precision.TURN_EVERY, view.columns, each, limit, view.resolve_after)
            self._tipped |= count(state.scores, track, cast)

    def _watch_falls(self, moment: Moment, level: Floats) -> Floats:
        """Move the baselines by ``level`` and count scale_drop; return the common fall, NaN while it is not known."""
        state, columns, view = self.state, self._view.columns, self._view
        state.alive[columns] |= moment.seen & ~moment.zero
        rose = baselines.observe(state.baselines, columns, level, view.observations, moment.every)
        baseline = state.baselines.levels(columns)
        # The loss that belongs to the baselines is the one of the moment when most of them were set.
        if rose and 2 * rose >= int((~np.isnan(baseline)).sum()):
            state.progress = replace(state.progress, loss_level=scale_drop.level(state.losses))
        fall = collapse.falls(moment, baseline)
        told = idleness.is_steady(state.duty, view)
        shared = collapse.common(fall, moment, state.alive[columns], told, baseline, view)
        if self._rules.scale_drop.enabled:
            self._count_scale_drop(moment, float(shared))
        return shared

    def _count_scale_drop(self, moment: Moment, shared: float) -> None:
        state, decades = self.state, self._rules.scale_drop.common_decades
        state.progress = scale_drop.follow(state.progress, moment.step, moment.every, shared, decades)
        if math.isnan(shared):
            return
        vote = scale_drop.vote(shared, decades)
        fire_after = self._rules.collapse.fire_after_steps
        self._count_run(SCALE_DROP, moment.step, moment.every, vote, fire_after)
        severity = self._rank_scale_drop(moment, shared, vote, fire_after)
        if severity != state.progress.scale_severity:
            state.progress = replace(state.progress, scale_severity=severity)
            self._tipped = True

    def _rank_scale_drop(self, moment: Moment, shared: float, vote: int, fire_after: int) -> int:
        """Return the severity of the scale_drop, NOTHING while it does not fire.

        What the loss does not explain is counted like the drop itself, from its first bad step on: one noisy step at
        the border raises nothing. Between the two limits of the drop nothing is decided, so the severity stays too.
        """
        state, fires = self.state, bool(self.state.of_run.firing[SCALE_DROP, 0])
        current = max(state.progress.scale_severity, INFORMATION)
        found = NOTHING
        if vote > 0:
            found = SEVERITIES.index(scale_drop.severity(shared, state.losses, state.progress))
        if vote > 0 or not fires:
            worse = 1 if found > current else -1
            self._count_run(SCALE_WORSE, moment.step, moment.every, worse, fire_after)
        if not fires:
            return NOTHING
        if vote > 0 and state.of_run.firing[SCALE_WORSE, 0]:
            state.of_run.drop(SCALE_WORSE)
            return max(current, found)
        return current

    def _count_evidence(self, moment: Moment, shared: Floats) -> Floats:
        """Count what shows that low layers were higher before; return the upper quartiles of siblings."""
        state, view, launch = self.state, self._view, self._launch
        siblings = collapse.sibling_quartiles(moment, view)
        if state.progress.scale_severity == INFORMATION:
            return siblings  # The loss explains why all gradients are small.
        if moment.clipped and state.scores.firing[EXPLOSION].any():
            return siblings  # One layer that explodes makes the clip shrink all others.
        baseline = state.baselines.levels(view.columns)
        fall = collapse.falls(moment, baseline)
        firing = state.scores.firing[:, view.columns]
        told = idleness.zeros_that_fell(state.duty, view, firing)
        accepted = state.accepted[view.columns]
        # A layer that is under ``exit`` for ever never recovers: without this a bad step a month would add up.
        calm = moment.seen & ~moment.zero
        is_judged = calm & ~np.isnan(fall) & ~np.isnan(shared)
        by_siblings = collapse.by_siblings(moment, view, siblings, fall, shared, told, accepted)
        self._count(FALL, moment, collapse.by_fall(moment, view, fall, shared, told, baseline), calm=is_judged)
        self._count(SIBLINGS, moment, by_siblings, calm=calm)
        joined = np.array(
            launch.late and moment.step - launch.first_step < joined_steps(self._rules.grace, moment.every)
        )
        self._count(LATE, moment, collapse.by_lateness(moment, view, baseline, joined))
        return siblings

    def _count(
        self,
        track: int,
        moment: Moment,
        votes: NDArray[np.int8],
        fire_after: NDArray[np.float32] | None = None,
        since: int | NDArray[np.int64] | None = None,
        calm: Mask | None = None,
    ) -> None:
        view, step = self._view, moment.step if since is None else since
        limit = view.fire_after if fire_after is None else fire_after
        cast = Cast(step, moment.every, view.columns, votes, limit, view.resolve_after, calm)
        self._tipped |= count(self.state.scores, track, cast)

    def _count_run(self, track: int, step: int, every: int, vote: int, fire_after: float) -> None:
        votes = np.array([vote], np.int8)
        limits = np.array([fire_after, self._rules.collapse.resolve_after_steps], np.float32)
        self._tipped |= count(self.state.of_run, track, Cast(step, every, _WHOLE_RUN, votes, limits[:1], limits[1:]))
