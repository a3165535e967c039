"""From records to rows, on the sender thread: decoded samples, effective dtypes, clips, and the next sample request."""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from gradcanary import facts, wire
from gradcanary.export.batches import Column, Dtypes, StepRow
from gradcanary.export.float16 import Float16Layers
from gradcanary.export.settings_log import SettingsLog
from gradcanary.guard import Failed, reporting
from gradcanary.stats import accumulation
from gradcanary.stats.samples import (
    MEASURED,
    NONFINITE,
    PARTIAL,
    ZERO,
    Forecast,
    Kind,
    Part,
    Sample,
    SampleRequest,
    number_of,
    of_kind,
    read,
    scale_of,
)
from gradcanary.stats.weight_rows import changes_of
from gradcanary.stats.weights import fact_of
from gradcanary.tracking.records import SKIPPED_BY_SCALER, StepRecord
from gradcanary.wording import number

FLOAT32_MAX = 3.4028234663852886e38
LOW = 1e-4
"""An absmax under which the exact zeros of a layer are counted: the default of the rules' ``enter``."""

FLOAT32_SAFE_NORMS = (1e-12, 1e12)
"""Norms that a float32 sum of squares holds, with room for a change by 1e6. Others are measured in float64 from the
next sample on."""

COUNTED_AFTER_NONFINITE = 5
"""Samples in which the non-finite elements of a layer are counted after its last one."""

LOCAL_AFTER_NONFINITE = 100
"""Samples in which gradients are measured before a reduction after a gradient or a loss was not finite: a NaN comes
back. A GradScaler overflows about once in 2,000 steps, so this is 5 % of the samples."""

ENOUGH = 16
"""Least number of elements of a sample that show a precision; fewer are no evidence for less than float32."""

AGREEING = 3
"""Samples in a row that must show the same lower precision: sums of few or equal numbers may fit it by chance."""

_LOW = ("bfloat16", "float16")
_TABLES = ("Embedding", "EmbeddingBag")
"""Classes whose rows may be used by one micro-step only. Such a row is not a sum: under autocast it is a bfloat16."""


