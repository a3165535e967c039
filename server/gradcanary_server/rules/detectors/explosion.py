"""Detector of gradients far over their baseline. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gradcanary_server.rules import baselines, signals
from gradcanary_server.rules.config import Explosion
from gradcanary_server.rules.layer_config import LayerThresholds
from gradcanary_server.rules.signals import CRITICAL, MAX_WEIGHT_IDLE, NOTHING, WARNING, Vote
from gradcanary_server.rules.steps import Detector, Span, Step, first_true
from gradcanary_server.rules.types import Floats

QUARTILE = 0.75

RECENT = 3
"""The median of this many last losses is compared with the level: one bad batch is not an explosion."""

FEWEST = 10
"""Losses before these that make a level, their median."""

ROSE, STEADY = 10.0, 2.0
"""Times its level: a loss that was higher than the first before it was not finite had risen, one lower than the second
had not; between them nothing is said."""

RISE = 10
"""Times the initial level: an absmax under it is not a rise."""


class ExplosionDetector(Detector):
    """Learns the initial levels, and votes about layers that explode: those set no baseline."""

    def is_active(self) -> bool:
        return bool(self.state.scores.score[signals.EXPLOSION].any())

    def quiet_rows(self, span: Span) -> int:
        rule = self.config.explosion
        if not rule.is_on:
            return len(span)
        initial = self.state.initial_levels.level[self.config.at]
        if span.is_comparable:
            initial = baselines.initial_levels(initial, span.samples.level)
        limit = explosion_limits(span.baseline, initial, rule, is_relative=span.grace_over)
        is_over = span.samples.absmax > limit
        return first_true(np.asarray(is_over.any(axis=1))) if is_over.any() else len(span)

    def skip(self, span: Span) -> None:
        if span.is_comparable:
            levels = self.context.batch.level[span.begin : span.end]
            baselines.observe_initial(self.state.initial_levels, self.config.at, levels)

    def observe(self, step: Step) -> Iterator[Vote]:
        sample, state, rule, columns = step.sample, self.state, self.config.explosion, self.config.columns
        if sample.is_comparable:
            baselines.observe_initial(state.initial_levels, columns, sample.level[None])
        if not rule.is_on:
            return
        baseline, initial = state.baselines.levels(columns), state.initial_levels.level[columns]
        limit = explosion_limits(baseline, initial, rule, is_relative=state.progress.grace_over)
        step.exploding = sample.absmax > limit
        # After clipping, the size before is unknown: that is not a recovery.
        is_good = (sample.absmax <= limit) & sample.is_comparable
        votes = step.exploding.astype(np.int8) - is_good.astype(np.int8)
        fire_after = rule.observations * min(sample.every, MAX_WEIGHT_IDLE)
        yield self.vote(signals.EXPLOSION, step, votes, fire_after=fire_after.astype(np.float32))
        severity = self._severity()
        if severity != state.progress.explosion_severity:
            state.progress = replace(state.progress, explosion_severity=severity)
            step.has_changed = True

    def _severity(self) -> int:
        state = self.state
        if not state.scores.firing[signals.EXPLOSION].any():
            return NOTHING
        is_nonfinite = state.scores.firing[signals.NONFINITE].any() or state.of_run.firing[signals.NONFINITE_LOSS].any()
        severity = rate_explosion(state.losses, self.context.rules.explosion, is_nonfinite=bool(is_nonfinite))
        return max(state.progress.explosion_severity, severity)


def explosion_limits(
    baseline: Floats, initial: NDArray[np.float32], rule: LayerThresholds, *, is_relative: bool
) -> Floats:
    """Return for each layer, float64[L], the absmax over which it explodes: the smaller one of two limits.

    1. The absolute limit. The default limit is at least ten times the ``initial`` level (log10, NaN = none yet):
       errors summed over pixels and unscaled features have such gradients. A baseline would rise with a slow explosion.
    2. Where ``is_relative``: ``rule.ratio`` times the larger of the layer's own baseline (log10, NaN = none: the
       initial level) and the upper quartile of all. A tiny layer does not explode when it becomes as large as others.

    Infinite where the rule is switched off.
    """
    return _limits(baseline.tobytes(), initial.tobytes(), rule, is_relative)


@lru_cache(maxsize=64)
def _limits(raw_baseline: bytes, raw_initial: bytes, rule: LayerThresholds, is_relative: bool) -> Floats:
    # Baselines rise a few times in the life of a run, and each span needs the limits.
    baseline, first = np.frombuffer(raw_baseline, np.float64), np.frombuffer(raw_initial, np.float32).astype(np.float64)
    usual = np.where(rule.absmax == Explosion.absmax, RISE * np.power(10.0, first), np.nan)
    absolute = np.where(rule.enabled, np.fmax(rule.absmax, usual), np.inf)
    all_baselines = baseline[~np.isnan(baseline)]
    if not is_relative or not len(all_baselines):
        return absolute
    rank = int(QUARTILE * (len(all_baselines) - 1))
    quartile = np.partition(all_baselines, rank)[rank]
    own = np.where(np.isnan(baseline), first, baseline)
    relative = rule.ratio * np.power(10.0, np.fmax(own, quartile))
    return np.where(rule.enabled, np.minimum(absolute, relative), np.inf)


def course_before_nonfinite(losses: Floats) -> Literal["loss_rose", "loss_steady"] | None:
    """Return the course of the last finite losses; None if there are too few, or it is not clear."""
    finite = losses[np.isfinite(losses)]
    earlier, recent = finite[:-RECENT], finite[-RECENT:]
    level = float(np.median(earlier)) if len(earlier) >= FEWEST else 0.0
    if level <= 0:
        return None
    highest = float(recent.max())
    return "loss_rose" if highest > ROSE * level else "loss_steady" if highest < STEADY * level else None


def rate_explosion(losses: Floats, rule: Explosion, *, is_nonfinite: bool) -> int:
    """Return the severity of an explosion as an index into SEVERITIES; ``losses`` are the last ones."""
    earlier, recent = losses[:-RECENT], losses[-RECENT:]
    if is_nonfinite:
        return CRITICAL
    if len(earlier) < FEWEST:
        return WARNING
    level = float(np.median(earlier))
    return CRITICAL if level > 0 and float(np.median(recent)) > rule.loss_ratio * level else WARNING
