"""The optimizers that a watch follows, and the hooks in torch while it is open."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from gradcanary import facts
from gradcanary.guard import Guard
from gradcanary.hooks import backward, graphs
from gradcanary.hooks.graphs import is_capturing, is_slow
from gradcanary.model import declared_dtypes
from gradcanary.model.layers import Prefixes, discover
from gradcanary.model.parameters import count_elements, group_sizes, live_objects, one_scan, parameters_of
from gradcanary.model.training_loop import unwrapped
from gradcanary.settings import Settings
from gradcanary.tracking.fast_path import FastPath
from gradcanary.tracking.layer_hooks import LayerHooks
from gradcanary.tracking.not_optimized import NotOptimized
from gradcanary.tracking.recorder import Recorder

Optimizer = torch.optim.Optimizer

LEADS_AFTER = 64
"""Steps of an optimizer after which it becomes the main one, if the largest has made none."""


class Hooks:
    """Finds the optimizers of a watch, and passes the calls of torch to its recorder.

    The step hooks are global: they also fire for earlier optimizers, for subclasses, and inside wrappers. ``poll``
    looks for values that have arrived from a GPU; ``prepare`` gets the devices and the number of layers.
    """

    def __init__(
        self,
        recorder: Recorder,
        settings: Settings,
        guard: Guard,
        *,
        poll: Callable[[], None],
        prepare: Callable[[Collection[torch.device], int], None],
    ) -> None:
        self.recorder = recorder
        self.settings = settings
        self.guard = guard
        self._poll, self._prepare = poll, guard.wrap("preparing for a GPU", prepare)
        self.before_first_step: Callable[[], None] | None = None
        self.before_next_pass: Callable[[], None] | None = None
        self._thread = threading.get_ident()
        self._model: Callable[[], nn.Module | None] = lambda: None
        self._takes_any = False
        self._optimizers: dict[int, weakref.ref[Optimizer]] = {}
        self._strangers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._stepped_inside: dict[int, weakref.ref[Optimizer]] = {}
        self._declared_at = -1
        self._sizes: dict[int, list[int]] = {}
        self._steps_of: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._main: Callable[[], Optimizer | None] = lambda: None
        self._layer_hooks = LayerHooks(recorder)
        self._fast_path = FastPath(recorder, self._layer_hooks, guard)
        self._not_optimized, self._prefixes = NotOptimized(recorder), Prefixes()
        self._look_for_unheld = guard.wrap("looking for parameters in no optimizer", self._find_unheld)
        self._keep = guard.wrap("a pass that reduces nothing", lambda _: recorder.calls.defer())
        self._steps: list[Any] = []
        self.step_by_hand = recorder.meter.hook("noting a step by hand", self._stepped_by_hand, guard.catch)
        """Notes that a step which no optimizer made is over."""
        self._listener = recorder.meter.hook("capturing the loss", self._backward_called, guard.catch)

    def attach(self, model: nn.Module | None, optimizer: Optimizer | None) -> None:
        """Begin to follow the given optimizer, those of the model, or, with neither, each that steps from now on."""
        self._thread = threading.get_ident()
        recorder, wrap = self.recorder, self.guard.wrap
        recorder.main, recorder.optimizers = lambda: self._main(), self.optimizers
        recorder.awaits_optimizer = self._has_idle_optimizer
        recorder.enable_hooks = self._layer_hooks.enable
        recorder.leave_fast_path = self._fast_path.leave
        self._takes_any = model is None and optimizer is None
        if model is not None:
            self._model = weakref.ref(model)
            if optimizer is not None and not self._shares(optimizer):
                self.guard.print_once(
                    "the optimizer has no parameter of the model: watch() was given two that do not belong"
                )
        if optimizer is not None:
            self._add([unwrapped(optimizer)])
        elif model is not None:
            self._add([unwrapped(found) for found in live_objects(Optimizer) if self._shares(found)])
        if not self._takes_any:
            wrap("finding the parameters", self._follow)()
        wrap("keeping out of torch.compile", graphs.keep_out)()
        begins, ended = (
            recorder.meter.hook("the step hook", each, self.guard.catch)
            for each in (self._step_begins, self._step_ended)
        )
        self._steps.append(register_optimizer_step_pre_hook(self.recorder.graphs.outside(begins)))
        self._steps.append(register_optimizer_step_post_hook(self.recorder.graphs.outside(ended)))
        backward.subscribe(self._listener)

    def detach(self) -> None:
        """Leave no hook and no replaced function behind."""
        backward.unsubscribe(self._listener)
        for handle in self._steps:
            handle.remove()
        self.recorder.remove_hooks()
        self._layer_hooks.remove()
        self._not_optimized.stop()

    def is_training_here(self) -> bool:
        """Return True if this thread ran the last pass or step, or made the watch."""
        return self._thread == threading.get_ident()

    def is_training_elsewhere(self) -> bool:
        """Return True if another living thread ran the last pass or step, or made the watch."""
        return self._thread != threading.get_ident() and self._thread in sys._current_frames()  # noqa: SLF001 -- documented

    def optimizers(self) -> Sequence[Optimizer]:
        """Return the optimizers followed, without those that the training has let go of."""
        return [optimizer for reference in self._optimizers.values() if (optimizer := reference()) is not None]

    def follows(self, optimizer: Optimizer) -> bool:
        """Return True if the watch follows the optimizer."""
        reference = self._optimizers.get(id(optimizer))
        return reference is not None and reference() is optimizer

    def watches(self, model: nn.Module) -> bool:
        """Return True if the watch was given this model."""
        return self._model() is model

    def _is_recorded(self) -> bool:
        """Return True while a CUDA graph is recorded, and pause until a step outside of a recording."""
        if not is_capturing():
            return False
        self.recorder.add_fact(facts.RECORDED)
        if not self.recorder.clock.is_paused:
            self.recorder.pause()
        return True

    def _is_left_alone(self) -> bool:
        """Return True if a step is ignored: a CUDA graph records it, or another thread has closed the watch."""
        if self.before_next_pass is not None:
            return True
        return torch.cuda.is_initialized() and self._is_recorded()  # type: ignore[no-untyped-call]  # untyped in torch

    def _note_thread(self) -> None:
        if backward.is_outermost():  # inside a pass on a GPU this is a thread of the autograd engine
            self._thread = threading.get_ident()

    def _backward_called(self, tensors: object) -> None:
        if self.before_next_pass is not None:
            if not is_capturing():
                self.before_next_pass()
            return
        if torch.cuda.is_initialized() and self._is_recorded():  # type: ignore[no-untyped-call]  # untyped in torch
            return
        self._thread = threading.get_ident()
        self._poll()
        if self._fast_path.is_on and self._fast_path.backward_called(tensors):
            return
        if self._stepped_inside:
            self._follow_stepped_inside()
        self._layer_hooks.repair_after_swap()
        self.recorder.backward_called(backward.scalar_roots(tensors))
        self._layer_hooks.hook_unsharded_parameter(self._keep)

    def _step_begins(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._is_left_alone():
            return
        self._note_thread()
        self._poll()
        # Accelerate's wrapper passes on a closure that is None.
        has_closure = kwargs.get("closure", args[1] if len(args) > 1 else None) is not None
        if self._fast_path.is_on and self._fast_path.step_begins(optimizer, has_closure=has_closure):
            return
        if not self.follows(optimizer):
            if optimizer in self._strangers:
                return
            if not self._is_ours(optimizer):
                self._strangers.add(optimizer)
                return
            if not backward.is_outermost():
                self._stepped_inside[id(optimizer)] = weakref.ref(optimizer)
                return
            self._begin_session()
            self._optimizers[id(optimizer)] = weakref.ref(optimizer)
            with one_scan():
                if self._is_changed(optimizer):
                    self._follow()
                self.recorder.step_begins(optimizer, has_closure=has_closure)
            return
        if self._is_changed(optimizer):
            self._follow()
        elif self._layer_hooks.unhooked:
            self._layer_hooks.add()
        self.recorder.step_begins(optimizer, has_closure=has_closure)

    def _step_ended(self, optimizer: Optimizer, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        if self.before_next_pass is not None:
            return
        if self._fast_path.is_on and self._fast_path.step_ended(optimizer):
            return
        if not self.follows(optimizer) or self._is_recorded():
            return
        self.recorder.step_ended(optimizer)
        self._poll()
        self._layer_hooks.on_step_end()
        self._fast_path.window_stepped(optimizer)
        if (before := self._steps_of.get(optimizer, 0)) < LEADS_AFTER:
            self._steps_of[optimizer] = before + 1
            if before + 1 == LEADS_AFTER and self._main() not in self._steps_of:
                self.recorder.clock.step += before  # the last of them is still to be recorded
                self._follow()
        if self._not_optimized.is_due():
            self._look_for_unheld()

    def _find_unheld(self) -> None:
        """List the parameters that no optimizer holds, once that is certain, and report them."""
        optimizers = self.optimizers()
        steps_of = [self._steps_of.get(optimizer, 0) for optimizer in optimizers]
        if not self._not_optimized.stepped(optimizers, self._model(), steps_of):
            return
        self._follow(is_search_over=True)
        found = {id(parameter) for each in self._not_optimized.found if (parameter := each.reference()) is not None}
        if (layers := self.recorder.layers) is not None:
            listed = zip(layers.layer_set.layers, layers.references, layers.optimizers, strict=True)
            names = [layer.name for layer, reference, owner in listed if owner is None and id(reference()) in found]
            if names:
                self.recorder.add_fact(facts.not_optimized(names, self.recorder.clock.step))

    def _begin_session(self) -> None:
        if self.before_first_step is not None:
            begin, self.before_first_step = self.before_first_step, None
            begin()

    def _follow_stepped_inside(self) -> None:
        """Follow all optimizers that stepped inside the last backward pass, together.

        During that pass it was unknown which others would step. Its window is lost.
        """
        stepped, self._stepped_inside = self._stepped_inside, {}
        if not self._optimizers:
            self.recorder.calls.reset()
        self._begin_session()
        self._optimizers.update(stepped)
        self._follow()

    def _stepped_by_hand(self) -> None:
        if self._is_left_alone():
            return
        self._note_thread()
        self._layer_hooks.add()
        self.recorder.step_by_hand()
        self._poll()
        self._layer_hooks.on_step_end()

    def _has_idle_optimizer(self) -> bool:
        """Return True if an optimizer lives that may step later; one pass over the garbage collector's objects."""
        return any(map(self._is_ours, map(unwrapped, live_objects(Optimizer))))

    def _add(self, optimizers: Sequence[Optimizer]) -> None:
        self._optimizers.update({id(optimizer): weakref.ref(optimizer) for optimizer in optimizers})

    def _is_changed(self, optimizer: Optimizer) -> bool:
        """Return True if the layers have to be discovered again."""
        if optimizer not in self._steps_of:
            self._steps_of[optimizer] = 0
            if self._replaces(optimizer):
                return True
        is_redeclared = self._declared_at != declared_dtypes.revision()
        return is_redeclared or self._sizes.get(id(optimizer)) != group_sizes(optimizer) or self._main() is None

    def _replaces(self, optimizer: Optimizer) -> bool:
        """At an optimizer's first step, stop following others whose parameters it holds.

        They are wrappers around it, optimizers of an earlier stage, or left by an earlier cell of a notebook. Return
        True if there are any, or if this one is larger than the main optimizer.
        """
        own = {id(parameter) for parameter in parameters_of(optimizer)}
        others = [
            other
            for other in self.optimizers()
            if other is not optimizer and own.issuperset(id(parameter) for parameter in parameters_of(other))
        ]
        for other in others:
            del self._optimizers[id(other)]
        main = self._main()
        return bool(others) or (main is not None and count_elements(main) < count_elements(optimizer))

    def _is_ours(self, optimizer: Optimizer) -> bool:
        """Return True if an optimizer belongs to the watch without being given: one inside a wrapper, for example."""
        return self._takes_any or self._shares(optimizer)

    def _shares(self, optimizer: Optimizer) -> bool:
        model = self._model()
        known = {id(parameter) for parameter in model.parameters()} if model is not None else set()
        known |= {id(parameter) for other in self.optimizers() for parameter in parameters_of(other)}
        return any(id(parameter) in known for parameter in parameters_of(optimizer))

    def _follow(self, *, is_search_over: bool = False) -> None:
        """Discover the layers; an error is not repeated until the optimizers change."""
        self._fast_path.leave()
        if not is_search_over:
            self._not_optimized.restart()
        optimizers, self._declared_at = self.optimizers(), declared_dtypes.revision()
        self._sizes = {id(optimizer): group_sizes(optimizer) for optimizer in optimizers}
        # The largest one; if it makes no step for long, the largest of those that do.
        is_late = any(taken >= LEADS_AFTER for taken in self._steps_of.values())
        candidates = [each for each in optimizers if each in self._steps_of] if is_late else optimizers
        main = max(candidates, key=count_elements, default=None)
        self._main = (lambda: None) if main is None else weakref.ref(main)
        unheld = self._not_optimized.found
        layers = discover(optimizers, self._model(), self.settings, self.guard.catch, unheld, self._prefixes)
        if not len(layers):
            self.guard.print_once("no parameter to watch: nothing is trainable, or include/exclude leave nothing")
        self.recorder.follow(layers)
        devices = {each.device for reference in layers.references if (each := reference()) is not None}
        self._prepare(devices, len(layers))
        self.recorder.meter.device_clock.devices = [device for device in devices if device.type == "cuda"]
        if any(map(is_slow, devices)):
            self.recorder.meter.slow_down()
            self.recorder.add_fact(facts.SLOW_DEVICE)
        self._layer_hooks.follow(layers)
