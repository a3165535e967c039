"""What the agent takes of a training's time, and the sampling interval that follows from it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from torch import Tensor

from gradcanary.budget import GRACE_STEPS, LOOK_STEPS, SLOW, Look, Pace, paced
from gradcanary.compiled import is_backward_traced

Catches = Callable[[str, BaseException], object]

LONGEST_S = 2e-5
"""Of such a call, which counts and no more: one that took longer had to wait for another process."""


class Meter:
    """Knows ``every``, the interval in steps, whether hooks of layers rest between samples, and the agent's share of
    the time.

    The share is of the last look (:mod:`gradcanary.budget`), until there was one of all steps so far: the time between
    the beginning of windows, and in it that of all hooks in the training's thread, of steps that are not sampled as
    well, and the CPU time of the sender's thread, which may have a core of its own. Not in it: torch's own call of a
    hook, and what a device computes after a kernel was launched. Hooks of layers are counted by the timed ones of them.
    """

    def __init__(self, every: int | str, budget: float) -> None:
        self.spent_s = 0.0
        self._is_fixed, self._budget = every != "auto", budget
        self.take(Pace(every if isinstance(every, int) else 1))
        self._sender_s, self._rounds = 0.0, 0
        self._windows = 0
        self._share: float | None = None
        self._is_begun = False
        self._since = self._sampled_s = self._other_s = self._before_s = self._sender_before_s = 0.0
        self._steps = self._samples = self._rounds_before = 0

    def take(self, pace: Pace) -> None:
        """Go at a pace from now on."""
        self._pace, self.every, self.rests = pace, pace.every, pace.rests

    def slow_down(self) -> None:
        """Sample as seldom as where the training waits for each sample, for good, unless an interval was given."""
        if not self._is_fixed:
            self.take(Pace(SLOW))
            self._is_fixed = True

    def share(self) -> float:
        """Return the agent's share of the time, 0 before the first window."""
        if self._share is None and self._is_begun:
            return min(self._looked(time.perf_counter()).share, 1.0)
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
        self._windows += 1
        self._steps += 1
        if is_sampled:
            self._samples += 1
            self._sampled_s += spent_s
        else:
            self._other_s += spent_s
        if self._steps < LOOK_STEPS or self._steps % self.every:
            return
        look = self._looked(time.perf_counter())
        self._share = min(look.share, 1.0)
        if not look.is_over(self.every):
            return
        if self._windows >= GRACE_STEPS and not self._is_fixed:
            self.take(paced(self._pace, look, self._budget))
        self._begin()

    def _begin(self) -> None:
        """Begin a look."""
        self._steps = self._samples = 0
        self._sampled_s = self._other_s = 0.0
        self._before_s, self._sender_before_s = self.spent_s, self._sender_s
        self._rounds_before, self._since = self._rounds, time.perf_counter()

    def _looked(self, now: float) -> Look:
        return Look(
            steps=self._steps,
            samples=self._samples,
            elapsed_s=now - self._since,
            sampled_s=self._sampled_s,
            other_s=self._other_s,
            sender_s=self._sender_s - self._sender_before_s,
            rounds=self._rounds - self._rounds_before,
        )
