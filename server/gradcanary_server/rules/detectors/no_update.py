"""The detector of weights that do not move, or hardly, though they have a gradient.

Layers are measured in turns, all within 200 steps, so the last measurement of each is kept and judged each 100 steps. A
small change is judged only where it cannot be the setting's: a layer is compared with all others by its change, by the
change over its learning rate, and by that over its gradient, because optimizers differ in which of them is alike.
Weights of low precision are judged by the rules frozen and in_vain. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradcanary_server.rules import signals
from gradcanary_server.rules.detectors.precision import TURN_EVERY
from gradcanary_server.rules.signals import MAX_WEIGHT_IDLE, Vote
from gradcanary_server.rules.steps import AT_ONCE, Context, Detector, LayerPlanes, Span, Step
from gradcanary_server.rules.types import Floats, Ints, LayerArrays, Mask, Votes, layer_array
from gradcanary_server.rules.warmup import find_learning

JUDGED_EACH = 100
"""Steps: half of the layers have a new measurement."""

OBSERVATIONS = 2
"""Measurements without any change, of elements that have a gradient: a single one is a step that was left out."""

TWICE = np.array(2 * MAX_WEIGHT_IDLE, np.float32)
"""Two judgements, between which each layer is measured again."""

LEAST_LAYERS, UPPER = 8, 0.75
"""Layers that have a level, and the quantile that is the level of all: up to three quarters may be apart, as of the
siblings in the rule collapse."""

CLIPPED_SHARE, CLIPPED_RATIO = 1e-3, 1e-5
"""Of SGD's step, the learning rate times the gradient: a clip that leaves less is far too low, unless the weights move
by more than a hundred-thousandth in a step: a high learning rate makes up for such a clip."""

ALL_SEEN = 2 * JUDGED_EACH
"""Steps within which all layers are measured."""

FINEST = 2.0**-25
"""Of a float32 number: half of the distance to the next one, at most. A smaller change is rounded away."""

COARSEST = 2.0**-22
"""Of a number: noise moves Adam by 0.23 of the rate, and a change of 2^-24 is rounded away at most."""

MOST_OF_RATE = 4.0
"""The most that Adam moves a weight by, in learning rates, with its usual betas: 0.1 / sqrt(0.001) is 3.2."""

MOST_OF_GRADIENT = 10.0
"""The same of SGD, in learning rates times the gradient, with a momentum of 0.9."""

CANCELLED = 1e-6
"""Of the upper quartile of all gradients: a smaller one is the rounding error of terms that cancel, as that of the
bias of keys. A sum of 256 numbers of float32, whose precision is 6e-8, has an error of 16 times that."""

BY_THE_RATE = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop", "FusedAdam", "DeepSpeedCPUAdam", "Adam8bit")
"""Optimizers that move a weight by about the learning rate: even pure noise gives Adam a fifth of it."""

BY_THE_GRADIENT = ("SGD",)

STOPS_ITSELF = ("LBFGS",)
"""Optimizers that do not move the weights once a gradient is small."""


@dataclass
class Updates(LayerArrays):
    """The last measured change of each layer. Arrays [N]: ``ratio`` to its weights, and log10 of its root mean square
    over the learning rate (``by_rate``) and over that and the gradient's (``by_gradient``); float32, NaN = none yet.
    ``most_by_rate`` is the largest of the launch. ``still`` uint8 counts the last measurements without any change,
    since ``since``; ``gradient`` is the absmax of then.
    """

    ratio: NDArray[np.float32] = layer_array(np.float32, np.nan)
    by_rate: NDArray[np.float32] = layer_array(np.float32, np.nan)
    by_gradient: NDArray[np.float32] = layer_array(np.float32, np.nan)
    most_by_rate: NDArray[np.float32] = layer_array(np.float32, np.nan)
    gradient: NDArray[np.float32] = layer_array(np.float32, np.nan)
    still: NDArray[np.uint8] = layer_array(np.uint8)
    since: Ints = layer_array(np.int64, -1)

    def add(self, columns: Ints, steps: Ints, changes: Changes) -> None:
        """Add the measurements of n steps of the layers at ``columns``, at once or one by one."""
        layers = columns[changes.columns]
        for name in ("ratio", "by_rate", "by_gradient", "gradient"):
            getattr(self, name)[layers] = getattr(changes, name)  # of several of a layer the last one stays
        np.fmax.at(self.most_by_rate, layers, changes.by_rate)
        has_moved = changes.ratio > 0
        last_move, first_still = np.full(len(columns), -1), np.full(len(columns), -1)
        last_move[changes.columns[has_moved]] = changes.rows[has_moved]
        is_still = ~has_moved & (changes.rows > last_move[changes.columns])
        rows, stills = changes.rows[is_still], changes.columns[is_still]
        first_still[stills[::-1]] = steps[rows[::-1]]
        before = np.where(last_move < 0, self.still[columns], 0)
        since = np.where(last_move < 0, self.since[columns], -1)
        self.since[columns] = np.where((before == 0) & (first_still >= 0), first_still, since)
        self.still[columns] = np.minimum(before + np.bincount(stills, minlength=len(columns)), 255)

    def usual_ratio(self, layers: Mask) -> float | None:
        """Return the upper quartile of the changes of these layers, None if none was measured."""
        known = self.ratio[layers & ~np.isnan(self.ratio)]
        return float(np.quantile(known, UPPER)) if len(known) else None

    def forget_still(self, columns: Ints) -> None:
        """Let the counts begin again."""
        self.still[columns], self.since[columns] = 0, -1


@dataclass(frozen=True)
class Changes:
    """Measured changes of layers with a gradient, as in :class:`Updates`; ``rows`` rise, ``columns`` are positions."""

    rows: Ints
    columns: Ints
    ratio: NDArray[np.float32]
    by_rate: NDArray[np.float32]
    by_gradient: NDArray[np.float32]
    gradient: NDArray[np.float32]

    @classmethod
    def of(cls, samples: LayerPlanes, group: Ints, numel: Floats) -> Changes | None:
        """Return the changes of a step or of several, None without any."""
        ratios, norms = samples.values.get("update_ratio"), samples.values.get("weight_norm")
        if ratios is None or norms is None:
            return None
        absmax, lr = np.atleast_2d(samples.absmax), np.atleast_2d(samples.lr)
        rows, columns = np.nonzero(~np.isnan(np.atleast_2d(ratios)) & (absmax > 0))
        if not len(rows):
            return None
        at = (rows, columns)
        ratio, gradient = np.atleast_2d(ratios)[at].astype(np.float64), np.atleast_2d(samples.norm)[at]
        weights, root = np.atleast_2d(norms)[at].astype(np.float64), np.sqrt(numel[columns])
        rate = np.hstack([lr, np.full((len(lr), 1), np.nan)])[rows, group[columns]]
        with np.errstate(divide="ignore", invalid="ignore"):
            change = np.where((ratio > 0) & (rate > 0), ratio * weights / rate, np.nan)
            logs = np.log10([change / root, change / np.where(gradient > 0, gradient, np.nan)])
        values = (ratio, *logs, absmax[at])
        return cls(rows, columns, *(each.astype(np.float32) for each in values))


class NoUpdateDetector(Detector):
    """Votes of the rule no_update."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        batch = context.batch
        if self.config.no_update.is_on and "update_ratio" in batch.values:
            self.eventful = np.asarray(batch.steps % JUDGED_EACH == 0)

    def skip(self, span: Span) -> None:
        if "update_ratio" in span.samples.values:
            self._add(span.samples.between(0, len(span)), span.samples.steps[: len(span)])

    def observe(self, step: Step) -> Iterator[Vote]:
        sample = step.sample
        self._add(sample, np.array([sample.step]))
        if not self.config.no_update.is_on or "update_ratio" not in sample.values or sample.step % JUDGED_EACH:
            return
        progress, columns = self.state.progress, self.config.columns
        settled = sample.step - max(progress.last_rise, self.context.launch.first_step)
        if not progress.grace_over or settled < max(JUDGED_EACH, sample.every):
            self.state.updates.forget_still(columns)
            return
        judged = self._judged(sample.step)
        updates = self.state.updates
        since = np.where(updates.since[columns] < 0, sample.step, updates.since[columns])
        too_fine = judged.unmoved & self._is_finer()
        still = {
            signals.NO_RATE: judged.no_rate,
            signals.UNMOVED: judged.unmoved & ~too_fine,
            signals.TOO_FINE: too_fine,
        }
        for signal, bad in still.items():
            yield self.vote(signal, step, _votes(bad, judged.moved), fire_after=AT_ONCE, since=since, every=TURN_EVERY)
        before = max(sample.step - max(JUDGED_EACH, sample.every), 0)
        is_long = settled >= max(ALL_SEEN, sample.every)
        small = {signals.APART: self._apart(judged.moved), **self._tiny(judged, is_long=is_long)}
        for signal, bad in small.items():
            fire_after = AT_ONCE if signal == signals.SLOW else TWICE  # it was slow all along
            votes = _votes(bad, judged.moved)
            yield self.vote(signal, step, votes, fire_after=fire_after, since=before, every=TURN_EVERY)

    def _add(self, samples: LayerPlanes, steps: Ints) -> None:
        changes = Changes.of(samples, self.config.group, self.config.numel) if len(steps) else None
        if changes is not None:
            self.state.updates.add(self.config.columns, steps, changes)

    def _judged(self, step: int) -> Judged:
        """Return the layers by their last measurements.

        Only those with a known rate that is not over, and with a gradient near its baseline and not cancelled, are
        judged.
        """
        config, progress, updates = self.config, self.state.progress, self.state.updates
        least, grace = self.context.rules.no_update.least_lr_share, self.context.rules.grace
        is_judged = find_learning(progress, config, least) & config.no_update.enabled & ~config.is_low
        gradient = updates.gradient[config.columns]
        with np.errstate(divide="ignore"):
            fall = self.state.baselines.levels(config.columns) - np.log10(gradient)
        is_judged &= ~(fall >= config.fall)  # a converged layer has steps that are rounded away
        is_known = ~np.isnan(gradient)
        usual = np.quantile(gradient[is_known], UPPER) if is_known.any() else 0.0
        is_judged &= ~(gradient < CANCELLED * usual)
        is_still = (updates.still[config.columns] >= OBSERVATIONS) & config.no_update.enabled
        has_others = any(rate > 0 for rate in progress.lr) or step - self.context.launch.first_step >= grace.max_steps
        return Judged(
            unmoved=is_still & is_judged & ~self._is_of(STOPS_ITSELF) & ~self._has_slowed(),
            no_rate=is_still & (self._by_group(progress.highest_lr) == 0) & has_others,
            moved=is_judged & (updates.ratio[config.columns] > 0),
        )

    def _by_group(self, rates: tuple[float, ...]) -> Floats:
        """Return a number of each layer's parameter group, NaN where it is unknown."""
        by_group = np.array([*rates, np.nan])
        return by_group[np.where(self.config.group < len(rates), self.config.group, -1)]

    def _is_finer(self) -> Mask:
        """Return the layers whose optimizer takes steps that float32 weights of their size round away."""
        columns, updates, rates = self.config.columns, self.state.updates, self._by_group(self.state.progress.lr)
        by_gradient = MOST_OF_GRADIENT * rates * updates.gradient[columns]
        step = np.where(self._is_of(BY_THE_GRADIENT), by_gradient, np.inf)
        step = np.where(self._is_of(BY_THE_RATE), MOST_OF_RATE * rates, step)
        size = self.state.weights.last[columns] / np.sqrt(self.config.numel)
        is_finer: Mask = step < FINEST * size
        return is_finer

    def _has_slowed(self) -> Mask:
        """Return the layers that moved at a higher rate, and that a schedule has brought to steps as fine as theirs."""
        columns, updates, progress = self.config.columns, self.state.updates, self.state.progress
        rates, highest = self._by_group(progress.lr), self._by_group(progress.highest_lr)
        step = np.where(self._is_of(BY_THE_GRADIENT), rates * updates.gradient[columns], rates)
        is_fine = step < COARSEST * self.state.weights.last[columns] / np.sqrt(self.config.numel)
        has_slowed: Mask = is_fine & (rates < highest) & ~np.isnan(updates.most_by_rate[columns])
        return has_slowed

    def _is_of(self, optimizers: tuple[str, ...]) -> Mask:
        """Return the layers of groups of these optimizers."""
        kinds = [*(kind in optimizers for kind in self.context.launch.optimizers), False]
        return np.array(kinds, np.bool_)[np.where(self.config.group < len(kinds), self.config.group, -1)]

    def _apart(self, moved: Mask) -> Mask:
        """Return the layers decades under the upper quartile of all, whatever they are compared by."""
        columns, updates = self.config.columns, self.state.updates
        with np.errstate(divide="ignore"):
            levels = np.stack(
                [np.log10(updates.ratio[columns]), updates.by_rate[columns], updates.by_gradient[columns]]
            )
        is_known = moved & np.isfinite(levels).all(axis=0)
        if is_known.sum() < LEAST_LAYERS:
            return np.zeros_like(moved)
        usual = np.quantile(levels[:, is_known], UPPER, axis=1)[:, None]
        is_apart: Mask = is_known & (usual - levels >= self.config.no_update.apart_decades).all(axis=0)
        return is_apart

    def _tiny(self, judged: Judged, *, is_long: bool) -> dict[int, Mask]:
        """Return the layers that move, by signal, if all do hardly: by their weights, or by what a step should be."""
        rule, columns, updates = self.config.no_update, self.config.columns, self.state.updates
        is_slow = self._is_of(BY_THE_RATE) & (updates.most_by_rate[columns] < np.log10(rule.rate_share))
        is_clipped = self._is_of(BY_THE_GRADIENT) & (updates.by_gradient[columns] < np.log10(CLIPPED_SHARE))
        is_slow |= is_clipped & (updates.ratio[columns] < CLIPPED_RATIO)
        is_tiny = ~is_slow & (updates.ratio[columns] < rule.ratio)
        # A layer that is not judged, as its gradient fell, may move as well.
        is_all = is_long and not (~is_slow & (updates.ratio[columns] >= rule.ratio)).any()
        return {signals.TINY: judged.moved & is_tiny & is_all, signals.SLOW: judged.moved & is_slow & is_all}


@dataclass(frozen=True)
class Judged:
    """Layers that never moved, with a learning rate or without one, and layers that moved; bool[L]."""

    unmoved: Mask
    no_rate: Mask
    moved: Mask


def _votes(is_bad: Mask, is_measured: Mask) -> Votes:
    votes: Votes = is_bad.astype(np.int8) - (is_measured & ~is_bad).astype(np.int8)
    return votes
