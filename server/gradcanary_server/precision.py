"""What low precision does to a layer: measured of a few layers at a time, in turns, or known from its dtypes. Pure.

A layer has one such measurement in hundreds of steps, and each is a comparison of all its elements (or of 65,536 of
them), not a noisy sample. So it is observations of that layer that are counted, not steps: one fires, five without a
fault resolve. Only exact zeros, which depend on the batch as well, take five.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from gradcanary.wire import Accumulator
from gradcanary_server.duty import Ints
from gradcanary_server.layer_rules import LayerRules
from gradcanary_server.moment import Mask, Moment
from gradcanary_server.per_layer import PerLayer
from gradcanary_server.thresholds import Singles
from gradcanary_server.tracks import ALL_ZERO, FROZEN, LOST, STOPPED, UNDERFLOW

Votes = NDArray[np.int8]

FULL, BFLOAT16, FLOAT16 = range(3)
_LOW = {"bfloat16": BFLOAT16, "float16": FLOAT16}

TURN_EVERY = 20
"""The ``every`` of such an observation: it weighs 4 while not firing and 20 while firing, as rare samples do."""

STATS = ("accumulation_error", "norm_ratio", "frozen_fraction")
"""Measured in turns. So is zero_fraction, but of a layer that is low it comes with each sample."""

_LOSSES = ((1, 0.0), (8, 0.004), (64, 0.01), (512, 0.22), (2_048, 0.78))
"""The share of the norm that a bfloat16 sum of so many gradients loses: DESIGN.md, 10, of coherent ones from 512 on."""


@dataclass
class Precision(PerLayer):
    """``sums`` uint8, the dtype of the layer's sums: full, bfloat16 or float16; ``differs`` bool, whether another one
    was declared; ``moved`` bool, whether over half of its weights were seen to move; ``least`` float32, the least
    zero_fraction, NaN = none yet.
    """

    sums: NDArray[np.uint8]
    differs: NDArray[np.bool_]
    moved: NDArray[np.bool_]
    least: NDArray[np.float32]

    @classmethod
    def none(cls, layers: int) -> Precision:
        """Return what is known of layers that were never seen."""
        return cls(
            sums=np.zeros(layers, np.uint8),
            differs=np.zeros(layers, np.bool_),
            moved=np.zeros(layers, np.bool_),
            least=np.full(layers, np.nan, np.float32),
        )

    def learn(self, columns: Ints, records: Sequence[Accumulator]) -> None:
        """Take change records; their layers are positions in ``columns``."""
        for record in records:
            whose = columns[np.array(record.layers, np.int64)]
            low = [_LOW[dtype] for dtype in (record.effective, record.stored) if dtype in _LOW]
            self.sums[whose] = low[0] if low else FULL
            actual = record.effective or record.stored
            self.differs[whose] = record.declared is not None and actual is not None and record.declared != actual


def predicted_loss(micro_steps: int) -> float:
    """Return the share of the norm that a bfloat16 sum of so many gradients may lose, at worst."""
    if micro_steps >= _LOSSES[-1][0]:
        return _LOSSES[-1][1]
    for (few, little), (many, much) in pairwise(_LOSSES):
        if few <= micro_steps < many:
            part = math.log(micro_steps / few) / math.log(many / few)
            return little * (much / little) ** part if little else much * part
    return 0.0


def votes(moment: Moment, known: Precision, view: LayerRules, is_half: Mask, is_learning: Mask) -> dict[int, Votes]:
    """Return the votes of one step by track, and remember what was seen.

    ``is_half`` bool[L] tells whose gradients were born in float16, ``is_learning`` of which layers the learning rate is
    known and no less than a tenth of its maximum: at the end of a schedule weights stand still, and should.
    """
    columns, frozen, underflow = view.columns, view.frozen, view.fp16_underflow
    nothing = np.full(len(columns), np.nan, np.float32)
    error, ratio, share, zeros = (moment.values.get(stat, nothing) for stat in (*STATS, "zero_fraction"))
    rule = view.accumulation_loss
    found = {LOST: _votes((error > rule.error) | (ratio < rule.norm_ratio), ~np.isnan(error), rule.enabled)}
    told = ~np.isnan(share) & is_learning
    stopped = told & known.moved[columns] & (share > frozen.stopped_share)
    found[STOPPED] = _votes(stopped, told, frozen.enabled)
    found[FROZEN] = _votes(told & (share > frozen.share), told, frozen.enabled)
    known.moved[columns] |= share < frozen.moved_share
    seen = ~np.isnan(zeros) & is_half
    known.least[columns] = np.where(seen, np.fmin(known.least[columns], zeros), known.least[columns])
    grew = seen & (zeros - known.least[columns] >= underflow.growth)
    found[UNDERFLOW] = _votes(grew, seen, underflow.enabled)
    found[ALL_ZERO] = _votes(grew & (zeros > underflow.share), seen, underflow.enabled)
    return found


def grown(known: Precision, columns: Ints, zeros: NDArray[np.float32], is_half: Mask, growth: Singles) -> Mask:
    """Tell of each of n steps, ``zeros`` float32[n, L], whether zeros grew at it."""
    least = np.fmin.accumulate(np.vstack([known.least[columns], np.where(is_half, zeros, np.nan)]), axis=0)[1:]
    return np.asarray(((zeros - least >= growth) & is_half).any(axis=1), np.bool_)


def remember(known: Precision, columns: Ints, zeros: NDArray[np.float32], is_half: Mask) -> None:
    """Remember the zeros of n steps at which they did not grow."""
    seen = np.fmin.reduce(np.where(is_half, zeros, np.nan), axis=0)
    known.least[columns] = np.fmin(known.least[columns], seen)


def _votes(bad: Mask, seen: Mask, enabled: Mask) -> Votes:
    found: Votes = (bad.astype(np.int8) - (seen & ~bad).astype(np.int8)) * enabled
    return found
