"""One sampled step, seen layer by layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

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


class Planes(Protocol):
    """What was seen of L layers at a step, [L], or at n of them, [n, L]."""

    @property
    def absmax(self) -> Floats: ...
    @property
    def norm(self) -> Floats: ...
    @property
    def level(self) -> Floats: ...
    @property
    def seen(self) -> Mask: ...
    @property
    def zero(self) -> Mask: ...


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


@dataclass(frozen=True)
class Moments:
    """Sampled steps, int64[n] rising, with their planes [n, L]: what :class:`Moment` holds, for all of them."""

    steps: NDArray[np.int64]
    every: int
    skipped: NDArray[np.uint8]
    can_fall: Mask
    absmax: Floats
    norm: Floats
    level: Floats
    seen: Mask
    zero: Mask
    nonfinite: Mask
    lr: NDArray[np.float32]

    @classmethod
    def of(cls, samples: Samples, layers: int) -> Moments:
        """Return the steps of some samples of so many layers; a partial sample is seen by no rule."""
        state = samples.state.reshape(len(samples.steps), layers)  # without steps, samples do not know their layers
        measured = (state == MEASURED) | (state == ZERO)
        absmax, norm = (_known(samples, stat, measured) for stat in ("absmax", "norm"))
        with np.errstate(divide="ignore"):
            level = np.log10(absmax)
        return cls(
            steps=samples.steps,
            every=samples.every,
            skipped=samples.skipped,
            can_fall=samples.phase != POST_CLIP,
            absmax=absmax,
            norm=norm,
            level=level,
            seen=~np.isnan(absmax),
            zero=absmax == 0,
            nonfinite=state == NONFINITE,
            lr=samples.lr,
        )

    def between(self, begin: int, end: int) -> Moments:
        """Return the steps from one row to before another."""
        planes = {name: getattr(self, name)[begin:end] for name in self.__dataclass_fields__ if name != "every"}
        return Moments(every=self.every, **planes)

    def at(self, row: int) -> Moment:
        """Return one of the steps."""
        return Moment(
            step=int(self.steps[row]),
            every=self.every,
            skipped=int(self.skipped[row]),
            can_fall=bool(self.can_fall[row]),
            absmax=self.absmax[row],
            norm=self.norm[row],
            level=self.level[row],
            seen=self.seen[row],
            zero=self.zero[row],
            nonfinite=self.nonfinite[row],
            lr=self.lr[row],
        )


def _known(samples: Samples, stat: str, measured: Mask) -> Floats:
    if stat not in samples.values:
        return np.full(measured.shape, np.nan)
    known = samples.values[stat].astype(np.float64).reshape(measured.shape)
    if not measured.all():
        known[~measured] = np.nan
    return known
