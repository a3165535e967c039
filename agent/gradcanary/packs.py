"""Small gradients of one shape, side by side in one tensor: a kernel takes hardly longer over all than over one.

On a CPU most of what a small gradient takes is the calls into torch, three of which are made for each; hundreds of
layers, as of a LoRA, are measured in a quarter of the time once they are copied together.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

MOST = 2**14
"""Elements of a gradient that is packed: for larger ones the copy takes longer than the calls."""

TOGETHER = 2**18
"""Elements of a pack: a copy of 1 MiB is in a cache yet as it is read, and is next to nothing of memory."""

_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def packed(gradients: Mapping[int, Tensor], wide: Collection[int]) -> tuple[list[list[int]], dict[int, Tensor]]:
    """Return the layers that are packed with each other, and the gradients of all others by layer index.

    ``wide`` are layers whose norm is summed in float64, each by itself.
    """
    families: dict[tuple[object, ...], list[int]] = {}
    for layer, gradient in gradients.items():
        families.setdefault((gradient.device, gradient.dtype, gradient.shape), []).append(layer)
    packs: list[list[int]] = []
    for family in families.values():
        if len(family) > 1 and _is_small(gradients[family[0]]):
            able = [layer for layer in family if layer not in wide and _lies_in_a_row(gradients[layer])]
            size = TOGETHER // gradients[family[0]].numel()
            packs += [able[start : start + size] for start in range(0, len(able), size)]
    inside = {layer for pack in packs for layer in pack}
    return packs, {layer: gradient for layer, gradient in gradients.items() if layer not in inside}


def rows_of(gradients: Sequence[Tensor]) -> Tensor:
    """Return a copy of gradients of one pack as rows."""
    return torch.cat([*gradients]).view(len(gradients), -1)


def _is_small(gradient: Tensor) -> bool:
    is_plain = gradient.device.type == "cpu" and gradient.dtype in _DTYPES
    return is_plain and gradient.dim() > 0 and 0 < gradient.numel() <= MOST


def _lies_in_a_row(gradient: Tensor) -> bool:
    """Say whether its elements would be summed in the order in which the copy has them."""
    return gradient.layout is torch.strided and gradient.is_contiguous()
