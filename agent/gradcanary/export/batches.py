"""From rows to a batch: cutting and columns; pure."""

from __future__ import annotations

import base64
import json
import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from gradcanary import wire
from gradcanary.stats.samples import NONFINITE, PARTIAL

MAX_STEPS = 64
MAX_SERIES = 1000
"""Series of metrics in one batch: the collector refuses more. One is the agent's own."""

BYTES_PER_VALUE = 4 * 4 / 3
"""A float32 in base64."""

_HEADROOM = 20_000
"""Bytes of a batch beside its stats: keys, steps and metrics."""

Dtypes = tuple[str | None, str | None, str | None]
"""The dtypes of a layer's accumulator: declared, stored, effective."""

Series = tuple[str, tuple[tuple[str, str], ...]]


@dataclass
class Column:
    """One stat of a step: float32 values of all layers, or of some."""

    phase: str | None
    layers: tuple[int, ...] | None
    values: array[float]


@dataclass
class StepRow:
    """One closed window in numbers; ``states`` is None at steps that are not sampled.

    ``accumulators`` are the dtypes in which the layers that had a gradient were summed. ``local_nonfinite`` are the
    layers whose gradient was not finite in this process, before a reduction.
    """

    layer_set: wire.LayerSet
    step: int
    time: float
    micro_steps: int
    skipped: int
    clipped: int
    states: bytes | None
    accumulators: tuple[Dtypes | None, ...]
    agent_share: float
    every: int
    local_nonfinite: tuple[int, ...] = ()
    columns: dict[str, Column] = field(default_factory=dict)
    metrics: list[tuple[Series, int, float]] = field(default_factory=list)


def local_nonfinite_only(row: StepRow) -> StepRow | None:
    """Return the non-finite layers of a process that sends nothing else, None if there are none."""
    bad = row.local_nonfinite
    if row.states is None or not bad:
        return None
    states = bytearray([PARTIAL]) * len(row.states)
    for layer in bad:
        states[layer] = NONFINITE
    column = Column("micro", bad, array("f", [1.0]) * len(bad))
    return replace(row, states=bytes(states), accumulators=(), columns={"nonfinite": column}, metrics=[])


def columns_of(row: StepRow) -> Iterator[tuple[str, Column]]:
    """Yield stats and columns. What is not finite in this process alone has a column of its own, of the phase micro."""
    for stat, column in row.columns.items():
        if stat != "nonfinite" or column.phase == "micro" or not row.local_nonfinite:
            yield stat, column
            continue
        values = dict(zip(column.layers or (), column.values, strict=True))
        own = {layer: value for layer, value in values.items() if layer in row.local_nonfinite}
        rest = {layer: value for layer, value in values.items() if layer not in own}
        for phase, some in (("micro", own), (column.phase, rest)):
            if some:
                yield stat, Column(phase, tuple(some), array("f", some.values()))


def count_fitting(rows: Sequence[StepRow], limits: wire.Limits, max_steps: int) -> int:
    """Return the number of first rows that fit into one batch: at least one, all of one layer set and interval."""
    layer_set, every = rows[0].layer_set, rows[0].every
    alike = sum(1 for _ in takewhile(lambda row: row.layer_set is layer_set and row.every == every, rows[:max_steps]))
    size, points = _HEADROOM, 0
    series: set[Series] = set()
    for count, row in enumerate(rows[:alike]):
        columns = [column for _, column in columns_of(row)]
        cells = sum(len(column.values) for column in columns)
        lists = [column.layers for column in columns if column.layers is not None]
        # A block of some steps and all layers can be no larger than its cells; metrics take about 60 bytes each. One
        # of some layers may be a block of its own at each step.
        size += math.ceil(cells * BYTES_PER_VALUE + len(row.states or b"") * 4 / 3 + 60 * len(row.metrics))
        size += sum(110 + 6 * len(layers) for layers in lists)
        points += cells
        series.update(key for key, _, _ in row.metrics)
        if count and (size > limits.max_body or points > limits.max_points or len(series) >= MAX_SERIES):
            return count
    return alike


