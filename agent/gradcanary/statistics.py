"""What is measured of a set of gradients: a few kernels on the training thread, and numbers read from them later.

Nothing here waits for a value: :func:`measure` returns tensors, :func:`read` (on the sender thread) turns them into
numbers. Two functions of tensors, no state. Both go by device and dtype, :func:`measure` also by what is packed
(:mod:`gradcanary.packs`): one of these that fails is told to ``failed``, and its layers have no numbers, while all
others have theirs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradcanary.packs import packed, rows_of

Failed = Callable[[str, Exception], None]

LOW_PRECISION = (torch.bfloat16, torch.float16)
_TINY = 2.0**-126


@dataclass
class Measured:
    """Tensors that hold the statistics of some layers, in parts of one device and dtype: [3, layers]: norm, -min, max.

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


def refuse(_where: str, error: Exception) -> None:
    """Raise what failed: for whoever has no other layers to care for."""
    raise error


def measure(
    gradients: dict[int, Tensor],
    count_zeros: Collection[int] = (),
    count_nonfinite: Collection[int] = (),
    wide: Collection[int] = (),
    failed: Failed = refuse,
) -> Measured:
    """Launch the kernels for readable gradients by layer index; the tensors of the result are new ones.

    ``wide`` are layers whose norm is summed in float64.
    """
    measured = Measured()
    held: dict[int, Tensor] = {}
    packs, alone = packed(gradients, wide)
    with torch.no_grad():
        for layers in packs:
            with told(failed, "measuring", gradients[layers[0]]):
                rows = rows_of([gradients[layer] for layer in layers])
                _measure_rows(measured, layers, rows, count_zeros, count_nonfinite)
        for layers in _groups(alone, alone):
            with told(failed, "measuring", alone[layers[0]]):
                dense = [_dense(alone[layer]) for layer in layers]
                measured.columns.append((layers, _columns([*map(_real, dense)], [layer in wide for layer in layers])))
                held.update(zip(layers, dense, strict=True))
        for layers in _groups(held, count_zeros):
            with told(failed, "counting zeros", held[layers[0]]):
                counts = [torch.count_nonzero(held[layer]) for layer in layers]
                sizes = [gradients[layer].numel() for layer in layers]
                measured.nonzero.append((layers, sizes, torch.stack(counts)))
        for layers in _groups(held, count_nonfinite):
            with told(failed, "counting what is not finite", held[layers[0]]):
                counts = [(~torch.isfinite(held[layer])).sum() for layer in layers]
                measured.nonfinite.append((layers, torch.stack(counts)))
    return measured


def read(measured: Measured, failed: Failed = refuse) -> Numbers:
    """Return the numbers; this waits for the devices."""
    numbers = Numbers()
    for layers, columns in measured.columns:
        with told(failed, "reading", columns):
            norms, minus_min, maxima = columns.tolist()
            numbers.norm.update(zip(layers, norms, strict=True))
            # max() of Python would lose a NaN in its second argument: a NaN minimum comes with a NaN maximum.
            # abs(): of two zeros it takes the first, which may be the negative one.
            numbers.absmax.update(zip(layers, map(abs, map(max, minus_min, maxima)), strict=True))
    for layers, sizes, nonzero in measured.nonzero:
        with told(failed, "reading", nonzero):
            zeros = [size - count for size, count in zip(sizes, nonzero.tolist(), strict=True)]
            numbers.zeros.update(zip(layers, zeros, strict=True))
    for layers, bad in measured.nonfinite:
        with told(failed, "reading", bad):
            numbers.nonfinite.update(zip(layers, bad.tolist(), strict=True))
    return numbers


