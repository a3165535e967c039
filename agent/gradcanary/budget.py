"""How often to sample so that the agent keeps to its budget: decided after each look at what it took; pure.

A look is a stretch of steps at one interval, cut so that the price of a sample is spread over the steps that it stands
for. After one that was over the budget the interval becomes the next one, but not where that would save next to
nothing: what each step costs, sampled or not, no interval makes cheaper. Where that alone is over a quarter of the
budget, hooks of layers rest between samples from then on, before anything else is tried.

The interval goes back once the share at the finer one, as projected, would have been half of the budget at most, look
after look: a share is judged too high by what else the machine did, and a training changes. Each time that this turned
out too early it takes twice as many looks, so that the number of changes grows with the logarithm of the steps at most.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

INTERVALS = (1, 10, 100, 1000)

SLOW = 100
"""The interval where each sample makes the training wait for its device."""

GRACE_STEPS = 1000
"""Of a launch, all of which are sampled: baselines are made of them."""

LOOK_SAMPLES = 16
"""Each 16th sample counts the zeros of all layers, which costs as much as the rest of it."""

LOOK_STEPS = 160
LOOK_ROUNDS = 4
"""Of the sender, whose CPU time comes in lumps."""

SAVES = 0.1
"""The part of the agent's share that a wider interval has to save."""

ROOM = 0.5
"""Of the budget, that the projected share of a finer interval may take."""

RESTS = 0.25
"""Of the budget, that what each step costs may take before hooks rest: less is not worth that a layer without a
gradient is told of one sample later."""

PATIENCE = 4
"""Looks in a row that have to agree before the interval becomes finer."""


@dataclass(frozen=True)
class Look:
    """What a stretch of steps took, in seconds: all of it; the agent in windows that were sampled and in the others, by
    the training's clock; and its sender's thread, of CPU."""

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
        """The part of the time that it would take if nothing was sampled; nobody knows it where everything was."""
        others = self.steps - self.samples
        return min(self.share, self._part(self.other_s * self.steps / others)) if others > 0 else 0.0

    def is_over(self, every: int) -> bool:
        """Say whether it is long enough to be judged."""
        return self.steps >= max(LOOK_STEPS, LOOK_SAMPLES * every) and self.rounds >= LOOK_ROUNDS

    def _part(self, seconds: float) -> float:
        return seconds / self.elapsed_s if self.elapsed_s > 0 else 0.0


@dataclass(frozen=True)
class Pace:
    """The interval, and what led to it: ``calm`` looks in a row had room for a finer one, of ``patience`` needed.

    ``rests`` tells that hooks of layers are at rest between samples, as far as they may be.
    """

    every: int = 1
    calm: int = 0
    patience: int = PATIENCE
    has_returned: bool = False
    rests: bool = False


def paced(pace: Pace, look: Look, budget: float) -> Pace:
    """Return the pace after a look; ``budget`` is the share that the agent may take."""
    place = INTERVALS.index(pace.every)
    sampling = look.share - look.lasting
    if look.lasting > RESTS * budget and not pace.rests:
        return replace(pace, calm=0, rests=True)
    if look.share > budget:
        wider = INTERVALS[min(place + 1, len(INTERVALS) - 1)]
        if sampling * (1 - pace.every / wider) < SAVES * look.share:
            return replace(pace, calm=0)
        return replace(pace, every=wider, calm=0, patience=pace.patience * (1 + pace.has_returned), has_returned=False)
    if not place:
        return pace
    finer = INTERVALS[place - 1]
    if look.lasting + sampling * pace.every / finer > ROOM * budget:
        return replace(pace, calm=0)
    if pace.calm + 1 < pace.patience:
        return replace(pace, calm=pace.calm + 1)
    return replace(pace, every=finer, calm=0, has_returned=True)
