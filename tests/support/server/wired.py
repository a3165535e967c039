"""A trace as an agent sends it: a hello and batches, cut before any rows."""

import base64
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from gradcanary import wire
from gradcanary_server.rules.types import Launch
from support.streams import hello
from support.traces import Trace

IN_TURNS = {"accumulation_error": "accumulated", "norm_ratio": "accumulated", "zero_fraction": "accumulated"}
"""Stats that a layer has at some steps only, by phase; what is not here is of weights."""


def layer_set(of: Launch) -> wire.LayerSet:
    layers = tuple(
        wire.Layer(each.name, each.shape, int(np.prod(each.shape)), each.param_dtype, each.group, each.module_class)
        for each in of.layers
    )
    return wire.LayerSet(wire.layer_set_id(layers), layers)


def greeting(of: Launch, **changes: object) -> bytes:
    told = {"first_step": of.first_step, "late": of.late, "facts": of.facts, "launch": f"launch-{of.number}"}
    told |= {name: getattr(of, name) for name in ("absmax_below", "norm_below", "collapse_below")}
    return wire.dump(hello(layer_set(of), **told | changes))


def batches(trace: Trace, of: Launch, cuts: tuple[int, ...] = ()) -> Iterator[bytes]:
    """Yield the batches of a trace, cut before these rows and where records change."""
    rows = len(trace.absmax)
    borders = sorted({0, rows, *trace.records, *(each for each in cuts if each < rows)})
    for start, end in pairwise(borders):
        yield wire.dump(_batch(trace, layer_set(of).id, start, end))


def _batch(trace: Trace, set_id: str, start: int, end: int) -> wire.Batch:
    samples = trace.samples(start, end)
    steps, phase = tuple(samples.steps.tolist()), wire.PHASES[trace.phase]
    lr = [wire.Metric(f"lr{group}", (), steps, _column(values, "<f8")) for group, values in enumerate(samples.lr.T)]
    loss = wire.Metric("loss", (), tuple(samples.loss_steps.tolist()), _column(samples.loss, "<f8"))
    dense = (wire.Block(stat, phase, steps, None, _column(samples.values[stat], "<f4")) for stat in ("absmax", "norm"))
    return wire.Batch(
        layer_set=set_id,
        every=trace.every,
        steps=steps,
        times=_column(samples.steps, "<f8"),
        micro_steps=tuple(samples.micro_steps.tolist()),
        skipped=tuple(samples.skipped.tolist()),
        clipped=tuple(map(int, samples.clipped.tolist())),
        state=_column(samples.state, "u1"),
        blocks=(*dense, *_in_turns(samples)),
        accumulators=samples.accumulators,
        metrics=(*lr, loss),
        dropped_steps=0,
    )


def _in_turns(samples) -> Iterator[wire.Block]:
    for stat in sorted(set(samples.values) - {"absmax", "norm"}):
        values = samples.values[stat]
        for layer in range(values.shape[1]):
            rows = np.flatnonzero(~np.isnan(values[:, layer]))
            steps, column = tuple(samples.steps[rows].tolist()), _column(values[rows, layer], "<f4")
            if len(rows):
                yield wire.Block(stat, IN_TURNS.get(stat), steps, (layer,), column)


def _column(values: np.ndarray, dtype: str) -> str:
    return base64.b64encode(np.asarray(values).astype(dtype).tobytes()).decode()
