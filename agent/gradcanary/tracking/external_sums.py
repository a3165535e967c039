"""Gradients that a script sums in tensors of its own, given by the name of their layer."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from torch import Tensor

from gradcanary.model.layers import is_chosen

if TYPE_CHECKING:
    from gradcanary.model.layers import Layers
    from gradcanary.tracking.recorder import Observer
    from gradcanary.tracking.tracker import Track

NO_LAYER = "observe_accumulator({name!r}): no layer is called so; there are, for example, {examples}"


class Buffers:
    """Leads each buffer to the track of its layer. What was accepted once is never refused later."""

    def __init__(self, observer: Observer) -> None:
        self._of = observer
        self._accepted: dict[str, tuple[int, ...]] = {}
        self._places: dict[str, tuple[Track, int]] = {}
        self._shapes: dict[str, tuple[int, ...]] | None = None

    def __bool__(self) -> bool:
        return bool(self._accepted)

    def follow(self, layers: Layers, tracks: Collection[Track]) -> None:
        """Take other layers, and tell their tracks which of them are summed elsewhere."""
        known = layers.layer_set.layers
        self._shapes = {layer.name: layer.shape for layer in known}
        self._places = {
            known[number].name: (track, position)
            for track in tracks
            for position, number in enumerate(track.gauge.layers)
        }
        for name, shape in self._accepted.items():
            if name in self._places:
                track, position = self._places[name]
                track.gauge.observed.add(position)
            try:
                self._check_layer(name, shape)
            except ValueError as error:
                self._of.guard.print_once(str(error))

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise ValueError where no layer has this name, or the layer of it another shape; known layers only."""
        if name not in self._accepted:
            self._check_layer(name, shape)
            self._accepted[name] = shape

    def read(self, name: str, buffer: Tensor) -> None:
        """Read a buffer that holds a layer's sum of the window; a first call before any pass only announces it.

        Where there are no passes, because the script asks torch for gradients, a window begins with such a call.
        """
        if name not in self._places:
            return
        track, position = self._places[name]
        window, has_passes, is_first = track.window, track.window.micro_steps > 0, position not in track.gauge.observed
        track.gauge.observed.add(position)
        if is_first and (window.stepped or not has_passes):
            return
        if has_passes and window.stepped and position in window.summed:
            return  # by now it may be cleared
        if window.stepped and not has_passes:
            self._of.window_ended(track)
        elif position in window.summed and not has_passes:
            track.end_or_restart()
        if not track.window.begun:
            track.begin_window()
        track.window.summed.add(position)
        if self._of.is_sampled(track):
            track.gauge.read_buffer(track.window, position, buffer)

    def _check_layer(self, name: str, shape: tuple[int, ...]) -> None:
        if self._shapes is None or not is_chosen(name, self._of.settings):
            return
        if name not in self._shapes:
            raise ValueError(NO_LAYER.format(name=name, examples=", ".join(list(self._shapes)[:3]) or "none"))
        if shape != self._shapes[name]:
            raise ValueError(
                f"observe_accumulator({name!r}) is a tensor of shape {shape}: its layer has {self._shapes[name]}"
            )
