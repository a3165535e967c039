"""In which precision gradients were summed in effect: what the counts of :mod:`gradcanary.accumulators` add up to."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from gradcanary import wire

if TYPE_CHECKING:
    from torch import Tensor

ENOUGH = 16
"""Elements that are not zero, in a look that may tell anything."""

AGREEING = 3
"""Looks in a row that show a lower precision before it is believed: sums of few or equal numbers may happen to fit."""

_LOW = ("bfloat16", "float16")
_TABLES = ("Embedding", "EmbeddingBag")
"""A row that one micro-step of a window met is no sum: under autocast it is a number of bfloat16."""


class Effective:
    """Remembers what the values of each accumulator of a layer set showed."""

    def __init__(self, layer_set: wire.LayerSet | None) -> None:
        self.layer_set = layer_set
        layers = layer_set.layers if layer_set is not None else ()
        self._tables = {number for number, layer in enumerate(layers) if layer.module_class in _TABLES}
        self._shown: dict[int, str] = {}
        self._doubts: dict[int, tuple[str, int]] = {}

    def learn(self, looks: Iterable[tuple[list[int], Tensor]], without: Collection[int]) -> None:
        """Take counts of :func:`gradcanary.accumulators.low_bits`, but of some layers; this waits for the device."""
        for layers, counts in looks:
            for layer, *each in zip(layers, *counts.tolist(), strict=True):
                if layer not in without:
                    self._learn(layer, *each)

    def of(self, layer: int, stored: str | None) -> str | None:
        """Return the dtype that the values of a layer show, None while they show nothing."""
        return stored if stored in _LOW else self._shown.get(layer) if stored == "float32" else None

    def _learn(self, layer: int, nonzero: int, below_bfloat16: int, below_float16: int) -> None:
        if nonzero < ENOUGH or (layer in self._tables and not below_float16):
            return
        if below_float16:
            self._shown[layer] = "float32"
            self._doubts.pop(layer, None)
            return
        shown = "float16" if below_bfloat16 else "bfloat16"
        before, times = self._doubts.get(layer, (shown, 0))
        self._doubts[layer] = (shown, times + 1 if before == shown else 1)
        if self._doubts[layer][1] >= AGREEING:
            self._shown[layer] = shown
