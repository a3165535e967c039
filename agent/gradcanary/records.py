"""What the training thread hands to the sender: tensors and plain numbers of one window, nothing read yet."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from gradcanary import wire

if TYPE_CHECKING:
    from torch import Tensor

    from gradcanary.forecasts import Forecast
    from gradcanary.frameworks import Loop
    from gradcanary.layers import Layers
    from gradcanary.statistics import Measured

Value = TypeVar("Value")

MEASURED, NO_GRADIENT, ZERO, NONFINITE, NOT_TRAINABLE, PARTIAL = range(len(wire.STATES))
"""Values of the state plane."""

NOT_SKIPPED, SKIPPED_BY_SCALER, SKIPPED_BY_LOOP = range(3)


@dataclass
class Sample:
    """The layers of one optimizer's window, measured once; ``states``, ``dtypes`` and ``measured`` go by position.

    ``layers`` are their numbers in the layer set, ``scale`` the loss scale that the gradients carried then;
    ``is_joint`` tells whether they came out of the main optimizer's backward passes; ``moved`` holds what
    :func:`gradcanary.weights.changes` found of some layers, by position; ``own`` the bounds that their gradients had in
    this process, before a reduction; ``bits`` what :func:`gradcanary.accumulators.low_bits` counted, ``losses`` what
    :meth:`gradcanary.shadows.Shadows.losses` found of some layers, by position, ``frozen`` the share of weights that
    :class:`gradcanary.frozen.Frozen` found unmoved, ``forecasts`` what :mod:`gradcanary.forecasts` foresees.
    """

    layers: Sequence[int]
    phase: str
    states: bytearray
    dtypes: list[str | None]
    measured: Measured
    scale: Tensor | None
    is_joint: bool = True
    moved: dict[int, Tensor] = field(default_factory=dict)
    own: list[tuple[list[int], Tensor]] = field(default_factory=list)
    bits: list[tuple[list[int], Tensor]] = field(default_factory=list)
    losses: dict[int, Tensor] = field(default_factory=dict)
    frozen: dict[int, Tensor] = field(default_factory=dict)
    forecasts: list[Forecast] = field(default_factory=list)


@dataclass
class Probe:
    """The norm of one layer's gradient at the step, to compare with its sample: the ratio is the clip factor."""

    layer: int
    norm: Tensor
    scale: Tensor | None


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
    probe: Probe | None
    found_inf: Tensor | None
    losses: list[Tensor]
    loss_scale: Tensor | None
    lr: tuple[float | Tensor, ...]
    step_time_s: float | None
    agent_share: float
    every: int
    peak_memory_bytes: int | None = None
    logged: list[Logged] = field(default_factory=list)
    is_silent: bool = False


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
    """What the sender, who sees the numbers, asks the training thread to measure next, by layer index."""

    zeros: frozenset[int] = frozenset()
    nonfinite: frozenset[int] = frozenset()
    wide: frozenset[int] = frozenset()
    probe: int | None = None


def exchange(record: Record, by: Callable[[Tensor], Tensor]) -> None:
    """Put another tensor in the place of each that a record holds."""
    for sample in record.samples:
        _exchange(sample, by)
    if record.probe is not None:
        record.probe.norm = by(record.probe.norm)
        record.probe.scale = _other(record.probe.scale, by)
    record.found_inf, record.loss_scale = _other(record.found_inf, by), _other(record.loss_scale, by)
    record.losses = [*map(by, record.losses)]
    record.lr = tuple(_other(rate, by) for rate in record.lr)
    for logged in record.logged:
        logged.value = _other(logged.value, by)


def _exchange(sample: Sample, by: Callable[[Tensor], Tensor]) -> None:
    measured = sample.measured
    measured.columns = [(layers, by(tensor)) for layers, tensor in measured.columns]
    measured.nonzero = [(layers, sizes, by(tensor)) for layers, sizes, tensor in measured.nonzero]
    measured.nonfinite = [(layers, by(tensor)) for layers, tensor in measured.nonfinite]
    sample.scale = _other(sample.scale, by)
    sample.own = [(layers, by(tensor)) for layers, tensor in sample.own]
    sample.bits = [(layers, by(tensor)) for layers, tensor in sample.bits]
    sample.moved, sample.losses, sample.frozen = (
        {layer: by(tensor) for layer, tensor in tensors.items()}
        for tensors in (sample.moved, sample.losses, sample.frozen)
    )
    for forecast in sample.forecasts:
        forecast.learning_rate = _other(forecast.learning_rate, by)
        forecast.stuck = {layer: by(tensor) for layer, tensor in forecast.stuck.items()}


def _other(value: Value, by: Callable[[Tensor], Tensor]) -> Value:
    """Return what is no tensor as it is."""
    is_number = value is None or isinstance(value, (int, float))
    return value if is_number else by(value)  # type: ignore[arg-type,return-value]  # torch is not imported here


def scale_of(scale: Tensor | None) -> float:
    """Return a loss scale, 1 where it is none to divide by; waits for it."""
    value = 1.0 if scale is None else number_of(scale)
    return value if math.isfinite(value) and value > 0 else 1.0


def number_of(value: float | Tensor) -> float:
    """Return a number, of a tensor its value; waits for it."""
    return float(value)
