"""The detector of a training in vain: low-precision weights that hardly move, and a loss that stands still with them.

Each layer has one measurement in hundreds of steps, so most layers are known by a sample. A rate that rises, or that is
at the end of its schedule, moves little for a good reason, and begins the comparison again. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradcanary_server.rules import signals
from gradcanary_server.rules.detectors.precision import TURN_EVERY, unmoved_span
from gradcanary_server.rules.signals import MAX_WEIGHT_IDLE, Vote
from gradcanary_server.rules.steps import Context, Detector, Sample, Step
from gradcanary_server.rules.types import NOTHING_UNMOVED, Floats, Unmoved, Votes
from gradcanary_server.rules.warmup import find_learning

FIRE_AT_ONCE = np.array(MAX_WEIGHT_IDLE, np.float32)

ENOUGH_LAYERS = 16
"""Measured layers that stand for all; two turns of the agent. A second round stands for all of fewer layers."""

MOST_LAYERS = 64
"""Measured layers that are kept."""

LEAST_LOSSES = 25
"""Losses that make a level, of the 50 that the state keeps."""

SPREAD, MEDIAN_ERROR = 1.4826, 1.2533
"""Of normal numbers: the standard deviation in median deviations, and the error of the median in that of the mean."""

FLAT = 0.03
"""The part of its level by which a flat loss changes at most."""


class Level(NamedTuple):
    """The median of some losses, and its standard error."""

    median: float
    error: float


def level_of(losses: Floats) -> Level | None:
    """Return the level of some losses, None if they are too few or not finite. A few outliers do not change it."""
    if len(losses) < LEAST_LOSSES or not bool(np.isfinite(losses).all()):
        return None
    median = float(np.median(losses))
    deviation = SPREAD * float(np.median(np.abs(losses - median)))
    return Level(median, MEDIAN_ERROR * deviation / len(losses) ** 0.5)


def is_flat(before: Level | None, now: Level | None) -> bool:
    """Return True if the loss surely changed by less than 3 %. A loss too noisy to tell is not flat."""
    if before is None or now is None:
        return False
    error = 2 * math.hypot(before.error, now.error)
    return abs(now.median - before.median) + error < FLAT * abs(before.median)


class InVainDetector(Detector):
    """Votes of the rule in_vain, about the layers that were measured."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        shares = context.batch.values.get("frozen_fraction")
        if shares is not None and self.config.in_vain.is_on:
            self.eventful = np.asarray(~np.isnan(shares).all(axis=1))

    def observe(self, step: Step) -> Iterator[Vote]:
        shares = step.sample.values.get("frozen_fraction")
        if shares is None or not self.config.in_vain.is_on or np.isnan(shares).all():
            return
        before, measured = self.state.progress.unmoved, self._measure(step.sample, shares)
        if not measured:
            self.state.progress = replace(self.state.progress, unmoved=NOTHING_UNMOVED)
            return
        known = {**dict(before.shares), **measured}
        self.state.progress = replace(self.state.progress, unmoved=self._next(before, known, step.sample))
        is_sample = len(known) >= ENOUGH_LAYERS or not measured.keys().isdisjoint(dict(before.shares))
        votes = self._votes(known, step.sample.step, is_sample=is_sample)
        clipped = votes if step.sample.clipped else np.minimum(votes, 0)
        for signal, each in ((signals.VAIN, votes), (signals.VAIN_CLIPPED, clipped)):
            yield self.vote(
                signal,
                step,
                each,
                fire_after=FIRE_AT_ONCE,
                since=self.state.progress.unmoved.since,
                every=TURN_EVERY,
            )

    def _measure(self, sample: Sample, shares: NDArray[np.float32]) -> dict[int, float]:
        """Return the shares by number of the layer; none if the rate rose in their span, or is low."""
        config, progress = self.config, self.state.progress
        if sample.step - progress.last_rise < unmoved_span(sample.every):
            return {}
        is_judged = ~np.isnan(shares) & find_learning(progress, config, self.context.rules.in_vain.least_lr_share)
        return dict(zip(config.columns[is_judged].tolist(), shares[is_judged].tolist(), strict=True))

    def _next(self, before: Unmoved, known: dict[int, float], sample: Sample) -> Unmoved:
        """Return the measured layers; the comparison begins at this step if most of them moved until now."""
        shares = tuple(known.items())[-MOST_LAYERS:]
        if before.shares and self._most_are_still(dict(before.shares)):
            return replace(before, shares=shares)
        level = level_of(self.state.losses)
        return Unmoved(shares, max(sample.step - unmoved_span(sample.every), 0), *(level or (None, None)))

    def _most_are_still(self, known: dict[int, float]) -> bool:
        is_still = self._shares(known) > self.config.in_vain.share
        return 2 * int(is_still.sum()) > len(known)

    def _shares(self, known: dict[int, float]) -> NDArray[np.float32]:
        return np.array([known.get(number, np.nan) for number in self.config.columns.tolist()], np.float32)

    def _votes(self, known: dict[int, float], step: int, *, is_sample: bool) -> Votes:
        """Return +1 for the layers that stand still while the training does, -1 for those known that do not."""
        rule, unmoved, shares = self.config.in_vain, self.state.progress.unmoved, self._shares(known)
        start = None if unmoved.loss is None or unmoved.loss_error is None else Level(unmoved.loss, unmoved.loss_error)
        is_long = step - unmoved.since >= self.context.rules.in_vain.steps
        is_vain = is_sample and is_long and self._most_are_still(known) and is_flat(start, level_of(self.state.losses))
        bad = (shares > rule.share) & rule.enabled & is_vain
        votes: Votes = bad.astype(np.int8) - (~np.isnan(shares) & ~bad).astype(np.int8)
        return votes
