"""What the samples of one record say, in numbers: on the sender thread, where a tensor may be waited for."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from gradcanary import shadows, wire
from gradcanary.forecasts import Forecast, fact_of
from gradcanary.records import MEASURED, PARTIAL, Sample, number_of, scale_of
from gradcanary.statistics import Failed, not_finite, read


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
        self.bits: list[tuple[list[int], Tensor]] = []
        self.losses: dict[int, tuple[float, float]] = {}
        self.frozen: dict[int, float] = {}
        self.forecasts: list[tuple[Forecast, Sequence[int]]] = []

    def facts(self, layers: Sequence[wire.Layer], step: int) -> list[wire.Fact]:
        """Return what there is to say of forecasts; waits for them."""
        told = (fact_of(each, [layers[number].name for number in numbers], step) for each, numbers in self.forecasts)
        return [fact for fact in told if fact is not None]

    def add(self, sample: Sample, failed: Failed) -> None:
        """Take a sample; a stat has one phase, so of two that differ it is the one that promises less."""
        numbers, scale = read(sample.measured, failed), scale_of(sample.scale)
        norms = {place: value / scale for place, value in numbers.norm.items()}
        self.phase = "post_clip" if "post_clip" in (self.phase, sample.phase) else sample.phase
        self.joint += norms.values() if sample.is_joint else ()
        self.norm.update({sample.layers[place]: value for place, value in norms.items()})
        self.absmax.update({sample.layers[place]: value / scale for place, value in numbers.absmax.items()})
        self.zeros.update({sample.layers[place]: value for place, value in numbers.zeros.items()})
        self.nonfinite.update({sample.layers[place]: value for place, value in numbers.nonfinite.items()})
        self.moved.update({sample.layers[place]: _change_of(factors) for place, factors in sample.moved.items()})
        self.own_faults += [sample.layers[place] for place in not_finite(sample.own, failed)]
        losses = {sample.layers[place]: shadows.read(factors) for place, factors in sample.losses.items()}
        self.losses.update({layer: loss for layer, loss in losses.items() if loss is not None})
        self.frozen.update({sample.layers[place]: number_of(share) for place, share in sample.frozen.items()})
        self.forecasts += [(forecast, sample.layers) for forecast in sample.forecasts]
        self.bits += [([sample.layers[place] for place in places], counts) for places, counts in sample.bits]
        for place, layer in enumerate(sample.layers):
            is_lost = sample.states[place] == MEASURED and place not in numbers.absmax
            self.states[layer] = PARTIAL if is_lost else sample.states[place]
            self.dtypes[layer] = sample.dtypes[place]
            self.is_whole &= not is_lost


def _change_of(factors: Tensor) -> tuple[float, float]:
    """Return the L2 norms of a layer's change and of its weights."""
    largest_change, change, largest, weights = factors.tolist()
    return largest_change * change, largest * weights
