"""A fault for each rule, as a trace: which layers have it in which rows is given, the rest is healthy."""

from collections.abc import Callable

import numpy as np

from gradcanary import wire
from support.traces import Trace, healthy

Bad = np.ndarray
"""bool[rows, layers]."""

BEFORE = 260
"""Healthy rows in which every rule learns what is usual; a duty of 199 observations is the longest of it."""


def collapse(bad: Bad, every: int) -> Trace:
    return Trace(_healthy(bad) * np.where(bad, 1e-4, 1), every)


def scale_drop(bad: Bad, every: int) -> Trace:
    """All layers at once, and the loss as it was."""
    return Trace(_healthy(bad) * np.where(bad.any(axis=1), 1e-3, 1)[:, None], every, loss=np.ones(len(bad) * every))


def nonfinite(bad: Bad, every: int) -> Trace:
    return Trace(np.where(bad, np.nan, _healthy(bad)), every)


def nonfinite_loss(bad: Bad, every: int) -> Trace:
    return Trace(_healthy(bad), every, loss=np.where(np.repeat(bad.any(axis=1), every), np.nan, 1.0))


def explosion(bad: Bad, every: int) -> Trace:
    return Trace(_healthy(bad) * np.where(bad, 1e4, 1), every)


def vanished(bad: Bad, every: int) -> Trace:
    return Trace(np.where(bad, -1.0, _healthy(bad)), every)


def accumulation_loss(bad: Bad, every: int) -> Trace:
    error = np.where(bad, 0.3, 0.004)
    return Trace(_healthy(bad), every, values={"accumulation_error": error, "norm_ratio": 1 - error})


def accumulator(bad: Bad, every: int) -> Trace:
    """Sums of 128 gradients, in bfloat16 where it is bad."""
    rows = [0, *(1 + np.flatnonzero((bad[1:] != bad[:-1]).any(axis=1))).tolist()]
    return Trace(
        _healthy(bad),
        every,
        micro_steps=np.full(len(bad), 128, np.int16),
        records={
            row: tuple(
                wire.Accumulator(tuple(np.flatnonzero(which).tolist()), None, dtype, None)
                for dtype, which in (("bfloat16", bad[row]), ("float32", ~bad[row]))
            )
            for row in rows
        },
    )


def frozen(bad: Bad, every: int) -> Trace:
    return Trace(_healthy(bad), every, values={"frozen_fraction": np.where(bad, 0.97, 0.2)})


def fp16_underflow(bad: Bad, every: int) -> Trace:
    half = wire.Accumulator(tuple(range(bad.shape[1])), None, "float32", "float16")
    zeros = np.where(bad, 0.95, 0.1)
    return Trace(_healthy(bad), every, accumulators=(half,), values={"zero_fraction": zeros})


FAULTS: dict[str, Callable[[Bad, int], Trace]] = {
    "collapse": collapse,
    "nonfinite": nonfinite,
    "explosion": explosion,
    "vanished": vanished,
    "accumulation_loss": accumulation_loss,
    "accumulator": accumulator,
    "frozen": frozen,
    "fp16_underflow": fp16_underflow,
    "scale_drop": scale_drop,
    "nonfinite, by the loss": nonfinite_loss,
}
"""What can come and go, by rule; ``unused`` is said once in a launch."""

OF_RUN = ("scale_drop", "nonfinite, by the loss")
"""Faults of no single layer."""


def _healthy(bad: Bad) -> np.ndarray:
    return healthy(len(bad), bad.shape[1])
