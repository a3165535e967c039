"""Types of the rules: samples, launches, transitions, and arrays with one entry per layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Protocol, Self, TypeVar, get_args

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gradcanary import wire
from gradcanary.wire import Accumulator, Crash, Fact, MetricBound

Mask = NDArray[np.bool_]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Votes = NDArray[np.int8]

Severity = Literal["information", "warning", "critical"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""In rising order. The rules count with their indices, and -1 is none."""

MEASURED, NO_GRADIENT, ZERO, NONFINITE, NOT_TRAINABLE, PARTIAL = range(len(wire.STATES))
Evidence = Literal[
    "fall",
    "straight",
    "siblings",
    "follows",
    "threshold",
    "joined_late",
    "stopped",
    "sporadic",
    "by_script",
    "handed_over",
    "never",
    "not_in_graph",
    "multiplied_by_zero",
    "declared",
    "low_precision_sum",
    "rounded",
    "clipped",
    "unmoved",
    "apart",
    "tiny",
    "no_rate",
    "undone",
    "too_fine",
    "slow",
    "measured",
    "no_scaler",
    "zeros",
    "all_zeros",
    "at_limit",
    "no_step",
    "lost_rank",
    "no_loss",
    "own_loss",
    "loss_rose",
    "loss_steady",
    "under_bound",
    "over_bound",
    "fell",
    "rose",
    "not_finite",
]
Resolution = Literal["recovered", "layer_gone", "resumed", "rebaselined", "rule_changed"]


@dataclass(frozen=True)
class LayerFacts:
    """A layer as the rules need it; ``number`` is its layer_no in the run."""

    number: int
    name: str
    shape: tuple[int, ...]
    param_dtype: str
    module_class: str | None
    group: int | None


@dataclass(frozen=True)
class Launch:
    """One start of a job, with one layer set.

    ``layers[i]`` belongs to column i of the samples; ``newer`` are the numbers of the launches that began later,
    ``has_older`` that one began before; ``facts`` are those that the agents of the run have reported until now;
    ``optimizers`` are the class names by parameter group, as far as they are known; ``metrics`` are bounds that the
    agent declared, ``collapse_below`` is the ``enter`` of collapse that it declared.
    """

    number: int
    first_step: int
    late: bool
    absmax_below: float | None
    norm_below: float | None
    layers: tuple[LayerFacts, ...]
    newer: frozenset[int] = frozenset()
    has_older: bool = False
    facts: tuple[Fact, ...] = ()
    optimizers: tuple[str, ...] = ()
    metrics: tuple[MetricBound, ...] = ()
    collapse_below: float | None = None


class MetricPoints(Protocol):
    """Points of a series in their order of arrival: ``tags`` is canonical JSON, ``steps`` int64[m], ``values``
    float64[m]."""

    @property
    def name(self) -> str: ...
    @property
    def tags(self) -> str: ...
    @property
    def steps(self) -> Ints: ...
    @property
    def values(self) -> Floats: ...


@dataclass(frozen=True)
class Samples:
    """n steps of L layers, strictly rising inside a launch, and the losses that were sent with them.

    ``phase`` (index into wire.PHASES, of absmax) and ``skipped`` are uint8[n]; ``state`` is uint8[n, L] of indices
    into wire.STATES; ``values`` holds float32[n, L] per stat, NaN where the state says why; ``lr`` is
    float32[n, groups], NaN = unknown; ``accumulators`` hold from the first step on; ``loss_steps`` int64[m] and
    ``loss`` float64[m] are sparse, and a NaN there is a loss that was NaN. ``scales`` of a GradScaler and
    ``skipped_totals``, the steps that it skipped until then, are float64[n], NaN = unknown, None where there is none.
    ``metrics`` are all series.
    """

    steps: Ints
    every: int
    phase: NDArray[np.uint8]
    state: NDArray[np.uint8]
    values: dict[str, NDArray[np.float32]]
    skipped: NDArray[np.uint8]
    clipped: Mask
    micro_steps: NDArray[np.int16]
    lr: NDArray[np.float32]
    accumulators: tuple[Accumulator, ...] = ()
    loss_steps: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    loss: Floats = field(default_factory=lambda: np.empty(0, np.float64))
    scales: Floats | None = None
    skipped_totals: Floats | None = None
    metrics: Sequence[MetricPoints] = ()


@dataclass(frozen=True)
class Jump:
    """A jump of the learning rate of a parameter group; ``step`` is the first one with the new rate.

    ``highest`` is the highest rate of the group in the launch until then, None if unknown. ``now`` is the rate at a
    step long after a jump that is still in force then, None shortly after a jump.
    """

    group: int
    step: int
    before: float
    after: float
    highest: float | None = None
    now: float | None = None


