"""The sampling interval that keeps the agent within its budget; pure.

A measurement covers a stretch of steps at one interval. It is long enough that the cost of a sample is spread over the
steps that it stands for. After two measurements in a row over the budget the interval becomes the next wider one, as
long as samples still take a part of the time worth saving. After ten in a row that would have kept half of the budget
at the next finer interval it becomes that one: a single measurement is high if the machine did other work meanwhile.

Between "over the budget" and "under half of it" lies a factor of two: the interval of a steady training settles.
"""

from __future__ import annotations

from dataclasses import dataclass

INTERVALS = (1, 10, 100, 1000)

SLOW = 100
"""The interval where each sample makes the training wait for its device."""

GRACE_STEPS = 1000
"""Steps of a launch that are all sampled: baselines are made of them."""

LOOK_SAMPLES = 16
"""Samples in a measurement. Each 16th sample counts the zeros of all layers, which costs as much as the rest of it."""

LOOK_STEPS = 160
LOOK_ROUNDS = 4
"""Rounds of the sender in a measurement: its CPU time comes in lumps."""

LOOKS_OVER, LOOKS_UNDER = 2, 10
"""Measurements in a row that have to agree before the interval becomes wider, or finer."""

ROOM = 0.5
"""Part of the budget that a finer interval may be expected to take."""

NEGLIGIBLE = 0.1
"""Part of the budget: samples that take less than that are not worth a wider interval."""


@dataclass(frozen=True)
class Measurement:
    """What a stretch of steps took, in seconds.

    ``elapsed_s`` is all of it. ``sampled_s`` and ``other_s`` are the agent's in windows that were sampled, with what a
    GPU took for them, and in the others. ``sender_s`` is CPU time of the sender's thread, in so many ``rounds``.
    """

    steps: int = 0
    samples: int = 0
    elapsed_s: float = 0.0
    sampled_s: float = 0.0
    other_s: float = 0.0
    sender_s: float = 0.0
    rounds: int = 0

    @property
    def share(self) -> float:
        """The part of the time that the agent took."""
        return self._part(self.sampled_s + self.other_s + self.sender_s)

    @property
    def lasting(self) -> float:
        """The part of the time that it would take without samples; 0 where all steps were sampled: it is not known."""
        others = self.steps - self.samples
        return min(self.share, self._part(self.other_s * self.steps / others)) if others > 0 else 0.0

    def is_complete(self, every: int) -> bool:
        """Return True if it is long enough to be judged."""
        return self.steps >= max(LOOK_STEPS, LOOK_SAMPLES * every) and self.rounds >= LOOK_ROUNDS

    def _part(self, seconds: float) -> float:
        return seconds / self.elapsed_s if self.elapsed_s > 0 else 0.0


@dataclass(frozen=True)
class IntervalPolicy:
    """The interval, and how many of the last measurements in a row asked for a wider or a finer one."""

    every: int = 1
    over: int = 0
    under: int = 0


def next_policy(policy: IntervalPolicy, measured: Measurement, budget: float) -> IntervalPolicy:
    """Return the policy after a measurement; ``budget`` is the share that the agent may take."""
    index = INTERVALS.index(policy.every)
    sampling = measured.share - measured.lasting
    if measured.share > budget and sampling > NEGLIGIBLE * budget and policy.every < INTERVALS[-1]:
        if policy.over + 1 < LOOKS_OVER:
            return IntervalPolicy(policy.every, over=policy.over + 1)
        return IntervalPolicy(INTERVALS[index + 1])
    if index and measured.lasting + sampling * policy.every / INTERVALS[index - 1] <= ROOM * budget:
        if policy.under + 1 < LOOKS_UNDER:
            return IntervalPolicy(policy.every, under=policy.under + 1)
        return IntervalPolicy(INTERVALS[index - 1])
    return IntervalPolicy(policy.every)
