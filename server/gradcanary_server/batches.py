"""A batch as arrays: its columns decoded once, every promise of the wire checked; pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pybase64
from numpy.typing import NDArray

from gradcanary import wire
from gradcanary_server.errors import RequestError, invalid
from gradcanary_server.requests import LIMITS, MAX_DTYPE, MAX_STEP, check_int, check_member, check_text

EVERY = (1, 10, 100, 1000)
MAX_MICRO_STEPS = 2**15 - 1
MAX_METRICS = 1_000
MAX_METRIC_NAME = 200
MAX_TAGS = 2_000

NO_PHASE = 255
"""The phase of a step whose stat has none."""

MEASURED, ZERO, NONFINITE = (wire.STATES.index(state) for state in ("measured", "zero", "nonfinite"))


@dataclass(frozen=True)
class MetricColumn:
    """A sparse series: ``tags`` is canonical JSON, ``steps`` int64[m] as sent, ``values`` float64[m]."""

    name: str
    tags: str
    steps: NDArray[np.int64]
    values: NDArray[np.float64]


@dataclass(frozen=True)
class Columns:
    """A decoded batch of n steps and L layers; never written to after :func:`decode`.

    ``steps`` int64[n], ``times`` float64[n], ``micro_steps`` int16[n], ``skipped`` uint8[n], ``clipped`` bool[n],
    ``state`` uint8[n, L]; per stat ``values`` float32[n, L] (NaN where nothing was sent or the state says why) and
    ``phases`` uint8[n] (index into wire.PHASES, or NO_PHASE). With n = 0 the width L is 0 and unknown. ``own`` holds by
    step the layers, 0 to L - 1, of what was nonfinite before a reduction, a block of its own; only of a decoded batch.
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
        """Return how many numbers were measured or logged."""
        planes = sum(int(np.count_nonzero(np.isfinite(plane))) for plane in self.values.values())
        return planes + sum(len(metric.steps) for metric in self.metrics)


def decode(batch: wire.Batch) -> Columns:
    """Return the arrays of a batch; raises RequestError 422 for what breaks the wire, 413 for too many points."""
    steps = _rising(batch.steps, "steps")
    check_member(str(batch.every), "every", tuple(map(str, EVERY)))
    check_int(batch.dropped_steps, "dropped_steps", 0, MAX_STEP)
    state = _state_plane(batch.state, len(steps))
    width = state.shape[1]
    values, phases = _stats(batch.blocks, batch.steps, steps, state)
    _check_accumulators(batch.accumulators, width if len(steps) else LIMITS.max_layers)
    return Columns(
        layer_set=batch.layer_set,
        every=batch.every,
        steps=steps,
        times=_finite(_column(batch.times, np.dtype("<f8"), (len(steps),), "times"), "times"),
        micro_steps=_small(batch.micro_steps, len(steps), MAX_MICRO_STEPS, "micro_steps").astype(np.int16),
        skipped=_small(batch.skipped, len(steps), 2, "skipped").astype(np.uint8),
        clipped=_small(batch.clipped, len(steps), 1, "clipped").astype(np.bool_),
        state=state,
        values=values,
        phases=phases,
        accumulators=batch.accumulators,
        metrics=_metrics(batch.metrics),
        dropped_steps=batch.dropped_steps,
        own=_own(batch.blocks, state.shape[1]),
    )


def _own(blocks: tuple[wire.Block, ...], width: int) -> Mapping[int, frozenset[int]]:
    found: dict[int, frozenset[int]] = {}
    for block in blocks:
        if (block.stat, block.phase) == ("nonfinite", "micro"):
            layers = frozenset(range(width) if block.layers is None else block.layers)
            found.update({step: found.get(step, frozenset()) | layers for step in block.steps})
    return found


def _rising(steps: tuple[int, ...], field: str) -> NDArray[np.int64]:
    if steps and not (min(steps) >= 0 and max(steps) <= MAX_STEP):
        raise invalid(f"A step is 0 to {MAX_STEP}.", field)
    array = np.array(steps, np.int64)
    if (np.diff(array) <= 0).any():
        raise invalid("Steps rise strictly.", field)
    return array


