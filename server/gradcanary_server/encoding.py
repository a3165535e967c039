"""Arrays as a batch of the wire: what :func:`gradcanary_server.batches.decode` reads back, number by number; pure."""

import json
from collections.abc import Iterator

import numpy as np
import pybase64
from numpy.typing import NDArray

from gradcanary import wire
from gradcanary_server.batches import NO_PHASE, Columns


def encode(columns: Columns) -> wire.Batch:
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
                each.name, tuple(json.loads(each.tags).items()), tuple(each.steps.tolist()), _packed(each.values, "<f8")
            )
            for each in columns.metrics
        ),
        dropped_steps=columns.dropped_steps,
    )


def _blocks(columns: Columns, stat: str) -> Iterator[wire.Block]:
    """Yield one block per phase and choice of layers."""
    plane = columns.values[stat]
    phases = columns.phases.get(stat, np.full(len(plane), NO_PHASE, np.uint8))
    there = ~np.isnan(plane)
    kinds: dict[tuple[int, bytes], list[int]] = {}
    for row, phase in enumerate(phases.tolist()):
        kinds.setdefault((phase, there[row].tobytes()), []).append(row)
    for (phase, _), rows in kinds.items():
        layers = np.flatnonzero(there[rows[0]])
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