def bounds_of(gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Return the least and the greatest element of a readable gradient; a NaN makes both NaN."""
    with torch.no_grad():
        return torch.aminmax(_real(_dense(gradient)))


def stacked(bounds: Mapping[int, tuple[Tensor, Tensor]]) -> list[tuple[list[int], Tensor]]:
    """Return bounds by layer as one tensor [2, layers] per device and dtype."""
    groups = _groups({layer: low for layer, (low, _) in bounds.items()}, bounds)
    return [(mine, torch.stack([torch.stack([bounds[at][end] for at in mine]) for end in (0, 1)])) for mine in groups]


def not_finite(own: Sequence[tuple[list[int], Tensor]], failed: Failed = refuse) -> list[int]:
    """Return the layers whose bounds are not finite; this waits for the devices."""
    found: list[int] = []
    for mine, ends in own:
        with told(failed, "reading", ends):
            read_ends = zip(mine, *ends.tolist(), strict=True)
            found += [layer for layer, *each in read_ends if not all(map(math.isfinite, each))]
    return found


def norm_of(gradient: Tensor, *, is_wide: bool = False) -> Tensor:
    """Return the L2 norm of one gradient by the kernel of :func:`measure`: equal inputs give equal norms."""
    with torch.no_grad():
        return _norms([_real(_dense(gradient))], [is_wide])[0]


def spread(tensor: Tensor, most: int) -> Tensor | None:
    """Return up to ``most`` elements from all over a tensor, as a view; None of a sparse one, and where only a copy of
    all elements would lie in a row."""
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        return None
    if tensor.numel() <= most:
        return tensor.reshape(-1)
    strides = tensor.stride()
    by_stride = sorted(range(tensor.dim()), key=lambda dim: -strides[dim])
    if not tensor.permute(by_stride).is_contiguous():
        return None
    # An odd stride: an even one would meet the same columns of a matrix again and again.
    stride = -(-tensor.numel() // most) | 1
    return tensor.as_strided((tensor.numel() // stride,), (stride,), tensor.storage_offset())


def scaled_norm(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return two factors of an L2 norm, and use up the values: squares of small float32 numbers would be nothing."""
    largest = _absmax(values).clamp_min(_TINY)
    return largest, torch.linalg.vector_norm(values.div_(largest))


def _measure_rows(
    measured: Measured, layers: list[int], rows: Tensor, count_zeros: Collection[int], count_nonfinite: Collection[int]
) -> None:
    """Measure a pack, one layer in each row: by the same sums as each of them alone, so to the same bits."""
    norms = torch.linalg.vector_norm(rows, dim=1, dtype=_norm_dtype(rows, is_wide=False)).to(torch.float32)
    lows, highs = rows.amin(1), rows.amax(1)  # aminmax() along a dimension takes ten times as long on a CPU
    measured.columns.append((layers, torch.stack([norms, -lows.to(torch.float32), highs.to(torch.float32)])))
    if zeros := [at for at, layer in enumerate(layers) if layer in count_zeros]:
        nonzero = torch.count_nonzero(_some(rows, zeros), dim=1)
        measured.nonzero.append(([layers[at] for at in zeros], [rows.shape[1]] * len(zeros), nonzero))
    if bad := [at for at, layer in enumerate(layers) if layer in count_nonfinite]:
        measured.nonfinite.append(([layers[at] for at in bad], (~torch.isfinite(_some(rows, bad))).sum(1)))


def _some(rows: Tensor, wanted: list[int]) -> Tensor:
    return rows if len(wanted) == len(rows) else rows[wanted]


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
    """Return real numbers; not detached, which takes a call for each: whoever calls this has turned gradients off."""
    return torch.view_as_real(gradient) if gradient.is_complex() else gradient


def _groups(gradients: Mapping[int, Tensor], wanted: Iterable[int]) -> list[list[int]]:
    """Return those that are wanted, by device and dtype."""
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for layer in wanted:
        if (gradient := gradients.get(layer)) is not None:
            groups.setdefault((gradient.device, gradient.dtype), []).append(layer)
    return list(groups.values())


@contextmanager
def told(failed: Failed, what: str, tensor: Tensor) -> Iterator[None]:
    """Tell of what fails, and on which device."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 -- whatever a device does, the other ones have numbers
        failed(f"{what} {str(tensor.dtype).removeprefix('torch.')} on {tensor.device}", error)
