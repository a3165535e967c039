"""The change of many layers in a step, each from a few elements, and updates that are undone after their step.

All layers are measured within 200 steps. Elements of layers that are alike lie in the rows of one tensor, where a
kernel takes hardly longer than for one of them. No value is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from gradcanary.model.parameters import References
from gradcanary.stats.kernels import FLOATS, is_in_a_row, row_norms
from gradcanary.stats.samples import Kind, Part
from gradcanary.stats.weights import weight_of, wide_dtype

SPAN = 200
"""Steps within which each layer is measured."""

INTERVALS = (1000, 100, 10)
"""Between samples. Other steps measure none: the 10th ones hold all layers, and each step has a cost of its own."""

ELEMENTS = 256
"""Elements of a layer. The norm of as many normal numbers has an error of 4 %; where a tenth of the elements makes up
the norm, 17 %. What is read from it is decades. A large embedding has 1 KiB of them."""

CHECKED = 8
"""Layers that are compared once more before the second sampled step from then on: an update that is lost in a copy is
lost in all of them. Before the next one, an extragradient method has undone its first half step on purpose."""

_SHUFFLE = 0x9E3779B1
"""Of multiplicative hashing (Knuth, TAOCP 3, 6.4): other elements of a large layer at each step."""


def layers_of_step(step: int, layers: int) -> range:
    """Return the layers to measure in a step. All ranks get the same ones: only its number counts.

    A step belongs to the widest interval that divides it, so each layer has its turn within 200 steps where each step,
    each 10th or each 100th is sampled, and at each 1000th step.
    """
    interval = next((each for each in INTERVALS if step % each == 0), None)
    if interval is None:
        return range(0)
    turns = max(SPAN // interval, 1)
    return range(step // interval % turns, layers, turns)


class Place(NamedTuple):
    """The compared elements of a layer: its strides, the first of them, their distance, and their number."""

    strides: tuple[int, ...]
    first: int
    distance: int
    elements: int


@dataclass
class Rows:
    """Elements of some layers, by position, one layer in each row of ``before``, with their places and sizes.

    ``has_gradient`` is True for a row whose elements have a gradient that is not zero, None if a row is a whole layer:
    then its sample shows that. ``after`` follows the step.
    """

    positions: list[int]
    places: list[Place]
    sizes: list[int]
    before: Tensor
    has_gradient: Tensor | None
    after: Tensor | None = None


class WeightRows:
    """Measures the rows of one optimizer's layers around a step."""

    def __init__(self) -> None:
        self._rows: list[Rows] = []
        self._last: list[Rows] = []
        self._earlier: list[Rows] = []
        self._checks: list[Part] = []

    def forget_copies(self) -> None:
        """Forget copies whose step did not end."""
        self._rows, self._checks = [], []

    def copy(
        self, step: int, positions: Iterable[int], references: References, gradient_of: Callable[[int], Tensor | None]
    ) -> None:
        """Before a step, copy elements of layers whose gradient has the order of the weight in memory."""
        found: dict[tuple[object, ...], list[_Layer]] = {}
        shift = step * _SHUFFLE % 2**32
        with torch.no_grad():
            earlier, self._earlier, self._last = self._earlier, self._last, []
            self._checks = [part for rows in earlier if (part := _undone(rows, references)) is not None]
            for position in positions:
                parameter = references[position]()
                weight = _plain(parameter) if parameter is not None and parameter.requires_grad else None
                place = None if weight is None else _place(weight, shift)
                if weight is None or place is None:
                    continue
                size, slopes = weight.numel(), None
                if size > ELEMENTS:
                    gradient = _plain(gradient_of(position))
                    if gradient is None or not _fits(gradient, place, size):
                        continue
                    slopes = _row(gradient, place)
                row = _row(weight, place)
                key = row.device, row.dtype, place.elements, None if slopes is None else slopes.dtype
                found.setdefault(key, []).append((position, place, size, row, slopes))
            self._rows = [_rows_of(some) for some in found.values()]

    def compare(self, references: References) -> list[Part]:
        """After the step, return the changes and norms of the rows, and the updates that were undone meanwhile."""
        parts, self._checks = self._checks, []
        rows, self._rows = self._rows, []
        with torch.no_grad():
            for each in rows:
                each.after = _present(each, references)
                if each.after is not None:
                    parts.append(_norms_of(each, each.after))
        measured = [each for each in rows if each.after is not None]
        self._last = [_first(each) for each in measured]
        return parts


