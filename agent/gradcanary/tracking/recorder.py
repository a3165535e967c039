"""The training thread's side of a watch: puts a record into the ring for each window of the main optimizer.

The main optimizer is the one that holds most elements; what others step is recorded under its current step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gradcanary import facts, wire
from gradcanary.guard import Guard
from gradcanary.hooks import backward
from gradcanary.hooks.backward import Calls
from gradcanary.hooks.graphs import Graphs
from gradcanary.model.distributed import Rank
from gradcanary.model.layers import Layers
from gradcanary.model.parameters import learning_rates
from gradcanary.model.training_loop import FirstStep, find_first_step
from gradcanary.settings import Settings
from gradcanary.stats.sampler import not_sampled
from gradcanary.stats.samples import Sample, Wishes
from gradcanary.tracking.external_sums import Buffers
from gradcanary.tracking.grad_scaler import Scalers
from gradcanary.tracking.overhead import Meter
from gradcanary.tracking.records import LoggedMetric, StepRecord
from gradcanary.tracking.tracker import Track, let_go
from gradcanary.tracking.window import record_of

Optimizer = torch.optim.Optimizer

PASSES_WITHOUT_STEP = 64
"""Backward passes after which a loop without an optimizer is reported: more than most windows have."""


class Observer:
    """Follows all optimizers, each on a track of its own; fed by the hooks of
    :class:`gradcanary.tracking.optimizers.Hooks`."""

    def __init__(self, settings: Settings, guard: Guard, *, put: Callable[[StepRecord], None]) -> None:
        self.settings = settings
        self.guard = guard
        self.has_callbacks = self.was_called_back = False
        self._unanswered_in: int | None = None
        self.put = put
        self.layers: Layers | None = None
        self.main: Callable[[], Optimizer | None] = lambda: None
        self.optimizers: Callable[[], Sequence[Optimizer]] = tuple
        self.enable_hooks: Callable[[], None] = lambda: None
        self.leave_fast_path: Callable[[], object] = lambda: None
        self.awaits_optimizer: Callable[[], bool] = lambda: False
        self.first_step: FirstStep | None = None
        self.wishes = Wishes()
        self.step = self.steps_taken = self.samples = self._passes_without_step = 0
        self.meter = Meter(settings.every, settings.budget)
        self.paused = self.is_late = self.is_joining = False
        self.logged: list[LoggedMetric] = []
        self.graphs, self.rank, self.calls, self.scalers = Graphs(), Rank(), Calls(), Scalers()
        self.facts: list[wire.Fact] = []
        self.buffers = Buffers(self)
        self._tracks: dict[int | None, Track] = {}
        self._leading: Track | None = None
        self._parts = Parts()
        self.stepped_at: float | None = None

    # -- what the hooks call -------------------------------------------------------------------------------------

    def follow(self, layers: Layers) -> None:
        """Take other layers; for an optimizer that has the same ones as before, the window that is open goes on."""
        main, owners = self.main(), [id(optimizer) for optimizer in self.optimizers()]
        first = None if main is None else id(main)
        places = places_of(layers, owners, first)
        left = [track for key, track in self._tracks.items() if key not in places]
        tracks = {key: self._track_of(key, mine, layers, left) for key, mine in places.items()}
        self._hand_over(tracks[first], tracks.values())
        let_go(track for track in self._tracks.values() if track not in tracks.values())
        self.layers, self._tracks = layers, tracks
        for key, mine in places.items():
            tracks[key].gauge.follow(mine, layers)
        self.buffers.follow(layers, tracks.values())
        self.rank.follow(layers)
        for fact in layers.facts:
            if fact.code in facts.PRINTED:
                self.tell(fact)
            elif fact not in self.facts:
                self.facts.append(fact)

    def backward_called(self, roots: list[Tensor]) -> None:
        """Keep what a backward pass starts from until a layer of the main optimizer takes part in it."""
        if self.graphs.stepped:
            self._catch_up()
        for track in self._tracks.values():
            track.forget_passes()
        if not (self.was_called_back or self.has_optimizer()):
            self._look_for_callback()
        if not self.steps_taken:
            self._count_pass_without_step()
        if self.paused:
            self.calls.skip()
        else:
            self.calls.add(roots)

    def _count_pass_without_step(self) -> None:
        """Report, once, that no step comes; a first window may be long, so not where one of an optimizer may come."""
        if self.paused and not self.is_joining:
            return
        self._passes_without_step += 1
        if self._passes_without_step == PASSES_WITHOUT_STEP and not (self.has_optimizer() or self.awaits_optimizer()):
            self.tell(facts.NO_STEP)

    def step_begins(self, optimizer: Optimizer, *, has_closure: bool) -> None:
        """Take what only the moment before the step shows."""
        if self.graphs.stepped:
            self._catch_up()
        track = self._tracks.get(id(optimizer))
        if track is None:
            return
        if not self.was_called_back:
            self._look_for_callback()
        self._begin_stepping(track)
        if self.paused:
            self.look_again()
        track.step_begins(optimizer, has_closure=has_closure)
        if track is self._leading:
            track.window.lr = learning_rates(self.optimizers())

    def step_ended(self, optimizer: Optimizer) -> None:
        """Note the step; a sample of another optimizer than the main one goes to the main one's record."""
        now = time.perf_counter()
        track = self._tracks.get(id(optimizer))
        if track is None:
            return
        track.step_ended()
        if not track.gauge.outlook.is_over:
            self.guard.wrap("forecasting", track.gauge.forecast)(track.window, optimizer)
        self._count_step()
        if track is self._leading:
            self._leading_stepped(track, now)
        else:
            self._parts.lay_down(track, self._leading)

    def step_by_hand(self) -> None:
        """Note a step of a loop without an optimizer; where one is followed, its own steps are counted."""
        now = time.perf_counter()
        is_compiled = self.graphs.stepped
        self._catch_up()
        leading = self._leading
        if is_compiled or leading is None or self.has_optimizer():
            return
        self._begin_stepping(leading)
        self.look_again()
        if self.first_step is None:
            self._find_origin(even_unknown=True)
        leading.step_by_hand()
        self._count_step()
        self._leading_stepped(leading, now)

    def _leading_stepped(self, leading: Track, now: float) -> None:
        leading.window.calls += self.calls.forget()  # those of a closure
        leading.window.step_time_s = None if self.stepped_at is None else now - self.stepped_at
        self.stepped_at = now

    def _count_step(self) -> None:
        self.steps_taken += 1
        if facts.NO_STEP in self.facts:
            self.facts.remove(facts.NO_STEP)

    def close(self) -> None:
        """Hand over the last window if it had its step."""
        self.leave_fast_path()
        self._catch_up()
        if not self.steps_taken:
            self._report_no_step()
        if self._leading is not None and self._leading.is_complete:
            self.close_window(self._leading)

    def _report_no_step(self) -> None:
        """Report at the end that no step came; a watch that came late may have ended before the first one."""
        is_summed = self._leading is not None and bool(self._leading.window.summed)
        if facts.NO_STEP in self.facts:
            self.guard.print_once(facts.STILL_NO_STEP)
        elif is_summed or (self._passes_without_step > 1 and not self.is_late):
            self.tell(facts.NO_STEP)

    def let_go(self) -> None:
        """Leave no hook of its own."""
        let_go(self._tracks.values())

    def pause(self) -> None:
        """Look away until the next step."""
        self.leave_fast_path()
        self._catch_up()  # a step before this moment is not the one that ends it
        self.paused = True
        for track in self._tracks.values():
            track.look_at_each()

    def join(self) -> None:
        """Begin in the middle of a training: what is seen of the window that is open may be any part of it."""
        self.is_late = self.is_joining = True
        self.pause()

    def look_again(self) -> None:
        """End the pause, if there is one."""
        if self.paused:
            self.paused = False
            for track in self._tracks.values():
                track.was_paused()

    def tell(self, fact: wire.Fact) -> None:
        """Say once, on stderr and with the session, what a reader of the numbers must know."""
        if fact not in self.facts:
            self.facts.append(fact)
            self.guard.print_once(fact.text)

    @property
    def tracks(self) -> Collection[Track]:
        """Those of all optimizers."""
        return self._tracks.values()

    # -- what the tracks ask -------------------------------------------------------------------------------------

    @property
    def leading(self) -> Track | None:
        """That of the main optimizer."""
        return self._leading

    @property
    def is_alone(self) -> bool:
        """Whether there is one track."""
        return len(self._tracks) == 1

    def is_sampled(self, track: Track) -> bool:
        """Say whether the step that a track's window is recorded under is one that is sampled."""
        step = self.step if track is self._leading else self.step_of(track)
        return step % self.meter.every == 0 and self.layers is not None

    def is_next_sampled(self) -> bool:
        """Say, before a backward pass, whether the main optimizer's window is one that is sampled."""
        leading = self._leading
        return (self.step + (leading is not None and leading.window.stepped)) % self.meter.every == 0

    def step_of(self, track: Track) -> int:
        """Return the step that a track's window is recorded under."""
        leading = self._leading
        is_next = leading is not None and leading.window.stepped and not track.has_pass_of(leading)
        return self.step + is_next

    def another_stepped(self, track: Track) -> bool:
        """Say whether another optimizer has stepped since the track's window began, and not the track's own."""
        return not track.window.stepped and self.steps_taken > track.window.steps_before

    def has_optimizer(self) -> bool:
        """Return True if an optimizer is followed: without one, only ``step()`` ends a window."""
        return self.main() is not None

    def is_gathered(self, layer: int) -> bool:
        """Return True if the hook of a layer is on its gathered parameter."""
        return self.layers is not None and layer in self.layers.unsharded

    def do_without_callbacks(self) -> None:
        """Take samples in the step hook from now on."""
        self.has_callbacks = False
        self.facts.append(facts.NO_CALLBACKS)
        for track in self._tracks.values():
            track.do_without_callbacks()

    def take_roots(self, track: Track) -> tuple[list[Tensor], int]:
        """Return what the window's passes start from, once and to the main optimizer only, and how many had no hook."""
        return self.calls.take() if track is self._leading else ([], 0)

    def window_begins(self) -> None:
        """Learn where the count of steps begins, and whether somebody reduces gradients by now."""
        self.find_group()
        if self.first_step is None:
            self.meter.window_begins()
            self._find_origin(even_unknown=False)

    def find_group(self) -> None:
        """Look for a process group: a script may make it after its watch."""
        if self.rank.refresh():
            self.tell(facts.LATE_GROUP)

    def window_ended(self, track: Track) -> None:
        """Put the record of the main optimizer's window.

        One that got no step of its own while another optimizer had one was that one's: gradients that pass through.
        """
        is_foreign = not track.window.stepped and self.another_stepped(track) and not track.was_updated()
        if track is self._leading and not is_foreign:
            self.close_window(track)
        else:
            track.renew_window(was_sampled=track.window.stepped and self.is_sampled(track), is_foreign=is_foreign)

    def _look_for_callback(self) -> None:
        """Do without callbacks if none came though passes of two windows are over: a pass that raised has none."""
        has_passed = any(any(track.window.counts) for track in self._tracks.values())
        if not (self.has_callbacks and has_passed and backward.current_pass() < 0):
            return
        if self._unanswered_in is None:
            self._unanswered_in = self.step
        elif self._unanswered_in != self.step:
            self.do_without_callbacks()

    def _catch_up(self) -> None:
        """Note a step that came in a compiled graph. Whose it was is known where there is one optimizer only."""
        if not self.graphs.stepped:
            return
        self.graphs.stepped = False
        self.tell(facts.COMPILED_STEP if self.is_alone else facts.COMPILED_STEPS)
        if not self.is_alone:
            self.let_go()
            self.layers, self._tracks, self._leading = None, {}, None
            self.logged.clear()
        elif self._leading is not None:
            self._note_step(self._leading)
        self._count_step()

    def _note_step(self, leading: Track) -> None:
        if self.paused:
            self._begin_stepping(leading)
            self.look_again()
        if leading.window.begun and not leading.window.stepped:
            leading.window.calls = self.calls.forget()
            leading.step_ended()

    # -- several optimizers --------------------------------------------------------------------------------------

    def _track_of(self, key: int | None, places: list[int], layers: Layers, left: list[Track]) -> Track:
        """Return the track of an optimizer: its own, or of ``left`` ones that of the optimizer it takes over from."""
        references = [layers.references[layer] for layer in places]
        known = [self._tracks[key]] if key in self._tracks else left
        return next((track for track in known if track.has(references)), None) or Track(self, places, references)

    def _hand_over(self, leading: Track, tracks: Collection[Track]) -> None:
        """Change the main optimizer. A step that it had while it led is recorded, or laid down for the next to lead."""
        before, self._leading = self._leading, leading
        if before is not None and before.window.stepped:
            if before is leading or before not in tracks:
                self.close_window(before)
            else:
                self._parts.lay_down(before, leading)
        self._parts.keep(tracks)

    def _begin_stepping(self, track: Track) -> None:
        """Have a window that the step belongs to; a step without a backward pass of its own is a window too."""
        if track.window.stepped:
            self.window_ended(track)
        is_first, is_leading = track.is_new, track is self._leading
        if not track.window.begun:
            track.begin_window()
            if is_leading:
                takes_all = is_first or self.is_alone
                track.window.losses = self.calls.take_all() if takes_all else self.calls.take()[0]
        if is_leading:
            track.window.calls = self.calls.forget()
            if is_first:  # its layers get their hooks only now; a pass that it steps in is still to be counted
                track.window.unseen = track.window.calls - (track.present_pass() >= 0)
        if self.first_step is None:
            self._find_origin(even_unknown=False)

    # -- records -------------------------------------------------------------------------------------------------

    def _find_origin(self, *, even_unknown: bool) -> None:
        if self.first_step is None and (even_unknown or self.main() is not None):
            self.first_step = find_first_step(self.main(), self.settings.step, self.guard.catch, is_late=self.is_late)
            self.step = self.first_step.number

    def close_window(self, track: Track) -> None:
        """Hand over the main optimizer's window, and turn to the next one."""
        if self.layers is None:
            return
        if self.first_step is None:
            self._find_origin(even_unknown=True)
        track.drop_scaled()
        is_sampled = self.step % self.meter.every == 0
        self.samples += is_sampled
        samples = self._parts.joined(track, self._tracks.values()) if is_sampled else []
        skipped = track.why_skipped()
        logged, self.logged = self.logged, []
        self.put(record_of(self, self.layers, track.window, samples, skipped, logged))
        self.step += 1
        self.is_joining = False
        if not self.is_alone:
            self._parts.go_on()
        track.renew_window(was_sampled=is_sampled)
        self.meter.window_ended(is_sampled=is_sampled)