def _state_plane(text: str, steps: int) -> NDArray[np.uint8]:
    plane = np.frombuffer(_unbase64(text, "state"), np.uint8)
    if plane.size > LIMITS.max_points:
        raise RequestError(413, "too_large", f"A batch has at most {LIMITS.max_points} points.", "state")
    if (steps == 0 and plane.size) or (steps and (plane.size == 0 or plane.size % steps)):
        raise invalid(f"The state plane has {plane.size} cells, no whole number of layers for {steps} steps.", "state")
    if plane.size and plane.max() >= len(wire.STATES):
        raise invalid(f"A state is 0 to {len(wire.STATES) - 1}.", "state")
    return plane.reshape(steps, plane.size // steps if steps else 0)


def _stats(
    blocks: tuple[wire.Block, ...], told: tuple[int, ...], steps: NDArray[np.int64], state: NDArray[np.uint8]
) -> tuple[dict[str, NDArray[np.float32]], dict[str, NDArray[np.uint8]]]:
    """Return the planes of values and the phases of each stat; ``steps`` are those ``told`` by the batch, checked."""
    values: dict[str, NDArray[np.float32]] = {}
    phases: dict[str, NDArray[np.uint8]] = {}
    sent: dict[str, NDArray[np.bool_]] = {}
    points = 0
    for number, block in enumerate(blocks):
        field = f"blocks.{number}"
        _check_kind(block, field)
        rows = np.arange(len(steps)) if block.steps == told else _rows(block, steps, f"{field}.steps")
        columns = _layers(block, state.shape[1], f"{field}.layers")
        points += len(rows) * len(columns)
        if points > LIMITS.max_points:
            raise RequestError(413, "too_large", f"A batch has at most {LIMITS.max_points} points.", field)
        if block.layers is None and len(rows) == len(steps) and block.stat not in sent:
            values[block.stat] = _block_values(block, state.shape, state, f"{field}.values")
            sent[block.stat] = np.ones(state.shape, np.bool_)
        else:
            _add_part(values, sent, block, np.ix_(rows, columns), state, field)
        if block.phase is not None:
            seen = phases.setdefault(block.stat, np.full(len(steps), NO_PHASE, np.uint8))
            seen[rows] = wire.PHASES.index(block.phase)
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
    part = _block_values(block, state[cells].shape, state[cells], f"{field}.values")
    plane = values.setdefault(block.stat, np.full(state.shape, np.nan, np.float32))
    if part.size:  # nothing can be added to a plane that came whole, and it is read-only
        filled[cells], plane[cells] = True, part


def _check_kind(block: wire.Block, field: str) -> None:
    check_member(block.stat, f"{field}.stat", wire.STATS)
    check_member(block.phase, f"{field}.phase", wire.PHASES)
    if block.stat == "absmax" and block.phase is None:
        raise invalid("absmax has a phase.", f"{field}.phase")


def _rows(block: wire.Block, steps: NDArray[np.int64], field: str) -> NDArray[np.intp]:
    mine = _rising(block.steps, field)
    rows = np.searchsorted(steps, mine)
    if len(mine) and (rows[-1] >= len(steps) or (steps[rows] != mine).any()):
        raise invalid("A block's steps are steps of its batch.", field)
    return rows


def _layers(block: wire.Block, width: int, field: str) -> NDArray[np.intp]:
    if block.layers is None:
        return np.arange(width)
    if block.layers and not (min(block.layers) >= 0 and max(block.layers) < width):
        raise invalid(f"A layer index is 0 to {width - 1}.", field)
    if len(set(block.layers)) < len(block.layers):
        raise invalid(f"{block.stat} is there twice for a step and layer.", field)
    return np.array(block.layers, np.intp)


def _block_values(
    block: wire.Block, shape: tuple[int, ...], state: NDArray[np.uint8], field: str
) -> NDArray[np.float32]:
    values = _column(block.values, np.dtype("<f4"), shape, field)
    if values.size and values.min() >= 0 and values.max() < np.inf:  # false where one is NaN
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
        if record.layers and not (min(record.layers) >= 0 and max(record.layers) < width):
            raise invalid(f"A layer index is 0 to {width - 1}.", f"{field}.layers")
        for part in ("declared", "stored", "effective"):
            check_text(getattr(record, part), f"{field}.{part}", MAX_DTYPE)


def canonical(tags: Mapping[str, str]) -> str:
    """Return tags as the store knows them: equal ones are the same text."""
    return json.dumps(dict(tags), sort_keys=True, separators=(",", ":"))


def _metrics(metrics: tuple[wire.Metric, ...]) -> tuple[MetricColumn, ...]:
    if len(metrics) > MAX_METRICS:
        raise invalid(f"A batch carries at most {MAX_METRICS} metrics.", "metrics")
    return tuple(_metric(metric, f"metrics.{number}") for number, metric in enumerate(metrics))


def _metric(metric: wire.Metric, field: str) -> MetricColumn:
    check_text(metric.name, f"{field}.name", MAX_METRIC_NAME, shortest=1)
    for tag, value in metric.tags:
        check_text(tag, f"{field}.tags", MAX_METRIC_NAME, shortest=1)
        check_text(value, f"{field}.tags", MAX_METRIC_NAME)
    tags = canonical(dict(metric.tags))
    if len(tags) > MAX_TAGS:
        raise invalid(f"The tags of a metric have at most {MAX_TAGS} characters as JSON.", f"{field}.tags")
    if metric.steps and not (min(metric.steps) >= 0 and max(metric.steps) <= MAX_STEP):
        raise invalid(f"A step is 0 to {MAX_STEP}.", f"{field}.steps")
    steps = np.array(metric.steps, np.int64)
    values = _column(metric.values, np.dtype("<f8"), (len(steps),), f"{field}.values")
    return MetricColumn(metric.name, tags, steps, values.astype(np.float64))


def _small(numbers: tuple[int, ...], length: int, high: int, field: str) -> NDArray[np.int64]:
    if len(numbers) != length:
        raise invalid(f"There are {len(numbers)} numbers for {length} steps.", field)
    if numbers and not (min(numbers) >= 0 and max(numbers) <= high):
        raise invalid(f"These numbers are 0 to {high}.", field)
    return np.array(numbers, np.int64)


def _column(text: str, dtype: np.dtype[np.floating], shape: tuple[int, ...], field: str) -> NDArray[np.floating]:
    raw = _unbase64(text, field)
    if len(raw) != dtype.itemsize * int(np.prod(shape)):
        raise invalid(f"The column has {len(raw)} bytes; its shape {list(shape)} takes another number.", field)
    return np.frombuffer(raw, dtype).reshape(shape)


def _finite(values: NDArray[np.floating], field: str) -> NDArray[np.float64]:
    if not np.isfinite(values).all():
        raise invalid("A time is finite.", field)
    return values.astype(np.float64)


def _unbase64(text: str, field: str) -> bytes:
    try:
        return pybase64.b64decode(text, validate=True)
    except ValueError as error:
        raise invalid(f"This is not base64: {error}.", field) from error
