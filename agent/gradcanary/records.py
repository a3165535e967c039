"""What the training thread hands to the sender: tensors and plain numbers of one window, nothing read yet."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import chain
from typing import TYPE_CHECKING

from gradcanary import wire

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from gradcanary.forecasts import Forecast
    from gradcanary.frameworks import Loop
    from gradcanary.layers import Layers

MEASURED, NO_GRADIENT, ZERO, NONFINITE, NOT_TRAINABLE, PARTIAL = range(len(wire.STATES))
"""Values of the state plane."""

NOT_SKIPPED, SKIPPED_BY_SCALER, SKIPPED_BY_LOOP = range(3)


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
    OWN = auto()
    """Per layer whether this process made its gradient not finite, before a reduction."""
    WEIGHTS = auto()
    """Whether all weights are finite: else the gradients of all processes are not, and it says nothing of one."""
    FINITE = auto()
    """Whether all gradients are finite, of a process that another one speaks for."""
    LOW_BITS = auto()
    """What :func:`gradcanary.accumulators.low_bits` counts."""
    MOVED = auto()
    """What :func:`gradcanary.weights.changes` finds of one layer."""
    LOST = auto()
    """What :meth:`gradcanary.shadows.Shadows.losses` finds of one layer."""
    FROZEN = auto()
    """The share of a layer's weights that :class:`gradcanary.frozen.Frozen` found unmoved."""
    STUCK = auto()
    """The share of a layer's weights that a step of the learning rate cannot move."""

    LOSS = auto()
    """What a backward pass started from."""
    RATE = auto()
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
class Sample:
    """The layers of one optimizer's window, measured once; ``states``, ``dtypes`` and ``parts`` go by position.

    ``layers`` are their numbers in the layer set; ``is_joint`` tells whether they came out of the main optimizer's
    backward passes; ``forecasts`` what :mod:`gradcanary.forecasts` foresees.
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

    def add(self, kind: Kind, tensors: Mapping[int, Tensor]) -> None:
        """Take what there is of some layers, by position."""
        self.parts += [Part(kind, tensor, (position,)) for position, tensor in tensors.items()]


@dataclass(slots=True)
class Logged:
    """A number for a step that is not of the windows' own step where ``step`` is given."""

    name: str
    tags: tuple[tuple[str, str], ...]
    step: int | None
    value: float | Tensor


@dataclass(slots=True)
class Record:
    """One closed window of the main optimizer; ``samples``, its own first, are none at steps that are not sampled, and
    ``micro_steps`` 0.

    ``is_silent`` tells that another process has the same gradients and sends them.
    """

    layers: Layers
    step: int
    time: float
    micro_steps: int
    skipped: int
    samples: list[Sample]
    parts: list[Part]
    step_time_s: float | None
    agent_share: float
    every: int
    peak_memory_bytes: int | None = None
    logged: list[Logged] = field(default_factory=list)
    is_silent: bool = False

    def values(self) -> Iterator[Part | Logged]:
        """Yield all that holds a value: each may be on a device."""
        return chain(self.parts, self.logged, *(sample.parts for sample in self.samples))


@dataclass(frozen=True)
class Origin:
    """Where a session began; ``source`` as in the wire's ``step_source``, ``loop`` is a framework's."""

    first_step: int
    source: str
    late: bool
    optimizer: str
    loop: Loop | None


@dataclass(frozen=True)
class Wishes:
    """What the sender, which sees the numbers, asks the training thread to measure next, by layer index.

    ``local``: gradients before a reduction.
    """

    zeros: frozenset[int] = frozenset()
    nonfinite: frozenset[int] = frozenset()
    wide: frozenset[int] = frozenset()
    probe: int | None = None
    local: bool = False


def parts_of(losses: Iterable[Tensor], rates: Iterable[float | Tensor]) -> list[Part]:
    """Return the parts of a record whose window had these losses and learning rates."""
    return [*(Part(Kind.LOSS, loss) for loss in losses), *(Part(Kind.RATE, rate) for rate in rates)]


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
