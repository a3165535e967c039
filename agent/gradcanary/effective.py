"""In which precision gradients were summed in effect: what the counts of :mod:`gradcanary.accumulators` add up to."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from gradcanary import wire

ENOUGH = 16
"""Telling elements, in a look that may speak for less than float32; one with the bits for it speaks for float32."""

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

    def learn(self, looks: Mapping[int, Sequence[int]], without: Collection[int]) -> None:
        """Take the three counts of :func:`gradcanary.accumulators.low_bits` by layer, but of some layers."""
        for layer, counts in looks.items():
            if layer not in without:
                self._learn(layer, *counts)

    def of(self, layer: int, stored: str | None) -> str | None:
        """Return the dtype that the values of a layer show, None while they show nothing."""
        return stored if stored in _LOW else self._shown.get(layer) if stored == "float32" else None

    def _learn(self, layer: int, telling: int, below_bfloat16: int, below_float16: int) -> None:
        if below_float16:
            self._shown[layer] = "float32"
            self._doubts.pop(layer, None)
            return
        if telling < ENOUGH or layer in self._tables:
            return
        shown = "float16" if below_bfloat16 else "bfloat16"
        before, times = self._doubts.get(layer, (shown, 0))
        self._doubts[layer] = (shown, times + 1 if before == shown else 1)
        if self._doubts[layer][1] >= AGREEING:
            self._shown[layer] = shown
