"""Detectors of layers without a gradient: vanished and unused.

Exact zero counts only where every step is sampled: a layer that is zero in one step of ten may not be zero in others.
A layer that collapsed has not vanished as well, and zeros of all layers are one scale_drop: one fault, one incident. A
layer whose gradient went to another one like it has handed it over: domains, tasks and stages that take turns. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gradcanary_server.rules import signals
from gradcanary_server.rules.activity import LONG_IDLE, add_hits, idle_lengths, observe_step, observe_steps
from gradcanary_server.rules.detectors import scale_drop
from gradcanary_server.rules.signals import MAX_WEIGHT_IDLE, NOTHING, Vote
from gradcanary_server.rules.steps import (
    AT_ONCE,
    Detector,
    LayerPlanes,
    Sample,
    Span,
    Step,
    any_layer,
    find_handed_over,
    first_true,
    is_regular,
)
from gradcanary_server.rules.types import Ints, Mask, Votes

FOREVER = np.iinfo(np.int64).max
"""Observations; the limit of a layer with too short a history."""

MOST = [signals.MOST_UNUSED, signals.MOST_ZERO]

TOLD = [signals.REGULAR, signals.SPORADIC, signals.NEVER, signals.NEVER_BUT_ZERO, *MOST]
"""Signals beside which it is not told again that most layers never had a gradient."""

COLLAPSED = [signals.FALL, signals.SIBLINGS, signals.THRESHOLD, signals.FOLLOWS]

_NEVER = [signals.NEVER, signals.NEVER_BUT_ZERO]
_LOST = [signals.REGULAR, signals.SPORADIC, signals.HANDED_OVER]


class ActivityTracker(Detector):
    """Updates the gradient activity of layers. It never votes."""

    def skip(self, span: Span) -> None:
        activity = self.state.activity
        if span.all_have_gradient:
            add_hits(activity, self.config.at, len(span))
        else:
            samples = self.context.batch.between(span.begin, span.end)
            observe_steps(activity, self.config.columns, samples.steps, samples)

    def observe(self, step: Step) -> Iterator[Vote]:
        observe_step(self.state.activity, self.config.columns, step.sample.step, step.sample)
        yield from ()


class VanishedDetector(Detector):
    """Votes of the rules vanished and unused, after the votes about collapse."""

    def is_active(self) -> bool:
        counts = self.state.scores.score[signals.WITHOUT_GRADIENT]
        return bool(counts.any()) and not bool(((counts == 0) | (counts == self.state.resolve_after)).all())

    def quiet_rows(self, span: Span) -> int:
        if span.all_have_gradient and not self.state.scores.score[signals.WITHOUT_GRADIENT].any():
            return len(span)
        return first_true(self._may_vote(span.samples))

    def observe(self, step: Step) -> Iterator[Vote]:
        sample, state, columns = step.sample, self.state, self.config.columns
        if not (sample.idle.any() or state.scores.score[signals.WITHOUT_GRADIENT].any()):
            return
        rule, losses = self.context.rules.scale_drop, (state.losses, state.progress)
        zeros = sample.zero[state.alive[columns] & sample.is_measured]
        is_common = state.progress.scale_severity != NOTHING or (
            rule.enabled
            and (bool(step.common_fall >= rule.common_decades) or scale_drop.loss_explains_zeros(zeros, *losses))
        )
        votes_by_signal = self._votes(sample, is_common=is_common, is_expected=scale_drop.expects_gradients(*losses))
        for signal, votes in votes_by_signal.items():
            yield self.vote(signal, step, votes, fire_after=AT_ONCE, since=state.activity.idle_since[columns])

    def _votes(self, sample: Sample, *, is_common: bool, is_expected: bool) -> dict[int, Votes]:
        """Return the votes of one step by signal; ``state.activity`` holds that step already.

        ``is_common``: all gradients fell together. ``is_expected``: the loss is not always zero, so there should be
        gradients. If no layer ever had one, none of them is unused: all vanished.
        """
        firing = self.state.scores.firing[:, self.config.columns]
        lacks = lacks_gradient(sample, is_common=is_common) & ~firing[COLLAPSED].any(axis=0)
        is_untold = ~np.logical_or.reduce(firing[[*COLLAPSED, *signals.MISSED]], axis=0)
        bad = self._find_lost(sample, firing, lacks, is_untold)
        bad |= self._find_unused(sample, firing, lacks, is_untold, is_expected=is_expected)
        # If any layer has a gradient, it is not all of them that never had one.
        good = dict.fromkeys(bad, sample.has_gradient)
        good[signals.NEVER] = good[signals.NEVER_BUT_ZERO] = np.full(len(lacks), sample.has_gradient.any())
        return {signal: mask.astype(np.int8) - (good[signal] & ~mask).astype(np.int8) for signal, mask in bad.items()}

    def _find_lost(self, sample: Sample, firing: Mask, lacks: Mask, is_untold: Mask) -> dict[int, Mask]:
        """Return the layers that had a gradient before, by signal; ``lacks`` and ``is_untold`` are bool[L]."""
        config, columns, activity = self.config, self.config.columns, self.state.activity
        enabled, idle = config.vanished.enabled, activity.idle[columns].astype(np.int64)
        observations, regular = activity.history(columns)[0], is_regular(activity, config)
        is_missed = is_untold & (idle >= self._idle_limits(sample.every)) & (observations > 0) & enabled
        # What another layer got is lost in the steps between two samples, too.
        lost = is_missed & sample.idle & ~sample.not_trainable
        handed_over = find_handed_over(activity, config, sample.every, lost)
        vanished = is_missed & lacks & ~handed_over
        by_script = sample.not_trainable & regular & (idle >= self._missed_after(sample.every)) & enabled
        return {
            signals.REGULAR: vanished & regular,
            signals.SPORADIC: vanished & ~regular,
            signals.BY_SCRIPT: by_script & ~firing[_LOST].any(axis=0),
            signals.HANDED_OVER: handed_over,
        }

    def _find_unused(
        self, sample: Sample, firing: Mask, lacks: Mask, is_untold: Mask, *, is_expected: bool
    ) -> dict[int, Mask]:
        """Return the layers that never had a gradient, by signal."""
        config, columns, activity = self.config, self.config.columns, self.state.activity
        observations, idle = activity.history(columns)[0], activity.idle[columns].astype(np.int64)
        may_fire, is_zero = lacks & is_untold, sample.zero
        unused = may_fire & (observations == 0) & (idle >= config.unused.observations)
        is_never = is_expected and bool(((observations == 0) & (sample.idle | sample.not_trainable)).all())
        never = unused & is_never & config.vanished.enabled
        all_zero = scale_drop.is_at_work(self.state.losses) and bool((is_zero | sample.not_trainable).all())
        trainable, has_living = ~sample.not_trainable, self._has_living_relatives()
        most = lacks & self._most_unused(trainable, trainable, idle) & ~never & is_expected & config.unused.enabled
        most &= ~firing[TOLD].any(axis=0) & (may_fire | has_living)
        only_unused = unused & ~never & ~most & config.unused.enabled
        return {
            signals.NEVER: never & ~all_zero,
            signals.NEVER_BUT_ZERO: never & all_zero,
            signals.UNUSED: only_unused & ~is_zero,
            signals.UNUSED_ZERO: only_unused & is_zero,
            signals.MOST_UNUSED: most & ~is_zero,
            signals.MOST_ZERO: most & is_zero,
        }

    def _most_unused(self, trainable: Mask, always: Mask, idle: Ints) -> Mask:
        """Return the layers that never had a gradient if they are most trainable layers, or hold all adapters.

        A layer like one that has had a gradient is given longer: it may be another domain's, or a later stage's.
        ``idle`` are observations without a gradient. Of several steps, ``trainable`` layers are so at any of them and
        ``always`` at each, and the result holds all layers for which this is true at any step.
        """
        config = self.config
        waits = np.where(self._has_living_relatives(), config.vanished.rare_factor, 1) * config.unused.observations
        never: Mask = trainable & (self.state.activity.history(config.columns)[0] == 0) & (idle >= waits)
        has_adapters = bool((config.is_adapter & trainable).any())
        is_most = 2 * never.sum() > always.sum() or (has_adapters and bool(never[config.is_adapter & always].all()))
        return never if is_most else np.zeros_like(never)

    def _has_living_relatives(self, living: Mask | None = None) -> Mask:
        """Return the layers like one that has had a gradient, or is among the ``living``."""
        lives = self.state.activity.history(self.config.columns)[0] > 0
        lives = lives if living is None else lives | living
        has_living: Mask = np.bincount(self.config.kind, lives)[self.config.kind] > 0
        return has_living

    def _may_vote(self, samples: LayerPlanes) -> Mask:
        """Return the steps, bool[n], at which one of these votes could move a count."""
        activity, config = self.state.activity, self.config
        firing = self.state.scores.firing[:, config.columns]
        fires = firing[signals.WITHOUT_GRADIENT].any(axis=0)
        moves = np.zeros(len(samples.idle), np.bool_)
        if fires.any():
            moves |= (samples.has_gradient & fires).any(axis=1)
            moves |= (~samples.not_trainable & firing[signals.BY_SCRIPT]).any(axis=1)
            moves |= samples.has_gradient.any(axis=1) & firing[_NEVER].any()
        if not samples.idle.any():
            return moves
        idle, least = idle_lengths(activity, config.columns, samples), self._missed_after(samples.every)
        limit, regular = self._idle_limits(samples.every), is_regular(activity, config)
        # The history of a layer whose span began in these steps may be longer by then.
        is_new = np.maximum.accumulate(samples.has_gradient, axis=0)
        before = np.vstack([activity.idle[config.columns], idle[:-1]])
        gains = (samples.has_gradient & (before >= LONG_IDLE)).any() or activity.has_gains(config.columns)
        lacks = samples.idle & ~samples.not_trainable if gains else lacks_gradient(samples, is_common=False)
        is_missed = lacks & (idle >= np.where(is_new, least, limit))
        is_frozen = samples.not_trainable & (idle >= np.where(is_new | regular, least, FOREVER))
        moves |= ((is_missed | is_frozen) & ~fires).any(axis=1)
        untold = fires & ~firing[TOLD].any(axis=0) & config.unused.enabled
        untold &= self._has_living_relatives(any_layer(samples.has_gradient.T))
        if untold.any():  # those that fire as unused may be told later
            some, always = any_layer(~samples.not_trainable.T), ~any_layer(samples.not_trainable.T)
            most = self._most_unused(some, always, idle.max(axis=0))
            moves |= (most & untold & (idle >= config.unused.observations)).any(axis=1)
        return moves

    def _missed_after(self, every: int) -> Ints:
        """Return the observations without a gradient after which a regular layer is missed, [L] or one for all."""
        least: Ints = -(-self.config.vanished.fire_after_steps // min(every, MAX_WEIGHT_IDLE))
        return least

    def _idle_limits(self, every: int) -> Ints:
        """Return the observations without a gradient, int64[L], after which each layer fires."""
        activity, config, rule = self.state.activity, self.config, self.config.vanished
        observations, least = activity.history(config.columns)[0], self._missed_after(every)
        longest = rule.rare_factor * activity.longest_idle[config.columns].astype(np.int64)
        sporadic = np.where(observations >= rule.observations, np.maximum(least, longest), FOREVER)
        limits = np.where(is_regular(activity, config), least, sporadic)
        return np.where(observations == 0, config.unused.observations, limits).astype(np.int64)


def lacks_gradient(sample: LayerPlanes, *, is_common: bool) -> Mask:
    """Return the trainable layers without a gradient; exact zeros count if every step is sampled and few fell."""
    idle: Mask = sample.idle & ~sample.not_trainable
    return idle if sample.every == 1 and not is_common else idle & ~sample.zero
