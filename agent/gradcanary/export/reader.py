"""From tensors to numbers, on the sender thread: what a record says once its values are read."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from gradcanary import wire
from gradcanary.export.batches import Column, Dtypes, StepRow
from gradcanary.export.clip_detection import ClipDetector
from gradcanary.guard import Failed, reporting
from gradcanary.stats import accumulation
from gradcanary.stats.samples import (
    MEASURED,
    NONFINITE,
    PARTIAL,
    ZERO,
    Kind,
    Part,
    Sample,
    Wishes,
    number_of,
    of_kind,
    read,
    scale_of,
)
from gradcanary.stats.weights import Forecast, fact_of
from gradcanary.tracking.records import SKIPPED_BY_SCALER, StepRecord

FLOAT32_MAX = 3.4028234663852886e38
LOW = 1e-4
"""An absmax under which the exact zeros of a layer are counted: the default of the rules' ``enter``."""

NARROW = (1e-12, 1e12)
"""Norms that float32 sums of squares hold, and those that follow within a factor of 1e6; others are asked for in
float64 from the next sample on."""

COUNTED_AFTER_NONFINITE = 5
"""Samples in which the non-finite elements of a layer are counted exactly, after it had one."""

LOCAL_AFTER_NONFINITE = 100
"""Samples in which gradients are measured before a reduction, after one or a loss was not finite: a NaN comes back. A
GradScaler overflows about each 2,000 steps, so these are 5 % of them."""

ENOUGH = 16
"""Telling elements, in a look that may speak for less than float32; one with the bits for it speaks for float32."""

AGREEING = 3
"""Looks in a row that show a lower precision before it is believed: sums of few or equal numbers may happen to fit."""

_LOW = ("bfloat16", "float16")
_TABLES = ("Embedding", "EmbeddingBag")
"""A row that one micro-step of a window met is no sum: under autocast it is a number of bfloat16."""


