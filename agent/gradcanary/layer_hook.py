"""The hook of a layer: the one piece of the agent that runs per layer and micro-step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor

from gradcanary import engine
from gradcanary.compiled import is_backward_traced
from gradcanary.resting import TIMED_EACH

if TYPE_CHECKING:
    from gradcanary.observer import Observer
    from gradcanary.track import Track


def layer_hook(of: Observer, track: Track, position: int) -> Callable[[Tensor], None]:
    """Return what counts a layer of a track; one in so many has a clock."""
    catch, timed = of.guard.catch, of.meter.timed
    current_pass = engine.passes() if of.has_callbacks else _unknown_pass
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
