"""How far a step moves the weights: of two layers in each sampled step, in turns; kernels only, nothing is read.

Of a large layer 65,536 elements are enough, spread over the tensor: their change relative to their own norm is the
layer's within about a percent, and the copy takes 256 KiB. It lives from right before the step until right after it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from gradcanary.references import References
from gradcanary.shards import local
from gradcanary.statistics import scaled_norm, spread
from gradcanary.turns import slot_of, some

PER_STEP = 2
ELEMENTS = 2**16
"""Looked at of a layer."""


def whose_turn(step: int, layers: int) -> list[int]:
    """Return the layers of a step: by its number alone, so that all ranks take the same."""
    return some(range(layers), slot_of(step, -(-layers // PER_STEP)), PER_STEP)


def copies_of(
    turn: Iterable[int], layers: Sequence[int], references: References, owned: Sequence[bool] | None
) -> dict[int, Tensor]:
    """Return copies of elements by position, of those of the layers whose turn it is that are plain and trained.

    ``layers`` are the numbers, by position, ``references`` the parameters; ``owned`` tells which of them this process
    speaks for, None = all. Of a sharded one it is the shard.
    """
    copies: dict[int, Tensor] = {}
    for position in (layers.index(layer) for layer in turn if layer in layers):
        parameter = references[position]()
        if parameter is None or not parameter.requires_grad or not (owned is None or owned[position]):
            continue
        part = _part(weight_of(parameter))
        if part is not None:
            copies[position] = part.to(_dtype(part.dtype), copy=True)
    return copies


def changes(copies: Mapping[int, Tensor], references: References) -> dict[int, Tensor]:
    """Return tensors of four: two of the change's L2 norm and two of the weights' own, each a product of its two.

    The copies are used up. One factor is the absmax: squares of small changes would be nothing in float32. A layer that
    the step has moved away, as to another device, is left out. Both norms are those of all elements, as far as those
    that were looked at tell.
    """
    found = {}
    with torch.no_grad():
        for position, copy in copies.items():
            weight = weight_of(references[position]())
            part = _part(weight)
            if weight is not None and part is not None and (part.shape, part.device) == (copy.shape, copy.device):
                factors = torch.stack([*scaled_norm(copy.sub_(part)), *scaled_norm(copy.copy_(part))])
                factors[1::2] *= math.sqrt(weight.numel() * (1 + weight.is_complex()) / part.numel())
                found[position] = factors
    return found


def weight_of(parameter: Tensor | None) -> Tensor | None:
    """Return a parameter's elements that lie here, where they are numbers in a plain dense tensor: a quantized one is
    another thing, and one whose memory was given back would be read at an address that is no longer its own."""
    weight = None if parameter is None else local(parameter).detach()
    if weight is None or type(weight) is not Tensor or weight.layout is not torch.strided:
        return None
    is_number = weight.is_complex() or (weight.is_floating_point() and weight.element_size() > 1)
    return weight if is_number and weight.numel() and weight.untyped_storage().nbytes() > 0 else None


def _part(weight: Tensor | None) -> Tensor | None:
    """Return the elements that are looked at, as a view; None of a large layer whose elements lie apart in memory."""
    if weight is None:
        return None
    return spread(torch.view_as_real(weight) if weight.is_complex() else weight, ELEMENTS)


def _dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype is torch.float64 else torch.float32
