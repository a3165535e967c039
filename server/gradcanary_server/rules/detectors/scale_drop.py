"""Detector of a common fall of all gradients: a rescaled loss, a converged job or a dead one.

The loss explains the fall of a job that converges to a loss of zero: it falls by decades, too. Other losses end above
zero (distillation, smoothed labels) or below it (cosine), or batches vary by more than is left to learn. There the way
down decides: learning lowers the gradients gradually, while the loss comes down and stays; a factor lowers them
abruptly, and a job that dies does not end at its lowest loss. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from gradcanary_server.rules import baselines, signals
from gradcanary_server.rules.detectors import collapse
from gradcanary_server.rules.signals import CRITICAL, INFORMATION, MAX_WEIGHT_IDLE, NOTHING, WARNING, Vote
from gradcanary_server.rules.state import LOSSES, Progress
from gradcanary_server.rules.steps import Detector, Falls, Span, Step, first_true, is_regular
from gradcanary_server.rules.types import NO_FALL, SEVERITIES, CommonFall, Floats, Ints, Mask, Severity, replaced

SMALL_DECADES = 1.0
"""A common fall under this resolves."""

RECENT = 20
"""The median of this many last losses is the present loss."""

EXPLAINED = 0.5
"""A loss that fell by this share of the gradients' decades explains them."""

TO_ZERO, LATELY = 2.0, 0.5
"""Decades that a loss falls before it explains gradients of exactly zero: in total, or in the last losses alone. A job
that reaches a margin falls so far; a loss that is multiplied by zero does not."""

ROUNDING = 1e-6
"""A loss under this share of its level is the rounding error of terms that cancel; it may be negative."""

GRADUAL_SHARE, GRADUAL_STEPS, GRADUAL_AGE = 0.5, 10, 0.05
"""A fall is gradual if the way from this share of ``common_decades`` to all of it took more than these steps, and more
than this part of the run. A factor takes one step; late learning takes long."""

PACE = 0.03
"""Decades a step that a gradual fall continues by: half of ``common_decades`` in 25 steps, as in jobs of seconds."""

AHEAD = 0.75
"""Decades that a fall may be ahead of that pace: noise, and half of the least fall that counts."""

ABRUPT = CommonFall("abrupt")


