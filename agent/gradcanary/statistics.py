"""What is measured of a set of gradients: a few kernels on the training thread, and numbers read from them later.

Nothing here waits for a value: :func:`measure` returns tensors, :func:`read` (on the sender thread) turns them into
numbers. Two functions of tensors, no state.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

LOW_PRECISION = (torch.bfloat16, torch.float16)
_TINY = 2.0**-126


@dataclass
class Measured:
    """Tensors that hold the statistics of some layers: per device and dtype one of [3, layers]: norm, -min, max.

    ``nonfinite`` holds per layer, where asked for, how many elements are; ``nonzero`` beside it how many there are in
    all: a tensor made of their numbers would be copied to the device, and the training would wait for that.
    """

    columns: list[tuple[list[int], Tensor]] = field(default_factory=list)
    nonzero: list[tuple[list[int], list[int], Tensor]] = field(default_factory=list)
    nonfinite: list[tuple[list[int], Tensor]] = field(default_factory=list)

    def add(self, other: Measured) -> None:
        """Take over what another holds; of a layer that both have, the other's counts."""
        self.columns += other.columns
        self.nonzero += other.nonzero
        self.nonfinite += other.nonfinite

    def devices(self) -> set[torch.device]:
        """Return where the gradients were."""
        return {columns.device for _, columns in self.columns}


@dataclass
class Numbers:
    """The numbers of a sample, by layer index; as stored in the accumulator, before any correction for a loss scale."""

    absmax: dict[int, float] = field(default_factory=dict)
    norm: dict[int, float] = field(default_factory=dict)
    zeros: dict[int, float] = field(default_factory=dict)
    nonfinite: dict[int, float] = field(default_factory=dict)


def readable(gradient: Tensor) -> bool:
    """Say whether a gradient can be measured here: a plain tensor (a shard of a DTensor is another thing) that is
    dense, or sparse on a CPU (elsewhere its duplicates cannot be added up without waiting for the device)."""
    is_summable = gradient.layout is torch.sparse_coo and gradient.device.type == "cpu"
    return type(gradient) is Tensor and (gradient.layout is torch.strided or is_summable) and gradient.numel() > 0


def measure(
    gradients: dict[int, Tensor],
    count_zeros: Sequence[int] = (),
    count_nonfinite: Sequence[int] = (),
    wide: Collection[int] = (),
) -> Measured:
    """Launch the kernels for readable gradients by layer index; the tensors of the result are new ones.

    ``wide`` are layers whose norm is summed in float64.
    """
    measured = Measured()
    sizes = {layer: gradient.numel() for layer, gradient in gradients.items()}
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for layer, gradient in gradients.items():
        groups.setdefault((gradient.device, gradient.dtype), []).append(layer)
    with torch.no_grad():
        gradients = {layer: _dense(gradient) for layer, gradient in gradients.items()}
        for layers in groups.values():
            values = [_real(gradients[layer]) for layer in layers]
            measured.columns.append((layers, _columns(values, [layer in wide for layer in layers])))
        for layers in _by_device(gradients, count_zeros):
            counts = [torch.count_nonzero(gradients[layer]) for layer in layers]
            measured.nonzero.append((layers, [sizes[layer] for layer in layers], torch.stack(counts)))
        for layers in _by_device(gradients, count_nonfinite):
            counts = [(~torch.isfinite(gradients[layer])).sum() for layer in layers]
            measured.nonfinite.append((layers, torch.stack(counts)))
    return measured


def read(measured: Measured) -> Numbers:
    """Return the numbers; this waits for the device."""
    numbers = Numbers()
    for layers, columns in measured.columns:
        norms, minus_min, maxima = columns.tolist()
        numbers.norm.update(zip(layers, norms, strict=True))
        # max() of Python would lose a NaN in its second argument: a NaN minimum comes with a NaN maximum.
        # abs(): of two zeros it takes the first, which may be the negative one.
        numbers.absmax.update(zip(layers, map(abs, map(max, minus_min, maxima)), strict=True))
    for layers, sizes, nonzero in measured.nonzero:
        zeros = [size - count for size, count in zip(sizes, nonzero.tolist(), strict=True)]
        numbers.zeros.update(zip(layers, zeros, strict=True))
    for layers, counts in measured.nonfinite:
        numbers.nonfinite.update(zip(layers, counts.tolist(), strict=True))
    return numbers


