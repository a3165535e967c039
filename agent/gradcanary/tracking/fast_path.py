"""The fast path between two samples: it counts windows that are all alike, and does nothing else.

An unsampled window sends its step, loss, learning rates and logged numbers. They need no gradient, and no callback at
the end of a pass. The fast path begins after a number of windows with the same passes. It counts each call of
``backward()`` and keeps its loss. The first enabled hook of a pass shows that the pass belongs to this training.

It ends at the step before a sample, and at the first unusual call. The open window continues as an ordinary one.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gradcanary.hooks import backward
from gradcanary.hooks.graphs import is_backward_traced
from gradcanary.model import declared_dtypes
from gradcanary.model.parameters import group_sizes, learning_rates
from gradcanary.stats.samples import parts_of
from gradcanary.tracking.records import LoggedMetric, StepRecord
from gradcanary.tracking.window import NEW, OPEN, STEPPED, STEPPING

if TYPE_CHECKING:
    from gradcanary.guard import Guard
    from gradcanary.tracking.layer_hooks import LayerHooks
    from gradcanary.tracking.recorder import Recorder
    from gradcanary.tracking.tracker import OptimizerTracker
    from gradcanary.tracking.window import Window

ALIKE = 16
"""Windows in a row with the same passes before the fast path is taken, at first and after an unusual call."""

HANDS_OVER_S = 0.1
"""Windows of this time are handed over together: each record after the first costs a third of it."""

HANDS_OVER = 32
"""Windows that are handed over together at most: half the records that may be on their way from a GPU."""

Kept = tuple[int, float, list[Tensor], tuple[float | Tensor, ...], list[LoggedMetric]]
"""A window that is over: its step, the time, its losses, its learning rates, and the logged numbers."""

Optimizer = torch.optim.Optimizer


def _is_on_cuda() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]  # torch annotates it nowhere


class FastPath:
    """Takes the calls of torch while it ``is_on``. A method that returns False has left the fast path: the caller
    continues with the ordinary one."""

    def __init__(self, recorder: Recorder, layer_hooks: LayerHooks, guard: Guard) -> None:
        self.is_on = False
        self._recorder, self._layer_hooks, self._guard = recorder, layer_hooks, guard
        self._alike = self._passes = self._called = 0
        self._is_first = self._is_able = True
        self._kept: list[Kept] = []
        self._tracker: OptimizerTracker
        self._window: Window
        self._optimizer: Callable[[], Optimizer | None] = lambda: None
        self._sizes: list[int] = []
        self._declared_at = -1
        self._present_pass: Callable[[], int] = lambda: -1

    # -- while it is on ------------------------------------------------------------------------------------------

    def backward_called(self, tensors: object) -> bool:
        """Count a call of ``backward()``; the first one of a window ends the last window."""
        return self._guarded("noting a pass", self._backward_called, tensors)

    def step_begins(self, optimizer: Optimizer, *, has_closure: bool) -> bool:
        """Take the learning rates of a window."""
        if optimizer is not self._optimizer():
            return False
        return self._guarded("noting a step", self._step_begins, optimizer, has_closure)

    def step_ended(self, optimizer: Optimizer) -> bool:
        """Count the step; leave if the next window is sampled."""
        return optimizer is self._optimizer() and self._guarded("noting a step", self._step_ended)

    def _guarded(self, where: str, call: Callable[..., bool], *given: object) -> bool:
        try:
            return call(*given)
        except Exception as error:  # noqa: BLE001 -- as in Guard.wrap; the caller takes the ordinary path
            return self._give_up(where, error)

    def _backward_called(self, tensors: object) -> bool:
        recorder = self._recorder
        if recorder.graphs.stepped:
            return self.leave()
        if self._window.state is STEPPED:
            self._go_on()
            if self._tracker.is_sampled:
                return self.leave(is_usual=True)  # the interval has changed
        elif self._called == self._passes or self._is_cleared():
            return self.leave()
        self._called += 1
        recorder.calls.add(backward.scalar_roots(tensors))
        return True

    def _step_begins(self, optimizer: Optimizer, has_closure: bool) -> bool:
        window = self._window
        is_usual = self._called == window.passes == self._passes and not has_closure and self._present_pass() < 0
        if not is_usual or group_sizes(optimizer) != self._sizes or declared_dtypes.revision() != self._declared_at:
            return self.leave()
        window.state = STEPPING
        window.lr = learning_rates((optimizer,))
        return True

    def _step_ended(self) -> bool:
        recorder, window = self._recorder, self._window
        window.state = STEPPED
        self._called = 0
        recorder.clock.steps_taken += 1
        recorder.stepped_at = time.perf_counter()
        recorder.calls.reset()
        if recorder.is_next_sampled():
            self.leave(is_usual=True)
        return True

    def _noting(self, position: int) -> Callable[[Tensor], None]:
        """Return the hook of an enabled layer: its first call shows that a pass belongs to this training."""
        recorder = self._recorder
        news = recorder.meter.hook("counting micro-steps", self._note, self._give_up)

        def note(_parameter: Tensor) -> None:
            if not (is_backward_traced() or (recorder.calls.is_claimed and self._window.counts[position])):
                news(position)

        return note

    def _note(self, position: int) -> None:
        window, calls = self._window, self._recorder.calls
        window.counts[position] = window.counts[position] or 1
        if not calls.is_claimed:
            window.state = OPEN
            self._tracker.clearing.first = position
            window.passes += 1
            window.losses += calls.pop()[0]

    def _is_cleared(self) -> bool:
        """Return True if gradients of this window are gone without a step."""
        return self._window.state is not NEW and self._tracker.clearing.are_gone()

    def _go_on(self) -> None:
        """Begin the next window. It is the same object: all windows have the same counts of layers."""
        recorder, window = self._recorder, self._window
        if self._is_first:
            recorder.close_window(self._tracker)
            self._window, self._is_first = self._tracker.window, False
            return
        now = time.time()
        self._kept.append((recorder.clock.step, now, window.losses, window.lr, recorder.logged))
        recorder.logged = []
        recorder.clock.step += 1
        recorder.meter.window_ended(is_sampled=False)
        window.begin_again()
        if len(self._kept) >= HANDS_OVER or not 0 <= now - self._kept[0][1] < HANDS_OVER_S:
            self._hand_over()
            recorder.find_group()

    def _hand_over(self) -> None:
        """Put the records of the windows that are over."""
        recorder, layers, kept = self._recorder, self._recorder.layers, self._kept
        self._kept = []
        if layers is None:
            return
        for step, moment, losses, lr, logged in kept:
            recorder.put(
                StepRecord(
                    layers=layers,
                    step=step,
                    time=moment,
                    parts=parts_of(losses, lr),
                    agent_share=recorder.meter.share(),
                    every=recorder.clock.interval,
                    logged=logged,
                    sends_only_nonfinite=recorder.rank.sends_only_nonfinite,
                )
            )

    # -- entering and leaving it ---------------------------------------------------------------------------------

    def window_stepped(self, optimizer: Optimizer) -> None:
        """After an ordinary step take the fast path if the last windows were alike."""
        recorder = self._recorder
        tracker = recorder.leading
        if not (recorder.clock.interval > 1 and self._is_able) or tracker is None or optimizer is not recorder.main():
            return
        window = tracker.window
        is_usual = window.is_plain and window.calls == window.passes == self._passes
        self._alike = self._alike + 1 if is_usual else 0
        self._passes = window.passes
        if (
            self._alike >= ALIKE
            and len(recorder.optimizers()) == 1
            and not recorder.is_next_sampled()
            and self._may_enter(tracker)
        ):
            self._enter(tracker, optimizer)

    def _may_enter(self, tracker: OptimizerTracker) -> bool:
        """Return True if only the steps of one optimizer have to be counted."""
        recorder = self._recorder
        is_plain = (
            recorder.has_one_tracker
            and recorder.clock.has_backward_end
            and not (recorder.clock.is_paused or recorder.external_sums or recorder.graphs.stepped)
        )
        # Not measured yet: ranks that wait for each other, and devices that run behind the host.
        is_plain = is_plain and not recorder.rank.is_distributed and not _is_on_cuda()
        is_whole = recorder.layers is not None and not recorder.layers.has_shards and not self._layer_hooks.unhooked
        return is_plain and is_whole and tracker.allows_fast_path()

    def _enter(self, tracker: OptimizerTracker, optimizer: Optimizer) -> None:
        self.is_on = self._is_first = True
        self._called = 0
        self._tracker, self._window = tracker, tracker.window
        self._optimizer, self._sizes = weakref.ref(optimizer), group_sizes(optimizer)
        self._declared_at, self._present_pass = declared_dtypes.revision(), backward.graph_task_id_function()
        self._layer_hooks.replace_enabled(tracker, self._noting)

    def _give_up(self, where: str, error: BaseException) -> bool:
        """Leave the fast path for good: an error must not come back in each step."""
        self._guard.catch(where, error)
        self._is_able = False
        self._guard.wrap("leaving the fast path", self.leave)()
        return False

    def leave(self, *, is_usual: bool = False) -> bool:
        """Enable all hooks and make the open window an ordinary one; return False."""
        if not self.is_on:
            return False
        self.is_on = False
        self._alike = self._alike if is_usual else 0
        self._hand_over()
        window = self._window
        if not (self._is_first or window.state is STEPPED):
            self._tracker.resume(is_new=window.state is NEW and not self._called)
        self._layer_hooks.enable()
        return False
