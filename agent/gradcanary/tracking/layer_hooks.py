"""The hooks on the layers: put on as these become trainable, again after a swap, most disabled between samples."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor, nn

from gradcanary.hooks import backward
from gradcanary.hooks.graphs import is_backward_traced
from gradcanary.hooks.parameter_hook import AFTER, Hook
from gradcanary.model.distributed import is_dtensor
from gradcanary.model.layers import Layers

if TYPE_CHECKING:
    from gradcanary.tracking.recorder import Observer
    from gradcanary.tracking.tracker import Track


SEARCHES = 64
"""Backward passes, some maybe of other models, in which a gathered parameter is looked for: where all are wrapped
further inside there is none."""

SEEN = 100
"""Windows with all hooks enabled, before any is disabled."""

TIMED_EACH = 16
"""One hook in so many has a clock: two readings are half of such a call."""

SPREAD, PART = 16, 8
"""Hooks spread over the model that are always enabled, so that one is called whichever part of it is trained: 16 at
most, and one in eight of fewer layers."""


class Counters:
    """One hook for each layer, by its number, and one for a pass that reduces no shard."""

    def __init__(self, observer: Observer) -> None:
        self._of = observer
        self._hooks: dict[int, Hook] = {}
        self._gathered: list[Hook] = []
        self.unhooked: list[int] = []
        self._all: list[Hook] = []
        self._is_looked_at = self._are_disabled = False
        self._searches_left = SEARCHES

    def follow(self, layers: Layers) -> None:
        """Take other layers."""
        self.remove()
        self.unhooked = list(range(len(layers)))
        self.add()

    def add(self) -> None:
        """Hook the layers that are trainable now: torch takes no hook on one that is frozen."""
        layers = self._of.layers
        if not self.unhooked or layers is None:
            return
        ways = {layer: layers.unsharded.get(layer, layers.references[layer]) for layer in self.unhooked}
        able = {
            layer: parameter
            for layer, way in ways.items()
            if (parameter := way()) is not None and parameter.requires_grad and parameter.is_leaf
        }
        if not able:
            return  # as before each step of a training with frozen layers
        calls = self._calls(able.keys() - self._hooks.keys())  # some are there where the one after them raised
        for layer, call in calls.items():
            self._hooks[layer] = Hook(ways[layer], able[layer], AFTER, call)
        self.unhooked = [layer for layer in self.unhooked if layer not in able]
        self._all = [*self._hooks.values(), *self._gathered]

    def _calls(self, wanted: Collection[int]) -> dict[int, Callable[[Tensor], None]]:
        """Return what the hook of each wanted layer calls."""
        return {
            layer: layer_hook(self._of, track, position)
            for track in self._of.tracks
            for position, layer in enumerate(track.gauge.layers)
            if layer in wanted
        }

    def remove(self) -> None:
        """Leave none behind."""
        for hook in (*self._hooks.values(), *self._gathered):
            hook.remove()
        self._hooks, self._gathered, self._all, self._searches_left = {}, [], [], SEARCHES
        self._note_enabled()

    def before_pass(self) -> None:
        """Before the first pass since a step: hook again what the script has moved by swapping tensors.

        Where the window is not sampled one is looked at, in turns: what was moved is seldom moved alone.
        """
        hooks = self._all
        if self._is_looked_at or not hooks:
            return
        self._is_looked_at = True
        if self._of.is_next_sampled():
            is_moved = any(hook.renew() for hook in hooks)
        else:
            is_moved = hooks[self._of.step % len(hooks)].renew()
        if is_moved:
            for hook in hooks:
                hook.renew()
            self._searches_left = SEARCHES  # what is gathered now may be another tensor, too

    def hear_of_unsynced(self, keep: Callable[[Tensor], None]) -> None:
        """Hook one parameter that is gathered now: the shards' own hooks are called by passes that reduce them only.

        In place of offloaded shards each gathered parameter is hooked, once the forward pass has made it.
        """
        layers = self._of.layers
        if layers is None or not layers.has_shards:
            return
        if layers.unsharded:
            self.add()
        if not self._searches_left:
            return
        self._searches_left -= 1
        for owner in (reference() for reference in layers.owners):
            for parameter in owner._parameters.values() if owner is not None else ():  # noqa: SLF001 -- what it holds now
                if parameter is not None and parameter.requires_grad and not is_dtensor(parameter):
                    self._gathered.append(Hook(_nowhere, parameter, AFTER, keep))
                    self._all.append(self._gathered[-1])
                    self._searches_left = 0
                    return

    # -- between samples -----------------------------------------------------------------------------------------

    def step_ended(self) -> None:
        """After a step of any optimizer: enable all hooks if the next window is sampled, else disable most of them.

        Inside a backward pass nothing is disabled: the hooks of some of its layers were called already.
        """
        self._is_looked_at = False
        of = self._of
        if of.is_next_sampled() or (self._are_disabled and any(track.is_lost() for track in of.tracks)):
            self.enable()
        elif of.has_callbacks and backward.current_pass() < 0:
            for track in of.tracks:
                for position in track.disable_hooks():
                    self._are_disabled = True
                    if (hook := self._hooks.get(track.gauge.layers[position])) is not None:
                        hook.rest()

    def replace_enabled(self, track: Track, noting: Callable[[int], Callable[[Tensor], None]]) -> None:
        """Have what ``noting`` returns for a position called in place of each enabled hook of a track."""
        self._are_disabled = True
        for position in track.hook_sampler.enabled():
            if (hook := self._hooks.get(track.gauge.layers[position])) is not None:
                hook.call_instead(noting(position))

    def enable(self) -> None:
        """Enable all hooks, also of layers that come later in the present backward pass."""
        if self._are_disabled:
            for hook in self._hooks.values():
                hook.wake()
            self._note_enabled()

    def _note_enabled(self) -> None:
        self._are_disabled = False
        for track in self._of.tracks:
            track.hook_sampler.enable()


def _nowhere() -> nn.Parameter | None:
    return None


def layer_hook(of: Observer, track: Track, position: int) -> Callable[[Tensor], None]:
    """Return what counts a layer of a track; one in so many has a clock."""
    catch, timed = of.guard.catch, of.meter.timed
    current_pass = backward.passes() if of.has_callbacks else _unknown_pass
    begins, look = partial(timed(track.pass_begins), position), partial(timed(track.look), position)

    def accumulated(_parameter: Tensor) -> None:
        if is_backward_traced():
            return
        try:
            if current_pass() == track.plain_pass:
                track.window.counts[position] += 1
            else:
                track.accumulated(position, begins, look)
        except Exception as error:  # noqa: BLE001 -- as in Guard.wrap, without a second call per layer
            catch("counting micro-steps", error)

    if position % TIMED_EACH:
        return accumulated
    return of.meter.timed_for(lambda: track.hook_sampler.weight_of_timed_hook, accumulated)


def _unknown_pass() -> int:
    """Return the number of no pass: without the callbacks of the engine each hook has to look for itself."""
    return -2


class HookSampler:
    """Divides the hooks of one optimizer's layers by position.

    ``disabled`` are the ones that are off now, and ``unknown`` all that were off since the last sample. Each hook with
    a clock counts for ``weight_of_timed_hook`` enabled ones.
    """

    def __init__(self, layers: int) -> None:
        self._layers = layers
        self._seen = 0
        stride = layers // min(SPREAD, layers // PART + 1) | 1  # odd: one in 16 of these has a clock, too
        self.always = set(range(0, layers, stride))
        self.unknown: set[int] = set()
        self.enable()

    @property
    def is_learned(self) -> bool:
        """Whether enough windows were seen."""
        return self._seen >= SEEN

    def observe(self, counts: Sequence[int], *, was_sampled: bool) -> None:
        """Learn from a window which layers had no gradient; after the first windows from sampled ones only."""
        if self.is_learned and not was_sampled:
            return
        self._seen += 1
        if 0 in counts:
            self.always.update(position for position, count in enumerate(counts) if not count)

    def disable(self, counts: Sequence[int]) -> Sequence[int]:
        """Disable what is not always enabled and had a gradient in the last window; return the positions."""
        if self.is_learned:
            self._set([at for at, count in enumerate(counts) if count and at not in self.always])
        return self.disabled

    def enable(self) -> None:
        """Enable all hooks."""
        self._set(())

    def sampled(self) -> None:
        """Forget which hooks were off before a sample."""
        self.unknown = set(self.disabled)

    def enabled(self) -> Sequence[int]:
        """Return the positions of the hooks that are enabled."""
        disabled = set(self.disabled)
        return [position for position in range(self._layers) if position not in disabled]

    def _set(self, disabled: Sequence[int]) -> None:
        self.disabled = disabled
        self.unknown.update(disabled)
        timed = -(-self._layers // TIMED_EACH) - sum(not position % TIMED_EACH for position in disabled)
        self.weight_of_timed_hook = (self._layers - len(disabled)) / max(timed, 1)
