"""Where a layer's gradients are summed, and what the values there show of the precision of that sum.

A float32 sum of gradients has bits all the way down; one that was made in bfloat16 or float16 and cast up afterwards,
as by a communication hook, has none where those types have none (bfloat16 the 16 lowest, float16 the 13 lowest). Few
elements tell: up to 1,024 of a layer, spread over the tensor, and few layers at a time, in turns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gradcanary.statistics import Failed, refuse, spread, told
from gradcanary.turns import some

PER_SAMPLE = 4
OFTEN, RARELY = 3, 16
"""After three looks at each layer there is one in each 16th sample only."""

ELEMENTS = 1024
_BELOW_BFLOAT16, _BELOW_FLOAT16 = 0xFFFF, 0x1FFF
_FULL_FLOAT16, _PER_SUBNORMAL = 2.0**-13, 2.0**24


def accumulator(parameter: Tensor) -> Tensor | None:
    """Return the tensor that a parameter's gradients are summed in: ``main_grad`` where there is one, as of Megatron,
    else ``.grad``."""
    main = getattr(parameter, "main_grad", None)
    return main if isinstance(main, Tensor) else parameter.grad


def low_bits(gradients: Mapping[int, Tensor], failed: Failed = refuse) -> list[tuple[list[int], Tensor]]:
    """Return tensors [3, layers], one per device, of float32 gradients by layer; kernels only, nothing is read.

    Of the elements looked at they count those that tell anything, that have bits which bfloat16 has not, and that have
    bits which float16 has not. A float32 sum of gradients in float16 consists of multiples of 2^-24: under 2^-13 it
    fits into float16 as it is, and tells nothing.
    """
    parts = {layer: part for layer, gradient in gradients.items() if (part := spread(gradient, ELEMENTS)) is not None}
    devices: dict[torch.device, list[int]] = {}
    for layer, part in parts.items():
        devices.setdefault(part.device, []).append(layer)
    found = []
    for layers in devices.values():
        with told(failed, "looking at low bits", parts[layers[0]]):
            found.append((layers, _counts([parts[layer] for layer in layers])))
    return found


def whose_turn(number: int, layers: int) -> list[int]:
    """Return which layers, by position, are looked at in a sample of this number."""
    is_early = number < OFTEN * -(-layers // PER_SAMPLE)
    if not is_early and number % RARELY:
        return []
    return some(range(layers), number if is_early else number // RARELY, PER_SAMPLE)


def _counts(parts: Sequence[Tensor]) -> Tensor:
    elements = torch.zeros(len(parts), ELEMENTS, dtype=torch.float32, device=parts[0].device)
    for row, part in zip(elements, parts, strict=True):
        row[: part.numel()].copy_(part)
    bits = elements.view(torch.int32)
    telling = (elements.abs() >= _FULL_FLOAT16) | (elements * _PER_SUBNORMAL).frac().ne(0)
    below = ((bits & mask).count_nonzero(dim=1) for mask in (_BELOW_BFLOAT16, _BELOW_FLOAT16))
    return torch.stack([telling.count_nonzero(dim=1), *below])