@dataclass(frozen=True)
class ScaleFall:
    """A GradScaler's scale that fell from its highest working value, None = unknown, between two steps; ``skipped`` is
    the share of the steps between them that it skipped, None = unknown."""

    before: float | None
    after: float
    first: int
    last: int
    skipped: float | None


@dataclass(frozen=True)
class CommonFall:
    """A fall of all gradients: none (or a small one), ``gradual`` by ``decades`` until now, or ``abrupt``."""

    kind: Literal["none", "gradual", "abrupt"] = "none"
    decades: float = 0.0


NO_FALL = CommonFall()


@dataclass(frozen=True)
class Unmoved:
    """The last measured shares of low-precision weights that stood still, by number of the layer; a sample of them.

    Most have stood still since the step ``since``, when the loss was at ``loss``, a median with its standard error.
    """

    shares: tuple[tuple[int, float], ...] = ()
    since: int = -1
    loss: float | None = None
    loss_error: float | None = None


NOTHING_UNMOVED = Unmoved()


@dataclass(frozen=True)
class SeriesFacts:
    """A series of a metric that fires: ``tags`` is canonical JSON, ``bound`` the number that its value crossed, None
    where it is not finite.

    ``total`` counts the series with bounds in the run, ``alike`` those with this name and these tags' names, of which
    the mean of the levels is ``mean_level`` and that of the last values ``mean``; both are None where a level or a
    value is unknown.
    """

    name: str
    tags: str
    bound: float | None
    total: int
    alike: int
    mean_level: float | None
    mean: float | None


@dataclass(frozen=True)
class Transition:
    """A layer (None: the whole run) began to fire for a rule, got a higher severity while firing, or resolved.

    ``step`` is the observation that decided it, ``since_step`` the first bad observation of that count; ``value``,
    ``baseline`` and ``siblings`` are its evidence, None where the rule has none. Of a layer that seldom has a gradient
    (``sporadic``) value and baseline are sampled steps: those without one, and the most from one gradient to the next.
    ``jumps`` are the jumps of learning rates shortly before, or still in force, ``scale_fall`` that of a GradScaler's
    scale until then; ``crash`` is the exception of the rule crash, in the process ``rank``. A series of a metric has a
    number under that of all layers as its ``layer`` (:func:`series_member`), and facts in ``series`` when it fires.
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
    scale_fall: ScaleFall | None = None
    crash: Crash | None = None
    rank: int | None = None
    series: SeriesFacts | None = None


Value = TypeVar("Value")


def replaced(value: Value, **changes: object) -> Value:
    """Return a frozen dataclass with other values of some fields, unchecked: a tenth of the time of ``replace``."""
    if not vars(value).keys() >= changes.keys():
        raise TypeError(f"{type(value).__name__} has no field {min(changes.keys() - vars(value).keys())!r}")
    other = object.__new__(type(value))
    vars(other).update(vars(value), **changes)
    return other


def series_member(number: int) -> int:
    """Return the number of a series, from 0, among layers: -2, -3, ...; -1 is the whole run in the tables."""
    return -2 - number


def layer_array(dtype: DTypeLike, unseen: float = 0, *, is_table: bool = False) -> Any:  # noqa: ANN401 -- as dataclasses.field
    """Return the field of an array [N], of a table [rows, N]; ``unseen`` is the value of a layer never seen."""
    return field(metadata={"array": (dtype, unseen, is_table)})


@dataclass
class LayerArrays:
    """Base class: every field is a :func:`layer_array`, and N counts the layers by their numbers."""

    @classmethod
    def none(cls, layers: int, rows: int = 0) -> Self:
        """Return the arrays of layers that were never seen; a table has ``rows`` rows."""
        return cls(
            *(
                np.full((rows, layers) if is_table else layers, unseen, dtype)
                for dtype, unseen, is_table in cls._columns()
            )
        )

    def copy(self) -> Self:
        return type(self)(*map(np.ndarray.copy, self.arrays()))

    def widen(self, layers: int, rows: int = 0) -> Self:
        """Return these arrays with room for more layers, and tables with at least ``rows`` rows."""
        rows = max(rows, *(len(array) for array in self.arrays() if array.ndim == 2), 0)
        wider = self.none(layers, rows)
        for array, wider_array in zip(self.arrays(), wider.arrays(), strict=True):
            wider_array[tuple(map(slice, array.shape))] = array
        return wider

    def forget(self, columns: Ints | Mask | slice) -> None:
        """Make these layers as if they were never seen."""
        for array, (_, unseen, _) in zip(self.arrays(), self._columns(), strict=True):
            array[..., columns] = unseen

    def arrays(self) -> tuple[NDArray[Any], ...]:
        return tuple(vars(self).values())

    @classmethod
    def _columns(cls) -> list[tuple[DTypeLike, float, bool]]:
        return [column.metadata["array"] for column in fields(cls)]