class Reader:
    """Reads the records of a session in their order; ``request`` is the request for the next samples.

    If a device cannot be read, ``failed`` gets the error and its layers are partial.
    """

    def __init__(
        self,
        low: float | None,
        failed: Callable[[str, Exception], None],
        settings: SettingsLog | None = None,
    ) -> None:
        self._failed = failed
        self._low = max(LOW, low or 0.0)
        self._skipped_total = 0
        self._watched: dict[int, int] = {}
        self._local_left = 0
        self._roots_of: wire.LayerSet | None = None
        self._roots: list[float] = []
        self._effective, self._float16 = EffectiveDtypes(None), Float16Layers(None)
        self._clips = ClipDetector(settings or SettingsLog())
        self._undone = UndoneUpdates()
        self.request = SampleRequest()
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
        if self.request.local != (self._local_left > 0):
            self.request = replace(self.request, local=self._local_left > 0)
        return row

    def _own_metrics(self, record: StepRecord) -> Iterator[tuple[str, float]]:
        loss_scale = of_kind(record.parts, Kind.LOSS_SCALE)
        scale = 1.0 if loss_scale is None else number_of(loss_scale.value)
        is_logged = any(
            logged.name == "loss" and not logged.tags and logged.step in (None, record.step) for logged in record.logged
        )
        losses = [part.value for part in record.parts if part.kind is Kind.LOSS]
        if losses and not is_logged:
            yield "loss", sum(map(number_of, losses)) / (scale or 1.0)
        rates = [part.value for part in record.parts if part.kind is Kind.LEARNING_RATE]
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
            # The usual case without a call: calls for hundreds of layers would be most of the cost of a record.
            norm[layer] = each if value <= (each := norms[layer]) <= FLOAT32_MAX else _norm(each, value)
        row.states, row.accumulators = bytes(states), self._accumulators(record, found, bad)
        row.columns["absmax"] = Column(found.phase, None, absmax)
        row.columns["norm"] = Column(found.phase, None, norm)
        row.local_nonfinite = tuple(sorted(found.local_nonfinite))
        self._local_left = LOCAL_AFTER_NONFINITE if bad or not found.is_finite else max(self._local_left - 1, 0)
        self._add_counts(row, found, bad)
        _add_moved(row, found)
        _add_accumulation_errors(row, found)
        _add_some(row, "frozen_fraction", None, found.frozen)
        self.facts += self._clips.read(record, found, row)
        self.facts += found.facts(row.layer_set.layers, record.step, self._failed)
        self.facts += self._undone.read(row.layer_set.layers, record.step, found)
        self.request = self._next_request(absmax, norm, states, row.layer_set)

    def _accumulators(
        self, record: StepRecord, found: DecodedSamples, bad: Collection[int]
    ) -> tuple[Dtypes | None, ...]:
        layers = record.layers
        if self._effective.layer_set is not layers.layer_set:
            self._effective, self._float16 = EffectiveDtypes(layers.layer_set), Float16Layers(layers.layer_set)
        self._effective.learn(found.bits, without=bad)
        self._float16.learn(found.float16, found.dtypes, without=bad)
        is_scaled = of_kind(record.parts, Kind.LOSS_SCALE) is not None
        self.facts = [*facts.merged(self.facts, self._float16.facts(record.step, is_scaled=is_scaled))]
        return tuple(
            None if stored is None else (declared, stored, self._effective.dtype_of(layer, stored))
            for layer, (declared, stored) in enumerate(zip(layers.declared, found.dtypes, strict=True))
        )

    def _add_counts(self, row: StepRow, found: DecodedSamples, bad: dict[int, float]) -> None:
        layers, phase = row.layer_set.layers, found.phase
        fractions = {i: count / max(layers[i].local_numel, 1) for i, count in found.zeros.items()}
        _add_some(row, "zero_fraction", phase, fractions)
        _add_some(row, "nonfinite", phase, bad)
        self._watched = {layer: left - 1 for layer, left in self._watched.items() if left > 1}
        self._watched.update(dict.fromkeys(bad, COUNTED_AFTER_NONFINITE))

    def _next_request(
        self, absmax: array[float], norm: array[float], states: bytearray, layer_set: wire.LayerSet
    ) -> SampleRequest:
        if self._roots_of is not layer_set:
            self._roots_of = layer_set
            self._roots = [math.sqrt(max(layer.local_numel, 1)) for layer in layer_set.layers]
        roots, (low, high) = self._roots, FLOAT32_SAFE_NORMS
        measured = [(i, norm[i]) for i, state in enumerate(states) if state == MEASURED]
        strength = {i: value / roots[i] for i, value in measured}
        return SampleRequest(
            zeros=frozenset([i for i, value in enumerate(absmax) if value < self._low]),  # False for a NaN
            nonfinite=frozenset(self._watched),
            in_float64=frozenset([i for i, value in measured if not low < value < high]),
            probe=max(strength, key=strength.__getitem__, default=None),
        )


def _add_moved(row: StepRow, found: DecodedSamples) -> None:
    """Add the weight changes of some layers; a skipped step has none."""
    moved = {
        layer: (change / weights if weights else 0.0, weights)
        for layer, (change, weights) in found.moved.items()
        if math.isfinite(change + weights) and (weights or not change) and not row.skipped
    }
    _add_some(row, "update_ratio", None, {layer: ratio for layer, (ratio, _) in moved.items()})
    _add_some(row, "weight_norm", None, {layer: weights for layer, (_, weights) in moved.items()})


def _add_accumulation_errors(row: StepRow, found: DecodedSamples) -> None:
    """Add the errors of low-precision sums; a skipped window has none, because its gradients were not used."""
    if row.skipped:
        return
    _add_some(
        row,
        "accumulation_error",
        found.phase,
        {layer: error for layer, (error, _) in found.accumulation_errors.items()},
    )
    _add_some(row, "norm_ratio", found.phase, {layer: ratio for layer, (_, ratio) in found.accumulation_errors.items()})


def _add_some(row: StepRow, stat: str, phase: str | None, values: dict[int, float]) -> None:
    if values:
        layers = tuple(sorted(values))
        row.columns[stat] = Column(phase, layers, array("f", [min(values[layer], FLOAT32_MAX) for layer in layers]))