def build_batch(rows: Sequence[StepRow]) -> wire.Batch:
    """Return the batch of rows that are alike, with the accumulators of all layers that had a gradient in them."""
    sampled = [row for row in rows if row.states is not None]
    accumulators = {
        layer: dtypes for row in rows for layer, dtypes in enumerate(row.accumulators) if dtypes is not None
    }
    return wire.Batch(
        layer_set=rows[0].layer_set.id,
        every=rows[0].every,
        steps=tuple(row.step for row in sampled),
        times=wire.column("d", [row.time for row in sampled]),
        micro_steps=tuple(min(row.micro_steps, 2**15 - 1) for row in sampled),
        skipped=tuple(row.skipped for row in sampled),
        clipped=tuple(row.clipped for row in sampled),
        state=wire.column("B", b"".join(row.states or b"" for row in sampled)),
        blocks=_blocks(sampled),
        accumulators=accumulator_records(accumulators),
        metrics=_metrics(rows),
        dropped_steps=0,
    )


def _blocks(rows: Sequence[StepRow]) -> tuple[wire.Block, ...]:
    """Return one block per stat, phase and choice of layers."""
    kinds: dict[tuple[str, str | None, tuple[int, ...] | None], list[tuple[int, array[float]]]] = {}
    for row in rows:
        for stat, column in columns_of(row):
            kinds.setdefault((stat, column.phase, column.layers), []).append((row.step, column.values))
    return tuple(
        wire.Block(
            stat=stat,
            phase=phase,
            steps=tuple(step for step, _ in values),
            layers=layers,
            values=wire.column("f", array("f", b"".join(column.tobytes() for _, column in values))),
        )
        for (stat, phase, layers), values in kinds.items()
    )


def _metrics(rows: Sequence[StepRow]) -> tuple[wire.Metric, ...]:
    series: dict[Series, list[tuple[int, float]]] = {}
    for row in rows:
        for key, step, value in row.metrics:
            series.setdefault(key, []).append((step, value))
    if rows:
        series["agent_share", ()] = [(rows[-1].step, rows[-1].agent_share)]
    return tuple(
        wire.Metric(name, tags, tuple(step for step, _ in points), wire.column("d", [value for _, value in points]))
        for (name, tags), points in series.items()
    )


@dataclass(frozen=True)
class UnsentBatch:
    """A batch that reports the accumulators of all layers that had a gradient in it, and no dropped steps yet.

    ``made`` counts the sampled steps of the session up to its last one, dropped ones included.
    """

    batch: wire.Batch
    made: int

    @property
    def steps(self) -> int:
        """Sampled steps."""
        return len(self.batch.steps)

    def body(self, known: Mapping[int, Dtypes], dropped_steps: int) -> bytes:
        """Return the batch as it is sent, without the accumulators that the collector knows."""
        every = dtypes_by_layer(self.batch)
        changed = {layer: dtypes for layer, dtypes in every.items() if known.get(layer) != dtypes}
        return wire.dump(replace(self.batch, accumulators=accumulator_records(changed), dropped_steps=dropped_steps))


def set_dropped_steps(body: bytes, dropped_steps: int) -> bytes:
    """Return the bytes of a batch with this number of dropped steps, their last key."""
    rest, key, _ = body.rpartition(b'"dropped_steps":')
    return b"%b%b%d}" % (rest, key, dropped_steps)


def parse_batch(body: bytes) -> wire.Batch:
    """Return the batch of these bytes; raises ValueError if they are not a batch."""
    try:
        parts = {key: _frozen(value) for key, value in json.loads(body).items()}
        parts["blocks"] = tuple(wire.Block(**block) for block in parts["blocks"])
        parts["accumulators"] = tuple(wire.Accumulator(**record) for record in parts["accumulators"])
        parts["metrics"] = tuple(wire.Metric(**metric) for metric in parts["metrics"])
        return wire.Batch(**parts)
    except (AttributeError, LookupError, RecursionError, TypeError) as error:
        raise ValueError(f"this is not a batch ({type(error).__name__}: {error})") from error


