"""One optimizer's windows: which backward passes are its own, when its gradients are complete, and when it steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor

from gradcanary import engine
from gradcanary.claims import LocalNonfinite
from gradcanary.gauge import Gauge
from gradcanary.pause import Pause
from gradcanary.records import NOT_SKIPPED, SKIPPED_BY_LOOP, SKIPPED_BY_SCALER
from gradcanary.references import References, are_same
from gradcanary.scaling import Scaling
from gradcanary.window import MODIFIED, REPLACED, UNCHANGED, GradientIdentity, Window

if TYPE_CHECKING:
    import torch

    from gradcanary.observer import Observer


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
        self.pause = Pause(self.gauge, self._identity, observer.has_optimizer)
        hook, catch = observer.meter.hook, observer.guard.catch
        self._ends = hook("the end of backward", self._pass_ends, catch)
        self._settles = hook("sampling", self._pass_settled, catch)

    def has(self, references: References) -> bool:
        """Say whether these are its layers."""
        return are_same(self.gauge.references, references)

    # -- backward passes -----------------------------------------------------------------------------------------

    def forget_passes(self) -> None:
        """Before a backward pass: one that raised has left its number."""
        self._open.clear()

    def accumulated(self, position: int, begins: Callable[[int], None], look: Callable[[], None]) -> None:
        """Count a layer; where its pass has nothing else to do, those that come after it count themselves."""
        of = self._of
        if of.paused:
            self.pause.accumulated(position)
            return
        if of.has_callbacks:
            number = engine.current_pass()
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
            engine.at_end(partial(self._ends, number))
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
        if self._is_new_window(position):
            if self.window.stepping:
                self.window.restart()
            else:
                self._of.window_ended(self)
        if not self.window.begun:
            self.begin_window()
        self.window.seen_in.add(number)
        roots, unsynced = self._of.take_roots(self)
        self.window.losses += roots
        self.window.unsynced += unsynced

    def _is_new_window(self, position: int) -> bool:
        window, identity = self.window, self._identity
        if not window.begun:
            return False
        if window.stepped and not window.is_marked:
            return True
        if self.gauge.observed:  # whose loops clear gradients whenever they like
            return window.stepped or bool(window.summed) or self.was_updated()
        change = REPLACED
        if identity.layer is not None and self.gauge.parameter(identity.layer) is None:
            change = UNCHANGED  # a layer that is gone, or out of reach while no optimizer holds it, tells nothing
        elif identity.layer is not None:
            change = identity.change(
                self.gauge.gradient(identity.layer),
                writes=int(position == identity.layer),
                is_reduced_later=self._of.is_gathered(self.gauge.layers[identity.layer]),
            )
        if window.stepped:
            self._clears_in_place = change == MODIFIED
            return True
        is_cleared = bool(self._clears_in_place) or self._of.another_stepped(self) or not self._of.has_optimizer()
        return self.was_updated() or (
            window.micro_steps > 0 and (change == REPLACED or (change == MODIFIED and is_cleared))
        )

    def was_updated(self) -> bool:
        """Say whether the GradScaler was updated since the window began."""
        return bool(self.scaling.found) and self.scaling.was_updated(self.window)

    @property
    def is_complete(self) -> bool:
        """Whether the window is one to record though no other begins: it had its step, or will not get one any more."""
        is_summed = bool(self.window.summed) and not self._of.has_optimizer()
        return self.window.stepped or self.was_updated() or is_summed or self.pause.is_cleared(self.window)

    def present_pass(self) -> int:
        """Return the number of the present backward pass, -1 outside of one or where nobody knows it."""
        return engine.current_pass() if self._of.has_callbacks else -1

    def has_pass_of(self, other: Track) -> bool:
        """Say whether the windows of both have a backward pass in common."""
        is_present = other is self or other.window.stepped_in == self.present_pass() >= 0
        return is_present or bool(other.window.seen_in & self.window.seen_in)

    def drop_scaled(self) -> None:
        """Drop what was measured under a loss scale that is not known: of several scalers, before the first step."""
        if self.scaling.found and not self.window.stepped and self.scaling.is_unknown:
            self.window.sample, self.window.losses = None, []

    def why_skipped(self) -> int:
        """Say who skipped the window's step, if somebody did."""
        if self.window.stepped:
            return NOT_SKIPPED
        return SKIPPED_BY_SCALER if self.was_updated() and self.scaling.round() is not None else SKIPPED_BY_LOOP

    def _pass_ends(self, number: int) -> None:
        self._pass = self.plain_pass = -1
        self._of.was_called_back = True
        if self._of.place.is_one_of_many or self._of.is_sampled(self):
            # Once more from inside: what a data-parallel wrapper queued meanwhile comes first.
            engine.at_end(partial(self._settles, number))
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
        if self._of.place.looks_at_own and self._of.wishes.local:
            self.window.local = LocalNonfinite()
        if self.scaling.found is None:
            self.scaling.search(self._of.scalers, self._of.step)
        if self.scaling.found:
            self.window.loss_scale, self.window.scaler_round = self.scaling.begin()
        if self.hook_sampler.disabled and self._of.is_sampled(self):
            self._of.enable_hooks()  # no step came before it to do so: the last one was skipped, or compiled

    def look_away(self, *, is_again: bool) -> None:
        """Begin a pause; a window whose gradients were cleared already is not of it."""
        if self.pause.is_cleared(self.window) and not is_again:
            self._of.window_ended(self)
        self.pause.begin()

    def look_at_each(self) -> None:
        """Have the hooks of the present pass look for themselves again what there is to do."""
        self.plain_pass = -1

    def was_paused(self) -> None:
        """Forget what was seen of the window; of one that is complete nothing was missed, maybe of the next one."""
        self.pause.end(self.window)
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
        is_foreseen = gauge.outlook.is_over or self._of.place.is_silent
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
