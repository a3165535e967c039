"""Where a layer's gradients are summed, and what the values there show of the precision of that sum.

A float32 sum of gradients has bits all the way down; one that was made in bfloat16 or float16 and cast up afterwards,
as by a communication hook, has none where those types have none (bfloat16 the 16 lowest, float16 the 13 lowest). Few
elements tell: up to 1,024 of a layer, spread over the tensor, and few layers at a time, in turns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from gradcanary import wire

PER_SAMPLE = 4
OFTEN, RARELY = 3, 16
"""After three looks at each layer there is one in each 16th sample only."""

ELEMENTS = 1024
ENOUGH = 16
"""Elements that are not zero, in a look that may tell anything."""

AGREEING = 3
"""Looks in a row that show a lower precision before it is believed: sums of few or equal numbers may happen to fit."""

_NOT_ZERO, _BELOW_BFLOAT16, _BELOW_FLOAT16 = 0x7FFFFFFF, 0xFFFF, 0x1FFF
_LOW = ("bfloat16", "float16")


def accumulator(parameter: Tensor) -> Tensor | None:
    """Return the tensor that a parameter's gradients are summed in: ``main_grad`` where there is one, as of Megatron,
    else ``.grad``."""
    main = getattr(parameter, "main_grad", None)
    return main if isinstance(main, Tensor) else parameter.grad


def low_bits(gradients: Mapping[int, Tensor]) -> list[tuple[list[int], Tensor]]:
    """Return tensors [3, layers], one per device, of float32 gradients by layer; kernels only, nothing is read.

    Of the elements looked at they count those that are not zero, that have bits which bfloat16 has not, and that have
    bits which float16 has not.
    """
    parts = {layer: part for layer, gradient in gradients.items() if (part := _part(gradient)) is not None}
    devices: dict[torch.device, list[int]] = {}
    for layer, part in parts.items():
        devices.setdefault(part.device, []).append(layer)
    return [(layers, _counts([parts[layer] for layer in layers])) for layers in devices.values()]


def whose_turn(number: int, layers: int) -> range:
    """Return which layers, by position, are looked at in a sample of this number."""
    turns = -(-layers // PER_SAMPLE)
    if turns and number >= OFTEN * turns:
        number, rest = divmod(number, RARELY)
        if rest:
            return range(0)
    first = number % max(turns, 1) * PER_SAMPLE
    return range(first, min(first + PER_SAMPLE, layers))


class Effective:
    """Remembers what the values of each accumulator of a layer set showed."""

    def __init__(self, layer_set: wire.LayerSet | None) -> None:
        self.layer_set = layer_set
        self._shown: dict[int, str] = {}
        self._doubts: dict[int, tuple[str, int]] = {}

    def learn(self, looks: Iterable[tuple[list[int], Tensor]], without: Collection[int]) -> None:
        """Take counts of :func:`low_bits`, but of some layers; this waits for the device."""
        for layers, counts in looks:
            for layer, *each in zip(layers, *counts.tolist(), strict=True):
                if layer not in without:
                    self._learn(layer, *each)

    def of(self, layer: int, stored: str | None) -> str | None:
        """Return the dtype that the values of a layer show, None while they show nothing."""
        return stored if stored in _LOW else self._shown.get(layer) if stored == "float32" else None

    def _learn(self, layer: int, nonzero: int, below_bfloat16: int, below_float16: int) -> None:
        if nonzero < ENOUGH:
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


def _part(gradient: Tensor) -> Tensor | None:
    """Return up to 1,024 elements of a gradient, from all over it; None of a sparse one, and where it
    takes a copy of all of them."""
    gradient = gradient.detach()
    if gradient.layout is not torch.strided:
        return None
    if gradient.numel() <= ELEMENTS:
        return gradient.reshape(-1)
    strides = gradient.stride()
    by_stride = sorted(range(gradient.dim()), key=lambda dim: -strides[dim])
    if not gradient.permute(by_stride).is_contiguous():
        return None
    # An odd stride: an even one would meet the same columns of a matrix again and again.
    stride = -(-gradient.numel() // ELEMENTS) | 1
    return gradient.as_strided((gradient.numel() // stride,), (stride,), gradient.storage_offset())


def _counts(parts: Sequence[Tensor]) -> Tensor:
    elements = torch.zeros(len(parts), ELEMENTS, dtype=torch.float32, device=parts[0].device)
    for row, part in zip(elements, parts, strict=True):
        row[: part.numel()].copy_(part)
    bits = elements.view(torch.int32)
    return torch.stack([(bits & mask).count_nonzero(dim=1) for mask in (_NOT_ZERO, _BELOW_BFLOAT16, _BELOW_FLOAT16)])
