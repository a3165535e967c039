"""What a clip left of the gradients of a step, and whether they still carried the loss scale when it came."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gradcanary import wire
from gradcanary.stats.samples import Kind, number_of, of_kind, scale_of

if TYPE_CHECKING:
    from gradcanary.export.batches import StepRow
    from gradcanary.export.reader import DecodedSamples
    from gradcanary.tracking.records import StepRecord

CLIPPED_BELOW = 1 - 1e-5
"""A ratio of norms under which a clip is meant; the same kernel measures both, so an untouched gradient gives 1."""

CERTAIN = 3
"""Clips in a row to the same limit, before a fact is made of them."""

_DIGITS, _WITHIN = 2, 1e-4
"""What people write for a limit has so many digits, 0.5 or 1.0; the norms say it to about a millionth."""


class ClipDetector:
    """Follows the clips of a session in their order."""

    def __init__(self) -> None:
        self._limit: float | None = None
        self._times = 0
        self._is_told = False

    def read(self, record: StepRecord, found: DecodedSamples, row: StepRow) -> tuple[wire.Fact, ...]:
        """Add total norm and clip factor, and return what is wrong with the clips as soon as it is known.

        They are of gradients before the clip, so never from a sample in the step hook. The total is that of what one
        backward pass made: its clip takes all of that together.
        """
        norms, probe = found.joint, of_kind(record.parts, Kind.PROBE)
        if found.phase == "post_clip" or not (norms and found.is_whole) or not all(map(math.isfinite, norms)):
            return ()
        total = math.sqrt(math.fsum(value * value for value in norms))
        row.metrics.append((("total_norm", ()), record.step, total))
        before = 0.0 if probe is None else found.norm.get(probe.layers[0], 0.0)
        if probe is None or before == 0.0:
            return ()
        factor = number_of(probe.value) / scale_of(record.parts, Kind.PROBE_SCALE) / before
        if factor <= 1 + 1e-3:
            row.metrics.append((("clip_factor", ()), record.step, min(factor, 1.0)))
        row.clipped = int(factor < CLIPPED_BELOW)
        return self._judge(factor * total, scale_of(record.parts, Kind.LOSS_SCALE)) if row.clipped else ()

    def _judge(self, left: float, scale: float) -> tuple[wire.Fact, ...]:
        """Tell which of two norms the loop clips to: what is left of the gradients, or that times the loss scale.

        A clip leaves exactly its limit, and scaled gradients are unscaled after it: 1.0 becomes 1.0 / 65536.
        """
        limit = None if _as_written(left) else _as_written(left * scale)
        self._times = self._times + 1 if limit is not None and limit == self._limit else 1
        self._limit = limit
        if limit is None or self._times < CERTAIN or self._is_told:
            return ()
        self._is_told = True
        return (_fact(limit, scale),)


def _as_written(value: float) -> float | None:
    """Return the short number that a value is, None where it is none."""
    if not 0 < value < math.inf:
        return None
    short = float(f"{value:.{_DIGITS - 1}e}")
    return short if abs(value - short) <= _WITHIN * short else None


def _fact(limit: float, scale: float) -> wire.Fact:
    return wire.Fact(
        code="clip_before_unscale",
        text=f"Gradients are clipped to a norm of {limit:g} while they carry the loss scale, now {scale:g}: unscaled, "
        f"{limit / scale:.1e} is left of them. scaler.unscale_(optimizer) belongs before the clip.",
        layers=(),
    )
