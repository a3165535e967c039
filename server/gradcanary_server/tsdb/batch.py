"""Wire batches and numpy columns: checks, decoding, encoding; pure.

:func:`check_batch` checks sizes, names and ids without arrays; :func:`decode_batch` checks the values in the columns.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pybase64
from numpy.typing import NDArray

from gradcanary import wire
from gradcanary_server.errors import RequestError, invalid
from gradcanary_server.rules.types import MEASURED, ZERO
from gradcanary_server.validation import LIMITS, MAX_DTYPE, MAX_STEP, Reader, check_int, check_member, check_text

EVERY = (1, 10, 100, 1000)
MAX_MICRO_STEPS = 2**15 - 1
MAX_METRICS = 1_000
MAX_METRIC_NAME = 200
MAX_TAGS = 2_000

NO_PHASE = 255
"""The phase of a step whose stat has none."""


@dataclass(frozen=True)
class MetricColumn:
    """A sparse series: ``tags`` is canonical JSON, ``steps`` int64[m] as sent, ``values`` float64[m]."""

    name: str
    tags: str
    steps: NDArray[np.int64]
    values: NDArray[np.float64]


@dataclass(frozen=True)
class Columns:
    """A decoded batch of n steps and L layers; never written to after :func:`decode_batch`.

    ``steps`` int64[n], ``times`` float64[n], ``micro_steps`` int16[n], ``skipped`` uint8[n], ``clipped`` bool[n],
    ``state`` uint8[n, L]; per stat ``values`` float32[n, L] (NaN where nothing was sent or the state says why) and
    ``phases`` uint8[n] (index into wire.PHASES, or NO_PHASE). With n = 0 the width L is 0 and unknown. ``own`` holds by
    step the layers, 0 to L - 1, that were nonfinite before a reduction: agents send them in a block of its own.
    """

    layer_set: str
    every: int
    steps: NDArray[np.int64]
    times: NDArray[np.float64]
    micro_steps: NDArray[np.int16]
    skipped: NDArray[np.uint8]
    clipped: NDArray[np.bool_]
    state: NDArray[np.uint8]
    values: dict[str, NDArray[np.float32]]
    phases: dict[str, NDArray[np.uint8]]
    accumulators: tuple[wire.Accumulator, ...]
    metrics: tuple[MetricColumn, ...]
    dropped_steps: int
    own: Mapping[int, frozenset[int]] = field(default_factory=dict)

    def nbytes(self) -> int:
        """Return the memory that the arrays take, in bytes."""
        planes = sum(plane.nbytes for plane in self.values.values())
        metrics = sum(metric.steps.nbytes + metric.values.nbytes for metric in self.metrics)
        return planes + metrics + self.state.nbytes + 64 * len(self.steps)

    def points(self) -> int:
        """Return the number of values that were measured or logged."""
        planes = sum(int(np.count_nonzero(np.isfinite(plane))) for plane in self.values.values())
        return planes + sum(len(metric.steps) for metric in self.metrics)


def check_batch(batch: wire.Batch) -> None:
    """Raise RequestError 422 for wrong sizes, names and integers, 413 for too many points.

    It makes no arrays: :func:`decode_batch` checks the values in the columns.
    """
    count = len(batch.steps)
    _check_rising(batch.steps, "steps")
    check_member(str(batch.every), "every", tuple(map(str, EVERY)))
    check_int(batch.dropped_steps, "dropped_steps", 0, MAX_STEP)
    width = _width(_decoded_size(batch.state, "state"), count)
    _check_column(_decoded_size(batch.times, "times"), np.dtype("<f8"), count, "times")
    _check_small(batch.micro_steps, count, MAX_MICRO_STEPS, "micro_steps")
    _check_small(batch.skipped, count, 2, "skipped")
    _check_small(batch.clipped, count, 1, "clipped")
    _check_blocks(batch, width)
    _check_accumulators(batch.accumulators, width if count else LIMITS.max_layers)
    _check_metrics(batch.metrics)


def decode_batch(batch: wire.Batch) -> Columns:
    """Return the arrays of a batch that :func:`check_batch` accepted; raises RequestError 422 for wrong values."""
    steps = np.array(batch.steps, np.int64)
    state = _state_plane(batch.state, len(steps))
    values, phases = _stats(batch.blocks, batch.steps, steps, state)
    return Columns(
        layer_set=batch.layer_set,
        every=batch.every,
        steps=steps,
        times=_times(batch.times),
        micro_steps=np.array(batch.micro_steps, np.int16),
        skipped=np.array(batch.skipped, np.uint8),
        clipped=np.array(batch.clipped, np.bool_),
        state=state,
        values=values,
        phases=phases,
        accumulators=batch.accumulators,
        metrics=tuple(_metric(metric, f"metrics.{number}") for number, metric in enumerate(batch.metrics)),
        dropped_steps=batch.dropped_steps,
        own=_own(batch.blocks, state.shape[1]),
    )


def _own(blocks: tuple[wire.Block, ...], width: int) -> Mapping[int, frozenset[int]]:
    layers_of: dict[int, frozenset[int]] = {}
    for block in blocks:
        if (block.stat, block.phase) == ("nonfinite", "micro"):
            layers = frozenset(range(width) if block.layers is None else block.layers)
            layers_of.update({step: layers_of.get(step, frozenset()) | layers for step in block.steps})
    return layers_of


def _check_bounds(numbers: tuple[int, ...], high: int, what: str, field: str) -> None:
    if numbers and not (min(numbers) >= 0 and max(numbers) <= high):
        raise invalid(f"{what} 0 to {high}.", field)


def _check_rising(steps: tuple[int, ...], field: str) -> None:
    _check_bounds(steps, MAX_STEP, "A step is", field)
    if any(following <= step for step, following in pairwise(steps)):
        raise invalid("Steps rise strictly.", field)


def _check_blocks(batch: wire.Batch, width: int) -> None:
    points, steps = 0, frozenset(batch.steps)
    for number, block in enumerate(batch.blocks):
        field = f"blocks.{number}"
        _check_kind(block, field)
        if block.steps != batch.steps:
            _check_rising(block.steps, f"{field}.steps")
            if not steps.issuperset(block.steps):
                raise invalid("A block's steps are steps of its batch.", f"{field}.steps")
        _check_layers(block, width, f"{field}.layers")
        cells = len(block.steps) * (width if block.layers is None else len(block.layers))
        points += cells
        if points > LIMITS.max_points:
            raise RequestError(413, "too_large", f"A batch has at most {LIMITS.max_points} points.", field)
        _check_column(_decoded_size(block.values, f"{field}.values"), np.dtype("<f4"), cells, f"{field}.values")


def _width(cells: int, steps: int) -> int:
    """Return the number of layers of a state plane."""
    if cells > LIMITS.max_points:
        raise RequestError(413, "too_large", f"A batch has at most {LIMITS.max_points} points.", "state")
    if (steps == 0 and cells) or (steps and (cells == 0 or cells % steps)):
        raise invalid(f"The state plane has {cells} cells, no whole number of layers for {steps} steps.", "state")
    return cells // steps if steps else 0


def _state_plane(text: str, steps: int) -> NDArray[np.uint8]:
    plane = np.frombuffer(_unbase64(text, "state"), np.uint8)
    if plane.size and plane.max() >= len(wire.STATES):
        raise invalid(f"A state is 0 to {len(wire.STATES) - 1}.", "state")
    return plane.reshape(steps, _width(plane.size, steps))


def _stats(
    blocks: tuple[wire.Block, ...], batch_steps: tuple[int, ...], steps: NDArray[np.int64], state: NDArray[np.uint8]
) -> tuple[dict[str, NDArray[np.float32]], dict[str, NDArray[np.uint8]]]:
    """Return the planes of values and the phases of each stat; ``steps`` are the ``batch_steps`` as an array."""
    values: dict[str, NDArray[np.float32]] = {}
    phases: dict[str, NDArray[np.uint8]] = {}
    sent: dict[str, NDArray[np.bool_]] = {}
    for number, block in enumerate(blocks):
        field = f"blocks.{number}"
        rows = np.arange(len(steps))
        if block.steps != batch_steps:
            rows = np.searchsorted(steps, np.array(block.steps, np.int64))
        columns = np.arange(state.shape[1]) if block.layers is None else np.array(block.layers, np.intp)
        if block.layers is None and len(rows) == len(steps) and block.stat not in sent:
            values[block.stat] = _block_values(block, state, f"{field}.values")
            sent[block.stat] = np.ones(state.shape, np.bool_)
        else:
            _add_part(values, sent, block, np.ix_(rows, columns), state, field)
        if block.phase is not None:
            column = phases.setdefault(block.stat, np.full(len(steps), NO_PHASE, np.uint8))
            column[rows] = wire.PHASES.index(block.phase)
    return values, phases


def _add_part(
    values: dict[str, NDArray[np.float32]],
    sent: dict[str, NDArray[np.bool_]],
    block: wire.Block,
    cells: tuple[NDArray[np.intp], ...],
    state: NDArray[np.uint8],
    field: str,
) -> None:
    filled = sent.setdefault(block.stat, np.zeros(state.shape, np.bool_))
    if filled[cells].any():
        raise invalid(f"{block.stat} is there twice for a step and layer.", field)
    part = _block_values(block, state[cells], f"{field}.values")
    plane = values.setdefault(block.stat, np.full(state.shape, np.nan, np.float32))
    if part.size:  # a plane that came in one block is read-only, and nothing can be added to it
        filled[cells], plane[cells] = True, part


def _check_kind(block: wire.Block, field: str) -> None:
    check_member(block.stat, f"{field}.stat", wire.STATS)
    check_member(block.phase, f"{field}.phase", wire.PHASES)
    if block.stat == "absmax" and block.phase is None:
        raise invalid("absmax has a phase.", f"{field}.phase")


def _check_layers(block: wire.Block, width: int, field: str) -> None:
    if not block.layers:
        return
    _check_bounds(block.layers, width - 1, "A layer index is", field)
    if len(set(block.layers)) < len(block.layers):
        raise invalid(f"{block.stat} is there twice for a step and layer.", field)


def _block_values(block: wire.Block, state: NDArray[np.uint8], field: str) -> NDArray[np.float32]:
    values = _column(block.values, np.dtype("<f4"), field).reshape(state.shape)
    if values.size and values.min() >= 0 and values.max() < np.inf:  # False if one is NaN
        return values.astype(np.float32, copy=False)
    if np.isinf(values).any():
        raise invalid("An infinity is no value here; the state says nonfinite and the value is NaN.", field)
    if (np.isnan(values) & ((state == MEASURED) | (state == ZERO))).any():
        raise invalid("A NaN where the state says measured or zero.", field)
    if (values < 0).any():
        raise invalid("No stat is negative.", field)
    return values.astype(np.float32)


def _check_accumulators(records: tuple[wire.Accumulator, ...], width: int) -> None:
    for number, record in enumerate(records):
        field = f"accumulators.{number}"
        _check_bounds(record.layers or (), width - 1, "A layer index is", f"{field}.layers")
        for part in ("declared", "stored", "effective"):
            check_text(getattr(record, part), f"{field}.{part}", MAX_DTYPE)


def canonical_tags(tags: Mapping[str, str]) -> str:
    """Return tags as stored: equal ones are the same text."""
    return json.dumps(dict(tags), sort_keys=True, separators=(",", ":")) if tags else "{}"


def _check_metrics(metrics: tuple[wire.Metric, ...]) -> None:
    if len(metrics) > MAX_METRICS:
        raise invalid(f"A batch carries at most {MAX_METRICS} metrics.", "metrics")
    for number, metric in enumerate(metrics):
        _check_metric(metric, f"metrics.{number}")


def _check_metric(metric: wire.Metric, field: str) -> None:
    check_text(metric.name, f"{field}.name", MAX_METRIC_NAME, shortest=1)
    for tag, value in metric.tags:
        check_text(tag, f"{field}.tags", MAX_METRIC_NAME, shortest=1)
        check_text(value, f"{field}.tags", MAX_METRIC_NAME)
    if len(canonical_tags(dict(metric.tags))) > MAX_TAGS:
        raise invalid(f"The tags of a metric have at most {MAX_TAGS} characters as JSON.", f"{field}.tags")
    _check_bounds(metric.steps, MAX_STEP, "A step is", f"{field}.steps")
    size = _decoded_size(metric.values, f"{field}.values")
    _check_column(size, np.dtype("<f8"), len(metric.steps), f"{field}.values")


def _metric(metric: wire.Metric, field: str) -> MetricColumn:
    values = _column(metric.values, np.dtype("<f8"), f"{field}.values").astype(np.float64)
    return MetricColumn(metric.name, canonical_tags(dict(metric.tags)), np.array(metric.steps, np.int64), values)


def _check_small(numbers: tuple[int, ...], length: int, high: int, field: str) -> None:
    if len(numbers) != length:
        raise invalid(f"There are {len(numbers)} numbers for {length} steps.", field)
    _check_bounds(numbers, high, "These numbers are", field)


def _check_column(size: int, dtype: np.dtype[np.floating], count: int, field: str) -> None:
    if size != dtype.itemsize * count:
        raise invalid(f"The column has {size} bytes; {count} numbers take {dtype.itemsize * count}.", field)


def _column(text: str, dtype: np.dtype[np.floating], field: str) -> NDArray[np.floating]:
    return np.frombuffer(_unbase64(text, field), dtype)


def _times(text: str) -> NDArray[np.float64]:
    times = _column(text, np.dtype("<f8"), "times")
    if not np.isfinite(times).all():
        raise invalid("A time is finite.", "times")
    return times.astype(np.float64)


def _decoded_size(text: str, field: str) -> int:
    """Return the number of bytes in a text if it is base64."""
    if len(text) % 4:
        raise invalid("This is not base64: its length is no multiple of 4.", field)
    return len(text) // 4 * 3 - text[-2:].count("=")


def _unbase64(text: str, field: str) -> bytes:
    try:
        return pybase64.b64decode(text, validate=True)
    except ValueError as error:
        raise invalid(f"This is not base64: {error}.", field) from error


def encode_batch(columns: Columns) -> wire.Batch:
    """Return the batch that decodes into these columns."""
    return wire.Batch(
        layer_set=columns.layer_set,
        every=columns.every,
        steps=tuple(columns.steps.tolist()),
        times=_packed(columns.times, "<f8"),
        micro_steps=tuple(columns.micro_steps.tolist()),
        skipped=tuple(columns.skipped.tolist()),
        clipped=tuple(columns.clipped.astype(np.int64).tolist()),
        state=_packed(columns.state, "u1"),
        blocks=tuple(block for stat in columns.values for block in _blocks(columns, stat)),
        accumulators=columns.accumulators,
        metrics=tuple(
            wire.Metric(
                metric.name,
                tuple(json.loads(metric.tags).items()),
                tuple(metric.steps.tolist()),
                _packed(metric.values, "<f8"),
            )
            for metric in columns.metrics
        ),
        dropped_steps=columns.dropped_steps,
    )


def _blocks(columns: Columns, stat: str) -> Iterator[wire.Block]:
    """Yield one block per phase and choice of layers."""
    plane = columns.values[stat]
    phases = columns.phases.get(stat, np.full(len(plane), NO_PHASE, np.uint8))
    is_sent = ~np.isnan(plane)
    rows_of: dict[tuple[int, bytes], list[int]] = {}
    for row, phase in enumerate(phases.tolist()):
        rows_of.setdefault((phase, is_sent[row].tobytes()), []).append(row)
    for (phase, _), rows in rows_of.items():
        layers = np.flatnonzero(is_sent[rows[0]])
        if len(layers):
            yield wire.Block(
                stat=stat,
                phase=None if phase == NO_PHASE else wire.PHASES[phase],
                steps=tuple(columns.steps[rows].tolist()),
                layers=None if len(layers) == plane.shape[1] else tuple(layers.tolist()),
                values=_packed(plane[rows][:, layers], "<f4"),
            )


def _packed(values: NDArray[np.generic], dtype: str) -> str:
    return pybase64.b64encode_as_string(np.ascontiguousarray(values.astype(dtype)).tobytes())


_BATCH = Reader(wire.Batch)


def parse_batch(raw: bytes) -> wire.Batch:
    """Return the batch in a body; :func:`check_batch` has to check it."""
    return _BATCH.read(raw)
