"""The clip factor of a step, and clips of gradients that still carry the loss scale."""

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
"""A ratio of norms below this is a clip. The same kernel measures both, so an untouched gradient gives 1."""

CERTAIN = 3
"""Clips in a row to the same limit, before a fact is made of them."""

_DIGITS, _WITHIN = 2, 1e-4
"""A limit in a script has at most two digits, as 0.5 or 1.0; the norms have it to about a millionth."""


class ClipDetector:
    """Follows the clips of a session in their order."""

    def __init__(self) -> None:
        self._limit: float | None = None
        self._times = 0
        self._is_reported = False

    def read(self, record: StepRecord, found: DecodedSamples, row: StepRow) -> tuple[wire.Fact, ...]:
        """Add total norm and clip factor to the row; return a fact once the clips are known to be wrong.

        Both need gradients before the clip, so a sample of the step hook gives none. The total is over the gradients of
        one backward pass: its clip takes all of them together.
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
        """Return a fact if the loop clips scaled gradients: then the rest times the loss scale is a short number.

        A clip leaves exactly its limit, and scaled gradients are unscaled after it: 1.0 becomes 1.0 / 65536.
        """
        limit = None if _as_written(left) else _as_written(left * scale)
        self._times = self._times + 1 if limit is not None and limit == self._limit else 1
        self._limit = limit
        if limit is None or self._times < CERTAIN or self._is_reported:
            return ()
        self._is_reported = True
        return (_fact(limit, scale),)


def _as_written(value: float) -> float | None:
    """Return the number of two digits that a value equals, None if it equals none."""
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
