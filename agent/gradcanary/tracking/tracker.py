"""The windows of one optimizer: its backward passes, its step, and what is measured in between."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor

from gradcanary import facts, wire
from gradcanary.guard import Guard
from gradcanary.hooks import backward
from gradcanary.hooks.backward import BackwardCalls
from gradcanary.hooks.grad_scaler import ScaleMark, ScalerOfOptimizer, Scalers
from gradcanary.hooks.graphs import is_capturing
from gradcanary.model.distributed import Rank, is_dtensor
from gradcanary.model.layers import Layers
from gradcanary.model.parameters import References, one_scan
from gradcanary.stats.accumulation import Fp32Reference
from gradcanary.stats.kernels import is_measurable
from gradcanary.stats.sampler import LocalNonfinite, Sampler
from gradcanary.stats.samples import Kind, of_kind
from gradcanary.stats.weights import is_frozen_due
from gradcanary.tracking.clear_detection import MODIFIED, REPLACED, UNCHANGED, ClearDetector
from gradcanary.tracking.device_clock import on_device_clock
from gradcanary.tracking.hook_sampler import HookSampler
from gradcanary.tracking.never_cleared import NeverCleared
from gradcanary.tracking.overhead import Meter
from gradcanary.tracking.records import NOT_SKIPPED, SKIPPED_BY_LOOP, SKIPPED_BY_SCALER
from gradcanary.tracking.step_clock import StepClock
from gradcanary.tracking.window import (
    NEW,
    OPEN,
    STEPPED,
    STEPPING,
    Window,
)

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class TrackerContext:
    """The objects that all trackers of a session share, and the callbacks of the recorder."""

    clock: StepClock
    rank: Rank
    guard: Guard
    meter: Meter
    calls: BackwardCalls
    scalers: Scalers
    has_optimizer: Callable[[], bool]
    on_window_begin: Callable[[OptimizerTracker], None]
    on_window_end: Callable[[OptimizerTracker], None]
    on_no_backward_end: Callable[[], None]
    on_fact: Callable[[wire.Fact], None]
    on_never_cleared: Callable[[], None]


class OptimizerTracker:
    """Follows the layers of one optimizer; layers go by position.

    ``sampler`` measures them. ``leader`` is the tracker of the main optimizer, whose windows become records. The hooks
    count, compare identities and launch kernels. None of them reads a value of a tensor, waits, or returns anything.
    """

    def __init__(self, context: TrackerContext, layers: Sequence[int], references: References) -> None:
        guard, meter = context.guard, context.meter
        sums = Fp32Reference(lambda where, hook: guard.wrap(where, meter.timed(hook)), guard.catch)
        self.sampler = Sampler(layers, references, context.rank, guard.catch, sums)
        self.scaler = ScalerOfOptimizer()
        self.window = Window(len(layers))
        self.is_new = True
        self.leader: OptimizerTracker | None = None
        self.hook_sampler = HookSampler(len(layers))
        self._context = context
        self._clock, self._rank, self._calls = context.clock, context.rank, context.calls
        self._device_clock = meter.device_clock
        self._lock = threading.RLock()
        self.clearing = ClearDetector(self.sampler)
        self.never_cleared = NeverCleared(self.sampler)
        self._pass = self.plain_pass = -1  # the pass that has begun; the one whose hooks only count
        self._open: set[int] = set()
        self._passes_before = 0
        self._is_next_incomplete = False
        self._end_pass = meter.hook("the end of backward", self._requeue_backward_end, guard.catch)
        self._settle_pass = meter.hook("sampling", self._on_backward_end, guard.catch)
        self._copy = guard.wrap("copying weights", self.copy_weights)
        self._compare = guard.wrap("measuring how far weights moved", self.compare_weights)
        self._probe = guard.wrap("looking for a clip", self.look_for_clip)
        self._find_frozen = guard.wrap("comparing weights", self.find_frozen)
        self._follow_sums = guard.wrap("summing up in float32", self.follow_sums)
        self._mark_kept = guard.wrap("looking for a clear", self.never_cleared.after_pass)
        self._mark_before_step = guard.wrap("looking for a clear", self.never_cleared.before_step)
        self._find_never_cleared = guard.wrap("looking for a clear", self.find_never_cleared)
        self._add_errors = guard.wrap("measuring what sums lost", self.sampler.add_accumulation_errors)

    def follow(self, numbers: Sequence[int], layers: Layers) -> None:
        """Take the present numbers of the layers among those of all optimizers."""
        self.sampler.follow(numbers, layers)
        self.clearing.unsharded = layers.unsharded

    @property
    def step(self) -> int:
        """The step of the window's record: the next one if the leader stepped after another pass."""
        leader = self.leader
        if leader is None or leader is self:
            return self._clock.step
        return self._clock.step + (leader.window.state is STEPPED and not self.has_pass_of(leader))

    @property
    def is_sampled(self) -> bool:
        """True if the window belongs to a sampled step."""
        return self._clock.is_sampled(self.step)

    # -- backward passes -----------------------------------------------------------------------------------------

    def forget_passes(self) -> None:
        """Before a backward pass, forget the numbers of passes that raised."""
        self._open.clear()

    def accumulated(self, position: int, begins: Callable[[int], None], look: Callable[[], None]) -> None:
        """Count a layer. If its pass has nothing else to do, the hooks of later layers only count."""
        clock = self._clock
        if clock.is_paused:
            return
        if clock.has_backward_end:
            number = backward.graph_task_id()
            if number != self._pass:
                begins(number)
        elif self.clearing.layer in (None, position) or self.window.state in (NEW, STEPPED):
            begins(-1)
        self.window.counts[position] += 1
        if self.window.local is not None and self.is_sampled:
            look()
        elif clock.has_backward_end:
            self.plain_pass = number

    def measure_local(self, position: int) -> None:
        """Measure a layer's gradient before a data-parallel wrapper reduces it."""
        window = self.window
        if window.local is None or not window.is_whole or is_capturing():
            return
        if not self._clock.has_backward_end and window.counts[position] > 1:
            return  # the sum of earlier passes in it is reduced already
        gradient = self.sampler.gradient(position)
        if gradient is not None and is_measurable(gradient):
            window.local.measure(position, gradient)

    def pass_begins(self, position: int, number: int) -> None:
        """Begin a pass, and a window if it is the first pass of one.

        With several GPUs torch calls the hooks of one pass in several threads. Until one of them has begun the pass,
        the others wait here: they would count into the window before.
        """
        with self._lock:
            is_outermost = not self._open
            if not self._clock.has_backward_end or self._is_opened(number):
                self.hook_sampler.always.add(position)
                self.clearing.first = position
                if is_outermost:
                    self._enter_window(position, number)
                if not (self._clock.has_backward_end and self._clock.saw_backward_end):
                    self.clearing.mark(position, self.sampler.gradient(position))
                elif self.clearing.layer is None:
                    self.clearing.layer = position
            self._pass = number

    def _is_opened(self, number: int) -> bool:
        """Queue the callback at the end of a pass; return False if the pass has begun before.

        A pass comes here again after an inner pass of a checkpointed block, and from other threads.
        """
        if number in self._open:
            return False
        self._open.add(number)
        try:
            backward.queue_end_of_backward(partial(self._end_pass, number))
        except Exception:
            if self._clock.saw_backward_end:
                raise
            self._context.on_no_backward_end()  # a torch whose private call has changed
        return True

    def do_without_callbacks(self) -> None:
        """Decide in each hook if a pass or window begins."""
        self._pass = self.plain_pass = -1
        self._open.clear()

    def _enter_window(self, position: int, number: int) -> None:
        if self.window.state is STEPPED and self.window.step_graph_task == number >= 0:
            return  # the optimizer stepped before this hook was called, in the same pass
        self._leave_window(position)
        if self.window.state is NEW:
            self.begin_window()
        self.window.graph_tasks.add(number)
        if self.leader is self:
            roots, unsynced = self._calls.pop()
            self.window.losses += roots
            self.window.passes_without_sync += unsynced

    def _leave_window(self, position: int) -> None:
        """End, restart or continue the open window as a pass begins with a layer.

        | the window                 | its gradients | result                                         |
        |----------------------------|---------------|------------------------------------------------|
        | STEPPED                    | any           | ends                                           |
        | OPEN or STEPPING           | kept          | continues                                      |
        | STEPPING                   | cleared       | restarts: the closure evaluates again          |
        | OPEN, without an optimizer | cleared       | restarts: only ``step()`` ends it              |
        | OPEN                       | cleared       | ends: the loop or the scaler skipped its step  |
        """
        window = self.window
        if window.state is NEW:
            return
        if window.state is STEPPED:
            if window.is_marked and not self.sampler.external:
                self.clearing.clears_in_place = self.clearing.change_since_mark(position) == MODIFIED
            self._context.on_window_end(self)
        elif self._is_cleared(position):
            self.end_or_restart()

    def end_or_restart(self) -> None:
        """Leave passes without a step; with an optimizer they are a window whose step was skipped."""
        if self.window.state is STEPPING or not self._context.has_optimizer():
            self.window.restart()
            self._note_scale()
        else:
            self._context.on_window_end(self)

    def _is_cleared(self, position: int) -> bool:
        """Return True if the gradients of the open window were cleared before this pass.

        | the gradients                        | cleared if                                                       |
        |--------------------------------------|------------------------------------------------------------------|
        | were scaled; the scaler was updated  | always                                                           |
        | are summed by the script             | a sum was complete: ``.grad`` may be cleared at any time         |
        | do not exist yet                     | never                                                            |
        | are REPLACED since the last pass     | always                                                           |
        | are MODIFIED since the last pass     | the loop clears in place, or another optimizer stepped meanwhile |
        | are UNCHANGED since the last pass    | never                                                            |
        """
        window = self.window
        if self.was_updated():
            return True
        if self.sampler.external:
            return bool(window.complete_sums)
        if not window.micro_steps:
            return False
        change = self.clearing.change_since_mark(position)
        if change == MODIFIED:
            return bool(self.clearing.clears_in_place) or self.other_optimizer_stepped()
        return change == REPLACED

    def was_updated(self) -> bool:
        """Return True if the GradScaler was updated since the window began."""
        return bool(self.scaler.found) and self.scaler.was_updated(self.window.scaler_token)

    def other_optimizer_stepped(self) -> bool:
        """Return True if another optimizer has stepped since the window began, and this one has not."""
        return self.window.state is not STEPPED and self._clock.steps_taken > self.window.steps_before

    @property
    def is_complete(self) -> bool:
        """True if the window had its step, or can have none."""
        return self.window.state is STEPPED or (self._context.has_optimizer() and self.was_updated())

    def present_pass(self) -> int:
        """Return the number of the present backward pass, -1 outside of one or if it is unknown."""
        return backward.graph_task_id() if self._clock.has_backward_end else -1

    def has_pass_of(self, other: OptimizerTracker) -> bool:
        """Return True if the windows of both have a backward pass in common."""
        is_present = other is self or other.window.step_graph_task == self.present_pass() >= 0
        return is_present or bool(other.window.graph_tasks & self.window.graph_tasks)

    def drop_scaled(self) -> None:
        """Drop the values of an unknown loss scale: none of several scalers has made the step."""
        if self.scaler.found and self.scaler.is_unknown:
            self.window.sample, self.window.losses = None, []

    def why_skipped(self) -> int:
        """Return the reason why the window has no step, or NOT_SKIPPED."""
        if self.window.state is STEPPED:
            return NOT_SKIPPED
        return SKIPPED_BY_SCALER if self.was_updated() and self.scaler.update_token() is not None else SKIPPED_BY_LOOP

    def _requeue_backward_end(self, number: int) -> None:
        """At the end of a pass, queue its evaluation after the reductions that a data-parallel wrapper has queued."""
        self._pass = self.plain_pass = -1
        self._clock.saw_backward_end = True
        if self._rank.is_distributed or self.is_sampled:
            backward.queue_end_of_backward(partial(self._settle_pass, number))
        else:
            self._on_backward_end(number)

    def _on_backward_end(self, number: int) -> None:
        self._open.discard(number)
        window = self.window
        window.passes += 1
        if window.state is STEPPING and window.has_closure and window.weights_before is None and not self._open:
            self._copy(self.step if self.is_sampled else None)
        is_last = window.state is STEPPING or window.passes >= self._passes_before
        if not self._open and window.local is not None and not is_capturing():
            window.local.remember(self.sampler.gradient)
        if is_last and window.state is not STEPPED and self.is_sampled:
            self.sample("accumulated", window.loss_scale)
        if window.step_graph_task == number >= 0 and window.sample is not None:
            window.sample.mark_partial(position for position, count in enumerate(window.counts) if count)
        self.clearing.mark_after_pass()
        if self.never_cleared.is_on and not self._open:
            self._mark_kept()

    # -- windows and steps ---------------------------------------------------------------------------------------

    def begin_window(self) -> None:
        """Begin the window."""
        self.is_new = False
        self.window.state = OPEN
        self.window.is_whole, self._is_next_incomplete = not self._is_next_incomplete, False
        self.window.steps_before = self._clock.steps_taken
        if self.scaler.found is not None:
            self._context.on_window_begin(self)
        else:
            with one_scan():
                self._context.on_window_begin(self)
                self.scaler.search(self._context.scalers, self._clock.step)
        if self._rank.measures_local_grads and self._clock.request.local:
            self.window.local = LocalNonfinite()
        self._note_scale()

    def _note_scale(self) -> None:
        if self.scaler.found:
            self._set_scale(self.scaler.mark())

    def _set_scale(self, mark: ScaleMark) -> None:
        self.window.loss_scale, self.window.scaler_token = mark

    def was_paused(self) -> None:
        """After a pause, mark the window as incomplete, or the next one if this one had its step."""
        self.never_cleared.stop()
        if self.window.state is STEPPED:
            self._is_next_incomplete = True
        else:
            self.window.was_paused()

    def renew_window(self, *, was_sampled: bool, is_foreign: bool = False) -> None:
        """Replace the window by a new one.

        ``was_sampled`` is True if its sample is sent, ``is_foreign`` if its passes belong to another optimizer.
        """
        window = self.window
        if not is_foreign:
            self._passes_before = window.passes or self._passes_before
        if window.is_whole and not (window.passes_before_hooks or is_foreign) and any(window.counts):
            self.hook_sampler.observe(window.counts, was_sampled=was_sampled)
        if was_sampled:
            self.sampler.forget_earlier()
            self.hook_sampler.sampled()
        else:
            self.sampler.remember_earlier(window.counts)
        self.window = Window(len(window.counts))

    def disable_hooks(self) -> Sequence[int]:
        """Return the positions of the layers whose hooks are disabled from now on.

        Hooks are disabled between two windows, and not if the script sums gradients itself.
        """
        window, sampler = self.window, self.hook_sampler
        if sampler.disabled or self.sampler.external or self.never_cleared.is_on or window.state is not STEPPED:
            return ()
        return sampler.disable(window.counts)

    def allows_fast_path(self) -> bool:
        """Return True if unsampled windows need only be counted."""
        own = self.sampler
        has_forecast = own.forecast_schedule.is_done or self._rank.sends_only_nonfinite
        needs_hooks = own.external or own.sums.are_on or self.scaler.found or self.clearing.layer is None
        needs_hooks = needs_hooks or self.never_cleared.is_on
        return (
            has_forecast and self.hook_sampler.is_learned and not needs_hooks and self.clearing.clears_in_place is False
        )

    def resume(self, *, is_new: bool) -> None:
        """Leave the fast path: continue the open window, or begin a new one.

        Gradients that exist count as unchanged since the last pass.
        """
        if is_new:
            self.renew_window(was_sampled=False)
            return
        self.window.steps_before = self._clock.steps_taken
        if not self.clearing.are_gone():
            self.clearing.mark_after_pass()

    def is_lost(self) -> bool:
        """Return True if a window had its step without any enabled hook: its layers have disabled ones."""
        return bool(self.hook_sampler.disabled) and self.window.state is STEPPED and not any(self.window.counts)

    def step_begins(self, optimizer: torch.optim.Optimizer, *, has_closure: bool) -> None:
        """Before the step, take a late sample, or measure the clip; with a closure both come after it."""
        window, is_sampled, scale = self.window, self.is_sampled, None
        if self.scaler.found:
            scale = self._settle_scale(optimizer)
        window.state, window.has_closure, window.weights_before = STEPPING, has_closure, None
        if is_sampled and not has_closure:
            self._copy(self.step)
            self._complete("accumulated" if self._are_unwritten() else "post_clip", scale)
        if self.never_cleared.is_on and not has_closure:
            self._mark_before_step()

    def _settle_scale(self, optimizer: torch.optim.Optimizer) -> Tensor | None:
        """Take the scale and ``found_inf`` of the step; return the scale that gradients still carry."""
        window = self.window
        if self.scaler.settle(optimizer) != (window.loss_scale is not None):
            self._set_scale(self.scaler.mark())  # until now the scaler was a guess, or one of several
            if window.sample is not None:
                window.sample.set_scale(window.loss_scale)
        scale, window.found_inf = self.scaler.at_step(optimizer)
        return scale

    def step_by_hand(self) -> None:
        """Note an update by hand; take a late sample if the gradients are unchanged since the last pass."""
        window = self.window
        is_due = window.sample is None and window.is_whole and self.is_sampled
        if is_due and self.clearing.change_since_mark(None) == UNCHANGED:
            self.sample("post_clip", window.loss_scale)
        self.step_ended()

    def step_ended(self) -> None:
        """Note the step. Until the next window begins, the script may log for this one."""
        window, is_sampled = self.window, self.is_sampled
        if is_sampled and window.has_closure:
            self._complete("post_clip", None)
        window.state = STEPPED
        window.step_graph_task = self.present_pass()
        if is_sampled or self.clearing.clears_in_place is None:
            window.is_marked = self.clearing.mark_after_step()
        if window.weights_before is not None:
            self._compare()
        self._find_never_cleared()
        step = self.step
        if window.sample is not None:
            self._find_frozen(step)
        if self.sampler.sums.are_on or (step + 1) % self._clock.interval == 0:
            self._follow_sums(step + 1)

    def _complete(self, phase: str, scale: Tensor | None) -> None:
        if self.window.sample is None:
            self.sample(phase, scale)
        else:
            self._probe(scale)

    # -- what is measured ----------------------------------------------------------------------------------------

    @on_device_clock
    def sample(self, phase: str, scale: Tensor | None) -> None:
        """Take the window's sample now."""
        if is_capturing():
            return
        window, clock, sampler = self.window, self._clock, self.sampler
        counts = window.counts if window.micro_steps and not window.passes_before_hooks else None
        window.sample = sampler.take(
            counts,
            phase,
            scale,
            unknown=self.hook_sampler.unknown,
            number=clock.samples,
            request=clock.request,
            is_partial=clock.is_joining,
        )
        if window.local is not None and clock.has_layers and not clock.is_joining:
            window.sample.parts += sampler.local_parts(window.local)
        if counts is not None and phase == "accumulated" and not self._rank.measures_local_grads:
            self._add_errors(window.sample, counts)

    def read_external(self, position: int, tensor: Tensor) -> None:
        """Read a tensor that holds a layer's sum of the window; a first call before any pass only announces it.

        Without passes (``torch.autograd.grad``) a window begins with such a call.
        """
        window, has_passes, external = self.window, self.window.micro_steps > 0, self.sampler.external
        is_first = position not in external
        external.add(position)
        if is_first and (window.state is STEPPED or not has_passes):
            return
        if has_passes and window.state is STEPPED and position in window.complete_sums:
            return  # the script may have cleared it
        if window.state is STEPPED and not has_passes:
            self._context.on_window_end(self)
        elif position in window.complete_sums and not has_passes:
            self.end_or_restart()
        if self.window.state is NEW:
            self.begin_window()
        self.window.complete_sums.add(position)
        if self.is_sampled:
            self._sample_external(position, tensor)

    def _sample_external(self, position: int, tensor: Tensor) -> None:
        window, clock = self.window, self._clock
        if window.sample is None:
            self.sample("accumulated", window.loss_scale)
        if window.sample is not None:
            self.sampler.add_external(window.sample, position, tensor, clock.samples, clock.request)

    def _are_unwritten(self) -> bool:
        """Return True inside a backward pass if no write has followed torch's own to any gradient."""
        if not self._clock.has_backward_end or backward.graph_task_id() < 0:
            return False
        gradients = [self.sampler.gradient(position) for position in range(len(self.sampler.layers))]
        return all(each is None or each._version == 0 for each in gradients)  # noqa: SLF001 -- documented only by its name

    def look_for_clip(self, scale: Tensor | None) -> None:
        """Measure one layer again if a write has changed gradients since the sample."""
        layer, sampler = self.clearing.layer, self.sampler
        if layer is None or layer in sampler.external or self._rank.sends_only_nonfinite or is_capturing():
            return
        gradient = sampler.gradient(layer)
        if self.clearing.change(gradient) == MODIFIED or (gradient is not None and is_dtensor(gradient)):
            probe = sampler.probe_clip(layer, self.window.counts, self._clock.request, scale)
            self.window.probe = probe or self.window.probe

    @on_device_clock
    def copy_weights(self, step: int | None) -> None:
        """Copy weights of a few layers before a sampled step; ``step`` is None for an unsampled one.

        A closure's passes are over by then: the copies do not raise their peak of memory.
        """
        self.window.weights_before = {}
        self.sampler.rows.forget_copies()
        if step is not None and not self._clock.is_joining:
            self.window.weights_before = self.sampler.copy_weights(step)

    @on_device_clock
    def compare_weights(self) -> None:
        """Add the weight changes of the step to the window's sample."""
        copies, self.window.weights_before = self.window.weights_before, None
        if copies is not None and self.window.sample is not None:
            self.window.sample.parts += self.sampler.compare_weights(copies)

    def find_frozen(self, step: int) -> None:
        """Add the shares of unmoved weights to the window's sample, if they are due."""
        window = self.window
        if is_frozen_due(step) and window.sample is not None and self._clock.has_layers:
            window.sample.add(Kind.FROZEN, self.sampler.find_frozen(step, self._clock.interval, window.counts))

    def find_never_cleared(self) -> None:
        """After a step, go on looking for gradients that are never cleared, and report them.

        It needs to see where each pass ends. Of copies in several processes the first one looks. Under a GradScaler
        gradients are divided by the scale before each step, so hardly anything of an old sum is left.
        """
        search, before = self.never_cleared, self.never_cleared.found
        if not self._clock.has_backward_end or self._rank.sends_only_nonfinite or self.window.loss_scale is not None:
            if search.is_on:
                search.stop()
            return
        search.after_step(self.window.counts)
        if search.found is not before:
            self._context.on_never_cleared()

    def follow_sums(self, next_step: int) -> None:
        """After a step, have the next window's sums compared with sums in float32, if that is due."""
        self.sampler.sums.end()
        clock = self._clock
        if clock.first_step is not None and self.window.micro_steps >= 2:
            self.sampler.follow_sums(next_step, clock.interval, clock.first_step)

    def forecast(self, optimizer: torch.optim.Optimizer) -> None:
        """After a step, report once the problems to expect with weights or moments of low precision.

        Each part has a guard of its own.
        """
        sampler, sample = self.sampler, self.window.sample
        if sampler.forecast_schedule.is_done or not self._clock.has_layers:
            return
        if not sampler.is_forecast_due(optimizer) or sample is None:
            return
        sampler.forecast_schedule.is_done = True
        wrap = self._context.guard.wrap
        wrap("forecasting of moments", self._forecast_moments)(optimizer)
        wrap("forecasting of weights", sampler.add_forecasts)(optimizer, sample)
        wrap("looking for master copies", sampler.exempt_kept)(optimizer)
        has_scale = self.window.loss_scale is not None or of_kind(sample.parts, Kind.SCALE) is not None
        if "float16" in sample.dtypes and not has_scale:
            self._context.on_fact(facts.NO_SCALER)

    def _forecast_moments(self, optimizer: torch.optim.Optimizer) -> None:
        for fact in self.sampler.forecast_moments(optimizer):
            self._context.on_fact(fact)