def _norm(norm: float, absmax: float) -> float:
    """Return an L2 norm that is at least the absmax, where float32 underflowed, and finite, where it overflowed."""
    return max(min(norm, FLOAT32_MAX), absmax)


class DecodedSamples:
    """The samples of a record as numbers by layer, without the loss scale."""

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
        self.had_moved: set[int] = set()
        self.undone: set[int] = set()
        self.local_nonfinite: list[int] = []
        self.bits: dict[int, Sequence[int]] = {}
        self.float16: dict[int, Sequence[int]] = {}
        self.accumulation_errors: dict[int, tuple[float, float]] = {}
        self.frozen: dict[int, float] = {}
        self.forecasts: list[tuple[Forecast, Sequence[int]]] = []

    def facts(self, layers: Sequence[wire.Layer], step: int, failed: Failed) -> list[wire.Fact]:
        """Return the facts of the forecasts; waits for them."""
        found = []
        for forecast, numbers in self.forecasts:
            stuck = _values(forecast.parts, Kind.STUCK, failed)
            shares = {layers[numbers[position]].name: share for (position,), share in stuck}
            fact = fact_of(forecast, shares, step)
            found += [] if fact is None else [fact]
        return found

    def add(self, sample: Sample, failed: Failed) -> None:
        """Take a sample. A stat has one phase: post_clip if two differ."""
        numbers, scale = read(sample.parts, failed), scale_of(sample.parts, Kind.SCALE)
        norms, largest = numbers.norm, numbers.absmax
        if scale != 1:
            norms, largest = (
                {position: value / scale for position, value in each.items()} for each in (norms, largest)
            )
        self.phase = "post_clip" if "post_clip" in (self.phase, sample.phase) else sample.phase
        self.joint += norms.values() if sample.is_joint else ()
        self.norm.update({sample.layers[position]: value for position, value in norms.items()})
        self.absmax.update({sample.layers[position]: value for position, value in largest.items()})
        self.zeros.update({sample.layers[position]: value for position, value in numbers.zeros.items()})
        self.nonfinite.update({sample.layers[position]: value for position, value in numbers.nonfinite.items()})
        self._add_some(sample, failed)
        for position, layer in enumerate(sample.layers):
            is_lost = sample.states[position] == MEASURED and position not in numbers.absmax
            self.states[layer] = PARTIAL if is_lost else sample.states[position]
            self.dtypes[layer] = sample.dtypes[position]
            self.is_whole &= not is_lost

    def _add_some(self, sample: Sample, failed: Failed) -> None:
        """Take the stats that only some layers have."""
        numbers, parts = sample.layers, sample.parts
        has_sound_weights = all(is_finite for _, is_finite in _values(parts, Kind.WEIGHTS, failed))
        for positions, bad in _values(parts, Kind.LOCAL_NONFINITE, failed) if has_sound_weights else ():
            self.local_nonfinite += [
                numbers[position] for position, is_bad in zip(positions, bad, strict=True) if is_bad
            ]
        self.is_finite &= all(is_finite for _, is_finite in _values(parts, Kind.FINITE, failed))
        for part in parts:
            if part.kind is Kind.UPDATE_ROWS and isinstance(part.value, Tensor):
                with reporting(failed, "reading", part.value):
                    changes = changes_of(part, part.value.tolist())
                    self.moved.update({numbers[position]: change for position, change in changes.items()})
        for (position,), factors in _values(parts, Kind.UPDATE_NORMS, failed):
            self.moved[numbers[position]] = _change_of(factors)
        for positions, columns in _values(parts, Kind.UNDONE, failed):
            for found, flags in zip((self.had_moved, self.undone), columns, strict=True):
                found.update(numbers[at] for at, flag in zip(positions, flags, strict=True) if flag)
        for (position,), factors in _values(parts, Kind.ACCUMULATION_ERROR, failed):
            loss = accumulation.error_of(factors)
            self.accumulation_errors.update({} if loss is None else {numbers[position]: loss})
        shares = {numbers[position]: share for (position,), share in _values(parts, Kind.FROZEN, failed)}
        self.frozen.update({number: share for number, share in shares.items() if not math.isnan(share)})
        self.forecasts += [(forecast, numbers) for forecast in sample.forecasts]
        for kind, known in ((Kind.LOW_BITS, self.bits), (Kind.FLOAT16, self.float16)):
            for positions, counts in _values(parts, kind, failed):
                known.update(zip((numbers[position] for position in positions), zip(*counts, strict=True), strict=True))


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


