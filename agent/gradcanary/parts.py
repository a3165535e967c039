"""Samples of other optimizers than the main one, until a record of the main one's takes them along."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gradcanary.records import Sample
from gradcanary.sampling import not_sampled

if TYPE_CHECKING:
    from gradcanary.layers import Layers
    from gradcanary.track import Track


def places_of(layers: Layers, owners: Sequence[int], first: int | None) -> dict[int | None, list[int]]:
    """Return the layers of each optimizer, by its id; the ``first`` one has also those that nobody has."""
    places: dict[int | None, list[int]] = {first: []}
    for layer, owner in enumerate(layers.optimizers):
        places.setdefault(first if owner is None else owners[owner], []).append(layer)
    return places


class Parts:
    """Holds the last sample of each track for the main optimizer's present record and for its next one."""

    def __init__(self) -> None:
        self._present: dict[Track, Sample] = {}
        self._early: dict[Track, Sample] = {}

    def lay_down(self, track: Track, leading: Track | None) -> None:
        """Keep a sample for the main optimizer's record: the present one, or where that had its step, the next."""
        sample = track.window.sample
        if sample is None or leading is None:
            return
        sample.is_joint = track.has_pass_of(leading)
        is_early = leading.window.stepped and not sample.is_joint
        (self._early if is_early else self._present)[track] = sample

    def keep(self, tracks: Collection[Track]) -> None:
        """Let go of samples of other tracks."""
        self._present = {track: sample for track, sample in self._present.items() if track in tracks}
        self._early = {track: sample for track, sample in self._early.items() if track in tracks}

    def go_on(self) -> None:
        """Turn to the next record."""
        self._present, self._early = self._early, {}

    def joined(self, leading: Track, tracks: Collection[Track]) -> list[Sample]:
        """Return the samples of all optimizers, the main one's first, with nothing known of those that have none."""
        sample = leading.window.sample or not_sampled(leading.gauge.layers, leading.gauge.references)
        found = [replace(sample, layers=leading.gauge.layers)]
        for track in (each for each in tracks if each is not leading):
            part = self._present.get(track) or not_sampled(track.gauge.layers, track.gauge.references)
            found.append(replace(part, layers=track.gauge.layers))
        return found
