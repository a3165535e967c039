"""One sample of a set of layers: tensors on the training thread, numbers on the sender thread. No torch at import."""

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
    """What a part holds; of a sample first, then of a record."""

    NORMS = auto()
    """[3, layers]: L2 norm, minus the least element, the greatest."""
    NONZERO = auto()
    """Per layer how many elements are not zero; a large layer is counted in pieces, and named once for each."""
    NONFINITE = auto()
    """Per layer how many elements are not finite, in pieces as well."""
    SCALE = auto()
    """The loss scale that the gradients carried."""
    LOCAL_NONFINITE = auto()
    """Per layer whether this process made its gradient not finite, before a reduction."""
    WEIGHTS = auto()
    """Whether all weights are finite: else the gradients of all processes are not, and it says nothing of one."""
    FINITE = auto()
    """Whether all gradients are finite, of a process that another one speaks for."""
    LOW_BITS = auto()
    """What :func:`gradcanary.stats.accumulation.low_bits` counts."""
    UPDATE_NORMS = auto()
    """What :func:`gradcanary.stats.weights.update_norms` finds of one layer."""
    ACCUMULATION_ERROR = auto()
    """What :meth:`gradcanary.stats.accumulation.Fp32Reference.errors` finds of one layer."""
    FROZEN = auto()
    """The share of a layer's weights that :class:`gradcanary.stats.weights.Frozen` found unmoved."""
    STUCK = auto()
    """The share of a layer's weights that a step of the learning rate cannot move."""

    LOSS = auto()
    """What a backward pass started from."""
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
    """One value of a sample or a record, on whatever device it was made, and the layers that it is about.

    ``layers`` go by position in the sample; a probe's is a number of the layer set. ``sizes`` are those of layers whose
    elements are counted.
    """

    kind: Kind
    value: float | Tensor
    layers: Sequence[int] = ()
    sizes: Sequence[int] = ()


@dataclass
class Forecast:
    """The share of elements, per layer by position, that a step of the learning rate cannot move; after that rate."""

    dtype: str
    parts: list[Part]


@dataclass
class Sample:
    """The layers of one optimizer's window, measured once; ``states``, ``dtypes`` and ``parts`` go by position.

    ``layers`` are their numbers in the layer set; ``is_joint`` tells whether they came out of the main optimizer's
    backward passes; ``forecasts`` what :mod:`gradcanary.stats.weights` foresees.
    """

    layers: Sequence[int]
    phase: str
    states: bytearray
    dtypes: list[str | None]
    parts: list[Part]
    is_joint: bool = True
    forecasts: list[Forecast] = field(default_factory=list)

    def devices(self) -> set[torch.device]:
        """Return where the gradients are, until the values have left it."""
        return {part.value.device for part in self.parts if part.kind is Kind.NORMS}  # type: ignore[union-attr]  # a tensor

    def set_scale(self, scale: Tensor | None) -> None:
        """Take the loss scale that the gradients carried, in place of another one."""
        self.parts = [part for part in self.parts if part.kind is not Kind.SCALE]
        self.parts += [] if scale is None else [Part(Kind.SCALE, scale)]

    def mark_partial(self, accumulated: Iterable[int]) -> None:
        """Correct the state of layers that accumulated, though no gradient was seen: their hook came after the step."""
        for position in accumulated:
            if self.states[position] == NO_GRADIENT:
                self.states[position] = PARTIAL

    def add(self, kind: Kind, tensors: Mapping[int, Tensor]) -> None:
        """Take what there is of some layers, by position."""
        self.parts += [Part(kind, tensor, (position,)) for position, tensor in tensors.items()]


@dataclass(frozen=True)
class SampleRequest:
    """What the sender, which sees the numbers, asks the training thread to measure next, by layer index.

    ``local``: gradients before a reduction.
    """

    zeros: frozenset[int] = frozenset()
    nonfinite: frozenset[int] = frozenset()
    in_float64: frozenset[int] = frozenset()
    probe: int | None = None
    local: bool = False


def parts_of(losses: Iterable[Tensor], rates: Iterable[float | Tensor]) -> list[Part]:
    """Return the parts of a record whose window had these losses and learning rates."""
    return [*(Part(Kind.LOSS, loss) for loss in losses), *(Part(Kind.LEARNING_RATE, rate) for rate in rates)]


def of_kind(parts: Iterable[Part], kind: Kind) -> Part | None:
    """Return the first part of a kind."""
    return next((part for part in parts if part.kind is kind), None)


def scale_of(parts: Iterable[Part], kind: Kind) -> float:
    """Return a loss scale, 1 where it is none to divide by; waits for it."""
    part = of_kind(parts, kind)
    value = 1.0 if part is None else number_of(part.value)
    return value if math.isfinite(value) and value > 0 else 1.0


def number_of(value: float | Tensor) -> float:
    """Return a number, of a tensor its value; waits for it."""
    return float(value)


@dataclass
class Numbers:
    """The numbers of a sample, by layer index; as stored in the accumulator, before any correction for a loss scale."""

    absmax: dict[int, float] = field(default_factory=dict)
    norm: dict[int, float] = field(default_factory=dict)
    zeros: dict[int, float] = field(default_factory=dict)
    nonfinite: dict[int, float] = field(default_factory=dict)


def read(parts: Iterable[Part], failed: Failed = reraise) -> Numbers:
    """Return the numbers of the parts that :func:`measure` makes; this waits for the devices.

    Of a layer that two of a kind have, those of the last one.
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
    # abs(): of two zeros it takes the first, which may be the negative one.
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