class EffectiveDtypes:
    """The effective dtype of each accumulator of a layer set, found from its values."""

    def __init__(self, layer_set: wire.LayerSet | None) -> None:
        self.layer_set = layer_set
        layers = layer_set.layers if layer_set is not None else ()
        self._tables = {number for number, layer in enumerate(layers) if layer.module_class in _TABLES}
        self._believed: dict[int, str] = {}
        self._candidates: dict[int, tuple[str, int]] = {}

    def learn(self, counts_by_layer: Mapping[int, Sequence[int]], without: Collection[int]) -> None:
        """Take the three counts of :func:`gradcanary.stats.accumulation.low_bits` by layer, except some layers."""
        for layer, counts in counts_by_layer.items():
            if layer not in without:
                self._learn(layer, *counts)

    def dtype_of(self, layer: int, stored: str | None) -> str | None:
        """Return the dtype that the values of a layer show, None if there is no evidence yet."""
        return stored if stored in _LOW else self._believed.get(layer) if stored == "float32" else None

    def _learn(self, layer: int, showing: int, below_bfloat16: int, below_float16: int) -> None:
        if below_float16:
            self._believed[layer] = "float32"
            self._candidates.pop(layer, None)
            return
        if showing < ENOUGH or layer in self._tables:
            return
        shown = "float16" if below_bfloat16 else "bfloat16"
        before, times = self._candidates.get(layer, (shown, 0))
        self._candidates[layer] = (shown, times + 1 if before == shown else 1)
        if self._candidates[layer][1] >= AGREEING:
            self._believed[layer] = shown


CERTAIN_UNDONE = 3
"""Measured updates of a layer in a row that are undone, before a fact is made of them: a loop may try some steps and
load the old weights again."""

TELLING = 16
"""Elements of one of the layers, at least: where steps have one size, as with signs of gradients, a few elements at
their optimum go back and forth between two values. 16 of them do not, by noise, in step with one another."""

MOST_UNDONE_FACTS = 8
"""Each names further layers."""


class UndoneUpdates:
    """Follows the layers, by name, that are back at their values of before a step when a later sampled one begins."""

    def __init__(self) -> None:
        self._times: dict[str, int] = {}
        self._named: set[str] = set()
        self._facts = 0

    def read(self, layers: Sequence[wire.Layer], step: int, found: DecodedSamples) -> tuple[wire.Fact, ...]:
        """Return a fact with the layers whose updates are certain to be undone, of more than one if there are some."""
        for layer in found.had_moved:
            name = layers[layer].name
            self._times[name] = self._times.get(name, 0) + 1 if layer in found.undone else 0
        certain = {name for layer in found.undone if self._times[name := layers[layer].name] >= CERTAIN_UNDONE}
        if not certain - self._named or self._facts >= MOST_UNDONE_FACTS:
            return ()
        suspects = [layer for layer in layers if self._times.get(layer.name)]
        if len(suspects) < min(2, len(layers)) or not any(layer.local_numel >= TELLING for layer in suspects):
            return ()
        names = [layer.name for layer in suspects if self._times[layer.name] >= CERTAIN_UNDONE - 1]
        names = [name for name in names if name not in self._named]
        self._named.update(names)
        self._facts += 1
        return (facts.undone_updates(names, step),)


# -- clips -------------------------------------------------------------------------------------------------------------

CLIPPED_BELOW = 1 - 1e-5
"""A ratio of norms below this is a clip. The same kernel measures both, so an untouched gradient gives 1."""

CERTAIN_CLIPS = 3
"""Clips in a row to the same limit, before a fact is made of them."""

_LIMIT_DIGITS, _LIMIT_TOLERANCE = 2, 1e-4
"""A limit in a script has at most two digits, as 0.5 or 1.0; the norms have it to about a millionth."""


CLIPS_OF_A_NORM, NORM_TOLERANCE, NORMS_APART = 5, 0.01, 1.05
"""Clips in a row that leave the same norm, within a rounding of bfloat16, of norms that differ: otherwise the loop may
scale gradients, or clip each value."""


