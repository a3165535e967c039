"""The training thread's side of a watch: follows windows through hooks and puts a record into the ring for each.

The hooks count, look at identities and launch kernels. None of them reads a tensor's value, waits, or returns anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gradcanary import engine
from gradcanary.guard import Guard
from gradcanary.layers import Layers
from gradcanary.origin import origin_of
from gradcanary.records import (
    NOT_SKIPPED,
    SKIPPED_BY_LOOP,
    SKIPPED_BY_SCALER,
    Logged,
    Origin,
    Probe,
    Record,
    Wishes,
)
from gradcanary.sampling import is_capturing, take_sample
from gradcanary.scaling import Scaling
from gradcanary.settings import Settings
from gradcanary.statistics import norm_of, readable
from gradcanary.window import NEW, TOUCHED, Sentinel, Window

_ROOTS_BEFORE_LAYERS = 64
"""Losses kept while no optimizer has stepped yet: as many micro-steps as the first window has, hardly more."""


class Observer:
    """Follows the windows of the main optimizer; fed by the hooks of :class:`gradcanary.hooks.Hooks`."""

    def __init__(self, settings: Settings, guard: Guard, *, put: Callable[[Record], None]) -> None:
        self.settings = settings
        self.guard = guard
        self.has_callbacks = False
        self.put = put
        self.layers: Layers | None = None
        self.main: Callable[[], torch.optim.Optimizer | None] = lambda: None
        self.optimizers: Callable[[], Sequence[torch.optim.Optimizer]] = tuple
        self.origin: Origin | None = None
        self.wishes = Wishes()
        self.step = 0
        self.paused = False
        self.logged: list[Logged] = []
        self.scaling = Scaling()
        self._window = Window(0)
        self._sentinel = Sentinel()
        self._pass = -1
        self._open: set[int] = set()
        self._roots: list[Tensor] = []
        self._calls = 0
        self._passes_before = 0
        self._clears_in_place = False
        self._earlier: list[int] = []
        self._samples = 0
        self._spent_s = 0.0
        self._since: float | None = None
        self._stepped_at: float | None = None

    # -- what the hooks call -------------------------------------------------------------------------------------

    def follow(self, layers: Layers) -> None:
        """Take other layers; in the middle of a window what it counted so far is given up, unless they are the same."""
        if self._window.stepped:
            self._close_window()
        before, self.layers = self.layers, layers
        if before is not None and layers.are_those_of(before):
            return
        self._window = Window(len(layers))
        self._sentinel = Sentinel()
        self._earlier = [0] * len(layers)
        self._passes_before = 0

    def backward_called(self, roots: list[Tensor]) -> None:
        """Keep what a backward pass starts from until a layer of ours takes part in it."""
        self._open.clear()  # a pass that raised has left its number
        self._calls += not self.paused
        copies = [] if self.paused else [root.detach().clone() for root in roots]
        self._roots = copies if self.layers is not None else [*self._roots, *copies][-_ROOTS_BEFORE_LAYERS:]

    def counter(self, layer: int) -> Callable[[Tensor], None]:
        """Return the post-accumulate hook of a layer: the one piece of the agent that runs per layer and micro-step."""
        has_callbacks, catch = self.has_callbacks, self.guard.catch

        def accumulated(_parameter: Tensor) -> None:
            try:
                if self.paused:
                    return
                if has_callbacks:
                    if engine.current_pass() != self._pass:
                        self._pass_begins(layer)
                elif self._sentinel.layer in (None, layer) or not self._window.begun or self._window.stepped:
                    self._pass_begins(layer)
                self._window.counts[layer] += 1
            except Exception as error:  # noqa: BLE001 -- as in Guard.wrap, without a second call per layer
                catch("counting micro-steps", error)

        return accumulated

    def step_begins(self, optimizer: torch.optim.Optimizer, *, has_closure: bool) -> None:
        """Take what only the moment before the step shows: a late sample, the clip, the learning rates."""
        began = time.perf_counter()
        if optimizer is not self.main():
            return
        window = self._begun_window()
        if not self.scaling.learn(optimizer):
            self._unscale(window)
        window.stepping = True
        window.lr = tuple(_copied(group["lr"]) for group in self._groups() if "lr" in group)
        scale, window.found_inf = self.scaling.at_step(optimizer)
        if self._is_sampled() and not has_closure:
            if window.sample is None:
                self._take_sample("post_clip", scale)
            else:
                self._look_for_clip(window, scale)
        self.paused = False
        self._spent_s += time.perf_counter() - began

    def step_ended(self, optimizer: torch.optim.Optimizer) -> None:
        """Note that the window got its step; it stays open for what is logged until the next one begins."""
        window = self._window
        if optimizer is not self.main():
            window.consumed.update(i for i, other in enumerate(self.optimizers()) if other is optimizer)
            return
        now = time.perf_counter()
        window.stepping, window.stepped = False, True
        window.step_time_s = None if self._stepped_at is None else now - self._stepped_at
        self._stepped_at = now
        if self._sentinel.layer is not None:
            self._sentinel.mark(self._sentinel.layer, self._gradient(self._sentinel.layer))
        self._spent_s += time.perf_counter() - now

    def close(self) -> None:
        """Hand over the last window if it had its step."""
        if self._window.stepped:
            self._close_window()

    def share(self) -> float:
        """Return the part of the time since the first window that the agent's hooks took, the counters left out."""
        elapsed = 0.0 if self._since is None else time.perf_counter() - self._since
        return self._spent_s / elapsed if elapsed > 0 else 0.0

    # -- backward passes -----------------------------------------------------------------------------------------

    def _pass_begins(self, layer: int) -> None:
        began = time.perf_counter()
        is_outermost = not self._open
        if self.has_callbacks and not self._is_opened(engine.current_pass()):
            return
        if is_outermost:
            self._enter_window(layer)
        if not self.has_callbacks:
            self._sentinel.mark(layer, self._gradient(layer))
        elif self._sentinel.layer is None:
            self._sentinel.layer = layer
        self._spent_s += time.perf_counter() - began

    def _is_opened(self, number: int) -> bool:
        """Queue what follows the end of a pass, once; False when an inner pass of a checkpointed block has ended."""
        self._pass = number
        if number in self._open:
            return False
        self._open.add(number)
        engine.at_end(self.guard.wrap("the end of backward", lambda: self._pass_ends(number)))
        return True

    def _enter_window(self, layer: int) -> None:
        if self._is_new_window(layer):
            if self._window.stepping:
                self._window.restart()
            else:
                self._close_window()
        if not self._window.begun:
            self._begin_window()
        self._window.losses += self._roots
        self._roots = []

    def _is_new_window(self, layer: int) -> bool:
        window, sentinel = self._window, self._sentinel
        if not window.begun:
            return False
        change = NEW
        if sentinel.layer is not None:
            change = sentinel.change(self._gradient(sentinel.layer), writes=int(layer == sentinel.layer))
        if window.stepped:
            self._clears_in_place = change == TOUCHED
            return True
        updated = window.scaler_round is not None and self.scaling.round() is not window.scaler_round
        return updated or (window.micro_steps > 0 and (change == NEW or (change == TOUCHED and self._clears_in_place)))

    def _pass_ends(self, number: int) -> None:
        self._pass = -1
        # Once more from inside: what a data-parallel wrapper queued meanwhile comes first.
        engine.at_end(self.guard.wrap("sampling", lambda: self._pass_settled(number)))

    def _pass_settled(self, number: int) -> None:
        began = time.perf_counter()
        self._open.discard(number)
        window = self._window
        window.passes += 1
        if self._is_sampled() and (window.stepping or window.passes >= self._passes_before):
            self._take_sample("accumulated", window.loss_scale)
        if self._sentinel.layer is not None:
            self._sentinel.mark(self._sentinel.layer, self._gradient(self._sentinel.layer))
        self._spent_s += time.perf_counter() - began

    @staticmethod
    def _unscale(window: Window) -> None:
        """Take back a guess: the scaler that lives in this process is not of this training."""
        window.loss_scale = window.scaler_round = None
        if window.sample is not None:
            window.sample.scale = None

    # -- windows -------------------------------------------------------------------------------------------------

    def _begun_window(self) -> Window:
        """Return the window that a step belongs to; a step without a backward pass of its own is a window too."""
        if self._window.stepped:
            self._close_window()
        if not self._window.begun:
            self._begin_window()
            self._window.losses, self._roots = self._roots, []
        self._window.calls, self._calls = self._calls, 0
        self._find_origin(even_unknown=False)
        return self._window

    def _begin_window(self) -> None:
        if self._since is None:
            self._since = time.perf_counter()
        self._find_origin(even_unknown=False)
        self.scaling.search()
        self._window.begun = True
        self._window.scaler_round = self.scaling.round()
        self._window.loss_scale = self.scaling.scale()

    def _find_origin(self, *, even_unknown: bool) -> None:
        if self.origin is None and (even_unknown or self.main() is not None):
            self.origin = origin_of(self.main(), self.settings.step)
            self.step = self.origin.first_step

    def _close_window(self) -> None:
        window, layers = self._window, self.layers
        if layers is None:
            return
        self._find_origin(even_unknown=True)
        self._passes_before = window.passes or self._passes_before
        if self._is_sampled():
            self._samples += 1
            self._earlier = [0] * len(layers)
        else:
            self._earlier = [a + b for a, b in zip(self._earlier, window.counts, strict=True)]
        self.put(self._record(window, layers))
        self.step += 1
        self._window = Window(len(layers))

    def _record(self, window: Window, layers: Layers) -> Record:
        logged, self.logged = self.logged, []
        return Record(
            layers=layers,
            step=self.step,
            time=time.time(),
            micro_steps=window.micro_steps or window.calls,
            skipped=self._why_skipped(window),
            sample=window.sample,
            probe=window.probe,
            found_inf=window.found_inf,
            losses=window.losses,
            loss_scale=window.loss_scale,
            lr=window.lr,
            step_time_s=window.step_time_s,
            agent_share=self.share(),
            logged=logged,
        )

    def _why_skipped(self, window: Window) -> int:
        if window.stepped:
            return NOT_SKIPPED
        now = self.scaling.round()
        return SKIPPED_BY_SCALER if now is not None and now is not window.scaler_round else SKIPPED_BY_LOOP

    # -- samples -------------------------------------------------------------------------------------------------

    def _is_sampled(self) -> bool:
        return self.layers is not None and self.step % self.settings.interval == 0

    def _take_sample(self, phase: str, scale: Tensor | None) -> None:
        window, layers = self._window, self.layers
        if layers is None or is_capturing():
            return
        window.sample = take_sample(
            layers,
            window.counts if window.micro_steps else None,
            self._earlier,
            window.consumed,
            phase=phase,
            scale=scale,
            number=self._samples,
            wishes=self.wishes,
        )

    def _look_for_clip(self, window: Window, scale: Tensor | None) -> None:
        """Measure one layer again if gradients were written to since the sample."""
        sentinel = self._sentinel
        if sentinel.layer is None or sentinel.change(self._gradient(sentinel.layer)) != TOUCHED or is_capturing():
            return
        wished = self.wishes.probe
        layer = wished if wished is not None and wished < len(window.counts) else sentinel.layer
        gradient = self._gradient(layer)
        if gradient is not None and readable(gradient) and window.counts[layer]:
            window.probe = Probe(layer, norm_of(gradient), scale)

    # -- small things --------------------------------------------------------------------------------------------

    def _gradient(self, layer: int) -> Tensor | None:
        parameter: nn.Parameter | None = None if self.layers is None else self.layers.references[layer]()
        return None if parameter is None else parameter.grad

    def _groups(self) -> Iterator[dict[str, Any]]:
        return (group for optimizer in self.optimizers() for group in optimizer.param_groups)


def _copied(number: float | Tensor) -> float | Tensor:
    return number.detach().clone() if isinstance(number, Tensor) else float(number)
