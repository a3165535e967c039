"""How far a step moves the weights: of two layers in each sampled step, in turns; kernels only, nothing is read.

A copy lives from right before the step until right after it, when the gradients' graph is gone and memory is free; in a
step with a closure from the end of its backward pass on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from gradcanary.references import References
from gradcanary.shards import local
from gradcanary.statistics import scaled_norm

PER_STEP = 2
MAX_BYTES = 2**26
"""Of all copies of a step: 64 MiB. A layer whose copy is larger is left out, and it is said."""

_SPREAD = 0xA55A15D46DF9CE17
"""Of 10,000 random multipliers the one that keeps no layer waiting for more than three rounds, whether each step, each
10th, 100th or 1000th is sampled: ranks that sample at different intervals meet on the same layers."""


def whose_turn(step: int, layers: int) -> Sequence[int]:
    """Return the layers of a step: by its number alone, so that all ranks take the same.

    Each of them is the first one in half of its turns: that is copied where there is no room for both.
    """
    turns = -(-layers // PER_STEP)
    turn, is_turned = divmod((step * _SPREAD) % 2**64 * turns * 2 >> 64, 2)
    mine = range(turn * PER_STEP, min((turn + 1) * PER_STEP, layers))
    return mine[::-1] if is_turned else mine


def bytes_of_copy(elements: int, dtype: torch.dtype) -> int:
    """Return what a copy of a layer takes: float64 where that is its dtype, else float32; twice for complex numbers."""
    return elements * (1 + dtype.is_complex) * _dtype(dtype).itemsize


def copies_of(
    turn: Iterable[int], layers: Sequence[int], references: References, owned: Sequence[bool] | None
) -> dict[int, Tensor]:
    """Return copies by position, of those of the layers whose turn it is that are small, plain and trained.

    ``layers`` are the numbers, by position, ``references`` the parameters; ``owned`` tells which of them this process
    speaks for, None = all. Of a sharded one it is the shard.
    """
    copies: dict[int, Tensor] = {}
    room = MAX_BYTES
    for position in (layers.index(layer) for layer in turn if layer in layers):
        parameter = references[position]()
        if parameter is None or not parameter.requires_grad or not (owned is None or owned[position]):
            continue
        weight = weight_of(parameter)
        needed = 0 if weight is None else bytes_of_copy(weight.numel(), weight.dtype)
        if weight is not None and needed <= room:
            copies[position] = _real(weight).to(_dtype(weight.dtype), copy=True)
            room -= needed
    return copies


def changes(copies: Mapping[int, Tensor], references: References) -> dict[int, Tensor]:
    """Return tensors of four: two of the change's L2 norm and two of the weights' own, each a product of its two.

    The copies are used up. One factor is the absmax: squares of small changes would be nothing in float32. A layer that
    the step has moved away, as to another device, is left out.
    """
    found = {}
    with torch.no_grad():
        for position, copy in copies.items():
            now = weight_of(references[position]())
            now = None if now is None else _real(now)
            if now is not None and (now.shape, now.device) == (copy.shape, copy.device):
                change = scaled_norm(copy.sub_(now))
                found[position] = torch.stack([*change, *scaled_norm(copy.copy_(now))])
    return found


def weight_of(parameter: Tensor | None) -> Tensor | None:
    """Return a parameter's elements that lie here, where they are numbers in a plain dense tensor: a quantized one is
    another thing, and one whose memory was given back would be read at an address that is no longer its own."""
    weight = None if parameter is None else local(parameter).detach()
    if weight is None or type(weight) is not Tensor or weight.layout is not torch.strided:
        return None
    is_number = weight.is_complex() or (weight.is_floating_point() and weight.element_size() > 1)
    return weight if is_number and weight.numel() and weight.untyped_storage().nbytes() > 0 else None


def _real(weight: Tensor) -> Tensor:
    return torch.view_as_real(weight) if weight.is_complex() else weight


def _dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype in (torch.float64, torch.complex128) else torch.float32
