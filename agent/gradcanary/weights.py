"""How far a step moves the weights: of two layers in each sampled step, in turns; kernels only, nothing is read.

A copy lives from right before the step until right after it, when the gradients' graph is gone and memory is free.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from gradcanary.shards import local

References = Sequence[weakref.ref[nn.Parameter]]

PER_STEP = 2
MAX_ELEMENTS = 2**26
"""Of a layer that is copied: 256 MiB in float32. Larger ones are left out, and it is said."""

_SPREAD = 0xA55A15D46DF9CE17
"""Of 10,000 random multipliers the one that keeps no layer waiting for more than three rounds, whether each step, each
10th, 100th or 1000th is sampled: ranks that sample at different intervals meet on the same layers."""

_TINY = 2.0**-126


def whose_turn(step: int, layers: int) -> range:
    """Return the layers of a step: by its number alone, so that all ranks take the same."""
    turns = -(-layers // PER_STEP)
    first = ((step * _SPREAD) % 2**64 * turns >> 64) * PER_STEP
    return range(first, min(first + PER_STEP, layers))


def copies_of(
    turn: Iterable[int], layers: Sequence[int], references: References, owned: Sequence[bool] | None
) -> dict[int, Tensor]:
    """Return float32 copies by position, of those of the layers whose turn it is that are small, plain and trained.

    ``layers`` are the numbers, by position, ``references`` the parameters; ``owned`` tells which of them this process
    speaks for, None = all. Of a sharded one it is the shard.
    """
    known = [layers.index(layer) for layer in turn if layer in layers]
    positions = [position for position in known if owned is None or owned[position]]
    found = {position: references[position]() for position in positions}
    trained = {position: each for position, each in found.items() if each is not None and each.requires_grad}
    with torch.no_grad():
        able = {position: local(each).detach() for position, each in trained.items()}
        return {at: _real(each).to(_dtype(each), copy=True) for at, each in able.items() if _can_be_copied(each)}


def changes(copies: Mapping[int, Tensor], references: References) -> dict[int, Tensor]:
    """Return tensors of four: two of the change's L2 norm and two of the weights' own, each a product of its two.

    The copies are used up. One factor is the absmax: squares of small changes would be nothing in float32.
    """
    found = {}
    with torch.no_grad():
        for position, copy in copies.items():
            if (weight := references[position]()) is not None:
                now = _real(local(weight))
                change = _norm(copy.sub_(now))
                found[position] = torch.stack([*change, *_norm(copy.copy_(now))])
    return found


def _can_be_copied(weight: Tensor) -> bool:
    """Say so of a plain dense tensor of real or complex numbers: a quantized one is another thing."""
    is_number = weight.is_complex() or (weight.is_floating_point() and weight.element_size() > 1)
    is_plain = type(weight) is Tensor and weight.layout is torch.strided
    return is_plain and is_number and 0 < weight.numel() <= MAX_ELEMENTS


def _norm(own: Tensor) -> tuple[Tensor, Tensor]:
    largest = _absmax(own).clamp_min(_TINY)
    return largest, torch.linalg.vector_norm(own.div_(largest))


def _absmax(values: Tensor) -> Tensor:
    if values.device.type == "cpu":
        low, high = torch.aminmax(values)  # as in the statistics of gradients
        return torch.maximum(high, -low)
    largest: Tensor = torch.linalg.vector_norm(values, float("inf"))
    return largest


def _real(weight: Tensor) -> Tensor:
    return torch.view_as_real(weight.detach()) if weight.is_complex() else weight.detach()


def _dtype(weight: Tensor) -> torch.dtype:
    return torch.float64 if weight.dtype in (torch.float64, torch.complex128) else torch.float32
