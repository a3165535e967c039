"""Signals of the rules, one for each kind of evidence, and their hysteresis counters.

While a signal does not fire, a good observation counts half, so more than a third of bad ones fires in the end: a
flapping collapse must not stay silent. It is a net count, not a streak: one lucky batch does not reset it. An
observation weighs the agent's ``every``, but never so much that fewer than five could decide. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count, islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradcanary_server.rules.types import SEVERITIES, Evidence, Ints, LayerArrays, Mask, Votes, layer_array

_numbers = count()


def _next(amount: int) -> list[int]:
    """Return the next numbers of signals: rows of :class:`Scores`."""
    return list(islice(_numbers, amount))


FALL, SIBLINGS, THRESHOLD, LATE, STRAIGHT, FOLLOWS = COLLAPSE = _next(6)
"""Evidence of collapse. Each has its own count, so one kind of evidence says nothing about another. STRAIGHT: the
gradient falls in one straight line of its logarithm, and no weights do. FOLLOWS: a layer that fell beside one that
fires for FALL."""

NONFINITE, EXPLOSION = _next(2)

REGULAR, SPORADIC, HANDED_OVER, NEVER, NEVER_BUT_ZERO, BY_SCRIPT = _next(6)
"""Evidence of vanished; these fire at once, and only a gradient resolves them. A layer that nearly always had a
gradient; one that seldom had; one that lost it in the step in which one like it gained its own; no layer ever had one;
gradients reach the layers and are exactly zero in all of them, while the loss is not; a layer that the script froze."""

UNUSED, UNUSED_ZERO, MOST_UNUSED, MOST_ZERO = _next(4)
"""Evidence of unused, likewise: a layer that never had a gradient, or never more than exactly zero; the last two if
most layers, or all adapters, are such."""

MISSED = [REGULAR, SPORADIC, UNUSED, NEVER, HANDED_OVER, NEVER_BUT_ZERO, UNUSED_ZERO, MOST_UNUSED, MOST_ZERO]
"""Signals that fire until the layer has a gradient again."""
WITHOUT_GRADIENT = [*MISSED, BY_SCRIPT]

LOST, FROZEN, STOPPED = _next(3)
"""Stats that are measured for a few layers at a time; nothing else moves these signals."""

UNDERFLOW, ALL_ZERO, AT_LIMIT, ALL_AT_LIMIT = ZEROS = _next(4)
"""Zeros of float16 gradients, measured likewise: their share grew, or, judged from the start, the smallest number of
float16 cuts the gradients off."""

VAIN, VAIN_CLIPPED = _next(2)
"""Evidence of in_vain, about the layers that are measured in turns; the second one if gradients are clipped, too."""

UNMOVED, APART, TINY, SLOW, NO_RATE, TOO_FINE, UNDONE = _next(7)
"""Evidence of no_update: weights that do not move, that move decades less than others, or all hardly; all weights
of an optimizer like Adam that move by a small part of the learning rate, or of SGD by one of its step; a learning rate
of zero; steps finer than the weights; updates that are undone, a static finding."""

SUM_FINE, SUM_COARSE, DECLARED, COARSE_MOMENTS, NO_SCALER, CLIPPED_SCALED, NOT_OPTIMIZED, NEVER_CLEARED = _next(8)
"""Static findings: they fire without a count."""

LAYER_SIGNALS = next(_numbers)

SCALE_DROP, SCALE_WORSE, NONFINITE_LOSS, SCALE_FELL = _OF_RUN = range(4)
"""Signals of the whole run; SCALE_WORSE counts evidence for a higher severity of an open scale_drop."""
RUN_SIGNALS = len(_OF_RUN)

NOTHING = -1
INFORMATION, WARNING, CRITICAL = range(len(SEVERITIES))


class Signal(NamedTuple):
    """The meaning of a signal that fires; ``row`` is that in :class:`Scores`."""

    row: int
    evidence: Evidence | None
    severity: int


RULES: dict[str, tuple[Signal, ...]] = {
    "collapse": (
        Signal(LATE, "joined_late", INFORMATION),
        Signal(SIBLINGS, "siblings", WARNING),
        Signal(STRAIGHT, "straight", WARNING),
        Signal(FOLLOWS, "follows", WARNING),
        Signal(THRESHOLD, "threshold", CRITICAL),
        Signal(FALL, "fall", CRITICAL),
    ),
    "nonfinite": (Signal(NONFINITE, None, CRITICAL),),
    "explosion": (Signal(EXPLOSION, None, WARNING),),
    "vanished": (
        Signal(BY_SCRIPT, "by_script", INFORMATION),
        Signal(HANDED_OVER, "handed_over", INFORMATION),
        Signal(NEVER, "never", WARNING),
        Signal(SPORADIC, "sporadic", WARNING),
        Signal(NEVER_BUT_ZERO, "never", CRITICAL),
        Signal(REGULAR, "stopped", CRITICAL),
    ),
    "unused": (
        Signal(UNUSED_ZERO, "multiplied_by_zero", INFORMATION),
        Signal(UNUSED, "not_in_graph", INFORMATION),
        Signal(MOST_ZERO, "multiplied_by_zero", WARNING),
        Signal(MOST_UNUSED, "not_in_graph", WARNING),
    ),
    "accumulation_loss": (Signal(LOST, None, CRITICAL),),
    "accumulator": (
        Signal(DECLARED, "declared", INFORMATION),
        Signal(SUM_FINE, "low_precision_sum", INFORMATION),
        Signal(SUM_COARSE, "low_precision_sum", WARNING),
    ),
    "frozen": (
        Signal(FROZEN, "measured", WARNING),
        Signal(STOPPED, "stopped", CRITICAL),
    ),
    "in_vain": (
        Signal(VAIN, "rounded", CRITICAL),
        Signal(VAIN_CLIPPED, "clipped", CRITICAL),
    ),
    "second_moments": (Signal(COARSE_MOMENTS, None, WARNING),),
    "fp16_underflow": (
        Signal(NO_SCALER, "no_scaler", WARNING),
        Signal(AT_LIMIT, "at_limit", WARNING),
        Signal(UNDERFLOW, "zeros", WARNING),
        Signal(ALL_AT_LIMIT, "at_limit", CRITICAL),
        Signal(ALL_ZERO, "all_zeros", CRITICAL),
    ),
    "no_update": (
        Signal(APART, "apart", WARNING),
        Signal(TINY, "tiny", WARNING),
        Signal(SLOW, "slow", WARNING),
        Signal(NO_RATE, "no_rate", WARNING),
        Signal(UNMOVED, "unmoved", CRITICAL),
        Signal(TOO_FINE, "too_fine", CRITICAL),
        Signal(UNDONE, "undone", CRITICAL),
    ),
    "clip_before_unscale": (Signal(CLIPPED_SCALED, None, WARNING),),
    "not_optimized": (Signal(NOT_OPTIMIZED, None, WARNING),),
    "never_cleared": (Signal(NEVER_CLEARED, None, CRITICAL),),
}
"""The signals of each rule in rising order of severity; the last one that fires gives the evidence."""

RUN_RULES: dict[str, Signal] = {
    "scale_drop": Signal(SCALE_DROP, None, INFORMATION),
    "nonfinite": Signal(NONFINITE_LOSS, None, CRITICAL),
    "loss_scale": Signal(SCALE_FELL, None, WARNING),
}
"""The signal of the whole run of each rule that has one. scale_drop has its severity in ``Progress.scale_severity``."""

MAX_WEIGHT_IDLE = 4
MAX_WEIGHT_FIRING = 20
"""Five observations each way at the default counts of 20 and 100 steps."""

NOT_COUNTING = -1
"""``since`` of a score of 0."""


@dataclass
class Scores(LayerArrays):
    """One score per signal and layer: ``score`` float32[S, N], ``firing`` bool[S, N], and ``since`` int64[S, N], the
    step of the first bad observation of the present count.
    """

    score: NDArray[np.float32] = layer_array(np.float32, is_table=True)
    since: Ints = layer_array(np.int64, NOT_COUNTING, is_table=True)
    firing: Mask = layer_array(np.bool_, is_table=True)

    def copy(self) -> Scores:
        """Return scores that share their arrays with these until either are changed: few steps change any."""
        for array in self.arrays():
            array.flags.writeable = False
        return Scores(*self.arrays())

    def unshare(self) -> None:
        """Make the arrays its own; each change begins with it."""
        if not self.score.flags.writeable:
            self.score, self.since, self.firing = self.score.copy(), self.since.copy(), self.firing.copy()

    def forget(self, columns: Ints | Mask | slice) -> None:
        self.unshare()
        super().forget(columns)

    def set_firing(self, signal: int, columns: Ints, fires: Mask, step: int, full: NDArray[np.float32]) -> bool:
        """Let these layers fire from a step on or not, without a count; return True if anything changed.

        ``full`` float32[L] is the score of a layer that fires and shows no sign of recovery.
        """
        before = self.firing[signal, columns]
        if (before == fires).all():
            return False
        self.unshare()
        since = np.where(before, self.since[signal, columns], step)
        self.firing[signal, columns], self.score[signal, columns] = fires, np.where(fires, full, 0)
        self.since[signal, columns] = np.where(fires, since, NOT_COUNTING)
        return True

    def reset_pending(self) -> None:
        """Reset every count that does not fire."""
        self.unshare()
        idle = ~self.firing
        self.score[idle], self.since[idle] = 0, NOT_COUNTING

    def reset_signal(self, signal: int, layers: Ints | slice = slice(None)) -> None:
        self.unshare()
        self.score[signal, layers], self.since[signal, layers], self.firing[signal, layers] = 0, NOT_COUNTING, False


@dataclass(frozen=True)
class Vote:
    """Votes of one observation on one signal of ``scores``, for the layers at ``columns`` int64[L].

    ``votes`` int8[L] holds +1, 0 or -1. ``fire_after`` and ``resolve_after`` are float32 steps, [L], or [] if they are
    the same for all. A count begins at ``step``, or at one step per layer, int64[L]. A 0 of the layers in
    ``decays`` bool[L] counts as -1 until they fire: no evidence is not a recovery.
    """

    scores: Scores
    signal: int
    step: int | Ints
    every: int
    columns: Ints
    votes: Votes
    fire_after: NDArray[np.float32]
    resolve_after: NDArray[np.float32]
    decays: Mask | None = None


def apply_vote(vote: Vote) -> bool:
    """Move the scores of a signal by one observation; return True if any layer fires or resolves.

    1. Not firing: clip(score + weight * vote, 0, fire_after); a -1 counts half, a weight is at most 4.
    2. At fire_after it fires, and the score becomes resolve_after.
    3. Firing: clip(score + weight * vote, 0, resolve_after), a weight is at most 20; at 0 it resolves.
    """
    scores, signal = vote.scores, vote.signal
    before = scores.score[signal, vote.columns]
    if not before.any() and not (vote.votes > 0).any():
        return False
    scores.unshare()
    firing, votes = scores.firing[signal, vote.columns], vote.votes
    if vote.decays is not None:
        votes = np.where(vote.decays & ~firing & (votes == 0), -1, votes)
    idle = np.where(votes < 0, 0.5, 1.0) * min(vote.every, MAX_WEIGHT_IDLE)
    weights = np.where(firing, min(vote.every, MAX_WEIGHT_FIRING), idle)
    ceiling = np.where(firing, vote.resolve_after, vote.fire_after)
    after = np.clip(before + weights * votes, 0, ceiling).astype(np.float32)
    fires = ~firing & (after >= vote.fire_after)
    resolves = firing & (after == 0)
    began = (before == 0) & (after > 0)
    since = np.where(began, vote.step, scores.since[signal, vote.columns])
    scores.since[signal, vote.columns] = np.where(after > 0, since, NOT_COUNTING)
    scores.score[signal, vote.columns] = np.where(fires, vote.resolve_after, after)
    scores.firing[signal, vote.columns] = (firing | fires) & ~resolves
    return bool((fires | resolves).any())
