"""What the agent takes of a training's time, and the sampling interval that follows from it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from torch import Tensor

from gradcanary.budget import GRACE_STEPS, LOOK_STEPS, SLOW, IntervalPolicy, Measurement, next_policy
from gradcanary.compiled import is_backward_traced
from gradcanary.device_clock import DeviceClock

Catches = Callable[[str, BaseException], object]

LONGEST_S = 2e-5
"""Of such a call, which counts and no more: one that took longer had to wait for another process."""


class Meter:
    """Holds ``every``, the interval in steps, and the agent's share of the time.

    The share is that of the last measurement (:mod:`gradcanary.budget`), before the first one of all steps so far. It
    counts all hooks in the training's thread, those of unsampled steps included, what samples take on a GPU, and the
    CPU time of the sender's thread. Torch's own call of a hook is not counted. Of the layer hooks some have a clock.
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
        """Sample as seldom as where the training waits for each sample, for good, unless an interval was given."""
        if not self._is_fixed:
            self.take(IntervalPolicy(SLOW))
            self._is_fixed = True

    def share(self) -> float:
        """Return the agent's share of the time, 0 before the first window."""
        if self._share is None and self._is_begun:
            return min(self._measured(time.perf_counter()).share, 1.0)
        return self._share or 0.0

    def timed(self, function: Callable[..., object]) -> Callable[..., None]:
        """Return the function with a clock; for what is called for a window, not for a layer, and never nested."""

        def measured(*args: Any, **kwargs: Any) -> None:  # noqa: ANN401 -- torch's hooks take what they like
            began = time.perf_counter()
            try:
                function(*args, **kwargs)
            finally:
                self.spent_s += time.perf_counter() - began

        return measured

    def hook(self, where: str, function: Callable[..., object], catch: Catches) -> Callable[..., None]:
        """Return a hook with a clock that returns None and never raises: ``Guard.wrap`` and :meth:`timed` in one call,
        for what is called in each step."""

        def called(*args: Any) -> None:  # noqa: ANN401 -- torch's hooks take what they like
            began = time.perf_counter()
            try:
                function(*args)
            except Exception as error:  # noqa: BLE001 -- as in Guard.wrap
                catch(where, error)
            self.spent_s += time.perf_counter() - began

        return called

    def timed_for(self, hooks: Callable[[], float], hook: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
        """Return the hook of a layer with a clock, which speaks for so many by then; what has a clock inside is not its
        own."""

        def measured(tensor: Tensor) -> None:
            if is_backward_traced():
                return
            began, before = time.perf_counter(), self.spent_s
            hook(tensor)
            inside = self.spent_s - before
            self.spent_s += min(time.perf_counter() - began - inside, LONGEST_S) * hooks()

        return measured

    def sent(self, cpu_s: float) -> None:
        """Note, at each round of the sender, the CPU time of its thread since that began."""
        self._sender_s, self._rounds = cpu_s, self._rounds + 1

    def window_begins(self) -> None:
        """Begin to measure, with the first window."""
        if not self._is_begun:
            self._is_begun = True
            self._begin()

    def window_ended(self, *, is_sampled: bool) -> None:
        """Count a window that was closed; between two of them the interval may change."""
        spent_s, self._before_s = self.spent_s - self._before_s, self.spent_s
        self._sampled_s += self.device_clock.take()
        self._windows += 1
        self._steps += 1
        if is_sampled:
            self._samples += 1
            self._sampled_s += spent_s
        else:
            self._other_s += spent_s
        if self._steps < LOOK_STEPS or self._steps % self.every:
            return
        measured = self._measured(time.perf_counter())
        self._share = min(measured.share, 1.0)
        if not measured.is_complete(self.every):
            return
        if self._windows >= GRACE_STEPS and not self._is_fixed:
            self.take(next_policy(self._policy, measured, self._budget))
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