def halve_batch(unsent: UnsentBatch) -> tuple[UnsentBatch, UnsentBatch] | None:
    """Cut a batch in two, metrics with their steps; None if all of it is of one step."""
    batch = unsent.batch
    moments = batch.steps if len(batch.steps) > 1 else sorted({*batch.steps, *_metric_steps(batch)})
    if len(moments) < 2:
        return None
    last = moments[(len(moments) - 1) // 2]
    first, second = (_half(batch, last, is_first=is_first) for is_first in (True, False))
    return UnsentBatch(first, unsent.made - len(second.steps)), UnsentBatch(second, unsent.made)


def dtypes_by_layer(batch: wire.Batch) -> dict[int, Dtypes]:
    """Return the dtypes of each layer's accumulator that a batch reports."""
    return {
        layer: (record.declared, record.stored, record.effective)
        for record in batch.accumulators
        for layer in record.layers
    }


def accumulator_records(accumulators: dict[int, Dtypes]) -> tuple[wire.Accumulator, ...]:
    """Return change records, one for each kind of accumulator."""
    kinds: dict[Dtypes, list[int]] = {}
    for layer, dtypes in accumulators.items():
        kinds.setdefault(dtypes, []).append(layer)
    return tuple(
        wire.Accumulator(tuple(sorted(layers)), declared, stored, effective)
        for (declared, stored, effective), layers in kinds.items()
    )


def _half(batch: wire.Batch, last: int, *, is_first: bool) -> wire.Batch:
    """Return the steps up to ``last``, or those after it."""
    keep = [row for row, step in enumerate(batch.steps) if (step <= last) is is_first]
    steps = [batch.steps[row] for row in keep]
    blocks = (_block(block, set(steps)) for block in batch.blocks)
    metrics = (_points(metric, last, is_first=is_first) for metric in batch.metrics)
    return replace(
        batch,
        steps=tuple(steps),
        times=_rows(batch.times, len(batch.steps), keep),
        micro_steps=tuple(batch.micro_steps[row] for row in keep),
        skipped=tuple(batch.skipped[row] for row in keep),
        clipped=tuple(batch.clipped[row] for row in keep),
        state=_rows(batch.state, len(batch.steps), keep),
        blocks=tuple(block for block in blocks if block.steps),
        metrics=tuple(metric for metric in metrics if metric.steps),
    )


def _block(block: wire.Block, steps: set[int]) -> wire.Block:
    keep = [row for row, step in enumerate(block.steps) if step in steps]
    kept = tuple(block.steps[row] for row in keep)
    return replace(block, steps=kept, values=_rows(block.values, len(block.steps), keep))


def _points(metric: wire.Metric, last: int, *, is_first: bool) -> wire.Metric:
    keep = [row for row, step in enumerate(metric.steps) if (step <= last) is is_first]
    kept = tuple(metric.steps[row] for row in keep)
    return replace(metric, steps=kept, values=_rows(metric.values, len(metric.steps), keep))


def _rows(column: str, count: int, keep: Iterable[int]) -> str:
    """Return some rows of a base64 column of ``count`` rows."""
    raw = base64.b64decode(column)
    width = len(raw) // count if count else 0
    return base64.b64encode(b"".join(raw[row * width : (row + 1) * width] for row in keep)).decode("ascii")


def _frozen(value: Any) -> Any:  # noqa: ANN401 -- whatever JSON holds
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    if isinstance(value, dict):
        return {key: _frozen(item) for key, item in value.items()}
    return value


def _metric_steps(batch: wire.Batch) -> Iterable[int]:
    return (step for metric in batch.metrics for step in metric.steps)
