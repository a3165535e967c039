"""The change of many layers in a step, each from a few elements, and updates that are undone after their step.

All layers are measured within 200 steps. Elements of layers that are alike lie in the rows of one tensor, where a
kernel takes hardly longer than for one of them. No value is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradcanary.model.distributed import local_tensor
from gradcanary.model.parameters import References
from gradcanary.stats.kernels import row_norms, strided_row
from gradcanary.stats.samples import Kind, Part
from gradcanary.stats.weights import weight_of, wide_dtype

SPAN = 200
"""Steps within which each layer is measured."""

INTERVALS = (1000, 100, 10, 1)

ELEMENTS = 256
"""Elements of a layer. The norm of as many normal numbers has an error of 4 %; where a tenth of the elements makes up
the norm, 17 %. What is read from it is decades. A large embedding has 1 KiB of them."""

CHECKED = 8
"""Layers that are compared once more before a later step: an update that is lost in a copy is lost in all of them."""

_SHUFFLE = 0x9E3779B1
"""Of multiplicative hashing (Knuth, TAOCP 3, 6.4): other elements of a large layer at each step."""

Key = tuple[torch.device, torch.dtype, int]


def layers_of_step(step: int, layers: int) -> range:
    """Return the layers to measure in a step. All ranks get the same ones: only its number counts.

    A step belongs to the widest interval between samples that divides it, so each layer has its turn within 200 steps
    where each step, each 10th or each 100th is sampled, and at each 1000th step.
    """
    interval = next(each for each in INTERVALS if step % each == 0)
    turns = max(SPAN // interval, 1)
    return range(step // interval % turns, layers, turns)


@dataclass
class Rows:
    """Elements of some layers, by position, one layer in each row of ``before``, with the real numbers in each layer.

    ``has_gradient`` is True for a row whose elements have a gradient that is not zero. ``after`` follows the step.
    """

    shift: int
    positions: list[int]
    sizes: list[int]
    before: Tensor
    has_gradient: Tensor
    after: Tensor | None = None


class WeightRows:
    """Measures the rows of one optimizer's layers around a step."""

    def __init__(self) -> None:
        self._rows: list[Rows] = []
        self._earlier: list[Rows] = []
        self._checks: list[Part] = []

    def forget_copies(self) -> None:
        """Forget copies whose step did not end."""
        self._rows, self._checks = [], []

    def copy(
        self, step: int, positions: Iterable[int], references: References, gradient_of: Callable[[int], Tensor | None]
    ) -> None:
        """Before a step, copy elements of layers whose gradient has the order of the weight in memory."""
        self._checks = [part for rows in self._earlier if (part := _undone(rows, references)) is not None]
        shift, found = step * _SHUFFLE % 2**32, dict[tuple[Key, torch.dtype], list[tuple[int, int, Tensor, Tensor]]]()
        for position in positions:
            parameter, gradient = references[position](), gradient_of(position)
            weight = weight_of(parameter)
            if weight is None or gradient is None or parameter is None or not parameter.requires_grad:
                continue
            gradient = local_tensor(gradient).detach()
            if gradient.shape != weight.shape or gradient.layout is not torch.strided:
                continue
            if weight.numel() > ELEMENTS and gradient.stride() != weight.stride():
                continue
            row, slopes = _row(weight, shift), _row(gradient, shift)
            if row is not None and slopes is not None:
                size = weight.numel() * (1 + weight.is_complex())
                found.setdefault((_key(row), slopes.dtype), []).append((position, size, row, slopes))
        with torch.no_grad():
            self._rows = [_rows_of(shift, some) for some in found.values()]

    def compare(self, references: References) -> list[Part]:
        """After the step, return the changes and norms of the rows, and the updates that were undone since the last."""
        parts, self._checks = self._checks, []
        rows, self._rows = self._rows, []
        with torch.no_grad():
            for each in rows:
                each.after = _present(each, references)
                if each.after is not None:
                    parts.append(_norms_of(each, each.after))
        measured = [each for each in rows if each.after is not None]
        self._earlier = [_first(each) for each in measured] or self._earlier
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


def _row(tensor: Tensor, shift: int) -> Tensor | None:
    real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    return strided_row(real, ELEMENTS, shift)


def _key(row: Tensor) -> Key:
    return row.device, row.dtype, len(row)


def _rows_of(shift: int, some: Sequence[tuple[int, int, Tensor, Tensor]]) -> Rows:
    positions, sizes, weights, slopes = zip(*some, strict=True)
    before, gradients = (torch.cat(each).view(len(some), -1) for each in (weights, slopes))
    return Rows(shift, [*positions], [*sizes], before, gradients.ne(0).any(1))


def _present(rows: Rows, references: References) -> Tensor | None:
    """Return the present elements; None if a layer was moved elsewhere, or is another one."""
    weights = [weight_of(references[position]()) for position in rows.positions]
    found = [None if weight is None else _row(weight, rows.shift) for weight in weights]
    parts = [part for part in found if part is not None and _key(part) == _key(rows.before[0])]
    return torch.cat(parts).view(len(parts), -1) if len(parts) == len(found) else None


def _norms_of(rows: Rows, after: Tensor) -> Part:
    """Return the norms of the changes and of the weights, and the rows with a gradient."""
    after = after.to(wide_dtype(after.dtype))
    norms = [row_norms(after - rows.before.to(after.dtype)), row_norms(after)]
    values = torch.stack([*norms, rows.has_gradient.to(after.dtype)])
    return Part(Kind.UPDATE_ROWS, values, rows.positions, rows.sizes)


def _first(rows: Rows) -> Rows:
    """Return the first rows, to be compared before a later step; a copy, so that the others are freed."""
    if rows.after is None or len(rows.positions) <= CHECKED:
        return rows
    before, after, has_gradient = (each[:CHECKED].clone() for each in (rows.before, rows.after, rows.has_gradient))
    return Rows(rows.shift, rows.positions[:CHECKED], rows.sizes[:CHECKED], before, has_gradient, after)


def _undone(rows: Rows, references: References) -> Part | None:
    """Return the rows that a step had changed, and those of them that are back at all values of before it."""
    if rows.after is None or max(rows.positions) >= len(references):
        return None
    with torch.no_grad():
        now = _present(rows, references)
        if now is None:
            return None
        has_moved = (rows.after != rows.before).any(1)
        return Part(Kind.UNDONE, torch.stack([has_moved, has_moved & (now == rows.before).all(1)]), rows.positions)
