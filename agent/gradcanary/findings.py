"""What the samples of one record say, in numbers: on the sender thread, where a tensor may be waited for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from gradcanary import shadows, wire
from gradcanary.forecasts import Forecast, fact_of
from gradcanary.records import MEASURED, PARTIAL, Sample, scale_of
from gradcanary.statistics import Failed, not_finite, read, told


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
        self.is_whole = True
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
            stuck = _read(numbers, forecast.stuck, failed)
            shares = {layers[number].name: share for number, share in stuck}
            fact = fact_of(forecast, shares, step)
            found += [] if fact is None else [fact]
        return found

    def add(self, sample: Sample, failed: Failed) -> None:
        """Take a sample; a stat has one phase, so of two that differ it is the one that promises less."""
        numbers, scale = read(sample.measured, failed), scale_of(sample.scale)
        norms, largest = numbers.norm, numbers.absmax
        if scale != 1:
            norms, largest = ({place: value / scale for place, value in each.items()} for each in (norms, largest))
        self.phase = "post_clip" if "post_clip" in (self.phase, sample.phase) else sample.phase
        self.joint += norms.values() if sample.is_joint else ()
        self.norm.update({sample.layers[place]: value for place, value in norms.items()})
        self.absmax.update({sample.layers[place]: value for place, value in largest.items()})
        self.zeros.update({sample.layers[place]: value for place, value in numbers.zeros.items()})
        self.nonfinite.update({sample.layers[place]: value for place, value in numbers.nonfinite.items()})
        self.own_faults += [sample.layers[place] for place in not_finite(sample.own, failed)]
        self._add_some(sample, failed)
        for place, layer in enumerate(sample.layers):
            is_lost = sample.states[place] == MEASURED and place not in numbers.absmax
            self.states[layer] = PARTIAL if is_lost else sample.states[place]
            self.dtypes[layer] = sample.dtypes[place]
            self.is_whole &= not is_lost

    def _add_some(self, sample: Sample, failed: Failed) -> None:
        """Take what there is of some layers only."""
        self.moved.update({layer: _change_of(each) for layer, each in _read(sample.layers, sample.moved, failed)})
        losses = {layer: shadows.loss_of(each) for layer, each in _read(sample.layers, sample.losses, failed)}
        self.losses.update({layer: loss for layer, loss in losses.items() if loss is not None})
        self.frozen.update(_read(sample.layers, sample.frozen, failed))
        self.forecasts += [(forecast, sample.layers) for forecast in sample.forecasts]
        for places, counts in sample.bits:
            with told(failed, "reading", counts):
                self.bits.update(zip((sample.layers[place] for place in places), counts.T.tolist(), strict=True))


def _read(layers: Sequence[int], tensors: Mapping[int, Tensor], failed: Failed) -> Iterator[tuple[int, Any]]:
    """Yield numbers by number of the layer, of tensors by position; waits for each."""
    for place, tensor in tensors.items():
        with told(failed, "reading", tensor):
            yield layers[place], tensor.tolist()


def _change_of(factors: Sequence[float]) -> tuple[float, float]:
    """Return the L2 norms of a layer's change and of its weights."""
    largest_change, change, largest, weights = factors
    return largest_change * change, largest * weights
