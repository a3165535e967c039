"""One sampled step, seen layer by layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradcanary import wire
from gradcanary_server.observations import Samples

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

POST_CLIP = wire.PHASES.index("post_clip")
MEASURED, ZERO, NONFINITE = (wire.STATES.index(state) for state in ("measured", "zero", "nonfinite"))

BY_SCALER, BY_LOOP = 1, 2
"""Who skipped a window."""


@dataclass(frozen=True)
class Moment:
    """One step of L layers; ``absmax`` and ``norm`` are NaN where nothing is known, ``level`` is log10 of absmax
    (-inf = exact zero), ``seen`` tells where it is known. ``can_fall`` is False after clipping: one exploding layer
    shrinks all others.
    """

    step: int
    every: int
    skipped: int
    can_fall: bool
    absmax: Floats
    norm: Floats
    level: Floats
    seen: Mask
    zero: Mask
    nonfinite: Mask
    lr: NDArray[np.float32]


def moments(samples: Samples) -> Iterator[Moment]:
    """Return the steps of some samples one by one; a partial sample is seen by no rule."""
    shape = samples.state.shape
    unknown = np.full(shape, np.nan, np.float32)
    measured = (samples.state == MEASURED) | (samples.state == ZERO)
    absmax = np.where(measured, samples.values.get("absmax", unknown), np.nan).astype(np.float64)
    norm = np.where(measured, samples.values.get("norm", unknown), np.nan).astype(np.float64)
    with np.errstate(divide="ignore"):
        level = np.log10(absmax)
    seen, nonfinite = ~np.isnan(absmax), samples.state == NONFINITE
    for row, step in enumerate(samples.steps.tolist()):
        yield Moment(
            step=step,
            every=samples.every,
            skipped=int(samples.skipped[row]),
            can_fall=int(samples.phase[row]) != POST_CLIP,
            absmax=absmax[row],
            norm=norm[row],
            level=level[row],
            seen=seen[row],
            zero=absmax[row] == 0,
            nonfinite=nonfinite[row],
            lr=samples.lr[row],
        )
