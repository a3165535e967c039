"""A sample of some layers: tensors on the training thread, numbers on the sender thread. No torch at import."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from gradcanary import wire
from gradcanary.guard import reporting, reraise

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from gradcanary.guard import Failed


MEASURED, NO_GRADIENT, ZERO, NONFINITE, NOT_TRAINABLE, PARTIAL = range(len(wire.STATES))
"""Values of the state plane."""


class Kind(Enum):
    """The content of a part: first those of a sample, then those of a record."""

    NORMS = auto()
    """[3, layers]: L2 norm, negated minimum, maximum."""
    NONZERO = auto()
    """The number of non-zero elements per layer; a large layer has several pieces, each with its count."""
    NONFINITE = auto()
    """The number of non-finite elements per layer, in pieces as well."""
    SCALE = auto()
    """The loss scale that the gradients carried."""
    LOCAL_NONFINITE = auto()
    """True per layer if this process made its gradient non-finite, before a reduction."""
    WEIGHTS = auto()
    """True if all weights are finite; otherwise the gradients of all processes are non-finite."""
    FINITE = auto()
    """True if all gradients are finite, in a process that sends only non-finite ones."""
    LOW_BITS = auto()
    """The counts of :func:`gradcanary.stats.accumulation.low_bits`."""
    FLOAT16 = auto()
    """The counts of :func:`gradcanary.stats.accumulation.float16_counts`."""
    UPDATE_NORMS = auto()
    """The factors of :func:`gradcanary.stats.weights.update_norms` for one layer."""
    UPDATE_ROWS = auto()
    """[3, layers] of :class:`gradcanary.stats.weight_rows.WeightRows`; it has the sizes of the layers."""
    UNDONE = auto()
    """[2, layers]: layers that an earlier step had changed, and those that are back at the values of before it."""
    ACCUMULATION_ERROR = auto()
    """The factors of :meth:`gradcanary.stats.accumulation.Fp32Reference.errors` for one layer."""
    FROZEN = auto()
    """The share of a layer's weights that did not move (:class:`gradcanary.stats.weights.Frozen`)."""
    STUCK = auto()
    """The share of a layer's weights that a step of the learning rate cannot move."""

    LOSS = auto()
    """The root of a backward pass."""
    LEARNING_RATE = auto()
    """The learning rate of a parameter group."""
    LOSS_SCALE = auto()
    FOUND_INF = auto()
    PROBE = auto()
    """The norm of one layer's gradient at the step, to compare with its sample: the ratio is the clip factor."""
    PROBE_SCALE = auto()
    """The loss scale that this gradient carried."""


@dataclass(slots=True)
class Part:
    """One value of a sample or a record, on its device, and its layers.

    ``layers`` are positions in the sample; a probe has the number of the layer set. ``sizes`` are the numbers of
    elements of counted layers.
    """

    kind: Kind
    value: float | Tensor
    layers: Sequence[int] = ()
    sizes: Sequence[int] = ()


@dataclass
class Forecast:
    """The learning rate, and per layer the share of elements that a step of this size cannot move."""

    dtype: str
    parts: list[Part]


@dataclass
class Sample:
    """The values of the layers of one optimizer; ``states``, ``dtypes`` and ``parts`` go by position.

    ``layers`` are their numbers in the layer set. ``is_joint`` is True if the gradients come from backward passes of
    the main optimizer.
    """

    layers: Sequence[int]
    phase: str
    states: bytearray
    dtypes: list[str | None]
    parts: list[Part]
    is_joint: bool = True
    forecasts: list[Forecast] = field(default_factory=list)

    def devices(self) -> set[torch.device]:
        """Return the devices of the gradients, before the values are copied to the host."""
        return {part.value.device for part in self.parts if part.kind is Kind.NORMS}  # type: ignore[union-attr]  # a tensor

    def set_scale(self, scale: Tensor | None) -> None:
        """Set the loss scale of the gradients."""
        self.parts = [part for part in self.parts if part.kind is not Kind.SCALE]
        self.parts += [] if scale is None else [Part(Kind.SCALE, scale)]

    def mark_partial(self, accumulated: Iterable[int]) -> None:
        """Correct the state of layers whose hook came after the step: they had a gradient."""
        for position in accumulated:
            if self.states[position] == NO_GRADIENT:
                self.states[position] = PARTIAL

    def add(self, kind: Kind, tensors: Mapping[int, Tensor]) -> None:
        """Add a part for each of some layers, by position."""
        self.parts += [Part(kind, tensor, (position,)) for position, tensor in tensors.items()]


