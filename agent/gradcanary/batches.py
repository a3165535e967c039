"""From rows to a batch: cutting and columns; pure."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from itertools import takewhile

from gradcanary import wire
from gradcanary.drafts import records_of
from gradcanary.readings import Row, Series, columns_of

MAX_STEPS = 64
MAX_SERIES = 1000
"""Of metrics in one batch: the collector refuses more; one is the agent's own."""

BYTES_PER_VALUE = 4 * 4 / 3
"""A float32 in base64."""

_HEADROOM = 20_000
"""Bytes of a batch that are no stat: its keys, steps and metrics."""


def cut(rows: Sequence[Row], limits: wire.Limits, max_steps: int) -> int:
    """Return how many of the first rows fit into one batch: at least one; all of one layer set and interval."""
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


def build(rows: Sequence[Row]) -> wire.Batch:
    """Return the batch of rows that are alike, with the accumulators of all layers that had a gradient in them."""
    sampled = [row for row in rows if row.states is not None]
    told = {layer: dtypes for row in rows for layer, dtypes in enumerate(row.accumulators) if dtypes is not None}
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
        accumulators=records_of(told),
        metrics=_metrics(rows),
        dropped_steps=0,
    )


def _blocks(rows: Sequence[Row]) -> tuple[wire.Block, ...]:
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


def _metrics(rows: Sequence[Row]) -> tuple[wire.Metric, ...]:
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
