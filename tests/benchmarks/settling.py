"""What the agent settles for after the first 1,000 steps of a launch, and watches that are as it is by then.

Those steps are all sampled; what counts is what comes after them. They are not trained here: with a shorter grace and
shorter looks the same code measures the same training, at each step and at each tenth. What a sample and another step
took in the last of these measurements gives the interval N that it would settle for. A step of the default then costs
what a step costs that is not sampled, and 1/N of what a sample adds to it. Imported, not run.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Protocol

import psutil
import torch
from torch import nn

import gradcanary
from gradcanary.settings import INTERVALS
from gradcanary.tracking import fast_path, hook_sampler, never_cleared, not_optimized, overhead
from gradcanary.tracking.overhead import LOOKS_OVER, IntervalPolicy, Measurement, next_policy

LOOK = 20
"""Steps of a look; ten times as many would take an hour for the larger models."""

AT_DEFAULT, WARM_UP = 1.01, 2
"""The target; and steps after which a turn begins: hooks are disabled after the second."""

# What is searched for after the 10th and the 100th step of a launch would count as a part of each of so few steps.
never_cleared.SEARCHES = not_optimized.SEARCHES = ()


class Training(Protocol):
    """A plain loop."""

    model: nn.Module
    optimizer: torch.optim.Optimizer

    def step(self) -> None:
        """Make one optimizer step."""


class Timed(Training, Protocol):
    """One that takes turns."""

    def cpu_s(self, steps: int) -> float:
        """Return the seconds of CPU of this whole process for a step, the mean of some."""


@dataclass(frozen=True)
class Settled:
    """The interval, the agent's own share by then, and what it came to hold meanwhile."""

    every: int
    share: float
    step_s: float
    sample_s: float
    hooks_s: float
    sender_s: float
    grown_mib: float
    threads: int

    def watch(self, loop: Training, url: str, every: int) -> gradcanary.Watch:
        """Watch a loop as the agent does by then, but with another interval: 1 samples each step, 1,000 none."""
        hook_sampler.LEARNED_AFTER = fast_path.ALIKE = 1
        watch = gradcanary.watch(loop.model, loop.optimizer, url=url, run="costs", every=every, step=1)
        forget_forecasts(watch)
        return watch

    def default(self, sampled: Sequence[float], others: Sequence[float]) -> list[float]:
        """Return the ratios of a step of the default, each from two turns of a round."""
        return [other + (each - other) / self.every for each, other in zip(sampled, others, strict=True)]


def forget_forecasts(watch: gradcanary.Watch) -> None:
    """Have the watch believe that what it foresees was said long ago."""
    for tracker in watch._session.recorder.trackers:
        tracker.sampler.forecast_schedule.is_done = True


@contextmanager
def quick_looks(steps: int, looks: list[Measurement], clock: Callable[[], float]) -> Iterator[None]:
    """Have the agent decide at once, after short looks that are kept, and sample each tenth step at the least."""

    def next_policy_(policy: IntervalPolicy, look: Measurement, budget: float) -> IntervalPolicy:
        looks.append(look)
        found = next_policy(policy, look, budget)
        return replace(found, every=min(found.every, INTERVALS[1]))

    kept = overhead.GRACE_STEPS, overhead.LOOK_STEPS, Measurement.is_complete, overhead.next_policy
    kept_windows = hook_sampler.LEARNED_AFTER, fast_path.ALIKE
    wall, overhead.time = overhead.time, SimpleNamespace(perf_counter=clock)
    overhead.GRACE_STEPS, overhead.LOOK_STEPS = 2 * steps, steps  # the first look has the start in it
    hook_sampler.LEARNED_AFTER = fast_path.ALIKE = 1
    Measurement.is_complete = lambda look, every, _budget: look.steps >= max(steps, every)
    overhead.next_policy = next_policy_
    yield
    overhead.GRACE_STEPS, overhead.LOOK_STEPS, Measurement.is_complete, overhead.next_policy = kept
    hook_sampler.LEARNED_AFTER, fast_path.ALIKE = kept_windows
    overhead.time = wall


def at_interval(look: Measurement, every: int) -> Measurement:
    """Return a look at another interval, where a sample and a step take what they took in this one."""
    others = look.steps - look.samples
    step_s = look.other_s / others if others else 0.0
    sample_s = (look.sampled_s + look.sender_s) / look.samples - step_s
    plain_s = look.elapsed_s - look.sampled_s - look.other_s
    return Measurement(
        steps=INTERVALS[-1],
        samples=INTERVALS[-1] // every,
        elapsed_s=INTERVALS[-1] * (plain_s / look.steps + step_s + sample_s / every),
        sampled_s=INTERVALS[-1] // every * (sample_s + step_s),
        other_s=(INTERVALS[-1] - INTERVALS[-1] // every) * step_s,
        rounds=look.rounds,
    )


def settle(loop: Training, url: str, look_steps: int = LOOK, clock: Callable[[], float] = time.thread_time) -> Settled:
    """Find out what the agent would settle for.

    By the CPU's clock of the thread in place of the wall's, which the agent goes by: what else the machine does is not
    in so few steps. A training that waits for a GPU needs the wall's.
    """
    loop.step()
    resident, threads = psutil.Process().memory_info().rss, threading.active_count()
    looks: list[Measurement] = []
    with (
        quick_looks(look_steps, looks, clock),
        gradcanary.watch(loop.model, loop.optimizer, url=url, run="settles") as watch,
    ):
        forget_forecasts(watch)
        measured, number, grown, more = watch._session.recorder.meter, 0, 0, 0
        while len(looks) < LOOKS_OVER or (measured.every > 1 and len(looks) < 2 * LOOKS_OVER):
            loop.step()
            number += 1
            if number == 10:
                grown, more = psutil.Process().memory_info().rss - resident, threading.active_count() - threads
        policy = IntervalPolicy(measured.every)
    last = looks[-1]
    for _ in range(LOOKS_OVER * len(INTERVALS)):
        policy = next_policy(policy, at_interval(last, policy.every), AT_DEFAULT - 1)
    return Settled(
        every=policy.every,
        share=at_interval(last, policy.every).share,
        step_s=(last.elapsed_s - last.sampled_s - last.other_s) / last.steps,
        sample_s=last.sampled_s / max(last.samples, 1),
        hooks_s=last.other_s / max(last.steps - last.samples, 1),
        sender_s=last.sender_s / last.steps,
        grown_mib=grown / 2**20,
        threads=more,
    )


def turn(loop: Timed, begin: Callable[[], AbstractContextManager[object]], steps: int) -> float:
    """Return the seconds of CPU per step of a turn, once it is warm."""
    with begin():
        for _ in range(WARM_UP):
            loop.step()
        return loop.cpu_s(steps)
