"""What the rules read of a batch: its columns, with the learning rates and the loss picked out of its metrics; pure."""

import numpy as np
from numpy.typing import NDArray

from gradcanary_server.batches import NO_PHASE, Columns
from gradcanary_server.errors import RequestError
from gradcanary_server.observations import Samples
from gradcanary_server.requests import LIMITS


def samples(columns: Columns, groups: int) -> Samples:
    """Return what the rules read of a batch; ``groups`` is the number of the launch's parameter groups."""
    lr = _learning_rates(columns, groups)
    loss_steps, loss = _untagged(columns, "loss")
    return Samples(
        steps=columns.steps,
        every=columns.every,
        phase=columns.phases.get("absmax", np.full(len(columns.steps), NO_PHASE, np.uint8)),
        state=columns.state,
        values=columns.values,
        skipped=columns.skipped,
        clipped=columns.clipped,
        micro_steps=columns.micro_steps,
        lr=lr,
        accumulators=columns.accumulators,
        loss_steps=loss_steps,
        loss=loss,
    )


def _learning_rates(columns: Columns, groups: int) -> NDArray[np.float32]:
    if len(columns.steps) * groups > LIMITS.max_points:
        raise RequestError(413, "too_large", f"{len(columns.steps)} steps of {groups} parameter groups are too many.")
    rates = np.full((len(columns.steps), groups), np.nan, np.float32)
    for name in {metric.name for metric in columns.metrics}:
        number = name.removeprefix("lr")
        if name.startswith("lr") and number.isascii() and number.isdigit() and int(number) < groups:
            steps, values = _untagged(columns, name)
            if np.array_equal(columns.steps, steps):
                rates[:, int(number)] = values
                continue
            _, rows, found = np.intersect1d(columns.steps, steps, assume_unique=True, return_indices=True)
            rates[rows, int(number)] = values[found]
    return rates


def _untagged(columns: Columns, name: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return a metric's steps, rising, and values; of a step that was logged twice the last value."""
    mine = [metric for metric in columns.metrics if metric.name == name and metric.tags == "{}"]
    if not mine:
        return np.empty(0, np.int64), np.empty(0, np.float64)
    if len(mine) == 1 and (np.diff(mine[0].steps) > 0).all():
        return mine[0].steps, mine[0].values
    steps = np.concatenate([metric.steps for metric in mine])
    values = np.concatenate([metric.values for metric in mine])
    unique, last = np.unique(steps[::-1], return_index=True)
    return unique, values[::-1][last]
