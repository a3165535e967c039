"""The hooks of the layers: added to trainable ones, repaired after a swap, and mostly disabled between samples."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor, nn

from gradcanary.hooks import backward
from gradcanary.hooks.graphs import is_backward_traced
from gradcanary.hooks.parameter_hook import POST_ACCUMULATE, ParameterHook
from gradcanary.model.distributed import is_dtensor
from gradcanary.model.layers import Layers
from gradcanary.tracking.hook_sampler import TIMED_EACH

if TYPE_CHECKING:
    from gradcanary.tracking.recorder import Recorder
    from gradcanary.tracking.tracker import OptimizerTracker


SEARCHES = 64
"""Backward passes, some maybe of other models, in which an unsharded parameter is searched. Models whose modules are
all wrapped further inside have none."""


class LayerHooks:
    """One hook for each layer, by its number, and one for passes that reduce no shard."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._hooks: dict[int, ParameterHook] = {}
        self._gathered: list[ParameterHook] = []
        self.unhooked: list[int] = []
        self._all: list[ParameterHook] = []
        self._is_looked_at = self._are_disabled = False
        self._searches_left = SEARCHES

    def follow(self, layers: Layers) -> None:
        """Follow other layers."""
        self.remove()
        self.unhooked = list(range(len(layers)))
        self.add()

    def add(self) -> None:
        """Hook the layers that are trainable now: torch refuses a hook on a frozen one."""
        layers = self._recorder.layers
        if not self.unhooked or layers is None:
            return
        references = {layer: layers.unsharded.get(layer, layers.references[layer]) for layer in self.unhooked}
        trainable = {
            layer: parameter
            for layer, reference in references.items()
            if (parameter := reference()) is not None and parameter.requires_grad and parameter.is_leaf
        }
        if not trainable:
            return  # as before each step of a training with frozen layers
        calls = self._calls(trainable.keys() - self._hooks.keys())  # after an error some layers have their hook
        for layer, call in calls.items():
            self._hooks[layer] = ParameterHook(references[layer], trainable[layer], POST_ACCUMULATE, call)
        self.unhooked = [layer for layer in self.unhooked if layer not in trainable]
        self._all = [*self._hooks.values(), *self._gathered]

    def _calls(self, wanted: Collection[int]) -> dict[int, Callable[[Tensor], None]]:
        """Return the hook functions of some layers."""
        return {
            layer: make_layer_hook(self._recorder, tracker, position)
            for tracker in self._recorder.trackers
            for position, layer in enumerate(tracker.sampler.layers)
            if layer in wanted
        }

    def remove(self) -> None:
        """Remove all hooks."""
        for hook in (*self._hooks.values(), *self._gathered):
            hook.remove()
        self._hooks, self._gathered, self._all, self._searches_left = {}, [], [], SEARCHES
        self._note_enabled()

    def repair_after_swap(self) -> None:
        """Before the first pass since a step, reattach hooks whose tensors the script has swapped.

        Before an unsampled window one hook is checked, in turns: a model is seldom moved in part.
        """
        hooks = self._all
        if self._is_looked_at or not hooks:
            return
        self._is_looked_at = True
        if self._recorder.is_next_sampled():
            is_moved = any(hook.reattach() for hook in hooks)
        else:
            is_moved = hooks[self._recorder.clock.step % len(hooks)].reattach()
        if is_moved:
            for hook in hooks:
                hook.reattach()
            self._searches_left = SEARCHES  # the unsharded parameter may be another tensor, too

    def hook_unsharded_parameter(self, keep: Callable[[Tensor], None]) -> None:
        """Hook one parameter that is unsharded now: only passes that reduce call the hooks of the shards.

        For offloaded shards each unsharded parameter is hooked, once the forward pass has made it.
        """
        layers = self._recorder.layers
        if layers is None or not layers.has_shards:
            return
        if layers.unsharded:
            self.add()
        if not self._searches_left:
            return
        self._searches_left -= 1
        for owner in (reference() for reference in layers.owners):
            for parameter in owner._parameters.values() if owner is not None else ():  # noqa: SLF001 -- the present parameters
                if parameter is not None and parameter.requires_grad and not is_dtensor(parameter):
                    self._gathered.append(ParameterHook(_nowhere, parameter, POST_ACCUMULATE, keep))
                    self._all.append(self._gathered[-1])
                    self._searches_left = 0
                    return

    # -- between samples -----------------------------------------------------------------------------------------

    def on_step_end(self) -> None:
        """After a step of any optimizer, enable all hooks if the next window is sampled, else disable most of them.

        Inside a backward pass none is disabled: torch has called some of them already.
        """
        self._is_looked_at = False
        recorder = self._recorder
        if recorder.is_next_sampled() or (
            self._are_disabled and any(tracker.is_lost() for tracker in recorder.trackers)
        ):
            self.enable()
        elif recorder.clock.has_backward_end and backward.graph_task_id() < 0:
            for tracker in recorder.trackers:
                for position in tracker.disable_hooks():
                    self._are_disabled = True
                    if (hook := self._hooks.get(tracker.sampler.layers[position])) is not None:
                        hook.disable()

    def replace_enabled(self, tracker: OptimizerTracker, noting: Callable[[int], Callable[[Tensor], None]]) -> None:
        """Replace each enabled hook of a tracker by the function that ``noting`` returns for its position."""
        self._are_disabled = True
        for position in tracker.hook_sampler.enabled():
            if (hook := self._hooks.get(tracker.sampler.layers[position])) is not None:
                hook.replace(noting(position))

    def enable(self) -> None:
        """Enable all hooks; layers that come later in the present backward pass call theirs."""
        if self._are_disabled:
            for hook in self._hooks.values():
                hook.enable()
            self._note_enabled()

    def _note_enabled(self) -> None:
        self._are_disabled = False
        for tracker in self._recorder.trackers:
            tracker.hook_sampler.enable()


def _nowhere() -> nn.Parameter | None:
    return None


def make_layer_hook(recorder: Recorder, tracker: OptimizerTracker, position: int) -> Callable[[Tensor], None]:
    """Return the hook of a layer, which counts; one in TIMED_EACH has a clock."""
    catch, timed = recorder.guard.catch, recorder.meter.timed
    graph_task_id = backward.graph_task_id_function() if recorder.clock.has_backward_end else _unknown_pass
    begins, look = partial(timed(tracker.pass_begins), position), partial(timed(tracker.measure_local), position)

    def on_grad_accumulated(_parameter: Tensor) -> None:
        if is_backward_traced():
            return
        try:
            if graph_task_id() == tracker.plain_pass:
                tracker.window.counts[position] += 1
            else:
                tracker.accumulated(position, begins, look)
        except Exception as error:  # noqa: BLE001 -- as in Guard.wrap, without a second call per layer
            catch("counting micro-steps", error)

    if position % TIMED_EACH:
        return on_grad_accumulated
    return recorder.meter.timed_layer_hook(lambda: tracker.hook_sampler.weight_of_timed_hook, on_grad_accumulated)


def _unknown_pass() -> int:
    """Return a number that no pass has: without the engine's callbacks no hook may take the short way."""
    return -2
