"""Detectors of layers without a gradient: vanished and unused.

Exact zero counts only where every step is sampled: a layer that is zero in one step of ten may not be zero in others.
A layer that collapsed has not vanished as well, and zeros of all layers are one scale_drop: one fault, one incident.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gradcanary_server.rules import scale_drop, signals
from gradcanary_server.rules.activity import add_hits, idle_lengths, observe_step, observe_steps
from gradcanary_server.rules.signals import MAX_WEIGHT_IDLE, NOTHING, Vote
from gradcanary_server.rules.steps import AT_ONCE, Detector, LayerPlanes, Sample, Span, Step, first_true, is_regular
from gradcanary_server.rules.types import Ints, Mask, Votes

FOREVER = np.iinfo(np.int64).max
"""Observations; the limit of a layer with too short a history."""

COLLAPSED = [signals.FALL, signals.SIBLINGS, signals.THRESHOLD, signals.FOLLOWS]


class ActivityTracker(Detector):
    """Updates the gradient activity of layers. It never votes."""

    def skip(self, span: Span) -> None:
        activity, columns = self.state.activity, self.config.columns
        if span.all_have_gradient:
            add_hits(activity, columns, len(span))
        else:
            samples = self.context.batch.between(span.begin, span.end)
            observe_steps(activity, columns, samples.steps, samples)

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
        is_expected = scale_drop.expects_gradients(*losses)
        for signal, votes in self._votes(sample, is_common=is_common, is_expected=is_expected).items():
            yield self.vote(signal, step, votes, fire_after=AT_ONCE, since=state.activity.idle_since[columns])

    def _votes(self, sample: Sample, *, is_common: bool, is_expected: bool) -> dict[int, Votes]:
        """Return the votes of one step by signal; ``state.activity`` holds that step already.

        ``is_common``: all gradients fell together. ``is_expected``: the loss is not always zero, so there should be
        gradients. If no layer ever had one, none of them is unused: all vanished.
        """
        config, columns, activity = self.config, self.config.columns, self.state.activity
        enabled, firing = config.vanished.enabled, self.state.scores.firing[:, columns]
        observations, idle = activity.history(columns)[0], activity.idle[columns].astype(np.int64)
        regular = is_regular(activity, config)
        may_fire = ~firing[COLLAPSED].any(axis=0) & ~firing[signals.MISSED].any(axis=0)
        may_fire &= lacks_gradient(sample, is_common=is_common)
        vanished = may_fire & (idle >= self._idle_limits(sample.every)) & (observations > 0) & enabled
        unused = may_fire & (observations == 0) & (idle >= config.unused.observations)
        is_never = is_expected and bool(((observations == 0) & (sample.idle | sample.not_trainable)).all())
        never = unused & is_never & enabled
        by_script = sample.not_trainable & regular & (idle >= self._missed_after(sample.every)) & enabled
        bad = {
            signals.REGULAR: vanished & regular,
            signals.SPORADIC: vanished & ~regular,
            signals.BY_SCRIPT: by_script & ~firing[[signals.REGULAR, signals.SPORADIC]].any(axis=0),
            signals.NEVER: never,
            signals.UNUSED: unused & ~never & config.unused.enabled,
        }
        # If any layer has a gradient, it is not all of them that never had one.
        good = dict.fromkeys(bad, sample.has_gradient)
        good[signals.NEVER] = np.full(len(columns), sample.has_gradient.any())
        return {signal: mask.astype(np.int8) - (good[signal] & ~mask).astype(np.int8) for signal, mask in bad.items()}

    def _may_vote(self, samples: LayerPlanes) -> Mask:
        """Return the steps, bool[n], at which one of these votes could move a count."""
        activity, config = self.state.activity, self.config
        firing = self.state.scores.firing[:, config.columns]
        fires = firing[signals.WITHOUT_GRADIENT].any(axis=0)
        moves = np.zeros(len(samples.idle), np.bool_)
        if fires.any():
            moves |= (samples.has_gradient & fires).any(axis=1)
            moves |= (~samples.not_trainable & firing[signals.BY_SCRIPT]).any(axis=1)
            moves |= samples.has_gradient.any(axis=1) & firing[signals.NEVER].any()
        if not samples.idle.any():
            return moves
        idle, least = idle_lengths(activity, config.columns, samples), self._missed_after(samples.every)
        limit, regular = self._idle_limits(samples.every), is_regular(activity, config)
        # The history of a layer whose span began in these steps may be longer by then.
        is_new = np.maximum.accumulate(samples.has_gradient, axis=0)
        is_missed = lacks_gradient(samples, is_common=False) & (idle >= np.where(is_new, least, limit))
        is_frozen = samples.not_trainable & (idle >= np.where(is_new | regular, least, FOREVER))
        moves |= ((is_missed | is_frozen) & ~fires).any(axis=1)
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
