"""A few kernels over a set of gradients, on the training thread.

No function here waits for a value: :func:`measure` returns tensors, and :func:`gradcanary.stats.samples.read` makes
numbers of them on the sender thread. Gradients of one device and dtype are measured together. Small ones of one shape
are packed into one tensor, where a kernel takes hardly longer than for one of them. If a kernel fails, ``failed`` gets
the error, and only its layers have no numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from gradcanary.guard import Failed, reporting, reraise
from gradcanary.model.parameters import LAZY
from gradcanary.stats.samples import Kind, Part

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

LOW_PRECISION = (torch.bfloat16, torch.float16)

_TINY = 2.0**-126

CHUNK = 2**22
"""Elements for a kernel that copies its input: 32 MiB in float64. A nearly full device has no room for a copy of an
embedding."""

FLOAT32_EXACT_INT = 2**24
"""The largest count that float32 holds exactly."""

MOST_PACKED = 2**14
"""Elements of a packed gradient, at most: for larger ones the copy takes longer than the calls."""

PACKED_TOGETHER = 2**18
"""Elements of a pack: a copy of 1 MiB is still in a cache when it is read."""

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def is_measurable(gradient: Tensor) -> bool:
    """Return True for a plain tensor with elements that is dense, or sparse on a CPU.

    On other devices the duplicates of a sparse tensor cannot be summed without a wait.
    """
    if type(gradient) is not Tensor or gradient.numel() == 0:
        return False
    device = gradient.device.type  # compared here, without a call: this runs for each layer of each sample
    if gradient.layout is torch.strided:
        return device not in LAZY
    return gradient.layout is torch.sparse_coo and device == "cpu"


def measure(
    gradients: dict[int, Tensor],
    count_zeros: Collection[int] = (),
    count_nonfinite: Collection[int] = (),
    in_float64: Collection[int] = (),
    failed: Failed = reraise,
) -> list[Part]:
    """Launch the kernels for measurable gradients by layer index, and return new tensors.

    ``in_float64`` are layers whose norm is summed in float64.
    """
    measured: list[Part] = []
    held: dict[int, Tensor] = {}
    packs, alone = packed(gradients, in_float64)
    with torch.no_grad():
        for layers in packs:
            with reporting(failed, "measuring", gradients[layers[0]]):
                rows = rows_of([gradients[layer] for layer in layers])
                _measure_rows(measured, layers, rows, count_zeros, count_nonfinite)
        for layers in _groups(alone, alone):
            with reporting(failed, "measuring", alone[layers[0]]):
                dense = [_dense(alone[layer]) for layer in layers]
                columns = _columns([*map(_real, dense)], [layer in in_float64 for layer in layers])
                measured.append(Part(Kind.NORMS, columns, layers))
                held.update(zip(layers, dense, strict=True))
        for layers in _groups(held, count_zeros):
            with reporting(failed, "counting zeros", held[layers[0]]):
                together = _counted_together(held, layers)
                for pack in together:
                    rows = rows_of([held[layer] for layer in pack])
                    counts = torch.count_nonzero(rows, dim=1)
                    measured.append(Part(Kind.NONZERO, counts, pack, [gradients[layer].numel() for layer in pack]))
                packed_layers = {layer for pack in together for layer in pack}
                single = [layer for layer in layers if layer not in packed_layers]
                pieces = [(layer, piece) for layer in single for piece in _counted_pieces(held[layer])]
                if pieces:
                    counts = torch.stack([_count_nonzero(piece) for _, piece in pieces])
                    sizes = [gradients[layer].numel() for layer, _ in pieces]
                    measured.append(Part(Kind.NONZERO, counts, [layer for layer, _ in pieces], sizes))
        for layers in _groups(held, count_nonfinite):
            with reporting(failed, "counting what is not finite", held[layers[0]]):
                pieces = [(layer, piece) for layer in layers for piece in _pieces(held[layer], CHUNK)]
                counts = torch.stack([_count_nonfinite(piece) for _, piece in pieces])
                measured.append(Part(Kind.NONFINITE, counts, [layer for layer, _ in pieces]))
    return measured


def min_max(gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Return the least and the greatest element of a measurable gradient; a NaN makes both NaN."""
    with torch.no_grad():
        return _min_max(_real(_dense(gradient)))