class ScaleDropDetector(Detector):
    """Learns the baselines, and votes about the common fall."""

    def is_active(self) -> bool:
        counts = self.state.of_run.score
        is_counted = counts[signals.SCALE_DROP].any() or counts[signals.SCALE_WORSE].any()
        return bool(is_counted) or self.state.progress.scale_severity != NOTHING

    def quiet_rows(self, span: Span) -> int:
        rule = self.context.rules.scale_drop
        if not span.is_watched or not rule.enabled:
            return len(span)
        limits = (rule.common_decades, GRADUAL_SHARE * rule.common_decades)
        own_loss = self.context.own_loss
        falls = span.falls if own_loss is None else span.falls.of(~own_loss)
        (is_common, is_far), is_known = collapse.common_fall_reaches(falls, self.config, limits)
        span.far = is_far, is_known
        may_vote = is_common & is_known
        if own_loss is not None:
            (is_own,), is_own_known = collapse.common_fall_reaches(span.falls.of(own_loss), self.config, limits[:1])
            may_vote |= is_own & is_own_known
        return first_true(may_vote)

    def skip(self, span: Span) -> None:
        if not span.is_watched:
            return
        state, at, batch, rows = self.state, self.config.at, self.context.batch, slice(span.begin, span.end)
        if span.far is not None:
            is_far, is_known = (mask[: len(span)] for mask in span.far)
            state.progress = track_small_falls(state.progress, batch.steps[rows], is_far, is_known)
        if not state.alive[at].all():
            state.alive[at] |= (batch.is_measured[rows] & ~batch.zero[rows]).any(axis=0)
        baselines.add_levels(state.baselines, at, batch.level[rows], batch.is_measured[rows])

    def observe(self, step: Step) -> Iterator[Vote]:
        sample, state, columns, config = step.sample, self.state, self.config.columns, self.config
        if not (sample.is_comparable and state.progress.grace_over):
            return
        state.alive[columns] |= sample.is_measured & ~sample.zero
        levels = np.where(self._is_unusual(step), np.nan, sample.level)
        rose = baselines.observe_levels(state.baselines, columns, levels, config.observations, sample.every)
        baseline = state.baselines.levels(columns)
        # The loss level is the loss at the step that set most of the baselines.
        if rose and 2 * rose >= int((~np.isnan(baseline)).sum()):
            state.progress = replace(state.progress, loss_level=median_loss(state.losses))
        zero_counts = is_regular(state.activity, config)
        falls = Falls(sample, baseline, baseline - sample.level, state.alive[columns], zero_counts)
        own_loss = self.context.own_loss
        step.common_fall, step.own_fall = collapse.find_common_falls(falls, config, own_loss)
        if own_loss is not None:
            is_low = sample.absmax[own_loss & sample.is_measured] < config.enter[own_loss & sample.is_measured]
            step.is_own_fall = bool(step.own_fall >= self.context.rules.scale_drop.common_decades) and bool(
                is_low.all()
            )
        if self.context.rules.scale_drop.enabled:
            yield from self._observe_fall(step, float(step.common_fall))

    def _is_unusual(self, step: Step) -> Mask:
        """Return the layers whose gradients are no normal level now, bool[L]: they set no baseline.

        They explode or are not finite, or did a moment ago; all are while the loss exploded, too: a hundredth of what
        explodes is still far over what was normal. While any of these counts, no step is skipped.
        """
        counts = self.state.scores.score[[signals.NONFINITE, signals.EXPLOSION]][:, self.config.columns]
        is_critical = self.state.progress.explosion_severity == CRITICAL
        unusual: Mask = step.exploding | counts.any(axis=0) | is_critical
        return unusual

    def _observe_fall(self, step: Step, decades: float) -> Iterator[Vote]:
        """Yield votes about a common fall, and set its severity.

        A higher severity is counted like the drop itself, from its first bad step on: one noisy step at the border
        raises nothing. A fall between the two limits of the drop decides nothing, so the severity stays, too.
        """
        sample, state, limit = step.sample, self.state, self.context.rules.scale_drop.common_decades
        state.progress = track_common_fall(state.progress, sample.step, sample.every, decades, limit)
        if math.isnan(decades) and not step.is_own_fall:
            return
        is_known_fall = decades >= limit
        is_fall = is_known_fall or step.is_own_fall
        # Both have to be small: missing data and a fall between the limits decide nothing.
        least = min(SMALL_DECADES, limit)
        is_small = decades < least and not step.own_fall >= least
        fire_after = self.context.rules.collapse.fire_after_steps
        yield self.run_vote(signals.SCALE_DROP, sample.step, sample.every, is_fall - is_small, fire_after)
        fires = bool(state.of_run.firing[signals.SCALE_DROP, 0])
        current, severity = max(state.progress.scale_severity, INFORMATION), NOTHING
        if is_known_fall:
            severity = SEVERITIES.index(rate_fall(decades, state.losses, state.progress))
        if step.is_own_fall:
            severity = max(severity, WARNING)
        if is_fall or not fires:
            worse = 1 if severity > current else -1
            yield self.run_vote(signals.SCALE_WORSE, sample.step, sample.every, worse, fire_after)
        is_worse = fires and is_fall and bool(state.of_run.firing[signals.SCALE_WORSE, 0])
        if is_worse:
            state.of_run.reset_signal(signals.SCALE_WORSE)
            current = max(current, severity)
        after = current if fires else NOTHING
        if after != state.progress.scale_severity:
            state.progress = replace(state.progress, scale_severity=after)
            step.has_changed = True

    def add_losses(self, losses: Floats) -> None:
        """Add losses of steps that were not skipped.

        A loss of exactly zero is omitted: the losses before it decide whether the job learnt or failed. The first
        losses of a run set its first level.
        """
        state, all_losses = self.state, np.concatenate([self.state.losses, losses[losses != 0]])
        if state.progress.loss_first is None and len(state.losses) < RECENT <= len(all_losses):
            first = all_losses[:RECENT]
            state.progress = replace(state.progress, loss_first=median_loss(first[np.isfinite(first)]))
        state.losses = all_losses[-LOSSES:]


def track_common_fall(progress: Progress, step: int, every: int, decades: float, common_decades: float) -> Progress:
    """Return the progress after a step with a common fall of ``decades``; NaN or infinite changes nothing.

        decades
        common_decades |- - - - - - - - - - - - -.-'-   from here on a gradual fall
                       |                      .-'       may grow by the pace
        half of it     |- - - - - - - - - -.-'- - - -
                       |_______________.--'__________ step
                                          | last_small_step

    The fall is gradual if the way between the two lines was long, else abrupt, until it is small again. Of a gradual
    fall ``common_fall.decades`` are those that the pace allows. Infinite may be a batch without any gradient.
    """
    if not math.isfinite(decades):
        return progress
    if decades < GRADUAL_SHARE * common_decades:
        return replace(progress, last_small_step=step, common_fall=NO_FALL)
    if decades < common_decades:
        return progress if progress.last_small_step >= 0 else replace(progress, last_small_step=step)
    weight, fall, took = min(every, MAX_WEIGHT_IDLE), progress.common_fall, step - progress.last_small_step
    if fall.kind == "none":
        is_slow = took // every * weight > GRADUAL_STEPS and took > GRADUAL_AGE * step
        fall = CommonFall("gradual", common_decades) if is_slow and progress.last_small_step >= 0 else ABRUPT
    if fall.kind == "gradual":
        pace = min(PACE * weight, (1 - GRADUAL_SHARE) * common_decades * every / (GRADUAL_AGE * max(step, 1)))
        fall = CommonFall("gradual", min(decades, fall.decades + pace))
    return replace(progress, common_fall=fall)


