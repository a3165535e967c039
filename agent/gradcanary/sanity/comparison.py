"""Reports of several ways of one training beside those of the first: their losses, step times and gradients.

A batch alone changes a loss, and a busy machine a time. So a difference counts only where it is larger than what the
same series shows without a cause. Pure: no I/O, no clock.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from gradcanary.sanity.report import Report

Pairs = Sequence[tuple[int, float]]

BLOCKS, LEAST_BLOCK = 10, 5
"""The losses are compared in this number of blocks, of this number of steps at least."""

ERRORS = 5.0
"""Standard errors by which the means of two blocks differ where losses part: the noise is estimated from few values. With
4, two of 1,500 pairs of losses that differ in nothing but their noise parted, with 5 one of 9,500."""

LEAST_PART = 0.01
"""The part of the first loss under which no difference counts: a loss that repeats its batches has no noise at all."""

EXACT_STEPS = 10
"""The first steps, in which a way that must not change the loss keeps it to the rounding; later, rounding grows."""

ROUNDING = 1e-4
"""The relative difference of two losses that rounding makes in the first steps: 2^-24 in float32, grown a thousand
times. Another dropout mask changes the loss of a small batch by a hundredth."""

EXPLODED = 100.0
"""As in the rule ``explosion``: times the level of before."""


@dataclass(frozen=True)
class LossComparison:
    """The losses of a way beside those of the first one, in common steps.

    ``first`` and ``last`` are the means of its first and last block, ``difference`` is that of the last blocks (this
    way minus the first one), ``noise`` the largest difference that batches alone explain there. ``parts_at`` is the
    first step of the first block in which the losses part, None if there is none. ``ratio`` is the median of this
    way's losses over the first way's in the first steps, None where a loss is not above zero.
    """

    first: float
    last: float
    difference: float
    noise: float
    parts_at: int | None
    ratio: float | None
    nonfinite_at: int | None = None


def compare_losses(reference: Pairs, other: Pairs) -> LossComparison | None:
    """Return the comparison, None if fewer than LEAST_BLOCK steps are common to both."""
    steps, pairs = _common(reference, other)
    if len(steps) < LEAST_BLOCK:
        return None
    is_finite = [math.isfinite(a) and math.isfinite(b) for a, b in pairs]
    nonfinite_at = next(
        (s for s, (a, b) in zip(steps, pairs, strict=True) if math.isfinite(a) > math.isfinite(b)), None
    )
    size = max(LEAST_BLOCK, len(steps) // BLOCKS)
    starts = range(0, len(steps) - size + 1, size)
    blocks = [(start, start + size if start + 2 * size <= len(steps) else len(steps)) for start in starts]
    seen = [Block(steps[a], pairs[a:b]) for a, b in blocks if all(is_finite[a:b])]
    if not seen:
        return None
    floor = LEAST_PART * abs(seen[0].means[0])
    overall = [_noise([pair[way] for block in seen for pair in block.pairs], is_robust=True) for way in (0, 1)]
    limits = [max(floor, ERRORS * block.error(overall)) for block in seen]
    parted = [block.step for block, limit in zip(seen, limits, strict=True) if abs(block.difference) > limit]
    parts_at = min([*parted[:1], *([nonfinite_at] if nonfinite_at is not None else [])], default=None)
    ratios = [b / a for a, b in pairs[:LEAST_BLOCK] if a > 0 and b > 0]
    return LossComparison(
        first=seen[0].means[1],
        last=seen[-1].means[1],
        difference=seen[-1].difference,
        noise=limits[-1],
        parts_at=parts_at,
        ratio=statistics.median(ratios) if len(ratios) == LEAST_BLOCK else None,
        nonfinite_at=nonfinite_at,
    )


@dataclass(frozen=True)
class Block:
    """Losses of the first way and of another in some steps."""

    step: int
    pairs: list[tuple[float, float]]

    @property
    def means(self) -> tuple[float, float]:
        """The means of both ways."""
        return statistics.fmean(a for a, _ in self.pairs), statistics.fmean(b for _, b in self.pairs)

    @property
    def difference(self) -> float:
        """The mean of the other way minus that of the first one."""
        return self.means[1] - self.means[0]

    def error(self, overall: Sequence[float]) -> float:
        """Return the standard error of the difference; ``overall`` are the ways' noises in all blocks."""
        own = [max(overall[way], _noise([pair[way] for pair in self.pairs])) for way in (0, 1)]
        return math.hypot(*own) / math.sqrt(len(self.pairs))