def bounds_of(gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Return the least and the greatest element of a readable gradient; a NaN makes both NaN."""
    with torch.no_grad():
        return torch.aminmax(_real(_dense(gradient)))


def stacked(bounds: Mapping[int, tuple[Tensor, Tensor]]) -> list[tuple[list[int], Tensor]]:
    """Return bounds by layer as one tensor [2, layers] per device and dtype."""
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for layer, (low, _) in bounds.items():
        groups.setdefault((low.device, low.dtype), []).append(layer)
    return [
        (mine, torch.stack([torch.stack([bounds[at][end] for at in mine]) for end in (0, 1)]))
        for mine in groups.values()
    ]


def not_finite(own: Sequence[tuple[list[int], Tensor]]) -> list[int]:
    """Return the layers whose bounds are not finite; this waits for the device."""
    return [
        layer
        for mine, ends in own
        for layer, *each in zip(mine, *ends.tolist(), strict=True)
        if not all(map(math.isfinite, each))
    ]


def norm_of(gradient: Tensor, *, is_wide: bool = False) -> Tensor:
    """Return the L2 norm of one gradient by the kernel of :func:`measure`: equal inputs give equal norms."""
    with torch.no_grad():
        return _norms([_real(_dense(gradient))], [is_wide])[0]


def scaled_norm(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return two factors of an L2 norm, and use up the values: squares of small float32 numbers would be nothing."""
    largest = _absmax(values).clamp_min(_TINY)
    return largest, torch.linalg.vector_norm(values.div_(largest))


def _absmax(values: Tensor) -> Tensor:
    if values.device.type == "cpu":
        low, high = torch.aminmax(values)  # as for gradients
        return torch.maximum(high, -low)
    largest: Tensor = torch.linalg.vector_norm(values, float("inf"))
    return largest


def _columns(values: list[Tensor], wide: Sequence[bool]) -> Tensor:
    if values[0].device.type == "cpu":
        bounds = [torch.aminmax(value) for value in values]  # the inf-norm takes 16 times as long on a CPU
        lows, highs = torch.stack([low for low, _ in bounds]), torch.stack([high for _, high in bounds])
    else:
        highs = torch.stack(torch._foreach_norm(values, float("inf")))  # noqa: SLF001 -- torch's own optimizers use it
        lows = -highs
    return torch.stack([torch.stack(_norms(values, wide)), -lows.to(torch.float32), highs.to(torch.float32)])


def _norms(values: list[Tensor], wide: Sequence[bool]) -> list[Tensor]:
    is_alone = values[0].dtype in LOW_PRECISION or values[0].dtype is torch.float64
    together = [value for value, is_wide in zip(values, wide, strict=True) if not (is_alone or is_wide)]
    norms = iter(torch._foreach_norm(together, 2) if together else ())  # noqa: SLF001 -- torch's own optimizers use it
    return [
        torch.linalg.vector_norm(value, dtype=_norm_dtype(value, is_wide)).to(torch.float32)
        if is_alone or is_wide
        else next(norms)
        for value, is_wide in zip(values, wide, strict=True)
    ]


def _norm_dtype(value: Tensor, is_wide: bool) -> torch.dtype:
    can_be_wide = value.device.type != "mps"  # has no float64
    return torch.float64 if value.dtype is torch.float64 or (is_wide and can_be_wide) else torch.float32


def _dense(gradient: Tensor) -> Tensor:
    """Return the elements: of a sparse gradient those that it holds, duplicates added up in a tensor of our own."""
    if gradient.layout is torch.strided:
        return gradient
    held = gradient.detach().coalesce().values()
    return held if held.numel() else held.new_zeros(1)


def _real(gradient: Tensor) -> Tensor:
    return torch.view_as_real(gradient.detach()) if gradient.is_complex() else gradient.detach()


def _by_device(gradients: dict[int, Tensor], wanted: Sequence[int]) -> list[list[int]]:
    devices: dict[torch.device, list[int]] = {}
    for layer in wanted:
        if layer in gradients:
            devices.setdefault(gradients[layer].device, []).append(layer)
    return list(devices.values())
