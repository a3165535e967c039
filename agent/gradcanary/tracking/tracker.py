"""One optimizer's windows: which backward passes are its own, when its gradients are complete, and when it steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor

from gradcanary.hooks import backward
from gradcanary.model.parameters import References, refer_to_same
from gradcanary.stats.sampler import LocalNonfinite
from gradcanary.tracking.gauge import Gauge
from gradcanary.tracking.grad_scaler import Scaling
from gradcanary.tracking.records import NOT_SKIPPED, SKIPPED_BY_LOOP, SKIPPED_BY_SCALER
from gradcanary.tracking.window import MODIFIED, REPLACED, UNCHANGED, GradientIdentity, Window

if TYPE_CHECKING:
    import torch

    from gradcanary.tracking.recorder import Observer


class Track:
    """Follows the layers of one optimizer, which go by position; ``gauge`` measures them, ``first`` is the one that the
    last pass began with.

    The hooks count, look at identities and launch kernels. None of them reads a tensor's value, waits, or returns
    anything.
    """

    def __init__(self, observer: Observer, layers: Sequence[int], references: References) -> None:
        self.gauge = Gauge(observer, layers, references)
        self.scaling = Scaling()
        self.window = Window(len(layers))
        self.is_new = True
        self._of = observer
        self._identity = GradientIdentity()
        self.hook_sampler = self.gauge.hook_sampler
        self._pass = self.plain_pass = -1
        self.first = 0
        self._open: set[int] = set()
        self._passes_before = 0
        self._clears_in_place: bool | None = None
        self._missed_some = False
        hook, catch = observer.meter.hook, observer.guard.catch
        self._ends = hook("the end of backward", self._pass_ends, catch)
        self._settles = hook("sampling", self._pass_settled, catch)

    def has(self, references: References) -> bool:
        """Say whether these are its layers."""
        return refer_to_same(self.gauge.references, references)

    # -- backward passes -----------------------------------------------------------------------------------------

    def forget_passes(self) -> None:
        """Before a backward pass: one that raised has left its number."""
        self._open.clear()

    def accumulated(self, position: int, begins: Callable[[int], None], look: Callable[[], None]) -> None:
        """Count a layer; where its pass has nothing else to do, those that come after it count themselves."""
        of = self._of
        if of.paused:
            return
        if of.has_callbacks:
            number = backward.current_pass()
            if number != self._pass:
                begins(number)
        elif self._identity.layer in (None, position) or not self.window.begun or self.window.stepped:
            begins(-1)
        self.window.counts[position] += 1
        if self.window.local is not None and of.is_sampled(self):
            look()
        elif of.has_callbacks:
            self.plain_pass = number

    def look(self, position: int) -> None:
        """Measure a layer's gradient before anybody reduces it."""
        self.gauge.measure_local(self.window, position)

    def pass_begins(self, position: int, number: int) -> None:
        """Begin a pass, of this number where there is one, with a layer, and a window where it is the first of one."""
        is_outermost = not self._open
        if self._of.has_callbacks and not self._is_opened(number):
            return
        self.hook_sampler.always.add(position)
        self.first = position
        if is_outermost:
            self._enter_window(position, number)
        if not (self._of.has_callbacks and self._of.was_called_back):
            self._identity.mark(position, self.gauge.gradient(position))
        elif self._identity.layer is None:
            self._identity.layer = position

    def _is_opened(self, number: int) -> bool:
        """Queue what follows the end of a pass, once; False when an inner pass of a checkpointed block has ended."""
        self._pass = number
        if number in self._open:
            return False
        self._open.add(number)
        try:
            backward.at_end(partial(self._ends, number))
        except Exception:
            if self._of.was_called_back:
                raise
            self._of.do_without_callbacks()
        return True

    def do_without_callbacks(self) -> None:
        """Have each hook look for itself what there is to do."""
        self._pass = self.plain_pass = -1
        self._open.clear()

    def _enter_window(self, position: int, number: int) -> None:
        if self.window.stepped and self.window.stepped_in == number >= 0:
            return  # the optimizer stepped before this hook was called, in the same pass
        self._leave_window(position)
        if not self.window.begun:
            self.begin_window()
        self.window.seen_in.add(number)
        roots, unsynced = self._of.take_roots(self)
        self.window.losses += roots
        self.window.unsynced += unsynced

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
        if not window.begun:
            return
        if window.stepped:
            if window.is_marked and not self.gauge.observed:
                self._clears_in_place = self._change(position) == MODIFIED
            self._of.window_ended(self)
        elif self._is_cleared(position):
            self.end_or_restart()

    def end_or_restart(self) -> None:
        """Leave passes that led to no step; with an optimizer they are a window of which the step was skipped."""
        if self.window.stepping or not self._of.has_optimizer():
            self.window.restart()
            self._note_scale()
        else:
            self._of.window_ended(self)

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
        if self.gauge.observed:
            return bool(window.summed)
        if not window.micro_steps:
            return False
        change = self._change(position)
        if change == MODIFIED:
            return bool(self._clears_in_place) or self._of.another_stepped(self)
        return change == REPLACED

    def _change(self, accumulated: int | None) -> int:
        """Return what became of the remembered gradient; ``accumulated`` is the layer that this pass has written to."""
        layer = self._identity.layer
        if layer is None:
            return REPLACED
        if self.gauge.parameter(layer) is None:
            return UNCHANGED  # it is gone, or out of reach while no optimizer holds it
        return self._identity.change(
            self.gauge.gradient(layer),
            writes=int(accumulated == layer),
            is_reduced_later=self._of.is_gathered(self.gauge.layers[layer]),
        )

    def was_updated(self) -> bool:
        """Say whether the GradScaler was updated since the window began."""
        return bool(self.scaling.found) and self.scaling.was_updated(self.window)

    @property
    def is_complete(self) -> bool:
        """Whether the window had its step, or will not get one any more."""
        return self.window.stepped or (self._of.has_optimizer() and self.was_updated())

    def present_pass(self) -> int:
        """Return the number of the present backward pass, -1 outside of one or where nobody knows it."""
        return backward.current_pass() if self._of.has_callbacks else -1

    def has_pass_of(self, other: Track) -> bool:
        """Say whether the windows of both have a backward pass in common."""
        is_present = other is self or other.window.stepped_in == self.present_pass() >= 0
        return is_present or bool(other.window.seen_in & self.window.seen_in)

    def drop_scaled(self) -> None:
        """Drop what was measured under a loss scale that is not known: no scaler of several has made the step."""
        if self.scaling.found and self.scaling.is_unknown:
            self.window.sample, self.window.losses = None, []

    def why_skipped(self) -> int:
        """Say who skipped the window's step, if somebody did."""
        if self.window.stepped:
            return NOT_SKIPPED
        return SKIPPED_BY_SCALER if self.was_updated() and self.scaling.round() is not None else SKIPPED_BY_LOOP

    def _pass_ends(self, number: int) -> None:
        self._pass = self.plain_pass = -1
        self._of.was_called_back = True
        if self._of.rank.is_distributed or self._of.is_sampled(self):
            # Once more from inside: what a data-parallel wrapper queued meanwhile comes first.
            backward.at_end(partial(self._settles, number))
        else:
            self._pass_settled(number)

    def _pass_settled(self, number: int) -> None:
        self._open.discard(number)
        window = self.window
        window.passes += 1
        if window.stepping and window.has_closure and window.copies is None and not self._open:
            self._copy_weights()
        is_last = window.stepping or window.passes >= self._passes_before
        if not self._open:
            self.gauge.remember_local(window)
        if is_last and not window.stepped and self._of.is_sampled(self):
            self.gauge.sample(window, "accumulated", window.loss_scale)
        self._mark()

    def _mark(self) -> None:
        """Remember what a pass left. A layer that took no part in it, as the head of another task, tells nothing of
        the next one: then it is the one that this pass began with."""
        if self._identity.layer is not None:
            gradient = self.gauge.gradient(self._identity.layer)
            if gradient is None and (other := self.gauge.gradient(self.first)) is not None:
                self._identity.layer, gradient = self.first, other
            self._identity.mark(self._identity.layer, gradient)

    # -- windows and steps ---------------------------------------------------------------------------------------

    def begin_window(self) -> None:
        """Begin the window."""
        self._of.window_begins()
        self.is_new, self.window.begun = False, True
        self.window.is_seen, self._missed_some = not self._missed_some, False
        self.window.steps_before = self._of.steps_taken
        if self._of.rank.measures_local_grads and self._of.wishes.local:
            self.window.local = LocalNonfinite()
        if self.scaling.found is None:
            self.scaling.search(self._of.scalers, self._of.step)
        self._note_scale()
        if self.hook_sampler.disabled and self._of.is_sampled(self):
            self._of.enable_hooks()  # no step came before it to do so: the last one was skipped, or compiled

    def _note_scale(self) -> None:
        if self.scaling.found:
            self.window.loss_scale, self.window.scaler_round = self.scaling.begin()

    def look_at_each(self) -> None:
        """Have the hooks of the present pass look for themselves again what there is to do."""
        self.plain_pass = -1

    def was_paused(self) -> None:
        """Forget what was seen of the window; of one that is complete nothing was missed, maybe of the next one."""
        if self.window.stepped:
            self._missed_some = True
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
        if window.is_seen and not (window.unseen or is_foreign) and any(window.counts):
            self.hook_sampler.observe(window.counts, was_sampled=was_sampled)
        self.gauge.forget(window, was_sampled=was_sampled)
        self.window = Window(len(window.counts))

    def disable_hooks(self) -> Sequence[int]:
        """Return the positions of the layers whose hooks are disabled from now on; none where they are already.

        Between two windows only, and not where the script says when a sum is complete.
        """
        window, sampler = self.window, self.hook_sampler
        if sampler.disabled or self.gauge.observed or not window.stepped:
            return ()
        return sampler.disable(window.counts)

    def allows_fast_path(self) -> bool:
        """Say whether nothing is asked of its next windows, if they are not sampled, but that they are counted."""
        gauge = self.gauge
        is_foreseen = gauge.outlook.is_over or self._of.rank.sends_only_nonfinite
        is_watched = gauge.observed or gauge.shadows.are_on or self.scaling.found or self._identity.layer is None
        return is_foreseen and self.hook_sampler.is_learned and not is_watched and self._clears_in_place is False

    def is_cleared(self) -> bool:
        """Say whether the gradient that tells of the others is gone, and that which the last pass began with."""
        layer = self._identity.layer
        return layer is not None and self.gauge.gradient(layer) is None and self.gauge.gradient(self.first) is None

    def look_again(self, *, is_new: bool) -> None:
        """After the fast path go on with the window that is open, or with a new one.

        Gradients that are there are taken to be as the last pass left them; one that is gone tells by itself.
        """
        if is_new:
            self.renew_window(was_sampled=False)
            return
        self.window.steps_before = self._of.steps_taken
        if not self.is_cleared():
            self._mark()

    def is_lost(self) -> bool:
        """Return True if a window had its step and no enabled hook was called: the disabled ones would have been."""
        return bool(self.hook_sampler.disabled) and self.window.stepped and not any(self.window.counts)

    def step_begins(self, optimizer: torch.optim.Optimizer, *, has_closure: bool) -> None:
        """Take what the moment before the step shows: a late sample, or the clip. A closure comes after this."""
        window, is_sampled, scale = self.window, self._of.is_sampled(self), None
        if self.scaling.found:
            scale = self.scaling.step_begins(window, optimizer)
        window.stepping, window.has_closure, window.copies = True, has_closure, None
        if is_sampled and not has_closure:
            self._copy_weights()
        if is_sampled and not has_closure:
            self._complete(window, "accumulated" if self.gauge.is_fresh() else "post_clip", scale)

    def step_by_hand(self) -> None:
        """Take a late sample after an update by hand, if nothing has changed the gradients since the last pass."""
        window = self.window
        is_due = window.sample is None and window.is_seen and self._of.is_sampled(self)
        if is_due and self._change(None) == UNCHANGED:
            self.gauge.sample(window, "post_clip", window.loss_scale)
        self.step_ended()

    def step_ended(self) -> None:
        """Note that the window got its step; it stays open for what is logged until the next one begins."""
        window, is_sampled = self.window, self._of.is_sampled(self)
        if is_sampled and window.has_closure:
            self._complete(window, "post_clip", None)
        window.stepping, window.stepped = False, True
        window.stepped_in = self.present_pass()
        if is_sampled or self._clears_in_place is None:
            self._look_back(window)
        self.gauge.step_ended(window, self._of.step_of(self))

    def _look_back(self, window: Window) -> None:
        """Remember the gradients as the step left them: how a loop clears them shows as the next window begins."""
        if self._identity.layer is not None:
            self._identity.mark(self._identity.layer, self.gauge.gradient(self._identity.layer))
            window.is_marked = True

    def _copy_weights(self) -> None:
        step = self._of.step_of(self) if self._of.is_sampled(self) else None
        self._of.guard.wrap("copying weights", self.gauge.copy_weights)(self.window, step)

    def _complete(self, window: Window, phase: str, scale: Tensor | None) -> None:
        if window.sample is None:
            self.gauge.sample(window, phase, scale)
        else:
            self._of.guard.wrap("looking for a clip", self.gauge.look_for_clip)(window, self._identity, scale)


def let_go(tracks: Iterable[Track]) -> None:
    """Leave no hook on the layers of tracks that nobody follows any more, but the counters."""
    for track in tracks:
        track.gauge.shadows.end()
