"""The scale of a GradScaler, and the detector of one that has fallen too far. Pure.

A scaler halves its scale at each step with a gradient that is not finite, and skips that step. It begins far too high
and searches, so a fall counts from scales at which steps were made after grace. Ten halvings are no search any more:
gradients of a thousandth of their former size are rounded to zero, where float16 held them before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from gradcanary_server.rules import signals
from gradcanary_server.rules.signals import Vote
from gradcanary_server.rules.steps import BY_SCALER, Context, Detector, Span, Step, first_true
from gradcanary_server.rules.types import Floats, Ints, Mask, ScaleFall

FALL = 2.0**10
"""Of float16's 40 powers of two from its smallest to its largest number; a quarter."""

LEAST = 1.0
"""A scale under it makes gradients smaller than they are."""

RECENT_SKIPS = 10
"""Observations after a skipped step in which skips go on; a scaler that has found its scale skips one in 2,000."""


@dataclass(frozen=True)
class Scaler:
    """The scale that was seen last in this launch, and the highest one at which a step was made after grace.

    ``skipped`` counts the skipped steps of the session until now, and ``skipped_before`` until the step ``since``, the
    last one with the highest scale; ``last_skip`` is the last one that was skipped, -1 = none.
    """

    scale: float | None = None
    highest: float | None = None
    since: int = -1
    skipped_before: float = 0.0
    skipped: float = 0.0
    last_skip: int = -1

    @property
    def has_fallen(self) -> bool:
        """True if the scale is under 1, or a thousandth of what it was."""
        return self.scale is not None and _is_low(self.scale, self.highest)

    def fall(self, step: int) -> ScaleFall | None:
        """Return the fall until a step, None if it is none to speak of."""
        if self.scale is None or not self.has_fallen:
            return None
        steps, skipped = step - self.since, self.skipped - self.skipped_before
        share = None if self.highest is None or steps <= 0 or skipped < 0 else min(skipped / steps, 1.0)
        return ScaleFall(self.highest, self.scale, self.since, step, share)


NO_SCALER = Scaler()


def _is_low(scale: float, highest: float | None) -> bool:
    return scale < LEAST or (highest is not None and scale * FALL <= highest)


def track_scale(
    scaler: Scaler, steps: Ints, scales: Floats, totals: Floats, skipped: Mask, *, grace_over: bool
) -> Scaler:
    """Return the scaler after n steps, all in grace or after it: ``scales`` and ``totals`` of skipped steps, NaN =
    unknown."""
    known = np.flatnonzero(~np.isnan(scales))
    if skipped.any():
        scaler = replace(scaler, last_skip=int(steps[np.flatnonzero(skipped)[-1]]))
    if not len(known):
        return scaler
    counted = known[~np.isnan(totals[known])]
    before = float(totals[counted[-1]]) if len(counted) else scaler.skipped
    scaler = replace(scaler, scale=float(scales[known[-1]]), skipped=before)
    made = known[~skipped[known]]
    if not grace_over or not len(made):
        return scaler
    highest = float(scales[made].max())
    if scaler.highest is not None and highest < scaler.highest:
        return scaler
    last = made[scales[made] == highest][-1]
    total = 0.0 if np.isnan(totals[last]) else float(totals[last])
    return replace(scaler, highest=highest, since=int(steps[last]), skipped_before=total)


class LossScaleDetector(Detector):
    """Votes of the rule loss_scale; it is silent where nonfinite tells the same fault."""

    sees_skipped = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        samples = context.samples
        self._scales, self._totals = samples.scales, samples.skipped_totals

    def is_active(self) -> bool:
        return bool(self.state.of_run.score[signals.SCALE_FELL].any())

    def quiet_rows(self, span: Span) -> int:
        if self._scales is None:
            return len(span)
        scaler = self.state.progress.scaler
        last, highest = np.nan if scaler.scale is None else scaler.scale, scaler.highest or 0.0
        # A step without a scale has the one before it.
        scales = np.concatenate([[last], self._scales[span.begin : span.end]])
        known = np.maximum.accumulate(np.where(np.isnan(scales), 0, np.arange(len(scales))))
        scales = scales[known][1:]
        return first_true((scales < LEAST) | (scales * FALL <= np.fmax.accumulate(np.fmax(scales, highest))))

    def skip(self, span: Span) -> None:
        self._track(span.begin, span.end, grace_over=span.grace_over)

    def observe(self, step: Step) -> Iterator[Vote]:
        if self._scales is None:
            return
        sample = step.sample
        row = int(np.searchsorted(self.context.batch.steps, sample.step))
        self._track(row, row + 1, grace_over=self.state.progress.grace_over)
        progress, firing = self.state.progress, self.state.scores.firing
        scaler, is_told = progress.scaler, bool(firing[signals.NONFINITE].any())
        is_skipping = 0 <= sample.step - scaler.last_skip <= RECENT_SKIPS * sample.every and scaler.last_skip >= 0
        is_low = scaler.has_fallen and ((scaler.scale or 0.0) < LEAST or is_skipping)
        rule, fire_after = self.context.rules.loss_scale, self.context.rules.collapse.fire_after_steps
        is_bad = rule.enabled and progress.grace_over and is_low and not is_told
        if is_bad or not scaler.has_fallen:
            yield self.run_vote(signals.SCALE_FELL, sample.step, sample.every, 1 if is_bad else -1, fire_after)

    def _track(self, begin: int, end: int, *, grace_over: bool) -> None:
        if self._scales is None:
            return
        batch, rows = self.context.batch, slice(begin, end)
        totals = np.full(end - begin, np.nan) if self._totals is None else self._totals[rows]
        skipped = np.asarray(batch.skipped[rows] == BY_SCALER)
        scaler = track_scale(
            self.state.progress.scaler, batch.steps[rows], self._scales[rows], totals, skipped, grace_over=grace_over
        )
        self.state.progress = replace(self.state.progress, scaler=scaler)
