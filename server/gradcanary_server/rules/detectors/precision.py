"""Detectors of low precision: rare measurements, and static findings from dtypes and reports.

A layer has one measurement in hundreds of steps. Each compares all its elements (or 65,536 of them) and is not noisy.
So the counts are observations of that layer, not steps: one fires, five without a fault resolve. Only exact zeros take
five to fire, because they depend on the batch, too. A static finding (the dtype of a sum, the report of an agent) fires
without a count while it holds. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from gradcanary import wire
from gradcanary.wire import Accumulator, Fact
from gradcanary_server.rules import signals
from gradcanary_server.rules.signals import MAX_WEIGHT_IDLE, Vote
from gradcanary_server.rules.steps import Context, Detector, Sample, Span, Step, any_layer, first_true
from gradcanary_server.rules.types import Ints, Launch, LayerArrays, LayerFacts, Mask, Votes, layer_array
from gradcanary_server.rules.warmup import find_learning

ONE_OBSERVATION = np.array(1)

FULL, BFLOAT16, FLOAT16 = range(3)
_LOW = {"bfloat16": BFLOAT16, "float16": FLOAT16}

TURN_EVERY = 20
"""The ``every`` of such an observation: it weighs 4 while not firing and 20 while firing, like rare samples."""

STATS = ("accumulation_error", "norm_ratio", "frozen_fraction")
"""Measured in turns. So is zero_fraction, but a low layer has it with each sample."""

_LOSSES = ((1, 0.0), (8, 0.004), (64, 0.01), (512, 0.22), (2_048, 0.78))
"""(Gradients, share of the norm that their bfloat16 sum loses), from 512 on of coherent ones (docs/results)."""


@dataclass
class Precision(LayerArrays):
    """Arrays [N]: ``sum_dtype`` uint8 of gradient sums (full, bfloat16, float16); ``differs_from_declared`` bool, if
    another dtype was declared; ``has_moved`` bool, if over half of the weights moved once; ``least_zeros`` float32, the
    least zero_fraction, NaN = none yet.
    """

    sum_dtype: NDArray[np.uint8] = layer_array(np.uint8, FULL)
    differs_from_declared: Mask = layer_array(np.bool_)
    has_moved: Mask = layer_array(np.bool_)
    least_zeros: NDArray[np.float32] = layer_array(np.float32, np.nan)

    def learn(self, columns: Ints, records: Sequence[Accumulator]) -> None:
        """Apply change records; their layers are positions in ``columns``."""
        for record in records:
            layers = columns[np.array(record.layers, np.int64)]
            low = [_LOW[dtype] for dtype in (record.effective, record.stored) if dtype in _LOW]
            self.sum_dtype[layers] = low[0] if low else FULL
            actual = record.effective or record.stored
            self.differs_from_declared[layers] = None not in (record.declared, actual) and record.declared != actual


def unmoved_span(every: int) -> int:
    """Return the steps between the two moments of which a frozen_fraction compares the weights."""
    return max(wire.FROZEN_STEPS, every)


def predicted_loss(micro_steps: int) -> float:
    """Return the share of the norm that a bfloat16 sum of ``micro_steps`` gradients loses at worst."""
    if micro_steps >= _LOSSES[-1][0]:
        return _LOSSES[-1][1]
    for (few, little), (many, much) in pairwise(_LOSSES):
        if few <= micro_steps < many:
            part = math.log(micro_steps / few) / math.log(many / few)
            return little * (much / little) ** part if little else much * part
    return 0.0


_MOMENTS = ("bf16_moments", "fp16_moments")


_UNHELD = "not_optimized"


def fingerprint(facts: Iterable[Fact], layers: Iterable[LayerFacts] = ()) -> int:
    """Return a checksum of the facts that agents reported, in any order, and of what they depend on; 0 = no facts."""
    values: list[object] = [*sorted({(fact.code, fact.layers) for fact in facts})]
    if any(fact.code == _UNHELD for fact in facts):
        values += [layer.name for layer in layers if layer.group is None]
    return crc32(repr(values).encode()) if values else 0


def has_fact(launch: Launch, *codes: str) -> Mask:
    """Return the layers of facts with one of these codes; a fact without layers is about all."""
    found = np.zeros(len(launch.layers), np.bool_)
    for fact in launch.facts:
        if fact.code in codes:
            names = set(fact.layers)
            found |= np.array([not names or layer.name in names for layer in launch.layers], np.bool_)
    return found


class StaticFindings(Detector):
    """Findings that fire without a count; evaluated when facts change or a window has more micro-steps."""

    sees_skipped = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.is_due = False
        batch, progress = context.batch, self.state.progress
        if batch.micro_steps.max(initial=0) > progress.micro_steps:
            micro_steps = np.where(batch.steps > progress.last_step, batch.micro_steps, 0)
            before = np.maximum.accumulate(np.concatenate([[progress.micro_steps], micro_steps]))[:-1]
            self.eventful = np.asarray(micro_steps > before)

    def learn(self, records: tuple[Accumulator, ...]) -> None:
        """Apply change records and new facts from the next step on."""
        facts = fingerprint(self.context.launch.facts, self.context.launch.layers)
        self.is_due = bool(records) or facts != self.state.progress.facts
        if self.is_due:
            self.state.precision.learn(self.config.columns, records)
            self.state.progress = replace(self.state.progress, facts=facts)

    def is_active(self) -> bool:
        return self.is_due

    def observe(self, step: Step) -> Iterator[Vote]:
        progress = self.state.progress
        micro_steps = max(step.sample.micro_steps, progress.micro_steps)
        if self.is_due or micro_steps > progress.micro_steps:
            self.is_due = False
            self.state.progress = replace(progress, micro_steps=micro_steps)
            columns, scores = self.config.columns, self.state.scores
            for signal, fires in self._findings(micro_steps).items():
                step.has_changed |= scores.set_firing(
                    signal, columns, fires, step.sample.step, self.config.resolve_after
                )
        yield from ()

    def _findings(self, micro_steps: int) -> dict[int, Mask]:
        """Return the layers of each finding by signal.

        ``micro_steps`` is the highest number in a window of the launch: a sum of one gradient loses nothing.
        """
        config, columns, precision = self.config, self.config.columns, self.state.precision
        rule = config.accumulator
        is_low = (precision.sum_dtype[columns] != FULL) & (micro_steps > 1) & rule.enabled
        is_coarse = predicted_loss(micro_steps) >= rule.warn_above
        is_declared = precision.differs_from_declared[columns] | self._has_fact("dead_config_key")
        clip_enabled = self.context.rules.clip_before_unscale.enabled
        return {
            signals.SUM_FINE: is_low & ~is_coarse,
            signals.SUM_COARSE: is_low & is_coarse,
            signals.DECLARED: is_declared & rule.enabled,
            signals.COARSE_MOMENTS: self._has_fact(*_MOMENTS) & config.second_moments.enabled,
            signals.NO_SCALER: self._has_fact(wire.FLOAT16_WITHOUT_SCALER) & config.fp16_underflow.enabled,
            signals.CLIPPED_SCALED: self._has_fact("clip_before_unscale") & clip_enabled,
            signals.NEVER_CLEARED: self._has_fact(wire.NEVER_CLEARED) & config.never_cleared.enabled,
            signals.UNDONE: self._has_fact(wire.UNDONE_UPDATES) & config.no_update.enabled,
            signals.NOT_OPTIMIZED: self._in_no_optimizer() & config.not_optimized.enabled,
        }

    def _in_no_optimizer(self) -> Mask:
        """Return the layers that were reported to be in no optimizer, and that none has taken since."""
        is_unheld: Mask = self._has_fact(_UNHELD) & (self.config.group < 0) & (self.config.groups > 0)
        return is_unheld

    def _has_fact(self, *codes: str) -> Mask:
        return has_fact(self.context.launch, *codes)


class PrecisionDetector(Detector):
    """Votes about the stats that are measured for a few layers at a time."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        measured = [context.batch.values[stat] for stat in STATS if stat in context.batch.values]
        if measured:
            self.eventful = np.logical_or.reduce([~np.isnan(values).all(axis=1) for values in measured])
        self._zeros = context.batch.values.get("zero_fraction")
        self._at_limit = has_fact(context.launch, wire.FLOAT16_LIMIT)

    def is_active(self) -> bool:
        return bool(self.state.scores.score[signals.ZEROS].any())

    def quiet_rows(self, span: Span) -> int:
        if self._zeros is None or not ((is_half := self._find_half()) | self._at_limit).any():
            return len(span)
        zeros, growth = self._zeros[span.begin : span.end], self.config.fp16_underflow.growth
        least = self.state.precision.least_zeros[self.config.columns]
        least = np.fmin.accumulate(np.vstack([least, np.where(is_half, zeros, np.nan)]), axis=0)[1:]
        return first_true(any_layer((is_half & (zeros - least >= growth)) | (self._at_limit & (zeros >= growth))))

    def skip(self, span: Span) -> None:
        if self._zeros is not None and (is_half := self._find_half()).any():
            least, columns = self.state.precision.least_zeros, self.config.columns
            zeros = np.where(is_half, self._zeros[span.begin : span.end], np.nan)
            least[columns] = np.fmin(least[columns], np.fmin.reduce(zeros, axis=0))

    def observe(self, step: Step) -> Iterator[Vote]:
        if not step.sample.values:
            return
        stands_since = max(step.sample.step - unmoved_span(step.sample.every), 0)
        for signal, votes in self._votes(step.sample).items():
            is_noisy = signal in signals.ZEROS
            observations = self.config.fp16_underflow.observations if is_noisy else ONE_OBSERVATION
            fire_after = (observations * MAX_WEIGHT_IDLE).astype(np.float32)
            since = stands_since if signal in (signals.FROZEN, signals.STOPPED) else None
            yield self.vote(signal, step, votes, fire_after=fire_after, since=since, every=TURN_EVERY)

    def _votes(self, sample: Sample) -> dict[int, Votes]:
        """Return the votes of one step by signal, and update ``state.precision``."""
        config, columns, precision = self.config, self.config.columns, self.state.precision
        sums, frozen, underflow = config.accumulation_loss, config.frozen, config.fp16_underflow
        nothing = np.full(len(columns), np.nan, np.float32)
        error, ratio, share, zeros = (sample.values.get(stat, nothing) for stat in (*STATS, "zero_fraction"))
        is_lost = (error > sums.error) | (ratio < sums.norm_ratio)
        # At the end of a schedule weights rightly stand still, and in a warm-up.
        is_learning = find_learning(self.state.progress, config, self.context.rules.frozen.least_lr_share)
        is_learning &= sample.step - self.state.progress.last_rise >= unmoved_span(sample.every)
        is_judged = ~np.isnan(share) & is_learning
        has_stopped = is_judged & precision.has_moved[columns] & (share > frozen.stopped_share)
        precision.has_moved[columns] |= share < frozen.moved_share
        is_measured, least = ~np.isnan(zeros) & self._find_half(), precision.least_zeros[columns]
        least = precision.least_zeros[columns] = np.where(is_measured, np.fmin(least, zeros), least)
        grew = is_measured & (zeros - least >= underflow.growth)
        is_cut_off, is_counted = self._at_limit & (zeros >= underflow.growth), ~np.isnan(zeros)
        return {
            signals.LOST: _votes(is_lost, ~np.isnan(error), sums.enabled),
            signals.STOPPED: _votes(has_stopped, is_judged, frozen.enabled),
            signals.FROZEN: _votes(is_judged & (share > frozen.share), is_judged, frozen.enabled),
            signals.UNDERFLOW: _votes(grew, is_measured, underflow.enabled),
            signals.ALL_ZERO: _votes(grew & (zeros > underflow.share), is_measured, underflow.enabled),
            signals.AT_LIMIT: _votes(is_cut_off, is_counted, underflow.enabled),
            signals.ALL_AT_LIMIT: _votes(is_cut_off & (zeros > underflow.share), is_counted, underflow.enabled),
        }

    def _find_half(self) -> Mask:
        """Return the layers with gradients computed in float16, by their dtypes."""
        sums_half: Mask = self.state.precision.sum_dtype[self.config.columns] == FLOAT16
        return sums_half | self.config.is_half


def _votes(is_bad: Mask, is_measured: Mask, enabled: Mask) -> Votes:
    votes: Votes = (is_bad.astype(np.int8) - (is_measured & ~is_bad).astype(np.int8)) * enabled
    return votes