def places_of(layers: Layers, owners: Sequence[int], first: int | None) -> dict[int | None, list[int]]:
    """Return the layers of each optimizer, by its id; the ``first`` one has also those that nobody has."""
    places: dict[int | None, list[int]] = {first: []}
    for layer, owner in enumerate(layers.optimizers):
        places.setdefault(first if owner is None else owners[owner], []).append(layer)
    return places


class Parts:
    """Holds the last sample of each track for the main optimizer's present record and for its next one."""

    def __init__(self) -> None:
        self._present: dict[Track, Sample] = {}
        self._early: dict[Track, Sample] = {}

    def lay_down(self, track: Track, leading: Track | None) -> None:
        """Keep a sample for the main optimizer's record: the present one, or where that had its step, the next."""
        sample = track.window.sample
        if sample is None or leading is None:
            return
        sample.is_joint = track.has_pass_of(leading)
        is_early = leading.window.stepped and not sample.is_joint
        (self._early if is_early else self._present)[track] = sample

    def keep(self, tracks: Collection[Track]) -> None:
        """Let go of samples of other tracks."""
        self._present = {track: sample for track, sample in self._present.items() if track in tracks}
        self._early = {track: sample for track, sample in self._early.items() if track in tracks}

    def go_on(self) -> None:
        """Turn to the next record."""
        self._present, self._early = self._early, {}

    def joined(self, leading: Track, tracks: Collection[Track]) -> list[Sample]:
        """Return the samples of all optimizers, the main one's first, with nothing known of those that have none."""
        sample = leading.window.sample or not_sampled(leading.gauge.layers, leading.gauge.references)
        found = [replace(sample, layers=leading.gauge.layers)]
        for track in (each for each in tracks if each is not leading):
            part = self._present.get(track) or not_sampled(track.gauge.layers, track.gauge.references)
            found.append(replace(part, layers=track.gauge.layers))
        return found
