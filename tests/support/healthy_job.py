"""A healthy job that trains for months: what its gradients do all day, as traces of its launches.

Each layer has a level of its own, on which lie slow wandering of the layer and of all layers (AR(1)), the noise of
batches with now and then a heavy one, a quick decline in the beginning and a slow one for ever, and cycles of the
learning rate. Beside that: batches that are padding only, broken examples, steps that a GradScaler skips, experts and
rare words, and a resume every few days from a checkpoint some hundred steps back.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from gradcanary_server.rules.config import Rules
from gradcanary_server.rules.evaluator import evaluate
from gradcanary_server.rules.state import RuleState
from gradcanary_server.rules.types import Launch, LayerFacts
from support.traces import Trace, launch, lora
from support.virtual_people import People

STEP_S = 4.0
"""Seconds of a step of a large training."""

DENSE = 1_000
"""Steps of a launch that are all sampled, as an agent does."""

CYCLE = 50_000
WARM_UP = 200
QUICK = 5_000
"""Steps of the learning rate's cycle, of its rise after a resume, and in which the first decline happens."""


@dataclass(frozen=True)
class Job:
    """``blocks`` of lora_A and lora_B; ``noise`` multiplies every spread, in decades."""

    blocks: int = 20
    steps: int = 1_000_000
    every: int = 100
    launch_steps: int = 130_000
    noise: float = 1.0
    seed: int = 0

    def launches(self, rows: int = 64) -> Iterator[tuple[Launch, Trace]]:
        """Yield the job in batches, in their order: of each launch the first 1,000 steps, then one in ``every``."""
        random = np.random.default_rng(self.seed)
        layers, (levels, rarity) = self._layers(), self._characters(random)
        first = number = 0
        while first < self.steps:
            number += 1
            of = launch(layers, number=number, first_step=first)
            dense = -(-(first + DENSE) // self.every) * self.every
            end = min(first + self.launch_steps, self.steps)
            slow = random.normal(0, 1, 2 * self.blocks + 1)
            for every, begin, until in ((1, first, dense), (self.every, dense, end)):
                for start in range(begin, until, rows * every):
                    steps = np.arange(start, min(start + rows * every, until), every)
                    wander, slow = _wander(random, slow, len(steps), every)
                    yield of, self._trace(random, steps, every, first, (levels, rarity), wander)
            first = end - int(random.integers(0, 500)) if end < self.steps else end

    def _layers(self) -> tuple[LayerFacts, ...]:
        """Return a LoRA whose last two layers are alone of their kind."""
        *others, bias, gate = lora(self.blocks)
        return *others, replace(bias, name="keys.bias"), replace(gate, name="gate.weight")

    def _characters(self, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return the levels of layers (log10), and how often each has a gradient."""
        count = 2 * self.blocks
        levels = np.where(np.arange(count) % 2, -2.0, -3.0) + random.normal(0, 0.3, count)
        levels[-2:] = -6, -4  # a bias that a softmax cancels, and a layer that lives around the threshold
        rarity = np.ones(count)
        rarity[:3] = 0.99, 0.9, 0.5
        return levels, rarity

    def _trace(self, random, steps, every, first, characters, wander) -> Trace:
        (levels, rarity), shape, age = characters, (len(steps), 2 * self.blocks), steps - first
        lr = np.minimum(1, (age + 1) / WARM_UP) * (0.505 + 0.495 * np.cos(np.pi * (steps % CYCLE) / CYCLE))
        decline = 0.5 * np.minimum(1, steps / QUICK) + 0.3 * steps / self.steps
        heavy = 0.3 * random.standard_exponential(shape) * (random.random(shape) < 0.02)
        spread = 0.1 * wander[:, :-1] + 0.1 * wander[:, -1:] + random.normal(0, 0.12, shape) + heavy
        level = levels + self.noise * spread - decline[:, None] + 0.1 * np.log10(lr)[:, None]
        broken = random.random(len(steps)) < 5e-4
        level[broken] += random.uniform(0.5, 2, (int(broken.sum()), 1))
        absmax = 10**level
        absmax[random.random(len(steps)) < 1e-3] = 0  # padding only
        absmax[random.random(shape) >= rarity] = -1
        skipped = random.random(len(steps)) < 1e-3
        absmax[skipped] = np.nan
        loss = 2 * 10 ** (-0.8 * np.repeat(decline, every)) * random.lognormal(0, 0.05, len(steps) * every)
        loss[np.flatnonzero(broken) * every] *= 20
        return Trace(absmax, every, int(steps[0]), loss, lr[:, None] * 1e-4, skipped=skipped)


def _wander(random, slow, count: int, every: int, memory: float = 2_000.0) -> tuple[np.ndarray, np.ndarray]:
    """Return float[count, n] of AR(1) that forgets in ``memory`` steps, with a spread of 1, and how it goes on."""
    keeps = np.exp(-every / memory)
    powers = keeps ** np.maximum(np.arange(count)[:, None] - np.arange(count), 0)
    fresh = np.tril(powers) @ random.normal(0, np.sqrt(1 - keeps**2), (count, len(slow)))
    found = fresh + keeps ** np.arange(1, count + 1)[:, None] * slow
    return found, found[-1]


def told(job, step_s=STEP_S):
    """Return who heard what while a job trained, and after it."""
    people, state, rules, rows = People(layers=2 * job.blocks), RuleState.empty(), Rules(), 0
    for of, trace in job.launches():
        people.wait(len(trace.absmax) * trace.every * step_s)
        state, changes = evaluate(state, of, trace.samples(), rules)
        people.change(*(each for each in changes if each.rule not in rules.muted))
        rows += len(trace.absmax)
    people.wait(86_400)
    return people, rows
