"""Batches that wait for their number: thinned, halved, finished; pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gradcanary import wire

Dtypes = tuple[str | None, str | None, str | None]
"""Of a layer's accumulator: declared, stored, effective."""


@dataclass(frozen=True)
class Draft:
    """A batch without a number, which tells the accumulators of all layers that had a gradient in it.

    ``lost`` sampled steps are missing before its last step, ``lost_after`` behind it and before the next batch.
    """

    batch: wire.Batch
    lost: int = 0
    lost_after: int = 0


def load(body: bytes) -> wire.Batch:
    """Return the batch that was dumped; raises ValueError when it is none."""
    try:
        parts = {key: _frozen(value) for key, value in json.loads(body).items()}
        parts["blocks"] = tuple(wire.Block(**block) for block in parts["blocks"])
        parts["accumulators"] = tuple(wire.Accumulator(**record) for record in parts["accumulators"])
        parts["metrics"] = tuple(wire.Metric(**metric) for metric in parts["metrics"])
        return wire.Batch(**parts)
    except (AttributeError, LookupError, RecursionError, TypeError) as error:
        raise ValueError(f"this is no batch ({type(error).__name__}: {error})") from error


def thin(draft: Draft, every: int) -> Draft:
    """Keep the steps that are multiples of ``every``, and all metrics and accumulators."""
    batch = draft.batch
    if batch.every >= every:
        return draft
    keep = [row for row, step in enumerate(batch.steps) if step % every == 0]
    # What goes behind the last step that stays is told by the next batch: there the gap ends.
    behind = len(batch.steps) - 1 - keep[-1] if keep else len(batch.steps) + draft.lost
    lost = len(batch.steps) - len(keep) + draft.lost - behind
    return Draft(replace(_picked(batch, keep), every=every), lost, draft.lost_after + behind)


def halve(draft: Draft) -> tuple[Draft, Draft] | None:
    """Cut a draft in two, metrics with their steps; None when all of it is of one step."""
    batch = draft.batch
    moments = batch.steps if len(batch.steps) > 1 else sorted({*batch.steps, *_metric_steps(batch)})
    if len(moments) < 2:
        return None
    last = moments[(len(moments) - 1) // 2]
    parts = []
    for is_first in (True, False):
        keep = [row for row, step in enumerate(batch.steps) if (step <= last) is is_first]
        metrics = tuple(_points(metric, last, is_first=is_first) for metric in batch.metrics)
        parts.append(replace(_picked(batch, keep), metrics=tuple(metric for metric in metrics if metric.steps)))
    return Draft(parts[0], lost=draft.lost), Draft(parts[1], lost_after=draft.lost_after)


def finish(draft: Draft, known: dict[int, Dtypes], dropped_steps: int) -> wire.Batch:
    """Return the batch as it is sent: of the accumulators only what the collector does not know yet."""
    changed = {layer: dtypes for layer, dtypes in accumulators_of(draft.batch).items() if known.get(layer) != dtypes}
    return replace(draft.batch, accumulators=records_of(changed), dropped_steps=dropped_steps)


def accumulators_of(batch: wire.Batch) -> dict[int, Dtypes]:
    """Return what a batch tells of each layer's accumulator."""
    return {
        layer: (record.declared, record.stored, record.effective)
        for record in batch.accumulators
        for layer in record.layers
    }


def records_of(accumulators: dict[int, Dtypes]) -> tuple[wire.Accumulator, ...]:
    """Return change records, one for each kind of accumulator."""
    kinds: dict[Dtypes, list[int]] = {}
    for layer, dtypes in accumulators.items():
        kinds.setdefault(dtypes, []).append(layer)
    return tuple(
        wire.Accumulator(tuple(sorted(layers)), declared, stored, effective)
        for (declared, stored, effective), layers in kinds.items()
    )


def _picked(batch: wire.Batch, keep: Sequence[int]) -> wire.Batch:
    """Return a batch with some of its steps; ``keep`` are rows."""
    steps = [batch.steps[row] for row in keep]
    blocks = (_block(block, set(steps)) for block in batch.blocks)
    return replace(
        batch,
        steps=tuple(steps),
        times=_rows(batch.times, len(batch.steps), keep),
        micro_steps=tuple(batch.micro_steps[row] for row in keep),
        skipped=tuple(batch.skipped[row] for row in keep),
        clipped=tuple(batch.clipped[row] for row in keep),
        state=_rows(batch.state, len(batch.steps), keep),
        blocks=tuple(block for block in blocks if block.steps),
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
