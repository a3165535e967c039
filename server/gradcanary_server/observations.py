"""What the fold reads and what it says: plain arrays in, changes out."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gradcanary.wire import Accumulator, Fact

Severity = Literal["information", "warning", "critical"]
Evidence = Literal[
    "fall",
    "siblings",
    "threshold",
    "late",
    "steady",
    "rare",
    "by_script",
    "never",
    "declared",
    "low_sum",
    "forecast",
    "measured",
    "stopped",
    "no_scaler",
    "zeros",
    "all_zeros",
    "no_step",
    "lost_rank",
]
Resolution = Literal["recovered", "layer_gone", "resumed", "rebaselined", "rule_changed"]

WHOLE_RUN = None
"""The layer of a change that concerns no single layer."""


@dataclass(frozen=True)
class LayerFacts:
    """A layer as the rules know it; ``number`` is its layer_no in the run."""

    number: int
    name: str
    shape: tuple[int, ...]
    param_dtype: str
    module_class: str | None
    group: int | None


@dataclass(frozen=True)
class Launch:
    """One start of a job; constant while the launch and its layer set are.

    ``layers[i]`` belongs to column i of the samples; ``newer`` and ``older`` are the numbers of the launches that
    began later and before; ``facts`` are what agents of the run have said until now.
    """

    number: int
    first_step: int
    late: bool
    absmax_below: float | None
    norm_below: float | None
    layers: tuple[LayerFacts, ...]
    newer: frozenset[int] = frozenset()
    older: frozenset[int] = frozenset()
    facts: tuple[Fact, ...] = ()


@dataclass(frozen=True)
class Samples:
    """n steps of L layers, strictly rising inside a launch, and the losses that travelled with them.

    ``phase`` (index into wire.PHASES, of absmax) and ``skipped`` are uint8[n]; ``state`` is uint8[n, L] of indices
    into wire.STATES; ``values`` holds float32[n, L] per stat, NaN where the state says why; ``lr`` is
    float32[n, groups], NaN = unknown; ``accumulators`` hold from the first step on; ``loss_steps`` int64[m] and
    ``loss`` float64[m] are sparse, and a NaN there is a loss that was NaN.
    """

    steps: NDArray[np.int64]
    every: int
    phase: NDArray[np.uint8]
    state: NDArray[np.uint8]
    values: dict[str, NDArray[np.float32]]
    skipped: NDArray[np.uint8]
    clipped: NDArray[np.bool_]
    micro_steps: NDArray[np.int16]
    lr: NDArray[np.float32]
    accumulators: tuple[Accumulator, ...] = ()
    loss_steps: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    loss: NDArray[np.float64] = field(default_factory=lambda: np.empty(0, np.float64))


@dataclass(frozen=True)
class Jump:
    """A learning rate, that of a parameter group, that was set to another one: ``step`` is the first that had it."""

    group: int
    step: int
    before: float
    after: float


@dataclass(frozen=True)
class Change:
    """A layer (None: the whole run) began to fire for a rule, got a higher severity while firing, or resolved.

    ``step`` is the observation that tipped it, ``since_step`` the first bad observation of that count; ``value``,
    ``baseline`` and ``siblings`` are the numbers behind it, None where the rule has none. ``jumps`` are those of
    learning rates shortly before.
    """

    step: int
    rule: str
    layer: int | None
    kind: Literal["fired", "resolved"]
    severity: Severity
    since_step: int
    value: float | None = None
    baseline: float | None = None
    siblings: float | None = None
    evidence: Evidence | None = None
    resolution: Resolution | None = None
    jumps: tuple[Jump, ...] = ()
