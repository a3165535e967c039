"""The agent's share of a training's time, and the sampling interval that follows from it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from gradcanary.hooks.graphs import is_backward_traced
from gradcanary.settings import INTERVALS
from gradcanary.tracking.device_clock import DeviceClock

Catches = Callable[[str, BaseException], object]

LONGEST_S = 2e-5
"""The longest call of a layer hook that counts: a longer one has waited for another process."""

SLOW = 100
"""The interval on devices where each sample makes the training wait."""

GRACE_STEPS = 1000
"""Steps of a launch that are all sampled: the baselines need them."""

LOOK_SAMPLES = 16
"""Samples in a measurement. Each 16th sample counts the zeros of all layers, and costs twice as much as others."""

LOOK_STEPS = 160
LOOK_ROUNDS = 4
"""Rounds of the sender in a measurement: the CPU time of a single one varies."""

LOOKS_OVER, LOOKS_UNDER = 2, 10
"""Measurements in a row that ask for a wider interval, or for a finer one, before it changes."""

HYSTERESIS = 0.5
"""The part of the budget that a finer interval may take by the estimate."""

NEGLIGIBLE = 0.1
"""A part of the budget: samples that take less are not worth a wider interval."""


class Meter:
    """Holds ``every``, the interval in steps, and the agent's share of the time.

    The share is that of the last measurement; before the first one, of all steps so far. It counts the hooks in the
    training thread, the samples on a GPU, and the CPU time of the sender thread. It does not count torch's own call of
    a hook. One layer hook in ``TIMED_EACH`` has a clock.
    """

    def __init__(self, every: int | str, budget: float) -> None:
        self.spent_s = 0.0
        self._is_fixed, self._budget = every != "auto", budget
        self.take(IntervalPolicy(every if isinstance(every, int) else 1))
        self.device_clock = DeviceClock()
        self._sender_s, self._rounds = 0.0, 0
        self._windows = 0
        self._share: float | None = None
        self._is_begun = False
        self._since = self._sampled_s = self._other_s = self._before_s = self._sender_before_s = 0.0
        self._steps = self._samples = self._rounds_before = 0

    def take(self, policy: IntervalPolicy) -> None:
        """Sample at the interval of a policy from now on."""
        self._policy, self.every = policy, policy.every

    def slow_down(self) -> None:
        """Sample rarely from now on, unless the user gave an interval: the training waits for each sample."""
        if not self._is_fixed:
            self.take(IntervalPolicy(SLOW))
            self._is_fixed = True

    def share(self) -> float:
        """Return the agent's share of the time, 0 before the first window."""
        if self._share is None and self._is_begun:
            return min(self._measured(time.perf_counter()).share, 1.0)
        return self._share or 0.0

    def timed(self, function: Callable[..., object]) -> Callable[..., None]:
        """Return the function with a clock; for functions that are called per window and never nested."""

        def measured(*args: Any, **kwargs: Any) -> None:  # noqa: ANN401 -- torch's hooks take what they like
            began = time.perf_counter()
            try:
                function(*args, **kwargs)
            finally:
                self.spent_s += time.perf_counter() - began

        return measured

    def hook(self, where: str, function: Callable[..., object], catch: Catches) -> Callable[..., None]:
        """Return a hook with a clock that returns None and never raises.

        It is ``Guard.wrap`` and :meth:`timed` in one call, for functions that are called in each step.
        """

        def called(*args: Any) -> None:  # noqa: ANN401 -- torch's hooks take what they like
            began = time.perf_counter()
            try:
                function(*args)
            except Exception as error:  # noqa: BLE001 -- as in Guard.wrap
                catch(where, error)
            self.spent_s += time.perf_counter() - began

        return called

    def timed_layer_hook(self, hooks: Callable[[], float], hook: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
        """Return the hook of a layer with a clock, whose time counts for a number of ``hooks``.

        Time that functions inside have counted already is left out.
        """

        def measured(tensor: Tensor) -> None:
            if is_backward_traced():
                return
            began, before = time.perf_counter(), self.spent_s
            hook(tensor)
            inside = self.spent_s - before
            self.spent_s += min(time.perf_counter() - began - inside, LONGEST_S) * hooks()

        return measured

    def set_sender_time(self, cpu_s: float) -> None:
        """Set the CPU time of the sender's thread, at each round of the sender."""
        self._sender_s, self._rounds = cpu_s, self._rounds + 1

    def window_begins(self) -> None:
        """Begin to measure at the first window."""
        if not self._is_begun:
            self._is_begun = True
            self._begin()

    def window_ended(self, *, is_sampled: bool) -> None:
        """Count a closed window; the interval may change here."""
        spent_s, self._before_s = self.spent_s - self._before_s, self.spent_s
        self._sampled_s += self.device_clock.take()
        self._windows += 1
        self._steps += 1
        if is_sampled:
            self._samples += 1
            self._sampled_s += spent_s
        else:
            self._other_s += spent_s
        if self._windows == GRACE_STEPS and self._policy.every > self.every:
            self.take(IntervalPolicy(self._policy.every))
            self._begin()
        elif self._steps >= LOOK_STEPS and self._steps % self.every == 0:
            self._look()

    def _look(self) -> None:
        """Measure, and decide on the interval if that was long enough; in the first steps it stays until their end."""
        measured = self._measured(time.perf_counter())
        self._share = min(measured.share, 1.0)
        if not measured.is_complete(self.every, self._budget):
            return
        if not self._is_fixed:
            policy = next_policy(replace(self._policy, every=self.every), measured, self._budget)
            if self._windows >= GRACE_STEPS:
                self.take(policy)
            else:  # one more measurement over the budget is to give the same
                self._policy = replace(policy, over=LOOKS_OVER) if policy.every > self.every else policy
        self._begin()

    def _begin(self) -> None:
        """Begin a measurement."""
        self._steps = self._samples = 0
        self._sampled_s = self._other_s = 0.0
        self._before_s, self._sender_before_s = self.spent_s, self._sender_s
        self._rounds_before, self._since = self._rounds, time.perf_counter()

    def _measured(self, now: float) -> Measurement:
        return Measurement(
            steps=self._steps,
            samples=self._samples,
            elapsed_s=now - self._since,
            sampled_s=self._sampled_s,
            other_s=self._other_s,
            sender_s=self._sender_s - self._sender_before_s,
            rounds=self._rounds - self._rounds_before,
        )


@dataclass(frozen=True)
class Measurement:
    """The time of some steps, in seconds.

    ``elapsed_s`` is the time of the training. ``sampled_s`` is the agent's time in sampled windows, on the GPU as well,
    and ``other_s`` in others. ``sender_s`` is the CPU time of the sender's thread, in a number of ``rounds``.
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
        """The part of the time that the agent would take without samples; 0, unknown, if all steps were sampled."""
        others = self.steps - self.samples
        return min(self.share, self._part(self.other_s * self.steps / others)) if others > 0 else 0.0

    def is_complete(self, every: int, budget: float) -> bool:
        """Return True if the measurement is long enough; where the hooks alone are over ``budget``, without rounds."""
        is_known = self.rounds >= LOOK_ROUNDS or self._part(self.sampled_s + self.other_s) > budget
        return is_known and self.steps >= max(LOOK_STEPS, LOOK_SAMPLES * every)

    def _part(self, seconds: float) -> float:
        return seconds / self.elapsed_s if self.elapsed_s > 0 else 0.0


@dataclass(frozen=True)
class IntervalPolicy:
    """The interval, and the number of last measurements in a row that asked for a wider or a finer one."""

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
    if index and measured.lasting + sampling * policy.every / INTERVALS[index - 1] <= HYSTERESIS * budget:
        if policy.under + 1 < LOOKS_UNDER:
            return IntervalPolicy(policy.every, under=policy.under + 1)
        return IntervalPolicy(INTERVALS[index - 1])
    return IntervalPolicy(policy.every)