class Reader:
    """Reads the records of a session in their order, and knows what the next samples should count.

    What a device does not tell goes to ``failed``, and its layers are partial.
    """

    def __init__(self, absmax_below: float | None, failed: Callable[[str, Exception], None]) -> None:
        self._failed = failed
        self._low = max(LOW, absmax_below or 0.0)
        self._skipped_total = 0
        self._watched: dict[int, int] = {}
        self._local_left = 0
        self._roots_of: wire.LayerSet | None = None
        self._roots: list[float] = []
        self._effective = Effective(None)
        self._clips = ClipDetector()
        self.wishes = Wishes()
        self.facts: list[wire.Fact] = []

    def read(self, record: StepRecord) -> StepRow:
        """Return the record's numbers; waits for its tensors."""
        skipped = record.skipped
        found_inf = of_kind(record.parts, Kind.FOUND_INF)
        if not skipped and found_inf is not None and number_of(found_inf.value) != 0:
            skipped = SKIPPED_BY_SCALER
        self._skipped_total += skipped > 0
        row = StepRow(
            layer_set=record.layers.layer_set,
            step=record.step,
            time=record.time,
            micro_steps=record.micro_steps,
            skipped=skipped,
            clipped=0,
            states=None,
            accumulators=(),
            agent_share=record.agent_share,
            every=record.every,
        )
        row.metrics += [((name, ()), record.step, value) for name, value in self._own_metrics(record)]
        if record.samples:
            self._read_samples(record, row)
        row.metrics += [
            ((logged.name, logged.tags), record.step if logged.step is None else logged.step, number_of(logged.value))
            for logged in record.logged
        ]
        if any(name == "loss" and not math.isfinite(value) for (name, _), _, value in row.metrics):
            self._local_left = LOCAL_AFTER_NONFINITE
        if self.wishes.local != (self._local_left > 0):
            self.wishes = replace(self.wishes, local=self._local_left > 0)
        return row

    def _own_metrics(self, record: StepRecord) -> Iterator[tuple[str, float]]:
        loss_scale = of_kind(record.parts, Kind.LOSS_SCALE)
        scale = 1.0 if loss_scale is None else number_of(loss_scale.value)
        said = any(
            logged.name == "loss" and not logged.tags and logged.step in (None, record.step) for logged in record.logged
        )
        losses = [part.value for part in record.parts if part.kind is Kind.LOSS]
        if losses and not said:
            yield "loss", sum(map(number_of, losses)) / (scale or 1.0)
        rates = [part.value for part in record.parts if part.kind is Kind.RATE]
        yield from ((f"lr{group}", number_of(rate)) for group, rate in enumerate(rates))
        if not record.samples:
            return
        if record.step_time_s is not None:
            yield "step_time_s", record.step_time_s
        if record.peak_memory_bytes is not None:
            yield "peak_memory_bytes", float(record.peak_memory_bytes)
        if loss_scale is not None:
            yield "scaler_scale", scale
        if self._skipped_total or loss_scale is not None:
            yield "skipped_total", float(self._skipped_total)

    def _read_samples(self, record: StepRecord, row: StepRow) -> None:

        found = DecodedSamples(len(record.layers))
        for sample in record.samples:
            found.add(sample, self._failed)
        states = found.states
        absmax, norm = (array("f", [math.nan]) * len(states) for _ in range(2))
        bad: dict[int, float] = {}
        norms = found.norm
        for layer, largest in found.absmax.items():
            if not math.isfinite(largest):
                states[layer] = NONFINITE
                bad[layer] = found.nonfinite.get(layer) or 1.0
                continue
            if largest == 0:
                states[layer] = ZERO
            absmax[layer] = value = min(largest, FLOAT32_MAX)
            # What nearly all are is told here: a call for each of hundreds of layers is most of what a record takes.
            norm[layer] = each if value <= (each := norms[layer]) <= FLOAT32_MAX else _norm(each, value)
        row.states, row.accumulators = bytes(states), self._accumulators(record, found, bad)
        row.columns["absmax"] = Column(found.phase, None, absmax)
        row.columns["norm"] = Column(found.phase, None, norm)
        row.local_nonfinite = tuple(sorted(found.local_nonfinite))
        self._local_left = LOCAL_AFTER_NONFINITE if bad or not found.is_finite else max(self._local_left - 1, 0)
        self._add_counts(row, found, bad)
        _add_moved(row, found)
        _add_losses(row, found)
        _add_some(row, "frozen_fraction", None, found.frozen)
        self.facts += self._clips.read(record, found, row)
        self.facts += found.facts(row.layer_set.layers, record.step, self._failed)
        self.wishes = self._next_wishes(absmax, norm, states, row.layer_set)

    def _accumulators(
        self, record: StepRecord, found: DecodedSamples, bad: Collection[int]
    ) -> tuple[Dtypes | None, ...]:
        layers = record.layers
        if self._effective.layer_set is not layers.layer_set:
            self._effective = Effective(layers.layer_set)
        self._effective.learn(found.bits, without=bad)
        return tuple(
            None if stored is None else (declared, stored, self._effective.of(layer, stored))
            for layer, (declared, stored) in enumerate(zip(layers.declared, found.dtypes, strict=True))
        )

    def _add_counts(self, row: StepRow, found: DecodedSamples, bad: dict[int, float]) -> None:
        layers, phase = row.layer_set.layers, found.phase
        fractions = {i: count / max(layers[i].local_numel, 1) for i, count in found.zeros.items()}
        _add_some(row, "zero_fraction", phase, fractions)
        _add_some(row, "nonfinite", phase, bad)
        self._watched = {layer: left - 1 for layer, left in self._watched.items() if left > 1}
        self._watched.update(dict.fromkeys(bad, COUNTED_AFTER_NONFINITE))

    def _next_wishes(
        self, absmax: array[float], norm: array[float], states: bytearray, layer_set: wire.LayerSet
    ) -> Wishes:
        if self._roots_of is not layer_set:
            self._roots_of = layer_set
            self._roots = [math.sqrt(max(layer.local_numel, 1)) for layer in layer_set.layers]
        roots, (low, high) = self._roots, NARROW
        measured = [(i, norm[i]) for i, state in enumerate(states) if state == MEASURED]
        strength = {i: value / roots[i] for i, value in measured}
        return Wishes(
            zeros=frozenset([i for i, value in enumerate(absmax) if value < self._low]),  # not where it is no number
            nonfinite=frozenset(self._watched),
            wide=frozenset([i for i, value in measured if not low < value < high]),
            probe=max(strength, key=strength.__getitem__, default=None),
        )


