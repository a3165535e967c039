"""Detector of gradients and losses that are NaN or infinite. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from gradcanary_server.rules import signals
from gradcanary_server.rules.signals import Vote
from gradcanary_server.rules.steps import AT_ONCE, BY_SCALER, Context, Detector, Loss, Losses, Step
from gradcanary_server.rules.types import Mask


class NonfiniteDetector(Detector):
    """Votes about NaN and infinity. Steps that a GradScaler skips count after ``skipped_in_row`` of them: it skips some
    while it searches its scale."""

    sees_skipped = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.eventful = self._eventful()

    def _eventful(self) -> Mask:
        batch, losses = self.context.batch, self.context.losses
        eventful: Mask = batch.skipped != 0
        if batch.nonfinite.any():
            eventful |= batch.nonfinite.any(axis=1)
        is_finite = np.isfinite(losses.values)
        if not is_finite.all():
            rows = np.searchsorted(batch.steps, losses.steps[~is_finite])
            eventful[rows[rows < len(eventful)]] = True
        return eventful

    def is_active(self) -> bool:
        return bool(self.state.scores.score[signals.NONFINITE].any()) or self._loss_is_counted()

    def observe(self, step: Step) -> Iterator[Vote]:
        sample, rule, progress = step.sample, self.context.rules.nonfinite, self.state.progress
        by_scaler = sample.skipped == BY_SCALER
        counts = self.config.nonfinite.enabled & (not by_scaler or progress.skipped >= rule.skipped_in_row)
        good = sample.is_measured & (sample.skipped == 0)
        votes = ((sample.nonfinite & counts).astype(np.int8) - good).astype(np.int8)
        since = progress.skipped_since if by_scaler else sample.step
        yield self.vote(signals.NONFINITE, step, votes, fire_after=AT_ONCE, since=since)

    def losses_are_quiet(self, losses: Losses) -> bool:
        """Return True if nothing fires or resolves with these losses."""
        is_plain = not self._loss_is_counted() and not losses.skipped.any()
        return is_plain and bool(np.isfinite(losses.values).all())

    def observe_loss(self, loss: Loss) -> Iterator[Vote]:
        """Yield a vote about a loss, also of a skipped window."""
        rule = self.context.rules.nonfinite
        # The step comes after its loss, so the count of skipped steps lacks it.
        counts = loss.skipped != BY_SCALER or self.state.progress.skipped + 1 >= rule.skipped_in_row
        is_finite = math.isfinite(loss.value)
        if is_finite or (counts and rule.enabled):
            yield self.run_vote(signals.NONFINITE_LOSS, loss.step, 1, -1 if is_finite else 1, 1)

    def _loss_is_counted(self) -> bool:
        return bool(self.state.of_run.score[signals.NONFINITE_LOSS].any())
