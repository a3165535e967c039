"""Windows between two samples that are all alike: noted with next to nothing, for as long as they stay so.

Of a window that is not sampled its number is told, its loss, its learning rates and what the script logged: nothing for
which anybody has to look at gradients, or be called at the end of a pass. Where hooks of layers rest between samples
(:mod:`gradcanary.resting`), and windows have had the same passes for a while, all of the agent dozes until the step
before the next sample: a call of ``backward()`` is counted and its loss kept, the hooks of layers that a pass begins
with tell whose it is, and the step is counted. Whatever is not as usual ends it at once, and is then looked at as if
there had been no doze: what was noted of the window that is open is all that is known of such a one.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gradcanary import engine, summed, tap
from gradcanary.compiled import is_backward_traced
from gradcanary.groups import sizes
from gradcanary.layers import learning_rates
from gradcanary.records import NOT_SKIPPED
from gradcanary.window import record_of

if TYPE_CHECKING:
    from gradcanary.counters import Counters
    from gradcanary.observer import Observer
    from gradcanary.track import Track
    from gradcanary.window import Window

ALIKE = 16
"""Windows in a row that had the same passes, before the agent dozes, for the first time and after what was unusual."""

Optimizer = torch.optim.Optimizer


class Doze:
    """Takes the calls of torch while it ``is_on``; each returns False where it has ended, and the call is to be looked
    at."""

    def __init__(self, observer: Observer, counters: Counters) -> None:
        self.is_on = False
        self._of, self._counters = observer, counters
        self._alike = self._passes = self._called = 0
        self._is_fresh = True
        self._track: Track
        self._window: Window
        self._optimizer: Callable[[], Optimizer | None] = lambda: None
        self._sizes: list[int] = []
        self._declared_at = -1

    # -- while it is on ------------------------------------------------------------------------------------------

    def backward_called(self, tensors: object) -> bool:
        """Note a call of ``backward()``, and before the first one of a window hand over the last window."""
        of = self._of
        if of.graphs.stepped:
            return self.end()
        if self._window.stepped:
            self._go_on()
            if of.is_sampled(self._track):
                return self.end(is_usual=True)  # the interval has become another one
        elif self._called == self._passes or self._is_cleared():
            return self.end()
        self._called += 1
        of.calls.add(tap.single_elements(tensors))
        return True

    def step_begins(self, optimizer: Optimizer, *, has_closure: bool) -> bool:
        """Take the learning rates of a window that was as usual; another optimizer is none of ours."""
        if optimizer is not self._optimizer():
            return False
        window = self._window
        is_usual = self._called == window.passes == self._passes and not has_closure and engine.current_pass() < 0
        if not is_usual or sizes(optimizer) != self._sizes or summed.changes() != self._declared_at:
            return self.end()
        window.stepping = True
        window.lr = learning_rates((optimizer,))
        return True

    def step_ended(self, optimizer: Optimizer) -> bool:
        """Count the step; before a window that is sampled all is awake."""
        if optimizer is not self._optimizer():
            return False
        of, window = self._of, self._window
        window.stepping, window.stepped = False, True
        self._called = 0
        of.steps_taken += 1
        of.stepped_at = time.perf_counter()
        of.calls.forget()
        if of.is_next_sampled():
            self.end(is_usual=True)
        return True

    def _noting(self, position: int) -> Callable[[Tensor], None]:
        """Return what is called with a layer's gradient: it tells that the pass is one of this training's."""

        def note(_parameter: Tensor) -> None:
            if is_backward_traced():
                return
            window = self._window
            window.counts[position] = window.counts[position] or 1
            if not self._of.calls.is_noted:
                window.begun = True
                window.passes += 1
                window.losses += self._of.calls.take()[0]

        return self._of.meter.hook("counting micro-steps", note, self._of.guard.catch)

    def _is_cleared(self) -> bool:
        """Say whether gradients are gone though there was no step."""
        return self._called > 0 and self._track.is_cleared()

    def _go_on(self) -> None:
        """Turn to the next window. The same object serves: what is summed up in it of the layers is known of all."""
        of, window = self._of, self._window
        if self._is_fresh:
            of.close_window(self._track)
            self._window, self._is_fresh = self._track.window, False
        elif of.layers is not None:
            logged, of.logged = of.logged, []
            of.put(record_of(of, of.layers, window, [], NOT_SKIPPED, logged))
            of.step += 1
            of.meter.window_ended(is_sampled=False)
            window.begin_again()
        of.place.find_again()

    # -- its beginning and its end -------------------------------------------------------------------------------

    def window_stepped(self, optimizer: Optimizer) -> None:
        """After a step that was looked at: begin where that, and those before it, were as usual."""
        of = self._of
        track = of.leading
        if not of.meter.rests or track is None or optimizer is not of.main():
            return
        window = track.window
        is_usual = window.is_plain and window.calls == window.passes == self._passes
        self._alike = self._alike + 1 if is_usual else 0
        self._passes = window.passes
        if self._alike >= ALIKE and len(of.optimizers()) == 1 and not of.is_next_sampled() and self._may_begin(track):
            self._begin(track, optimizer)

    def _may_begin(self, track: Track) -> bool:
        """Say whether there is nothing but the steps of one optimizer, and nobody who has to be called meanwhile."""
        of = self._of
        is_plain = of.is_alone and of.has_callbacks and not (of.paused or of.buffers or of.graphs.stepped)
        is_whole = of.layers is not None and not of.layers.has_shards and not self._counters.unhooked
        return is_plain and is_whole and track.may_doze()

    def _begin(self, track: Track, optimizer: Optimizer) -> None:
        self.is_on = self._is_fresh = True
        self._called = 0
        self._track, self._window = track, track.window
        self._optimizer, self._sizes = weakref.ref(optimizer), sizes(optimizer)
        self._declared_at = summed.changes()
        self._counters.doze(track, self._noting)

    def end(self, *, is_usual: bool = False) -> bool:
        """Have all hooks called again, if it is on, and the window that is open looked at; return False."""
        if not self.is_on:
            return False
        self.is_on = False
        self._alike = self._alike if is_usual else 0
        window = self._window
        rested = window.rested
        if not (self._is_fresh or window.stepped):
            self._track.look_again(is_new=not (window.begun or self._called))
        self._counters.wake()
        if self._called:
            window.rested = rested  # nobody knows what its passes met before this moment
        return False