def _add_moved(row: StepRow, found: DecodedSamples) -> None:
    """Add how far the step moved some layers, none of a step that was skipped and so moved nothing."""
    moved = {
        layer: (change / weights if weights else 0.0, weights)
        for layer, (change, weights) in found.moved.items()
        if math.isfinite(change + weights) and (weights or not change) and not row.skipped
    }
    _add_some(row, "update_ratio", None, {layer: ratio for layer, (ratio, _) in moved.items()})
    _add_some(row, "weight_norm", None, {layer: weights for layer, (_, weights) in moved.items()})


def _add_losses(row: StepRow, found: DecodedSamples) -> None:
    """Add what sums of low precision lost, none of a window whose gradients nobody used."""
    if row.skipped:
        return
    _add_some(row, "accumulation_error", found.phase, {layer: error for layer, (error, _) in found.losses.items()})
    _add_some(row, "norm_ratio", found.phase, {layer: ratio for layer, (_, ratio) in found.losses.items()})


def _add_some(row: StepRow, stat: str, phase: str | None, values: dict[int, float]) -> None:
    if values:
        layers = tuple(sorted(values))
        row.columns[stat] = Column(phase, layers, array("f", [min(values[layer], FLOAT32_MAX) for layer in layers]))


def _norm(norm: float, absmax: float) -> float:
    """Return an L2 that float32 may have lost: at least the absmax where it underflowed, finite where it overflowed."""
    return max(min(norm, FLOAT32_MAX), absmax)


class DecodedSamples:
    """What the samples of a record say together, by number of the layer, the loss scale divided out."""

    def __init__(self, layers: int) -> None:
        self.states = bytearray([PARTIAL]) * layers
        self.dtypes: list[str | None] = [None] * layers
        self.phase = "accumulated"
        self.absmax: dict[int, float] = {}
        self.norm: dict[int, float] = {}
        self.zeros: dict[int, float] = {}
        self.nonfinite: dict[int, float] = {}
        self.joint: list[float] = []
        self.is_whole = self.is_finite = True
        self.moved: dict[int, tuple[float, float]] = {}
        self.local_nonfinite: list[int] = []
        self.bits: dict[int, Sequence[int]] = {}
        self.losses: dict[int, tuple[float, float]] = {}
        self.frozen: dict[int, float] = {}
        self.forecasts: list[tuple[Forecast, Sequence[int]]] = []

    def facts(self, layers: Sequence[wire.Layer], step: int, failed: Failed) -> list[wire.Fact]:
        """Return what there is to say of forecasts; waits for them."""
        found = []
        for forecast, numbers in self.forecasts:
            stuck = _values(forecast.parts, Kind.STUCK, failed)
            shares = {layers[numbers[place]].name: share for (place,), share in stuck}
            fact = fact_of(forecast, shares, step)
            found += [] if fact is None else [fact]
        return found

    def add(self, sample: Sample, failed: Failed) -> None:
        """Take a sample; a stat has one phase, so of two that differ it is the one that promises less."""
        numbers, scale = read(sample.parts, failed), scale_of(sample.parts, Kind.SCALE)
        norms, largest = numbers.norm, numbers.absmax
        if scale != 1:
            norms, largest = ({place: value / scale for place, value in each.items()} for each in (norms, largest))
        self.phase = "post_clip" if "post_clip" in (self.phase, sample.phase) else sample.phase
        self.joint += norms.values() if sample.is_joint else ()
        self.norm.update({sample.layers[place]: value for place, value in norms.items()})
        self.absmax.update({sample.layers[place]: value for place, value in largest.items()})
        self.zeros.update({sample.layers[place]: value for place, value in numbers.zeros.items()})
        self.nonfinite.update({sample.layers[place]: value for place, value in numbers.nonfinite.items()})
        self._add_some(sample, failed)
        for place, layer in enumerate(sample.layers):
            is_lost = sample.states[place] == MEASURED and place not in numbers.absmax
            self.states[layer] = PARTIAL if is_lost else sample.states[place]
            self.dtypes[layer] = sample.dtypes[place]
            self.is_whole &= not is_lost

    def _add_some(self, sample: Sample, failed: Failed) -> None:
        """Take what there is of some layers only."""
        numbers, parts = sample.layers, sample.parts
        has_sound_weights = all(is_finite for _, is_finite in _values(parts, Kind.WEIGHTS, failed))
        for places, bad in _values(parts, Kind.OWN, failed) if has_sound_weights else ():
            self.local_nonfinite += [numbers[place] for place, is_bad in zip(places, bad, strict=True) if is_bad]
        self.is_finite &= all(is_finite for _, is_finite in _values(parts, Kind.FINITE, failed))
        for (place,), factors in _values(parts, Kind.MOVED, failed):
            self.moved[numbers[place]] = _change_of(factors)
        for (place,), factors in _values(parts, Kind.LOST, failed):
            loss = accumulation.loss_of(factors)
            self.losses.update({} if loss is None else {numbers[place]: loss})
        self.frozen.update({numbers[place]: share for (place,), share in _values(parts, Kind.FROZEN, failed)})
        self.forecasts += [(forecast, numbers) for forecast in sample.forecasts]
        for places, counts in _values(parts, Kind.LOW_BITS, failed):
            self.bits.update(zip((numbers[place] for place in places), zip(*counts, strict=True), strict=True))


