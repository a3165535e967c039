"""Layers whose gradients are computed in float16, found from values: autocast hides it behind float32 tensors.

Each number of float16 is a multiple of 2^-24, and so is each sum of them. A float32 element under 2^-13 that is none
was never in float16; bfloat16 has others under 2^-18. Where most non-zero elements are under 2^-20, so with 4 bits or
fewer, the smallest number of float16 cuts the gradient off: what would be smaller is zero. Zeros of sparse gradients
have no such neighbours.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from gradcanary import facts, wire
from gradcanary.stats.accumulation import PER_SAMPLE

LOOKS = 3
"""Looks at a layer that are added up: as many as for the effective dtype of a sum."""

ENOUGH = 16
"""Elements in them that show something: half of bfloat16's under 2^-18 are no multiple of 2^-24, so all 16 are one in
65,536 times at most."""

LEAST_LAYERS = 2
"""Layers that must show float16 before anything is said: the gradient of one may be made of few fractions by chance."""

TABLES = ("Embedding", "EmbeddingBag")
"""Classes with rows that a batch does not use: their zeros are not rounded ones."""


class Float16Layers:
    """The layers of a layer set. ``shown`` compute gradients in float16 under another dtype; those of ``at_limit`` are
    cut off by its smallest number."""

    def __init__(self, layer_set: wire.LayerSet | None) -> None:
        self.layer_set = layer_set
        self.shown: set[int] = set()
        self.at_limit: set[int] = set()
        self._layers = layer_set.layers if layer_set is not None else ()
        self._looks: dict[int, deque[Sequence[int]]] = {}
        self._learnt = 0
        self._told: tuple[set[int], set[int]] = set(), set()

    def learn(
        self, counts_by_layer: Mapping[int, Sequence[int]], dtypes: Sequence[str | None], without: Collection[int]
    ) -> None:
        """Take the counts of :func:`gradcanary.stats.accumulation.float16_counts` by layer, except some layers."""
        for layer, counts in counts_by_layer.items():
            if layer not in without:
                looks = self._looks.setdefault(layer, deque(maxlen=LOOKS))
                looks.append(counts)
                if len(looks) == LOOKS:
                    self._judge(layer, [sum(each) for each in zip(*looks, strict=True)], dtypes[layer])
        self._learnt += bool(counts_by_layer)

    def _judge(self, layer: int, totals: Sequence[int], dtype: str | None) -> None:
        small, odd, nonzero, coarse = totals
        if odd:
            self.shown.discard(layer)
        elif small >= ENOUGH and dtype == "float32":
            self.shown.add(layer)
        is_half = dtype == "float16" or layer in self.shown
        is_cut_off = is_half and nonzero >= ENOUGH and 2 * coarse >= nonzero
        if is_cut_off and self._layers[layer].module_class not in TABLES:
            self.at_limit.add(layer)
        else:
            self.at_limit.discard(layer)

    def facts(self, step: int, *, is_scaled: bool) -> list[wire.Fact]:
        """Return the facts that are new: after each three rounds through all layers, so seldom."""
        rounds = LOOKS * -(-len(self._layers) // PER_SAMPLE)
        if not self._learnt or self._learnt % rounds:
            return []
        shown = self.shown if len(self.shown) >= LEAST_LAYERS else set()
        at_limit = {layer for layer in self.at_limit if layer in shown or layer not in self.shown}
        before, self._told = self._told, (set(shown), at_limit)
        found = []
        if shown and shown != before[0]:
            found.append(facts.float16_gradients(self._names(shown), step))
        if at_limit and at_limit != before[1]:
            found.append(facts.float16_limit(self._names(at_limit), step))
        lost = at_limit & shown
        if lost and lost != before[1] & before[0] and not is_scaled:
            found.append(replace(facts.NO_SCALER, layers=tuple(self._names(lost))))
        return found

    def _names(self, layers: Collection[int]) -> list[str]:
        return [self._layers[layer].name for layer in sorted(layers)]