def track_small_falls(progress: Progress, steps: Ints, is_far: Mask, is_known: Mask) -> Progress:
    """Return the result of :func:`track_common_fall` for n steps under ``common_decades``, of which those that are
    ``is_far`` are over half of it, where the fall ``is_known``."""
    small = np.flatnonzero(is_known & ~is_far)
    if len(small):
        return replaced(progress, last_small_step=int(steps[small[-1]]), common_fall=NO_FALL)
    if progress.last_small_step >= 0 or not is_known.any():
        return progress
    return replace(progress, last_small_step=int(steps[np.argmax(is_known)]))


def rate_fall(decades: float, losses: Floats, progress: Progress) -> Severity:
    """Return the severity of a common fall: information if the loss explains it, critical if the loss did not fall.

    Gradients of exactly zero are critical, too, if a known loss does not explain them: nothing learns any more.
    ``losses`` are the last ones. A loss that is absent or not finite explains nothing. A negative loss does if it came
    down to its floor, as the gradients did.
    """
    fall = progress.common_fall
    is_on_pace = fall.kind != "abrupt" and decades - fall.decades <= AHEAD
    if _is_plateau(losses, progress) and (is_on_pace or _is_flat(decades, losses, progress)):
        return "information"
    before = progress.loss_level
    loss_now = _recent_loss(losses[-RECENT:], before)
    if loss_now is None or before is None or before <= 0:
        return "warning"
    loss_fall = math.log10(before / loss_now)
    if loss_fall >= EXPLAINED * decades:
        return "information"
    if math.isinf(decades) and (loss_fall >= TO_ZERO or _fell_lately(losses, loss_now)):
        return "information"
    return "warning" if loss_fall > 0 and math.isfinite(decades) else "critical"


def knows_loss(losses: Floats, progress: Progress) -> bool:
    """Return True if there is a loss before a fall and one of now, so that it can be held against the fall."""
    before = progress.loss_level
    return before is not None and before > 0 and _recent_loss(losses[-RECENT:], before) is not None


def _is_plateau(losses: Floats, progress: Progress) -> bool:
    """Return True if the loss came down by more than it varies, and is not over its level at the gradients' best."""
    first, before = progress.loss_first, progress.loss_level
    if first is None or before is None or len(losses) < RECENT or not bool(np.isfinite(losses).all()):
        return False
    now, (low, high) = float(np.median(losses[-RECENT:])), np.quantile(losses, (0.25, 0.75)).tolist()
    return bool(first - now > high - low and now - before <= (high - low) / 2)


def _is_flat(decades: float, losses: Floats, progress: Progress) -> bool:
    """Return True if the loss still moves by as small a part of its descent as the gradients are of their baselines:
    the rest of a loss falls at least like its gradient (the inequality of Lojasiewicz)."""
    descent = (progress.loss_first or 0.0) - float(np.median(losses[-RECENT:]))
    return float(np.ptp(losses)) <= descent * 10**-decades


def _recent_loss(losses: Floats, loss_level: float | None) -> float | None:
    least = ROUNDING * max(loss_level or 0.0, 0.0)
    return least if len(losses) and least and bool((np.abs(losses) <= least).all()) else _positive_median(losses)


def _fell_lately(losses: Floats, loss_now: float) -> bool:
    before = _positive_median(losses[:RECENT])
    return before is not None and math.log10(before / loss_now) >= LATELY


def _positive_median(losses: Floats) -> float | None:
    return median_loss(losses) if bool((losses > 0).all()) else None


def median_loss(losses: Floats) -> float | None:
    """Return the median loss, None if there is none or one is not finite."""
    if not len(losses) or not bool(np.isfinite(losses).all()):
        return None
    return float(np.median(losses))


def loss_explains_zeros(zeros: Mask, losses: Floats, progress: Progress) -> bool:
    """Return True if all gradients are exactly zero because the loss came to zero, if only batch by batch."""
    return len(zeros) > 0 and bool(zeros.all()) and rate_fall(math.inf, losses, progress) == "information"


def is_at_work(losses: Floats) -> bool:
    """Return True if the last losses are known and not zero, so that there is something to learn."""
    return len(losses) >= RECENT and bool(np.isfinite(losses).all())


def expects_gradients(losses: Floats, progress: Progress) -> bool:
    """Return True unless the loss was exactly zero at all steps; a loss that is not logged counts as not zero."""
    return bool(len(losses)) or progress.last_loss_step < 0