class ClipDetector:
    """Follows the clips of a session in their order; ``settings`` gets the norm to which they clip."""

    def __init__(self, settings: SettingsLog) -> None:
        self._settings = settings
        self._clips: deque[tuple[float, float]] = deque(maxlen=CLIPS_OF_A_NORM)
        self._max_norm: float | None = None
        self._last_clip: int | None = None
        self._limit: float | None = None
        self._times = 0
        self._is_reported = False

    def read(self, record: StepRecord, found: DecodedSamples, row: StepRow) -> tuple[wire.Fact, ...]:
        """Add total norm and clip factor to the row; return a fact once the clips are known to be wrong.

        Both need gradients before the clip, so a sample of the step hook gives none. The total is over the gradients of
        one backward pass: its clip takes all of them together.
        """
        norms, probe = found.joint, of_kind(record.parts, Kind.PROBE)
        if found.phase == "post_clip" or not (norms and found.is_whole) or not all(map(math.isfinite, norms)):
            return ()
        total = math.sqrt(math.fsum(value * value for value in norms))
        row.metrics.append((("total_norm", ()), record.step, total))
        before = 0.0 if probe is None else found.norm.get(probe.layers[0], 0.0)
        if probe is None or before == 0.0:
            return ()
        factor = number_of(probe.value) / scale_of(record.parts, Kind.PROBE_SCALE) / before
        if factor <= 1 + 1e-3:
            row.metrics.append((("clip_factor", ()), record.step, min(factor, 1.0)))
        row.clipped = int(factor < CLIPPED_BELOW)
        if row.clipped and 0 < factor * total < math.inf:
            self._note_max_norm(record.step, factor * total, total)
        return self._judge(factor * total, scale_of(record.parts, Kind.LOSS_SCALE)) if row.clipped else ()

    def _note_max_norm(self, step: int, left: float, total: float) -> None:
        """Note the norm that the clips leave, once it is certain, and once it is another one."""
        self._clips.append((left, total))
        lefts, totals = zip(*self._clips, strict=True)
        is_constant = max(lefts) <= (1 + NORM_TOLERANCE) * min(lefts) and max(totals) >= NORMS_APART * min(totals)
        if not is_constant or len(lefts) < CLIPS_OF_A_NORM:
            return
        limit = sorted(lefts)[len(lefts) // 2]
        if self._max_norm is None or not _is_alike(limit, self._max_norm):
            short = float(f"{limit:.1e}")
            limit = short if _is_alike(limit, short) else float(f"{limit:.2e}")
            self._settings.add_clip(step, None if self._max_norm is None else self._last_clip, limit)
            self._max_norm = limit
        self._last_clip = step

    def _judge(self, left: float, scale: float) -> tuple[wire.Fact, ...]:
        """Return a fact if the loop clips scaled gradients: then the rest times the loss scale is a short number.

        A clip leaves exactly its limit, and scaled gradients are unscaled after it: 1.0 becomes 1.0 / 65536.
        """
        limit = None if _as_written(left) else _as_written(left * scale)
        self._times = self._times + 1 if limit is not None and limit == self._limit else 1
        self._limit = limit
        if limit is None or self._times < CERTAIN_CLIPS or self._is_reported:
            return ()
        self._is_reported = True
        return (_clip_fact(limit, scale),)


def _is_alike(left: float, limit: float) -> bool:
    return abs(left - limit) <= NORM_TOLERANCE * limit


def _as_written(value: float) -> float | None:
    """Return the number of two digits that a value equals, None if it equals none."""
    if not 0 < value < math.inf:
        return None
    short = float(f"{value:.{_LIMIT_DIGITS - 1}e}")
    return short if abs(value - short) <= _LIMIT_TOLERANCE * short else None


def _clip_fact(limit: float, scale: float) -> wire.Fact:
    return wire.Fact(
        code="clip_before_unscale",
        text=f"Gradients are clipped to a norm of {limit:g} while they carry the loss scale, now {scale:g}: unscaled, "
        f"{number(limit / scale)} is left of them. scaler.unscale_(optimizer) belongs before the clip.",
        layers=(),
    )
