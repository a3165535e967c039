"""From tensors to numbers, on the sender thread: what a record says once its values are read."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from gradcanary import wire
from gradcanary.clips import Clips
from gradcanary.effective import Effective
from gradcanary.export.batches import Column, Dtypes, Row
from gradcanary.records import (
    MEASURED,
    NONFINITE,
    SKIPPED_BY_SCALER,
    ZERO,
    Kind,
    Record,
    Wishes,
    number_of,
    of_kind,
)

if TYPE_CHECKING:
    from gradcanary.findings import Findings

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
        self._clips = Clips()
        self.wishes = Wishes()
        self.facts: list[wire.Fact] = []

    def read(self, record: Record) -> Row:
        """Return the record's numbers; waits for its tensors."""
        skipped = record.skipped
        found_inf = of_kind(record.parts, Kind.FOUND_INF)
        if not skipped and found_inf is not None and number_of(found_inf.value) != 0:
            skipped = SKIPPED_BY_SCALER
        self._skipped_total += skipped > 0
        row = Row(
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

    def _own_metrics(self, record: Record) -> Iterator[tuple[str, float]]:
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

    def _read_samples(self, record: Record, row: Row) -> None:
        from gradcanary.findings import Findings  # which needs torch: sync, which is also in here, does not

        found = Findings(len(record.layers))
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
        row.own_faults = tuple(sorted(found.own_faults))
        self._local_left = LOCAL_AFTER_NONFINITE if bad or not found.is_finite else max(self._local_left - 1, 0)
        self._add_counts(row, found, bad)
        _add_moved(row, found)
        _add_losses(row, found)
        _add_some(row, "frozen_fraction", None, found.frozen)
        self.facts += self._clips.read(record, found, row)
        self.facts += found.facts(row.layer_set.layers, record.step, self._failed)
        self.wishes = self._next_wishes(absmax, norm, states, row.layer_set)

    def _accumulators(self, record: Record, found: Findings, bad: Collection[int]) -> tuple[Dtypes | None, ...]:
        layers = record.layers
        if self._effective.layer_set is not layers.layer_set:
            self._effective = Effective(layers.layer_set)
        self._effective.learn(found.bits, without=bad)
        return tuple(
            None if stored is None else (declared, stored, self._effective.of(layer, stored))
            for layer, (declared, stored) in enumerate(zip(layers.declared, found.dtypes, strict=True))
        )

    def _add_counts(self, row: Row, found: Findings, bad: dict[int, float]) -> None:
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


def _add_moved(row: Row, found: Findings) -> None:
    """Add how far the step moved some layers, none of a step that was skipped and so moved nothing."""
    moved = {
        layer: (change / weights if weights else 0.0, weights)
        for layer, (change, weights) in found.moved.items()
        if math.isfinite(change + weights) and (weights or not change) and not row.skipped
    }
    _add_some(row, "update_ratio", None, {layer: ratio for layer, (ratio, _) in moved.items()})
    _add_some(row, "weight_norm", None, {layer: weights for layer, (_, weights) in moved.items()})


def _add_losses(row: Row, found: Findings) -> None:
    """Add what sums of low precision lost, none of a window whose gradients nobody used."""
    if row.skipped:
        return
    _add_some(row, "accumulation_error", found.phase, {layer: error for layer, (error, _) in found.losses.items()})
    _add_some(row, "norm_ratio", found.phase, {layer: ratio for layer, (_, ratio) in found.losses.items()})


def _add_some(row: Row, stat: str, phase: str | None, values: dict[int, float]) -> None:
    if values:
        layers = tuple(sorted(values))
        row.columns[stat] = Column(phase, layers, array("f", [min(values[layer], FLOAT32_MAX) for layer in layers]))


def _norm(norm: float, absmax: float) -> float:
    """Return an L2 that float32 may have lost: at least the absmax where it underflowed, finite where it overflowed."""
    return max(min(norm, FLOAT32_MAX), absmax)
