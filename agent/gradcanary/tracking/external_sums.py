"""Gradients that a script sums in tensors of its own, and gives by the name of the layer."""

from __future__ import annotations

from collections.abc import Collection

from torch import Tensor

from gradcanary.guard import Guard
from gradcanary.model.layers import Layers, is_chosen
from gradcanary.settings import Settings
from gradcanary.tracking.tracker import OptimizerTracker

NO_LAYER = "observe_accumulator({name!r}): no parameter is called so; there are, for example, {examples}"


class ExternalSums:
    """Passes each sum to the tracker of its layer. A name that was accepted once is never refused later."""

    def __init__(self, settings: Settings, guard: Guard) -> None:
        self._settings, self._guard = settings, guard
        self._accepted: dict[str, tuple[int, ...]] = {}
        self._layers: dict[str, tuple[OptimizerTracker, int]] = {}
        self._shapes: dict[str, tuple[int, ...]] | None = None

    def __bool__(self) -> bool:
        return bool(self._accepted)

    def follow(self, layers: Layers, trackers: Collection[OptimizerTracker]) -> None:
        """Follow other layers, and mark those of accepted names in their trackers."""
        known = layers.layer_set.layers
        self._shapes = {layer.name: layer.shape for layer in known}
        self._layers = {
            known[number].name: (tracker, position)
            for tracker in trackers
            for position, number in enumerate(tracker.sampler.layers)
        }
        for name, shape in self._accepted.items():
            if name in self._layers:
                tracker, position = self._layers[name]
                tracker.sampler.external.add(position)
            try:
                self._check_layer(name, shape)
            except ValueError as error:
                self._guard.print_once(str(error))

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise ValueError if no layer has this name, or the layer has another shape; never before discovery."""
        if name not in self._accepted:
            self._check_layer(name, shape)
            self._accepted[name] = shape

    def read(self, name: str, tensor: Tensor) -> None:
        """Read a tensor that holds the window's sum of a layer."""
        if name in self._layers:
            tracker, position = self._layers[name]
            tracker.read_external(position, tensor)

    def _check_layer(self, name: str, shape: tuple[int, ...]) -> None:
        if self._shapes is None or not is_chosen(name, self._settings):
            return
        if name not in self._shapes:
            raise ValueError(NO_LAYER.format(name=name, examples=", ".join(list(self._shapes)[:3]) or "none"))
        if shape != self._shapes[name]:
            raise ValueError(
                f"observe_accumulator({name!r}) is a tensor of shape {shape}: its parameter has {self._shapes[name]}"
            )