def _values(parts: Iterable[Part], kind: Kind, failed: Failed) -> Iterator[tuple[Sequence[int], Any]]:
    """Yield the layers, by position, and the numbers of the parts of a kind; waits for each."""
    for part in parts:
        if part.kind is kind and isinstance(part.value, Tensor):
            with reporting(failed, "reading", part.value):
                yield part.layers, part.value.tolist()


def _change_of(factors: Sequence[float]) -> tuple[float, float]:
    """Return the L2 norms of a layer's change and of its weights."""
    largest_change, change, largest, weights = factors
    return largest_change * change, largest * weights


class Effective:
    """Remembers what the values of each accumulator of a layer set showed."""

    def __init__(self, layer_set: wire.LayerSet | None) -> None:
        self.layer_set = layer_set
        layers = layer_set.layers if layer_set is not None else ()
        self._tables = {number for number, layer in enumerate(layers) if layer.module_class in _TABLES}
        self._believed: dict[int, str] = {}
        self._candidates: dict[int, tuple[str, int]] = {}

    def learn(self, looks: Mapping[int, Sequence[int]], without: Collection[int]) -> None:
        """Take the three counts of :func:`gradcanary.stats.accumulation.low_bits` by layer, but of some layers."""
        for layer, counts in looks.items():
            if layer not in without:
                self._learn(layer, *counts)

    def of(self, layer: int, stored: str | None) -> str | None:
        """Return the dtype that the values of a layer show, None while they show nothing."""
        return stored if stored in _LOW else self._believed.get(layer) if stored == "float32" else None

    def _learn(self, layer: int, telling: int, below_bfloat16: int, below_float16: int) -> None:
        if below_float16:
            self._believed[layer] = "float32"
            self._candidates.pop(layer, None)
            return
        if telling < ENOUGH or layer in self._tables:
            return
        shown = "float16" if below_bfloat16 else "bfloat16"
        before, times = self._candidates.get(layer, (shown, 0))
        self._candidates[layer] = (shown, times + 1 if before == shown else 1)
        if self._candidates[layer][1] >= AGREEING:
            self._believed[layer] = shown
