"""What the samples of one record say, in numbers: on the sender thread, where a tensor may be waited for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor

from gradcanary import shadows, wire
from gradcanary.forecasts import Forecast, fact_of
from gradcanary.records import MEASURED, PARTIAL, Kind, Part, Sample, scale_of
from gradcanary.statistics import Failed, read, told


class Findings:
    """What the samples of a record say together, by number of the layer, the loss scale divided out."""

    def __init__(self, layers: int) -> None:
        self.states = bytearray([PARTIAL]) * layers
        self.dtypes: list[str | None] = [None] * layers
        self.phase = "accumulated"
        self.absmax: dict[int, float] = {}
        self.norm: dict[int, float] = {}
        self.zeros: dict[int, float] = {}
        self.nonfinite: dict[int, float] = {}
        self.joint: list[float] = []
        self.is_whole = self.is_finite = True
        self.moved: dict[int, tuple[float, float]] = {}
        self.own_faults: list[int] = []
        self.bits: dict[int, Sequence[int]] = {}
        self.losses: dict[int, tuple[float, float]] = {}
        self.frozen: dict[int, float] = {}
        self.forecasts: list[tuple[Forecast, Sequence[int]]] = []

    def facts(self, layers: Sequence[wire.Layer], step: int, failed: Failed) -> list[wire.Fact]:
        """Return what there is to say of forecasts; waits for them."""
        found = []
        for forecast, numbers in self.forecasts:
            stuck = _values(forecast.parts, Kind.STUCK, failed)
            shares = {layers[numbers[place]].name: share for (place,), share in stuck}
            fact = fact_of(forecast, shares, step)
            found += [] if fact is None else [fact]
        return found

    def add(self, sample: Sample, failed: Failed) -> None:
        """Take a sample; a stat has one phase, so of two that differ it is the one that promises less."""
        numbers, scale = read(sample.parts, failed), scale_of(sample.parts, Kind.SCALE)
        norms, largest = numbers.norm, numbers.absmax
        if scale != 1:
            norms, largest = ({place: value / scale for place, value in each.items()} for each in (norms, largest))
        self.phase = "post_clip" if "post_clip" in (self.phase, sample.phase) else sample.phase
        self.joint += norms.values() if sample.is_joint else ()
        self.norm.update({sample.layers[place]: value for place, value in norms.items()})
        self.absmax.update({sample.layers[place]: value for place, value in largest.items()})
        self.zeros.update({sample.layers[place]: value for place, value in numbers.zeros.items()})
        self.nonfinite.update({sample.layers[place]: value for place, value in numbers.nonfinite.items()})
        self._add_some(sample, failed)
        for place, layer in enumerate(sample.layers):
            is_lost = sample.states[place] == MEASURED and place not in numbers.absmax
            self.states[layer] = PARTIAL if is_lost else sample.states[place]
            self.dtypes[layer] = sample.dtypes[place]
            self.is_whole &= not is_lost

    def _add_some(self, sample: Sample, failed: Failed) -> None:
        """Take what there is of some layers only."""
        numbers, parts = sample.layers, sample.parts
        has_sound_weights = all(is_finite for _, is_finite in _values(parts, Kind.WEIGHTS, failed))
        for places, bad in _values(parts, Kind.OWN, failed) if has_sound_weights else ():
            self.own_faults += [numbers[place] for place, is_bad in zip(places, bad, strict=True) if is_bad]
        self.is_finite &= all(is_finite for _, is_finite in _values(parts, Kind.FINITE, failed))
        for (place,), factors in _values(parts, Kind.MOVED, failed):
            self.moved[numbers[place]] = _change_of(factors)
        for (place,), factors in _values(parts, Kind.LOST, failed):
            loss = shadows.loss_of(factors)
            self.losses.update({} if loss is None else {numbers[place]: loss})
        self.frozen.update({numbers[place]: share for (place,), share in _values(parts, Kind.FROZEN, failed)})
        self.forecasts += [(forecast, numbers) for forecast in sample.forecasts]
        for places, counts in _values(parts, Kind.LOW_BITS, failed):
            self.bits.update(zip((numbers[place] for place in places), zip(*counts, strict=True), strict=True))


def _values(parts: Iterable[Part], kind: Kind, failed: Failed) -> Iterator[tuple[Sequence[int], Any]]:
    """Yield the layers, by position, and the numbers of the parts of a kind; waits for each."""
    for part in parts:
        if part.kind is kind and isinstance(part.value, Tensor):
            with told(failed, "reading", part.value):
                yield part.layers, part.value.tolist()


def _change_of(factors: Sequence[float]) -> tuple[float, float]:
    """Return the L2 norms of a layer's change and of its weights."""
    largest_change, change, largest, weights = factors
    return largest_change * change, largest * weights