def changes_of(part: Part, columns: Sequence[Sequence[float]]) -> dict[int, tuple[float, float]]:
    """Return the norms of the change and of the weights by position, scaled from the row to all elements.

    A layer is left out if no element of its row had a gradient: others may have one, and move.
    """
    found = {}
    for position, size, *norms, has_gradient in zip(part.layers, part.sizes, *columns, strict=True):
        change, weights = (norm * max(size / ELEMENTS, 1.0) ** 0.5 for norm in norms)
        if has_gradient:
            found[position] = change, weights
    return found


_Layer = tuple[int, Place, int, Tensor, "Tensor | None"]


def _plain(tensor: Tensor | None) -> Tensor | None:
    """Return the local elements as :func:`weight_of`, real ones only; a plain parameter or gradient without a call."""
    if type(tensor) not in (Parameter, Tensor):
        tensor = weight_of(tensor)
    elif tensor is not None and (
        tensor.layout is not torch.strided or not tensor.numel() or not tensor.untyped_storage().nbytes()
    ):
        return None
    return tensor if tensor is not None and tensor.dtype in FLOATS else None


def _place(weight: Tensor, shift: int) -> Place | None:
    """Return the place of exactly ELEMENTS elements at equal distances, or of all of a smaller layer.

    Return None for a layer that is contiguous in no order of its dimensions.
    """
    if not (weight.is_contiguous() or is_in_a_row(weight)):
        return None
    size = weight.numel()
    elements = min(size, ELEMENTS)
    distance = max(size // ELEMENTS - 1, 0) | 1  # odd: an even one would hit the same columns of a matrix
    return Place(weight.stride(), shift % (size - (elements - 1) * distance), distance, elements)


def _fits(tensor: Tensor, place: Place, size: int) -> bool:
    return tensor.numel() == size and tensor.stride() == place.strides


def _row(tensor: Tensor, place: Place) -> Tensor:
    return tensor.as_strided((place.elements,), (place.distance,), tensor.storage_offset() + place.first)


def _rows_of(some: Sequence[_Layer]) -> Rows:
    positions, places, sizes, weights, gradients = zip(*some, strict=True)
    before = torch.cat(weights).view(len(some), -1)
    has_gradient = None if gradients[0] is None else torch.cat(gradients).view(len(some), -1).ne(0).any(1)
    return Rows([*positions], [*places], [*sizes], before, has_gradient)


def _present(rows: Rows, references: References) -> Tensor | None:
    """Return the present elements; None if a layer was moved elsewhere, or is another one."""
    parts = []
    for position, place, size in zip(rows.positions, rows.places, rows.sizes, strict=True):
        weight = _plain(references[position]())
        if weight is None or not _fits(weight, place, size):
            return None
        if weight.device != rows.before.device or weight.dtype is not rows.before.dtype:
            return None
        parts.append(_row(weight, place))
    return torch.cat(parts).view(len(parts), -1)


def _norms_of(rows: Rows, after: Tensor) -> Part:
    """Return the norms of the changes and of the weights, and the rows with a gradient."""
    after = after.to(wide_dtype(after.dtype))
    norms = [row_norms(after - rows.before.to(after.dtype)), row_norms(after)]
    with_gradient = torch.ones_like(norms[0]) if rows.has_gradient is None else rows.has_gradient.to(after.dtype)
    return Part(Kind.UPDATE_ROWS, torch.stack([*norms, with_gradient]), rows.positions, rows.sizes)


def _first(rows: Rows) -> Rows:
    """Return the first rows, to be compared before a later step; a copy, so that the others are freed."""
    if rows.after is None or len(rows.positions) <= CHECKED:
        return rows
    before, after = rows.before[:CHECKED].clone(), rows.after[:CHECKED].clone()
    return Rows(rows.positions[:CHECKED], rows.places[:CHECKED], rows.sizes[:CHECKED], before, None, after)


def _undone(rows: Rows, references: References) -> Part | None:
    """Return the rows that a step had changed, and those of them that are back at all values of before it."""
    now = None if max(rows.positions) >= len(references) else _present(rows, references)
    if now is None or rows.after is None:
        return None
    has_moved = (rows.after != rows.before).any(1)
    return Part(Kind.UNDONE, torch.stack([has_moved, has_moved & (now == rows.before).all(1)]), rows.positions)
