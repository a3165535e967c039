"""One sampled step, seen layer by layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gradcanary import wire
from gradcanary_server.duty import Presence
from gradcanary_server.observations import Samples

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

POST_CLIP = wire.PHASES.index("post_clip")
MEASURED, NO_GRADIENT, ZERO, NONFINITE, NOT_TRAINABLE = (
    wire.STATES.index(state) for state in ("measured", "no_gradient", "zero", "nonfinite", "not_trainable")
)

IN_TURNS = ("accumulation_error", "norm_ratio", "frozen_fraction", "zero_fraction")
"""Stats that rules read, and that a layer has at some steps only."""

BY_SCALER, BY_LOOP = 1, 2
"""Who skipped a window."""


class Planes(Presence, Protocol):
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
    shrinks all others. ``had`` a gradient that is not zero, ``idle`` had none or exactly zero, ``untrained`` is idle
    because the script froze the layer; what is neither had nor idle was not seen. ``values`` are those of ``IN_TURNS``
    that are there.
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
    had: Mask
    idle: Mask
    untrained: Mask
    clipped: bool
    micro_steps: int
    values: dict[str, NDArray[np.float32]]
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
    had: Mask
    idle: Mask
    untrained: Mask
    clipped: Mask
    micro_steps: NDArray[np.int16]
    values: dict[str, NDArray[np.float32]]
    lr: NDArray[np.float32]

    @classmethod
    def of(cls, samples: Samples, layers: int) -> Moments:
        """Return the steps of some samples of so many layers; a partial sample is seen by no rule."""
        state = samples.state.reshape(len(samples.steps), layers)  # without steps, samples do not know their layers
        nothing = np.zeros(state.shape, np.bool_)
        is_plain = not state.any()  # all of it measured, as nearly always: six planes less to make
        measured = ~nothing if is_plain else (state == MEASURED) | (state == ZERO)
        nonfinite, untrained = (nothing if is_plain else state == each for each in (NONFINITE, NOT_TRAINABLE))
        absmax, norm = (_known(samples, stat, measured) for stat in ("absmax", "norm"))
        with np.errstate(divide="ignore"):
            level = np.log10(absmax)
        zero = absmax == 0 if is_plain else (absmax == 0) | (state == ZERO)
        return cls(
            steps=samples.steps,
            every=samples.every,
            skipped=samples.skipped,
            can_fall=samples.phase != POST_CLIP,
            absmax=absmax,
            norm=norm,
            level=level,
            seen=~np.isnan(absmax),
            zero=zero,
            nonfinite=nonfinite,
            had=~zero if is_plain else (measured & ~zero) | nonfinite,
            idle=zero if is_plain else (state == NO_GRADIENT) | zero | untrained,
            untrained=untrained,
            clipped=samples.clipped,
            micro_steps=samples.micro_steps,
            values={stat: samples.values[stat].reshape(state.shape) for stat in IN_TURNS if stat in samples.values},
            lr=samples.lr,
        )

    def between(self, begin: int, end: int) -> Moments:
        """Return the steps from one row to before another."""
        whole = ("every", "values")
        planes = {name: getattr(self, name)[begin:end] for name in self.__dataclass_fields__ if name not in whole}
        values = {stat: values[begin:end] for stat, values in self.values.items()}
        return Moments(every=self.every, values=values, **planes)

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
            had=self.had[row],
            idle=self.idle[row],
            untrained=self.untrained[row],
            clipped=bool(self.clipped[row]),
            micro_steps=int(self.micro_steps[row]),
            values={stat: values[row] for stat, values in self.values.items()},
            lr=self.lr[row],
        )


def _known(samples: Samples, stat: str, measured: Mask) -> Floats:
    if stat not in samples.values:
        return np.full(measured.shape, np.nan)
    known = samples.values[stat].astype(np.float64).reshape(measured.shape)
    if not measured.all():
        known[~measured] = np.nan
    return known
