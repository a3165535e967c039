"""One optimizer's windows: which backward passes are its own, when its gradients are complete, and when it steps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
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
from gradcanary.model.parameters import References, one_scan, refer_to_same
from gradcanary.stats.accumulation import Fp32Reference
from gradcanary.stats.kernels import is_measurable
from gradcanary.stats.sampler import LocalNonfinite, Sampler
from gradcanary.stats.samples import Kind, of_kind
from gradcanary.stats.weights import is_frozen_due
from gradcanary.tracking.device_clock import on_device_clock
from gradcanary.tracking.hook_sampler import HookSampler
from gradcanary.tracking.overhead import Meter
from gradcanary.tracking.records import NOT_SKIPPED, SKIPPED_BY_LOOP, SKIPPED_BY_SCALER
from gradcanary.tracking.step_clock import StepClock
from gradcanary.tracking.window import (
    MODIFIED,
    NEW,
    OPEN,
    REPLACED,
    STEPPED,
    STEPPING,
    UNCHANGED,
    GradientIdentity,
    Window,
)

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class TrackerContext:
    """What the trackers of a session share: values that they read, and the calls of the recorder."""

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


class OptimizerTracker:
    """Follows the layers of one optimizer, which go by position; ``sampler`` measures them, ``first`` is the one that
    the last pass began with. ``leader`` is the tracker of the main optimizer: records are those of its windows.

    The hooks count, look at identities and launch kernels. None of them reads a tensor's value, waits, or returns
    anything.
    """

    def __init__(self, context: TrackerContext, layers: Sequence[int], references: References) -> None:
        guard, meter = context.guard, context.meter
        sums = Fp32Reference(lambda where, hook: guard.wrap(where, meter.timed(hook)), guard.catch)
        self.sampler = Sampler(layers, references, context.rank, guard, sums)
        self.scaler = ScalerOfOptimizer()
        self.window = Window(len(layers))
        self.is_new = True
        self.leader: OptimizerTracker | None = None
        self.hook_sampler = HookSampler(len(layers))
        self._context = context
        self._clock, self._rank, self._calls = context.clock, context.rank, context.calls
        self._device_clock = meter.device_clock
        self._gathered: Collection[int] = ()
        self._lock = threading.RLock()
        self._identity = GradientIdentity()
        self._pass = self.plain_pass = -1
        self.first = 0
        self._open: set[int] = set()
        self._passes_before = 0
        self._clears_in_place: bool | None = None
        self._is_next_incomplete = False
        self._end_pass = meter.hook("the end of backward", self._requeue_backward_end, guard.catch)
        self._settle_pass = meter.hook("sampling", self._on_backward_end, guard.catch)
        self._copy = guard.wrap("copying weights", self.copy_weights)
        self._compare = guard.wrap("measuring how far weights moved", self.compare_weights)
        self._probe = guard.wrap("looking for a clip", self.look_for_clip)
        self._find_frozen = guard.wrap("comparing weights", self.find_frozen)
        self._follow_sums = guard.wrap("summing up in float32", self.follow_sums)
        self._add_errors = guard.wrap("measuring what sums lost", self.sampler.add_accumulation_errors)

    def has(self, references: References) -> bool:
        """Say whether these are its layers."""
        return refer_to_same(self.sampler.references, references)

    def follow(self, mine: Sequence[int], layers: Layers) -> None:
        """Take the numbers of its layers among others."""
        self.sampler.follow(mine, layers)
        self._gathered = layers.unsharded

    @property
    def step(self) -> int:
        """The step that its window is recorded under: the next one if the leader had its step in another pass."""
        leader = self.leader
        if leader is None or leader is self:
            return self._clock.step
        return self._clock.step + (leader.window.state is STEPPED and not self.has_pass_of(leader))

    @property
    def is_sampled(self) -> bool:
        """Whether its window is recorded under a step that is sampled."""
        return self._clock.is_sampled(self.step)

    # -- backward passes -----------------------------------------------------------------------------------------

    def forget_passes(self) -> None:
        """Before a backward pass: one that raised has left its number."""
        self._open.clear()

    def accumulated(self, position: int, begins: Callable[[int], None], look: Callable[[], None]) -> None:
        """Count a layer; where its pass has nothing else to do, those that come after it count themselves."""
        clock = self._clock
        if clock.is_paused:
            return
        if clock.has_backward_end:
            number = backward.graph_task_id()
            if number != self._pass:
                begins(number)
        elif self._identity.layer in (None, position) or self.window.state in (NEW, STEPPED):
            begins(-1)
        self.window.counts[position] += 1
        if self.window.local is not None and self.is_sampled:
            look()
        elif clock.has_backward_end:
            self.plain_pass = number

    def measure_local(self, position: int) -> None:
        """Measure a layer's gradient of this process alone: after this hook a data-parallel wrapper reduces it."""
        window = self.window
        if window.local is None or not window.is_whole or is_capturing():
            return
        if not self._clock.has_backward_end and window.counts[position] > 1:
            return  # it is not known what was in it before
        gradient = self.sampler.gradient(position)
        if gradient is not None and is_measurable(gradient):
            window.local.measure(position, gradient)

    def pass_begins(self, position: int, number: int) -> None:
        """Begin a pass, of this number where there is one, with a layer, and a window where it is the first of one."""
        with self._lock:  # of several GPUs each has a thread for its hooks: they count once the pass has begun
            is_outermost = not self._open
            if not self._clock.has_backward_end or self._is_opened(number):
                self.hook_sampler.always.add(position)
                self.first = position
                if is_outermost:
                    self._enter_window(position, number)
                if not (self._clock.has_backward_end and self._clock.saw_backward_end):
                    self._identity.mark(position, self.sampler.gradient(position))
                elif self._identity.layer is None:
                    self._identity.layer = position
            self._pass = number

    def _is_opened(self, number: int) -> bool:
        """Queue what follows the end of a pass, once; False when an inner pass of a checkpointed block has ended."""
        if number in self._open:
            return False
        self._open.add(number)
        try:
            backward.queue_end_of_backward(partial(self._end_pass, number))
        except Exception:
            if self._clock.saw_backward_end:
                raise
            self._context.on_no_backward_end()
        return True

    def do_without_callbacks(self) -> None:
        """Have each hook look for itself what there is to do."""
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
        """Decide, as a pass begins with a layer, what becomes of the window that is open.

        | the window                    | gradients were | it                                           |
        |-------------------------------|----------------|----------------------------------------------|
        | had its step                  | any            | ends                                         |
        | is open                       | kept           | goes on                                      |
        | is open, inside its step      | cleared        | restarts: a closure evaluates again          |
        | is open, without an optimizer | cleared        | restarts: only ``step()`` ends it            |
        | is open                       | cleared        | ends: the loop or a scaler skipped its step  |
        """
        window = self.window
        if window.state is NEW:
            return
        if window.state is STEPPED:
            if window.is_marked and not self.sampler.external:
                self._clears_in_place = self._change(position) == MODIFIED
            self._context.on_window_end(self)
        elif self._is_cleared(position):
            self.end_or_restart()

    def end_or_restart(self) -> None:
        """Leave passes that led to no step; with an optimizer they are a window of which the step was skipped."""
        if self.window.state is STEPPING or not self._context.has_optimizer():
            self.window.restart()
            self._note_scale()
        else:
            self._context.on_window_end(self)

    def _is_cleared(self, position: int) -> bool:
        """Return True if the gradients of the open window were cleared before this pass.

        | the layers' gradients are         | they were cleared if                                             |
        |-----------------------------------|------------------------------------------------------------------|
        | of a GradScaler that was updated  | always                                                           |
        | summed by the script              | a sum was complete: such loops clear ``.grad`` whenever they like |
        | not there yet                     | never                                                            |
        | REPLACED since the last pass      | always                                                           |
        | MODIFIED since the last pass      | the loop clears in place, or another optimizer stepped meanwhile |
        | UNCHANGED since the last pass     | never                                                            |
        """
        window = self.window
        if self.was_updated():
            return True
        if self.sampler.external:
            return bool(window.complete_sums)
        if not window.micro_steps:
            return False
        change = self._change(position)
        if change == MODIFIED:
            return bool(self._clears_in_place) or self.other_optimizer_stepped()
        return change == REPLACED

    def _change(self, accumulated: int | None) -> int:
        """Return what became of the remembered gradient; ``accumulated`` is the layer that this pass has written to."""
        layer = self._identity.layer
        if layer is None:
            return REPLACED
        if self.sampler.parameter(layer) is None:
            return UNCHANGED  # it is gone, or out of reach while no optimizer holds it
        return self._identity.change(
            self.sampler.gradient(layer),
            writes=int(accumulated == layer),
            is_reduced_later=self.sampler.layers[layer] in self._gathered,
        )

    def was_updated(self) -> bool:
        """Say whether the GradScaler was updated since the window began."""
        return bool(self.scaler.found) and self.scaler.was_updated(self.window.scaler_token)

    def other_optimizer_stepped(self) -> bool:
        """Return True if another optimizer has stepped since the window began, and its own has not."""
        return self.window.state is not STEPPED and self._clock.steps_taken > self.window.steps_before

    @property
    def is_complete(self) -> bool:
        """Whether the window had its step, or will not get one any more."""
        return self.window.state is STEPPED or (self._context.has_optimizer() and self.was_updated())

    def present_pass(self) -> int:
        """Return the number of the present backward pass, -1 outside of one or where nobody knows it."""
        return backward.graph_task_id() if self._clock.has_backward_end else -1

    def has_pass_of(self, other: OptimizerTracker) -> bool:
        """Say whether the windows of both have a backward pass in common."""
        is_present = other is self or other.window.step_graph_task == self.present_pass() >= 0
        return is_present or bool(other.window.graph_tasks & self.window.graph_tasks)

    def drop_scaled(self) -> None:
        """Drop what was measured under a loss scale that is not known: no scaler of several has made the step."""
        if self.scaler.found and self.scaler.is_unknown:
            self.window.sample, self.window.losses = None, []

    def why_skipped(self) -> int:
        """Say who skipped the window's step, if somebody did."""
        if self.window.state is STEPPED:
            return NOT_SKIPPED
        return SKIPPED_BY_SCALER if self.was_updated() and self.scaler.update_token() is not None else SKIPPED_BY_LOOP

    def _requeue_backward_end(self, number: int) -> None:
        """Settle the pass, where it matters after what a data-parallel wrapper has queued meanwhile."""
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
            self._copy_weights()
        is_last = window.state is STEPPING or window.passes >= self._passes_before
        if not self._open and window.local is not None and not is_capturing():
            window.local.remember(self.sampler.gradient)
        if is_last and window.state is not STEPPED and self.is_sampled:
            self.sample("accumulated", window.loss_scale)
        if window.step_graph_task == number >= 0 and window.sample is not None:
            window.sample.mark_partial(position for position, count in enumerate(window.counts) if count)
        self._remember_grad_identity()

    def _remember_grad_identity(self) -> None:
        """Remember what a pass left. A layer that took no part in it, as the head of another task, tells nothing of
        the next one: then it is the one that this pass began with."""
        if self._identity.layer is not None:
            gradient = self.sampler.gradient(self._identity.layer)
            if gradient is None and (other := self.sampler.gradient(self.first)) is not None:
                self._identity.layer, gradient = self.first, other
            self._identity.mark(self._identity.layer, gradient)

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

    def leave_plain_pass(self) -> None:
        """Have the hooks of the present pass look for themselves again what there is to do."""
        self.plain_pass = -1

    def was_paused(self) -> None:
        """Forget what was seen of the window; of one that is complete nothing was missed, maybe of the next one."""
        if self.window.state is STEPPED:
            self._is_next_incomplete = True
        else:
            self.window.was_paused()

    def renew_window(self, *, was_sampled: bool, is_foreign: bool = False) -> None:
        """Let go of the window.

        ``was_sampled`` tells whether what its layers did is known to whoever reads samples, ``is_foreign`` whether it
        was made of another optimizer's passes.
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
        """Return the positions of the layers whose hooks are disabled from now on; none where they are already.

        Between two windows only, and not where the script says when a sum is complete.
        """
        window, sampler = self.window, self.hook_sampler
        if sampler.disabled or self.sampler.external or window.state is not STEPPED:
            return ()
        return sampler.disable(window.counts)

    def allows_fast_path(self) -> bool:
        """Say whether nothing is asked of its next windows, if they are not sampled, but that they are counted."""
        own = self.sampler
        is_foreseen = own.forecast_schedule.is_done or self._rank.sends_only_nonfinite
        is_watched = own.external or own.sums.are_on or self.scaler.found or self._identity.layer is None
        return is_foreseen and self.hook_sampler.is_learned and not is_watched and self._clears_in_place is False

    def is_cleared(self) -> bool:
        """Say whether the gradient that tells of the others is gone, and that which the last pass began with."""
        layer = self._identity.layer
        return layer is not None and self.sampler.gradient(layer) is None and self.sampler.gradient(self.first) is None

    def resume(self, *, is_new: bool) -> None:
        """After the fast path go on with the window that is open, or with a new one.

        Gradients that are there are taken to be as the last pass left them; one that is gone tells by itself.
        """
        if is_new:
            self.renew_window(was_sampled=False)
            return
        self.window.steps_before = self._clock.steps_taken
        if not self.is_cleared():
            self._remember_grad_identity()

    def is_lost(self) -> bool:
        """Return True if a window had its step and no enabled hook was called: the disabled ones would have been."""
        return bool(self.hook_sampler.disabled) and self.window.state is STEPPED and not any(self.window.counts)

    def step_begins(self, optimizer: torch.optim.Optimizer, *, has_closure: bool) -> None:
        """Take what the moment before the step shows: a late sample, or the clip. A closure comes after this."""
        window, is_sampled, scale = self.window, self.is_sampled, None
        if self.scaler.found:
            scale = self._settle_scale(optimizer)
        window.state, window.has_closure, window.weights_before = STEPPING, has_closure, None
        if is_sampled and not has_closure:
            self._copy_weights()
        if is_sampled and not has_closure:
            self._complete("accumulated" if self._are_unwritten() else "post_clip", scale)

    def _settle_scale(self, optimizer: torch.optim.Optimizer) -> Tensor | None:
        """Note what the moment before the step shows of its scaler; return the scale that gradients still carry."""
        window = self.window
        if self.scaler.settle(optimizer) != (window.loss_scale is not None):
            self._set_scale(self.scaler.mark())  # until now it was a guess, or one of several
            if window.sample is not None:
                window.sample.set_scale(window.loss_scale)
        scale, window.found_inf = self.scaler.at_step(optimizer)
        return scale

    def step_by_hand(self) -> None:
        """Take a late sample after an update by hand, if nothing has changed the gradients since the last pass."""
        window = self.window
        is_due = window.sample is None and window.is_whole and self.is_sampled
        if is_due and self._change(None) == UNCHANGED:
            self.sample("post_clip", window.loss_scale)
        self.step_ended()

    def step_ended(self) -> None:
        """Note that the window got its step; it stays open for what is logged until the next one begins."""
        window, is_sampled = self.window, self.is_sampled
        if is_sampled and window.has_closure:
            self._complete("post_clip", None)
        window.state = STEPPED
        window.step_graph_task = self.present_pass()
        if is_sampled or self._clears_in_place is None:
            self._look_back(window)
        if window.weights_before is not None:
            self._compare()
        step = self.step
        if window.sample is not None:
            self._find_frozen(step)
        if self.sampler.sums.are_on or (step + 1) % self._clock.interval == 0:
            self._follow_sums(step + 1)

    def _look_back(self, window: Window) -> None:
        """Remember the gradients as the step left them: how a loop clears them shows as the next window begins."""
        if self._identity.layer is not None:
            self._identity.mark(self._identity.layer, self.sampler.gradient(self._identity.layer))
            window.is_marked = True

    def _copy_weights(self) -> None:
        self._copy(self.step if self.is_sampled else None)

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

        Where there are no passes, because the script asks torch for gradients, a window begins with such a call.
        """
        window, has_passes, external = self.window, self.window.micro_steps > 0, self.sampler.external
        is_first = position not in external
        external.add(position)
        if is_first and (window.state is STEPPED or not has_passes):
            return
        if has_passes and window.state is STEPPED and position in window.complete_sums:
            return  # by now it may be cleared
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
            self.sampler.add_external(window.sample, position, tensor, number=clock.samples, request=clock.request)

    def _are_unwritten(self) -> bool:
        """Return True inside a backward pass if nothing has written to the gradients since torch made them."""
        if not self._clock.has_backward_end or backward.graph_task_id() < 0:
            return False
        gradients = [self.sampler.gradient(position) for position in range(len(self.sampler.layers))]
        return all(each is None or each._version == 0 for each in gradients)  # noqa: SLF001 -- documented only by its name

    def look_for_clip(self, scale: Tensor | None) -> None:
        """Measure one layer again if gradients were written to since the sample."""
        layer, sampler = self._identity.layer, self.sampler
        if layer is None or layer in sampler.external or self._rank.sends_only_nonfinite or is_capturing():
            return
        gradient = sampler.gradient(layer)
        if self._identity.change(gradient) == MODIFIED or (gradient is not None and is_dtensor(gradient)):
            probe = sampler.probe_clip(layer, self.window.counts, self._clock.request, scale)
            self.window.probe = probe or self.window.probe

    @on_device_clock
    def copy_weights(self, step: int | None) -> None:
        """Keep what the step changes, of the layers whose turn it is; None = the step is not sampled.

        A closure's forward and backward pass are over by then: a copy must not make their peak of memory higher.
        """
        self.window.weights_before = {}
        if step is not None and not self._clock.is_joining:
            self.window.weights_before = self.sampler.copy_weights(step)

    @on_device_clock
    def compare_weights(self) -> None:
        """Put how far the step moved them into the window's sample."""
        copies, self.window.weights_before = self.window.weights_before, None
        if copies and self.window.sample is not None:
            self.window.sample.add(Kind.UPDATE_NORMS, self.sampler.compare_weights(copies))

    def find_frozen(self, step: int) -> None:
        """Put the share of weights that have not moved for a while into the window's sample, where it is due."""
        window = self.window
        if is_frozen_due(step) and window.sample is not None and self._clock.has_layers:
            window.sample.add(Kind.FROZEN, self.sampler.find_frozen(step, self._clock.interval, window.counts))

    def follow_sums(self, next_step: int) -> None:
        """After a step, let the next window's sums be compared with sums in float32, where it is its turn."""
        self.sampler.sums.end()
        clock = self._clock
        if clock.first_step is not None and self.window.micro_steps >= 2:
            self.sampler.follow_sums(next_step, clock.interval, clock.first_step)

    def forecast(self, optimizer: torch.optim.Optimizer) -> None:
        """After a step report once what will go wrong with weights or moments of low precision.

        Each of the three looks has a wall of its own: if one of them fails, the others still report.
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
        has_scale = self.window.loss_scale is not None or of_kind(sample.parts, Kind.SCALE) is not None
        if "float16" in sample.dtypes and not has_scale:
            self._context.on_fact(facts.NO_SCALER)

    def _forecast_moments(self, optimizer: torch.optim.Optimizer) -> None:
        for fact in self.sampler.forecast_moments(optimizer):
            self._context.on_fact(fact)


def let_go(trackers: Iterable[OptimizerTracker]) -> None:
    """Leave no hook on the layers of trackers that are followed no more, but those that count."""
    for tracker in trackers:
        tracker.sampler.sums.end()