@dataclass(frozen=True)
class SampleRequest:
    """The layers that the next samples measure further; the sender thread, which reads the numbers, makes it.

    - ``zeros``, ``nonfinite``: layers whose elements of this kind are counted.
    - ``in_float64``: layers whose norm is summed in float64.
    - ``probe``: the layer that shows a clip.
    - ``local``: True if gradients are measured before a reduction as well.
    """

    zeros: frozenset[int] = frozenset()
    nonfinite: frozenset[int] = frozenset()
    in_float64: frozenset[int] = frozenset()
    probe: int | None = None
    local: bool = False


def parts_of(losses: Iterable[Tensor], rates: Iterable[float | Tensor]) -> list[Part]:
    """Return the parts of a record for some losses and learning rates."""
    return [*(Part(Kind.LOSS, loss) for loss in losses), *(Part(Kind.LEARNING_RATE, rate) for rate in rates)]


def of_kind(parts: Iterable[Part], kind: Kind) -> Part | None:
    """Return the first part of a kind."""
    return next((part for part in parts if part.kind is kind), None)


def scale_of(parts: Iterable[Part], kind: Kind) -> float:
    """Return a loss scale, or 1 if dividing by it is impossible; waits for it."""
    part = of_kind(parts, kind)
    value = 1.0 if part is None else number_of(part.value)
    return value if math.isfinite(value) and value > 0 else 1.0


def number_of(value: float | Tensor) -> float:
    """Return a number or the value of a tensor; waits for it."""
    return float(value)


@dataclass
class Numbers:
    """The numbers of a sample, by layer index, not yet divided by a loss scale."""

    absmax: dict[int, float] = field(default_factory=dict)
    norm: dict[int, float] = field(default_factory=dict)
    zeros: dict[int, float] = field(default_factory=dict)
    nonfinite: dict[int, float] = field(default_factory=dict)


def read(parts: Iterable[Part], failed: Failed = reraise) -> Numbers:
    """Return the numbers of the parts of :func:`measure`; waits for the devices.

    If two parts of a kind have the same layer, the last one counts.
    """
    numbers = Numbers()
    for part in parts:
        if part.kind in _READERS and not isinstance(part.value, float):
            with reporting(failed, "reading", part.value):
                _READERS[part.kind](numbers, part, part.value.tolist())
    return numbers


def _read_norms(numbers: Numbers, part: Part, columns: list[list[float]]) -> None:
    norms, minus_min, maxima = columns
    numbers.norm.update(zip(part.layers, norms, strict=True))
    # max() of Python would lose a NaN in its second argument: a NaN minimum comes with a NaN maximum.
    # abs(): max() of two zeros takes the first, which may be the negative one.
    numbers.absmax.update(zip(part.layers, map(abs, map(max, minus_min, maxima)), strict=True))


def _read_nonzero(numbers: Numbers, part: Part, counts: list[float]) -> None:
    nonzero = _sums(part.layers, counts)
    sizes = dict(zip(part.layers, part.sizes, strict=True))
    numbers.zeros.update({layer: size - nonzero[layer] for layer, size in sizes.items()})


def _read_nonfinite(numbers: Numbers, part: Part, counts: list[float]) -> None:
    numbers.nonfinite.update(_sums(part.layers, counts))


_READERS: dict[Kind, Callable[[Numbers, Part, list[Any]], None]] = {
    Kind.NORMS: _read_norms,
    Kind.NONZERO: _read_nonzero,
    Kind.NONFINITE: _read_nonfinite,
}


def _sums(layers: Iterable[int], counts: Iterable[float]) -> dict[int, float]:
    """Return the sum of the counts of each layer."""
    sums: dict[int, float] = {}
    for layer, count in zip(layers, counts, strict=True):
        sums[layer] = sums.get(layer, 0) + count
    return sums