def _noise(losses: Sequence[float], *, is_robust: bool = False) -> float:
    """Return the standard deviation of a loss around its trend, by the changes from step to step."""
    squares = [(b - a) ** 2 / 2 for a, b in pairwise(losses)]
    if is_robust:
        return math.sqrt(statistics.median(squares)) / 0.6745  # the median of a normal deviation of 1
    return math.sqrt(statistics.fmean(squares))


def _common(reference: Pairs, other: Pairs) -> tuple[list[int], list[tuple[float, float]]]:
    first, second = dict(reference), dict(other)
    steps = sorted(first.keys() & second.keys())
    return steps, [(first[step], second[step]) for step in steps]


@dataclass(frozen=True)
class ExactComparison:
    """Whether a way keeps the losses of the first one, step by step.

    ``largest`` is the largest relative difference in the first EXACT_STEPS, ``parts_at`` the first step of those with
    more than ROUNDING. ``is_exact``: all common losses are the same to the last bit. ``begins_apart``: the first one
    differs already.
    """

    is_exact: bool
    largest: float
    parts_at: int | None
    begins_apart: bool


def compare_exactly(reference: Pairs, other: Pairs) -> ExactComparison | None:
    """Return the comparison, None if no step is common to both."""
    steps, pairs = _common(reference, other)
    if not steps:
        return None
    relative = [_relative(a, b) for a, b in pairs[:EXACT_STEPS]]
    parted = [step for step, value in zip(steps, relative, strict=False) if value > ROUNDING]
    return ExactComparison(
        is_exact=all(_relative(a, b) == 0 for a, b in pairs),
        largest=max(relative),
        parts_at=parted[0] if parted else None,
        begins_apart=bool(parted) and parted[0] == steps[0],
    )


def _relative(a: float, b: float) -> float:
    if a == b:
        return 0.0
    if not (math.isfinite(a) and math.isfinite(b)):
        return 0.0 if math.isnan(a) and math.isnan(b) else math.inf
    return abs(b - a) / max(abs(a), abs(b))


def compare_times(reference: Report, other: Report) -> Literal["slower", "faster", "alike", "unknown"]:
    """Return how the step time of a way is to that of the first one: alike if half of their steps overlap."""
    first, second = reference.step_time_quartiles_s, other.step_time_quartiles_s
    if first is None or second is None:
        return "unknown"
    if second[0] > first[1]:
        return "slower"
    return "faster" if second[1] < first[0] else "alike"


@dataclass(frozen=True)
class RangeExit:
    """The first step at which gradients leave the range, and how."""

    step: int
    kind: Literal["nonfinite", "explosion", "zero"]
    value: float


def leave_range(report: Report, reference: Report) -> RangeExit | None:
    """Return where the gradients of a way leave the range: not finite, all zero, or EXPLODED times the reference's.

    The reference is the largest gradient of the first way where that was healthy, else that of the first step of the
    way itself, which no learning rate has changed yet.
    """
    is_usable = reference.is_healthy and reference.absmax
    level = max(value for _, value in reference.absmax) if is_usable else _first_level(report)
    found = [
        RangeExit(step, "zero" if value == 0 else "explosion", value)
        for step, value in report.absmax
        if (value == 0 and level > 0) or value > EXPLODED * level > 0
    ]
    if report.first_nonfinite_step is not None:
        found.append(RangeExit(report.first_nonfinite_step, "nonfinite", math.nan))
    return min(found, key=lambda each: each.step, default=None)


def _first_level(report: Report) -> float:
    return next((value for _, value in report.absmax if value > 0), 0.0)
