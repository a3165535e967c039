"""The records of a session, made on the training thread: one for each window of the main optimizer.

The main optimizer is the one that holds most elements. Windows of others are recorded under its present step.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gradcanary import facts, wire
from gradcanary.guard import Guard
from gradcanary.hooks import backward
from gradcanary.hooks.backward import BackwardCalls
from gradcanary.hooks.grad_scaler import Scalers
from gradcanary.hooks.graphs import Graphs
from gradcanary.model.distributed import Rank
from gradcanary.model.layers import Layers
from gradcanary.model.parameters import learning_rates, refer_to_same
from gradcanary.model.training_loop import FirstStep, find_first_step
from gradcanary.settings import Settings
from gradcanary.stats.sampler import not_sampled
from gradcanary.stats.samples import Sample
from gradcanary.tracking.external_sums import ExternalSums
from gradcanary.tracking.group_settings import GroupSettings
from gradcanary.tracking.never_cleared import WINDOWS
from gradcanary.tracking.overhead import Meter
from gradcanary.tracking.records import LoggedMetric, StepRecord, peak_bytes
from gradcanary.tracking.step_clock import StepClock
from gradcanary.tracking.tracker import OptimizerTracker, TrackerContext
from gradcanary.tracking.window import NEW, STEPPED, Window

Optimizer = torch.optim.Optimizer

PASSES_WITHOUT_STEP = 64
"""Backward passes after which a loop without an optimizer is reported: more than most windows have."""

STOP_AFTER = "GRADCANARY_STOP_AFTER"
"""A variable of ``gradcanary sanity``: the windows after which the process ends as by Ctrl-C."""

OWN_LOSSES = 20
"""Samples in a row of another optimizer from passes of its own; fewer are a part that is warmed up alone."""


class Recorder:
    """Follows all optimizers, each with a tracker; :class:`gradcanary.tracking.optimizers.Hooks` calls it."""

    def __init__(self, settings: Settings, guard: Guard, *, put: Callable[[StepRecord], None]) -> None:
        self.settings = settings
        self.guard = guard
        self._unanswered_in: int | None = None
        self.put = put
        self.layers: Layers | None = None
        self.main: Callable[[], Optimizer | None] = lambda: None
        self.optimizers: Callable[[], Sequence[Optimizer]] = tuple
        self.enable_hooks: Callable[[], None] = lambda: None
        self.leave_fast_path: Callable[[], object] = lambda: None
        self.awaits_optimizer: Callable[[], bool] = lambda: False
        self.first_step: FirstStep | None = None
        self._stop_after = int(os.environ.get(STOP_AFTER) or 0)
        self.meter = Meter(settings.every, settings.budget)
        self.clock = StepClock(self.meter)
        self._passes_without_step = 0
        self.is_late = False
        self.logged: list[LoggedMetric] = []
        self.group_settings = GroupSettings()
        self.graphs, self.rank, self.calls = Graphs(), Rank(), BackwardCalls()
        self._context = TrackerContext(
            clock=self.clock,
            rank=self.rank,
            guard=guard,
            meter=self.meter,
            calls=self.calls,
            scalers=Scalers(),
            has_optimizer=self.has_optimizer,
            on_window_begin=self.on_window_begin,
            on_window_end=self.on_window_end,
            on_no_backward_end=self.do_without_callbacks,
            on_fact=self.add_fact,
            on_never_cleared=self.report_never_cleared,
        )
        self.facts: list[wire.Fact] = []
        self._frozen: tuple[str, ...] = ()
        self.external_sums = ExternalSums(settings, guard)
        self._trackers: dict[int | None, OptimizerTracker] = {}
        self.leading: OptimizerTracker | None = None  # of the main optimizer
        self._present: dict[OptimizerTracker, Sample] = {}
        """The last sample of each other optimizer, for the present record."""
        self._early: dict[OptimizerTracker, Sample] = {}
        """Samples for the next record."""
        self._own_losses: dict[OptimizerTracker, int] = {}
        """Samples in a row of each other optimizer from passes of its own."""
        self.stepped_at: float | None = None

    # -- what the hooks call -------------------------------------------------------------------------------------

    def follow(self, layers: Layers) -> None:
        """Follow other layers. The open window of an optimizer with the same layers as before continues."""
        main, owners = self.main(), [id(optimizer) for optimizer in self.optimizers()]
        first = None if main is None else id(main)
        owned_layers = layers_of_optimizers(layers, owners, first)
        left = [tracker for key, tracker in self._trackers.items() if key not in owned_layers]
        trackers = {key: self._tracker_of(key, owned, layers, left) for key, owned in owned_layers.items()}
        self._hand_over(trackers[first], trackers.values())
        for tracker in self._trackers.values():
            if tracker not in trackers.values():
                tracker.sampler.sums.end()
        self.layers, self._trackers = layers, trackers
        self.facts[:] = [fact for fact in self.facts if fact.code != wire.OWN_LOSS]
        self._own_losses.clear()
        self.clock.has_layers = True
        for key, owned in owned_layers.items():
            trackers[key].follow(owned, layers)
        self.external_sums.follow(layers, trackers.values())
        self.rank.follow(layers)
        for fact in layers.facts:
            self.add_fact(fact)
        self._tell_frozen(layers)

    def _tell_frozen(self, layers: Layers) -> None:
        """Replace the fact of frozen parameters if others are frozen now; without any there is none at first."""
        if layers.frozen == self._frozen:
            return
        self._frozen, step = layers.frozen, self.clock.step
        self.add_fact(facts.frozen_parameters(layers.frozen, layers.total, step if self.clock.steps_taken else None))

    def backward_called(self, roots: list[Tensor]) -> None:
        """Keep the roots of a backward pass until a layer of the main optimizer takes part in it."""
        if self.graphs.stepped:
            self._note_compiled_step()
        for tracker in self._trackers.values():
            tracker.forget_passes()
            tracker.never_cleared.before_pass()
        if not (self.clock.saw_backward_end or self.has_optimizer()):
            self._look_for_callback()
        if not self.clock.steps_taken:
            self._count_pass_without_step()
        if self.clock.is_paused:
            self.calls.skip()
        else:
            self.calls.add(roots)

    def _count_pass_without_step(self) -> None:
        """Report, once, that no step comes, unless an optimizer exists: its first window may be long."""
        if self.clock.is_paused and not self.clock.is_joining:
            return
        self._passes_without_step += 1
        if self._passes_without_step == PASSES_WITHOUT_STEP and not (self.has_optimizer() or self.awaits_optimizer()):
            self.add_fact(facts.NO_STEP)

    def step_begins(self, optimizer: Optimizer, *, has_closure: bool) -> None:
        """Take the values that only the moment before the step has."""
        if self.graphs.stepped:
            self._note_compiled_step()
        tracker = self._trackers.get(id(optimizer))
        if tracker is None:
            return
        if not self.clock.saw_backward_end:
            self._look_for_callback()
        self._begin_stepping(tracker)
        if self.clock.is_paused:
            self.resume()
        tracker.step_begins(optimizer, has_closure=has_closure)
        if tracker is self.leading:
            optimizers = self.optimizers()
            tracker.window.lr = learning_rates(optimizers)
            if tracker.is_sampled:
                self.group_settings.note(tracker.step, optimizers)

    def step_ended(self, optimizer: Optimizer) -> None:
        """Note the step; a sample of another optimizer goes to the main one's record."""
        now = time.perf_counter()
        tracker = self._trackers.get(id(optimizer))
        if tracker is None:
            return
        tracker.step_ended()
        if not tracker.sampler.forecast_schedule.is_done:
            self.guard.wrap("forecasting", tracker.forecast)(optimizer)
        self._count_step()
        if tracker is self.leading:
            self._leading_stepped(tracker, now)
        else:
            self._add_sample(tracker, self.leading)

    def step_by_hand(self) -> None:
        """Note a step of a loop without an optimizer; a followed optimizer counts its own steps."""
        now = time.perf_counter()
        is_compiled = self.graphs.stepped
        self._note_compiled_step()
        leading = self.leading
        if is_compiled or leading is None or self.has_optimizer():
            return
        self._begin_stepping(leading)
        self.resume()
        if self.first_step is None:
            self._find_origin(even_unknown=True)
        leading.step_by_hand()
        self._count_step()
        self._leading_stepped(leading, now)

    def _leading_stepped(self, leading: OptimizerTracker, now: float) -> None:
        leading.window.calls += self.calls.reset()  # those of a closure
        leading.window.step_time_s = None if self.stepped_at is None else now - self.stepped_at
        self.stepped_at = now

    def _count_step(self) -> None:
        self.clock.steps_taken += 1
        if facts.NO_STEP in self.facts:
            self.facts.remove(facts.NO_STEP)

    def close(self) -> None:
        """Put the record of the last window if it had its step."""
        self.leave_fast_path()
        self._note_compiled_step()
        if not self.clock.steps_taken:
            self._report_no_step()
        if self.leading is not None and self.leading.is_complete:
            self.close_window(self.leading)

    def _report_no_step(self) -> None:
        """Report at the end that no step came; a late watch may just have ended before its first one."""
        is_summed = self.leading is not None and bool(self.leading.window.complete_sums)
        if facts.NO_STEP in self.facts:
            self.guard.print_once(facts.STILL_NO_STEP)
        elif is_summed or (self._passes_without_step > 1 and not self.is_late):
            self.add_fact(facts.NO_STEP)

    def remove_hooks(self) -> None:
        """Remove the hooks of the float32 sums."""
        for tracker in self._trackers.values():
            tracker.sampler.sums.end()

    def pause(self) -> None:
        """Measure nothing until the next step."""
        self.leave_fast_path()
        self._note_compiled_step()  # an earlier step must not end the pause
        self.clock.is_paused = True
        for tracker in self._trackers.values():
            tracker.plain_pass = -1  # its hooks have to look at the clock again

    def join(self) -> None:
        """Begin in the middle of a training, and of a window: its values may be those of any part of it."""
        self.is_late = self.clock.is_joining = True
        self.pause()

    def resume(self) -> None:
        """End the pause, if there is one."""
        if self.clock.is_paused:
            self.clock.is_paused = False
            for tracker in self._trackers.values():
                tracker.was_paused()

    def add_fact(self, fact: wire.Fact) -> None:
        """Add a fact to those of the session, once; some are printed on stderr as well."""
        if fact not in self.facts:
            self.facts[:] = facts.merged(self.facts, (fact,))
            if fact.code in facts.PRINTED:
                self.guard.print_once(fact.text)

    def report_never_cleared(self) -> None:
        """Replace the fact of gradients that are never cleared by one about the layers of all optimizers."""
        if self.layers is None:
            return
        listed = self.layers.layer_set.layers
        numbers = sorted(each.sampler.layers[at] for each in self._trackers.values() for at in each.never_cleared.found)
        names = [listed[number].name for number in numbers]
        self.add_fact(facts.never_cleared(names, len(listed), WINDOWS, self.clock.step))

    @property
    def trackers(self) -> Collection[OptimizerTracker]:
        """The trackers of all optimizers."""
        return self._trackers.values()

    # -- what the trackers call ------------------------------------------------------------------------------------

    @property
    def has_one_tracker(self) -> bool:
        """True if exactly one tracker exists."""
        return len(self._trackers) == 1

    def is_next_sampled(self) -> bool:
        """Before a backward pass, return True if the main optimizer's window is sampled."""
        leading = self.leading
        return (self.clock.step + (leading is not None and leading.window.state is STEPPED)) % self.meter.every == 0

    def has_optimizer(self) -> bool:
        """Return True if an optimizer is followed; otherwise only ``step()`` ends a window."""
        return self.main() is not None

    def do_without_callbacks(self) -> None:
        """Take samples in the step hook from now on."""
        self.clock.has_backward_end = False
        self.add_fact(facts.NO_CALLBACKS)
        for tracker in self._trackers.values():
            tracker.do_without_callbacks()

    def on_window_begin(self, tracker: OptimizerTracker) -> None:
        """Before a tracker's window, find the process group and the first step."""
        self.find_group()
        if self.first_step is None:
            self.meter.window_begins()
            self._find_origin(even_unknown=False)
        if tracker.hook_sampler.disabled and tracker.is_sampled:
            self.enable_hooks()  # no step has enabled them: the last one was skipped or compiled

    def find_group(self) -> None:
        """Look for a process group: a script may make it after watch()."""
        if self.rank.refresh():
            self.add_fact(facts.LATE_GROUP)

    def on_window_end(self, tracker: OptimizerTracker) -> None:
        """Put the record of the main optimizer's window.

        If only another optimizer stepped, the gradients belonged to that one: the window is dropped.
        """
        is_foreign = (
            tracker.window.state is not STEPPED and tracker.other_optimizer_stepped() and not tracker.was_updated()
        )
        if tracker is self.leading and not is_foreign:
            self.close_window(tracker)
            self._stop_if_due()
        else:
            tracker.renew_window(
                was_sampled=tracker.window.state is STEPPED and tracker.is_sampled, is_foreign=is_foreign
            )

    def _stop_if_due(self) -> None:
        """End the process as Ctrl-C does, once, if ``gradcanary sanity`` has all the steps that it wants."""
        first = self.clock.first_step
        if self._stop_after and first is not None and self.clock.step - first >= self._stop_after:
            self._stop_after = 0
            signal.raise_signal(signal.SIGINT)

    def _look_for_callback(self) -> None:
        """Do without callbacks if none came in two windows. A pass that raises has none, so one is not enough."""
        has_passed = any(any(tracker.window.counts) for tracker in self._trackers.values())
        if not (self.clock.has_backward_end and has_passed and backward.graph_task_id() < 0):
            return
        if self._unanswered_in is None:
            self._unanswered_in = self.clock.step
        elif self._unanswered_in != self.clock.step:
            self.do_without_callbacks()

    def _note_compiled_step(self) -> None:
        """Note a step inside a compiled graph. With several optimizers it is unknown which one stepped."""
        if not self.graphs.stepped:
            return
        self.graphs.stepped = False
        self.add_fact(facts.COMPILED_STEP if self.has_one_tracker else facts.COMPILED_STEPS)
        if not self.has_one_tracker:
            self.remove_hooks()
            for tracker in self._trackers.values():
                tracker.leader = None
            self.layers, self._trackers, self.leading = None, {}, None
            self.clock.has_layers = False
            self.logged.clear()
        elif self.leading is not None:
            self._note_step(self.leading)
        self._count_step()

    def _note_step(self, leading: OptimizerTracker) -> None:
        if self.clock.is_paused:
            self._begin_stepping(leading)
            self.resume()
        if leading.window.state not in (NEW, STEPPED):
            leading.window.calls = self.calls.reset()
            leading.step_ended()

    # -- several optimizers --------------------------------------------------------------------------------------

    def _tracker_of(
        self, key: int | None, owned_layers: list[int], layers: Layers, left: list[OptimizerTracker]
    ) -> OptimizerTracker:
        """Return the tracker of an optimizer: its own, else one of ``left`` with the same layers, else a new one."""
        references = [layers.references[layer] for layer in owned_layers]
        known = [self._trackers[key]] if key in self._trackers else left
        same = next((each for each in known if refer_to_same(each.sampler.references, references)), None)
        return same or OptimizerTracker(self._context, owned_layers, references)

    def _hand_over(self, leading: OptimizerTracker, trackers: Collection[OptimizerTracker]) -> None:
        """Change the main optimizer. The last step of the former one is recorded or kept for the new one."""
        before, self.leading = self.leading, leading
        for tracker in trackers:
            tracker.leader = leading
        if before is not None and before.window.state is STEPPED:
            if before is leading or before not in trackers:
                self.close_window(before)
            else:
                self._add_sample(before, leading)
        self._present = {tracker: sample for tracker, sample in self._present.items() if tracker in trackers}
        self._early = {tracker: sample for tracker, sample in self._early.items() if tracker in trackers}

    def _add_sample(self, tracker: OptimizerTracker, leading: OptimizerTracker | None) -> None:
        """Keep a sample for the main optimizer's present record, or for the next if the step of that one is over."""
        sample = tracker.window.sample
        if sample is None or leading is None:
            return
        sample.is_joint = tracker.has_pass_of(leading)
        self._note_own_loss(tracker, is_joint=sample.is_joint)
        is_early = leading.window.state is STEPPED and not sample.is_joint
        (self._early if is_early else self._present)[tracker] = sample

    def _note_own_loss(self, tracker: OptimizerTracker, *, is_joint: bool) -> None:
        """Report an optimizer whose gradients come from passes in which the main one has no part, once that is usual.

        Its loss is never recorded: what the main one's says must explain nothing of it.
        """
        seen = self._own_losses[tracker] = 0 if is_joint else self._own_losses.get(tracker, 0) + 1
        if seen == OWN_LOSSES and self.layers is not None:
            layers = self.layers.layer_set.layers
            self.add_fact(facts.own_loss([layers[number].name for number in tracker.sampler.layers]))

    def _collect_samples(self, leading: OptimizerTracker) -> list[Sample]:
        """Return the samples of all optimizers, the main one's first; an optimizer without one gets an empty one."""
        sample = leading.window.sample or not_sampled(leading.sampler.layers, leading.sampler.references)
        found = [replace(sample, layers=leading.sampler.layers)]
        for tracker in (each for each in self._trackers.values() if each is not leading):
            part = self._present.get(tracker) or not_sampled(tracker.sampler.layers, tracker.sampler.references)
            found.append(replace(part, layers=tracker.sampler.layers))
        return found

    def _begin_stepping(self, tracker: OptimizerTracker) -> None:
        """Make sure that the step has a window, also without a backward pass."""
        if tracker.window.state is STEPPED:
            self.on_window_end(tracker)
        is_first, is_leading = tracker.is_new, tracker is self.leading
        if tracker.window.state is NEW:
            tracker.begin_window()
            if is_leading:
                takes_all = is_first or self.has_one_tracker
                tracker.window.losses = self.calls.pop_all() if takes_all else self.calls.pop()[0]
        if is_leading:
            tracker.window.calls = self.calls.reset()
            if is_first:  # its layers get hooks only now; the pass around the step is counted later
                tracker.window.passes_before_hooks = tracker.window.calls - (tracker.present_pass() >= 0)
        if self.first_step is None:
            self._find_origin(even_unknown=False)

    # -- records -------------------------------------------------------------------------------------------------

    def _find_origin(self, *, even_unknown: bool) -> None:
        if self.first_step is None and (even_unknown or self.main() is not None):
            self.first_step = find_first_step(self.main(), self.settings.step, self.guard.catch, is_late=self.is_late)
            self.clock.step = self.clock.first_step = self.first_step.number

    def close_window(self, tracker: OptimizerTracker) -> None:
        """Put the record of the main optimizer's window, and begin the next window."""
        if self.layers is None:
            return
        if self.first_step is None:
            self._find_origin(even_unknown=True)
        tracker.drop_scaled()
        is_sampled = self.clock.step % self.meter.every == 0
        self.clock.samples += is_sampled
        samples = self._collect_samples(tracker) if is_sampled else []
        skipped = tracker.why_skipped()
        self.put(self._record_of(self.layers, tracker.window, samples, skipped))
        self.clock.step += 1
        self.clock.is_joining = False
        if not self.has_one_tracker:
            self._present, self._early = self._early, {}
        tracker.renew_window(was_sampled=is_sampled)
        self.meter.window_ended(is_sampled=is_sampled)

    def _record_of(self, layers: Layers, window: Window, samples: list[Sample], skipped: int) -> StepRecord:
        """Return the record of a closed window; only a sampled one has K and peak memory."""
        logged, self.logged = self.logged, []
        micro_steps, peak = 0, None
        if samples:
            micro_steps = (window.passes_before_hooks + window.micro_steps or window.calls) if window.is_whole else 0
            peak = peak_bytes({device for sample in samples for device in sample.devices()}, self.clock.samples)
        return StepRecord(
            layers=layers,
            step=self.clock.step,
            time=time.time(),
            micro_steps=micro_steps,
            skipped=skipped,
            samples=samples,
            parts=window.parts(),
            step_time_s=window.step_time_s,
            peak_memory_bytes=peak,
            agent_share=self.meter.share(),
            every=self.meter.every,
            logged=logged,
            sends_only_nonfinite=self.rank.sends_only_nonfinite,
        )


def layers_of_optimizers(layers: Layers, owners: Sequence[int], first: int | None) -> dict[int | None, list[int]]:
    """Return the measured layers of each optimizer, by its id. Those of no optimizer go to the ``first`` one."""
    owned_layers: dict[int | None, list[int]] = {first: []}
    for layer, owner in enumerate(layers.optimizers):
        if layer in layers.unmeasured:
            continue
        owned_layers.setdefault(first if owner is None else owners[owner], []).append(layer)
    return owned_layers