def are_finite(gradients: Iterable[Tensor], failed: Failed = reraise) -> list[Tensor]:
    """Return True or False for all gradients of each device and dtype, as tensors: no value is read.

    A gradient whose norm overflows float32 counts as non-finite.
    """
    by_number = dict(enumerate(gradients))
    found = []
    with torch.no_grad():
        for group in _groups(by_number, by_number):
            with reporting(failed, "measuring", by_number[group[0]]):
                values = [_real(_dense(by_number[number])) for number in group]
                found.append(torch.stack(_norms(values, [False] * len(values))).isfinite().all())
    return found


def norm_of(gradient: Tensor, *, in_float64: bool = False) -> Tensor:
    """Return the L2 norm of one gradient, by the kernel of :func:`measure`: equal inputs give equal norms."""
    with torch.no_grad():
        return _norms([_real(_dense(gradient))], [in_float64])[0]


def strided_sample(tensor: Tensor, most: int) -> Tensor | None:
    """Return up to ``most`` elements at equal distances, as a view.

    Return None for a sparse tensor, and for one that is contiguous in no order of its dimensions.
    """
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        return None
    if tensor.numel() <= most:
        return tensor.reshape(-1)
    if _in_a_row(tensor) is None:
        return None
    # An odd stride: an even one would hit the same columns of a matrix again and again.
    stride = -(-tensor.numel() // most) | 1
    return tensor.as_strided((tensor.numel() // stride,), (stride,), tensor.storage_offset())


def is_in_a_row(value: Tensor) -> bool:
    """Return True for a tensor that is contiguous in some order of its dimensions."""
    return _in_a_row(value) is not None


def row_norms(values: Tensor) -> Tensor:
    """Return the L2 norm of each row. Squares of small float32 numbers would underflow."""
    largest = values.abs().amax(1).clamp_min(_TINY)
    norms: Tensor = torch.linalg.vector_norm(values / largest[:, None], dim=1)
    return norms * largest


def norm_factors(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return two factors of an L2 norm, and overwrite the values. Squares of small float32 numbers would underflow."""
    largest = _absmax(values).clamp_min(_TINY)
    return largest, torch.linalg.vector_norm(values.div_(largest))


def _measure_rows(
    measured: list[Part],
    layers: list[int],
    rows: Tensor,
    count_zeros: Collection[int],
    count_nonfinite: Collection[int],
) -> None:
    """Measure a pack, one layer in each row, to the same bits as each layer by itself."""
    norms = torch.linalg.vector_norm(rows, dim=1, dtype=_norm_dtype(rows, in_float64=False)).to(torch.float32)
    lows, highs = rows.amin(1), rows.amax(1)  # aminmax() along a dimension takes ten times as long on a CPU
    columns = torch.stack([norms, -lows.to(torch.float32), highs.to(torch.float32)])
    measured.append(Part(Kind.NORMS, columns, layers))
    if zeros := [at for at, layer in enumerate(layers) if layer in count_zeros]:
        nonzero = torch.count_nonzero(_rows(rows, zeros), dim=1)
        measured.append(Part(Kind.NONZERO, nonzero, [layers[at] for at in zeros], [rows.shape[1]] * len(zeros)))
    if bad := [at for at, layer in enumerate(layers) if layer in count_nonfinite]:
        counts = (~torch.isfinite(_rows(rows, bad))).sum(1)
        measured.append(Part(Kind.NONFINITE, counts, [layers[at] for at in bad]))


def _rows(rows: Tensor, wanted: list[int]) -> Tensor:
    return rows if len(wanted) == len(rows) else rows[wanted]


def _absmax(values: Tensor) -> Tensor:
    if values.device.type == "cpu":
        low, high = torch.aminmax(values)  # as in _columns
        return torch.maximum(high, -low)
    largest: Tensor = torch.linalg.vector_norm(values, float("inf"))
    return largest


def _columns(values: list[Tensor], are_float64: Sequence[bool]) -> Tensor:
    if values[0].device.type == "cpu":
        bounds = [
            torch.aminmax(value) if value.is_contiguous() else _min_max(value) for value in values
        ]  # the inf-norm takes 16 times as long on a CPU
        lows, highs = torch.stack([low for low, _ in bounds]), torch.stack([high for _, high in bounds])
    else:
        highs = torch.stack(_maxima(values))
        lows = -highs
    return torch.stack([torch.stack(_norms(values, are_float64)), -lows.to(torch.float32), highs.to(torch.float32)])


def _maxima(values: list[Tensor]) -> list[Tensor]:
    able = [_in_a_row(value) is not None for value in values]
    together = [value for value, is_able in zip(values, able, strict=True) if is_able]
    maxima = iter(torch._foreach_norm(together, math.inf) if together else ())  # noqa: SLF001 -- as above
    pairs = zip(values, able, strict=True)
    return [next(maxima) if is_able else torch.linalg.vector_norm(value, math.inf) for value, is_able in pairs]


def _norms(values: list[Tensor], are_float64: Sequence[bool]) -> list[Tensor]:
    able = _summed_together(values, are_float64)
    together = [value for value, is_able in zip(values, able, strict=True) if is_able]
    how = {"dtype": torch.float32} if values[0].dtype in LOW_PRECISION else {}
    norms = iter(torch._foreach_norm(together, 2, **how) if together else ())  # noqa: SLF001 -- as above
    return [
        next(norms) if is_able else _norm(value, _norm_dtype(value, in_float64))
        for value, in_float64, is_able in zip(values, are_float64, able, strict=True)
    ]


def _summed_together(values: list[Tensor], are_float64: Sequence[bool]) -> list[bool]:
    """Return True for each tensor whose norm one kernel takes together with others.

    One tensor with gaps makes torch launch a kernel for each of the list. On a CPU, torch copies low precision.
    """
    is_low = values[0].dtype in LOW_PRECISION
    if values[0].dtype is torch.float64:
        return [False] * len(values)
    most = CHUNK if is_low and not values[0].is_cuda else math.inf
    return [
        not in_float64 and value.numel() <= most and (value.is_contiguous() or _in_a_row(value) is not None)
        for value, in_float64 in zip(values, are_float64, strict=True)
    ]


def _norm(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the L2 norm of one tensor in float32, summed in a dtype."""
    # Torch casts as it sums only on CUDA from low precision to float32; otherwise it makes a copy first.
    is_cast_first = value.dtype is not dtype and not (value.is_cuda and dtype is torch.float32)
    pieces = _pieces(value, CHUNK) if is_cast_first else [value]
    norms: list[Tensor] = [torch.linalg.vector_norm(piece, dtype=dtype) for piece in pieces]
    norm = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))
    return norm.to(torch.float32)


def _norm_dtype(value: Tensor, in_float64: bool) -> torch.dtype:
    has_float64 = value.device.type != "mps"  # has no float64
    return torch.float64 if value.dtype is torch.float64 or (in_float64 and has_float64) else torch.float32


def _min_max(value: Tensor) -> tuple[Tensor, Tensor]:
    """Return the least and the greatest element. aminmax() copies a tensor that is not contiguous."""
    row = _in_a_row(value)
    if row is not None:
        return torch.aminmax(row)
    ends = [end for piece in _pieces(value, CHUNK) for end in torch.aminmax(piece)]
    return torch.aminmax(torch.stack(ends)) if len(ends) > 2 else (ends[0], ends[1])


def _count_nonzero(piece: Tensor) -> Tensor:
    if _is_counted_by_norm(piece):
        count: Tensor = torch.linalg.vector_norm(piece, 0, dtype=_norm_dtype(piece, in_float64=False))
        return count
    return torch.count_nonzero(piece)


def _count_nonfinite(piece: Tensor) -> Tensor:
    """Return the number of elements that are NaN or infinite: x - x is NaN for these, and zero for others."""
    return _count_nonzero(piece - piece)


def _counted_pieces(value: Tensor) -> list[Tensor]:
    return _pieces(value, FLOAT32_EXACT_INT if _is_counted_by_norm(value) else CHUNK)


def _is_counted_by_norm(value: Tensor) -> bool:
    """Return True if count_nonzero() copies nine bytes per element; the 0-norm copies nothing."""
    return value.is_cuda and value.is_floating_point()


def _pieces(value: Tensor, most: int) -> list[Tensor]:
    """Split a tensor into views of at most ``most`` elements, as contiguous as the tensor."""
    if value.numel() <= most:
        return [value]
    strides = value.stride()
    outermost = max((dim for dim, size in enumerate(value.shape) if size > 1), key=strides.__getitem__)
    rows = max(1, value.shape[outermost] * most // value.numel())
    return [piece for part in torch.split(value, rows, outermost) for piece in _pieces(part, most)]


def _in_a_row(value: Tensor) -> Tensor | None:
    """Return a contiguous view of all elements in memory order, or None."""
    if value.is_contiguous():
        return value
    strides = value.stride()
    permuted = value.permute(sorted(range(value.dim()), key=lambda dim: -strides[dim]))
    return permuted if permuted.is_contiguous() else None


def _dense(gradient: Tensor) -> Tensor:
    """Return a dense gradient as it is, and the summed elements of a sparse one as a new tensor."""
    if gradient.layout is torch.strided:
        return gradient
    held = gradient.detach().coalesce().values()
    return held if held.numel() else held.new_zeros(1)


def _real(gradient: Tensor) -> Tensor:
    """Return a view of real numbers. It is not detached, to save a call: the caller has disabled gradients.

    The sign of imaginary parts changes no statistic: a lazily conjugated tensor is viewed without its bit.
    """
    if not gradient.is_complex():
        return gradient
    return torch.view_as_real(gradient.conj() if gradient.is_conj() else gradient)


def _groups(gradients: Mapping[int, Tensor], wanted: Iterable[int]) -> list[list[int]]:
    """Return the wanted layers that have a gradient, grouped by device and dtype."""
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for layer in wanted:
        if (gradient := gradients.get(layer)) is not None:
            groups.setdefault((gradient.device, gradient.dtype), []).append(layer)
    return list(groups.values())


def without_autocast(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Return the function with autocast disabled on the CPU, for scripts that call ``backward()`` inside of it.

    Autocast casts stacked tensors, and refuses float16 if it is on for bfloat16.
    """

    @wraps(function)
    def called(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if not torch.is_autocast_enabled("cpu"):
            return function(*args, **kwargs)
        with torch.autocast("cpu", enabled=False):
            return function(*args, **kwargs)

    return called


def packed(gradients: Mapping[int, Tensor], in_float64: Collection[int]) -> tuple[list[list[int]], dict[int, Tensor]]:
    """Return packs of layers, and the gradients of all other layers by layer index.

    The norm of a layer ``in_float64`` is summed by itself.
    """
    families: dict[tuple[object, ...], list[int]] = {}
    for layer, gradient in gradients.items():
        families.setdefault((gradient.device, gradient.dtype, gradient.shape), []).append(layer)
    packs: list[list[int]] = []
    for family in families.values():
        if len(family) > 1 and _is_small(gradients[family[0]]):
            able = [layer for layer in family if layer not in in_float64 and _lies_in_a_row(gradients[layer])]
            size = PACKED_TOGETHER // gradients[family[0]].numel()
            packs += [able[start : start + size] for start in range(0, len(able), size)]
    inside = {layer for pack in packs for layer in pack}
    return packs, {layer: gradient for layer, gradient in gradients.items() if layer not in inside}


def rows_of(gradients: Sequence[Tensor]) -> Tensor:
    """Return a copy of the gradients of one pack, as rows."""
    return torch.cat([*gradients]).view(len(gradients), -1)


def _counted_together(held: Mapping[int, Tensor], layers: Iterable[int]) -> list[list[int]]:
    """Return packs of small gradients of one shape and dtype: a kernel for each would cost a launch for each.

    Only what :func:`packed` leaves alone comes here: on a GPU, every layer.
    """
    families: dict[torch.Size, list[int]] = {}
    for layer in layers:
        gradient = held[layer]
        if gradient.dim() > 0 and gradient.numel() <= MOST_PACKED and _lies_in_a_row(gradient):
            families.setdefault(gradient.shape, []).append(layer)
    sizes = {shape: PACKED_TOGETHER // shape.numel() for shape in families}
    return [
        family[start : start + sizes[shape]]
        for shape, family in families.items()
        if len(family) > 1
        for start in range(0, len(family), sizes[shape])
    ]


def _is_small(gradient: Tensor) -> bool:
    is_plain = gradient.device.type == "cpu" and gradient.dtype in FLOATS
    return is_plain and gradient.dim() > 0 and 0 < gradient.numel() <= MOST_PACKED


def _lies_in_a_row(gradient: Tensor) -> bool:
    """Return True if the kernel sums the elements in the order that the copy has."""
    return gradient.layout is torch.strided and gradient.is_contiguous()
