"""Steps of a batch as detectors see them, and the base class of detectors.

A detector sees each step once: alone (``observe``), or in a span of steps in which nothing can fire or resolve
(``skip``). Both leave the same state, to the last bit. Nearly all steps of nearly all runs are skipped. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradcanary import wire
from gradcanary_server.rules import signals
from gradcanary_server.rules.activity import NEVER_GAINED, Activity
from gradcanary_server.rules.config import Rules
from gradcanary_server.rules.layer_config import LayerRules
from gradcanary_server.rules.signals import Vote
from gradcanary_server.rules.types import (
    MEASURED,
    NO_GRADIENT,
    NONFINITE,
    NOT_TRAINABLE,
    ZERO,
    Floats,
    Ints,
    Launch,
    Mask,
    Samples,
    Votes,
)

if TYPE_CHECKING:
    from gradcanary_server.rules.state import RuleState


POST_CLIP = wire.PHASES.index("post_clip")

SPARSE_STATS = (
    "accumulation_error",
    "norm_ratio",
    "frozen_fraction",
    "zero_fraction",
    "update_ratio",
    "weight_norm",
)
"""Stats that a layer has at some steps only."""

BY_SCALER, BY_LOOP = 1, 2
"""The reason of a skipped window: the GradScaler or the training loop; 0 = not skipped."""


@dataclass(frozen=True, kw_only=True)
class LayerPlanes:
    """Gradients of L layers at a step, [L], or at n steps, [n, L].

    ``absmax`` and ``norm`` are NaN where not measured, ``level`` is log10 of absmax (-inf = exact zero). A layer
    ``has_gradient`` that is not zero, or is ``idle`` (none or zero), or was not measured. ``not_trainable`` is
    idle because the script froze the layer. ``values`` are the ``SPARSE_STATS`` that were sent; ``lr`` is by group.
    """

    every: int
    absmax: Floats
    norm: Floats
    level: Floats
    is_measured: Mask
    zero: Mask
    nonfinite: Mask
    has_gradient: Mask
    idle: Mask
    not_trainable: Mask
    lr: NDArray[np.float32]
    values: dict[str, NDArray[np.float32]]


@dataclass(frozen=True, kw_only=True)
class Sample(LayerPlanes):
    """One step. ``is_comparable`` is False after clipping: one exploding layer shrinks all others."""

    step: int
    skipped: int
    is_comparable: bool
    clipped: bool
    micro_steps: int


@dataclass(frozen=True, kw_only=True)
class SampleBatch(LayerPlanes):
    """Sampled steps, int64[n] rising, each like a :class:`Sample`."""

    steps: Ints
    skipped: NDArray[np.uint8]
    is_comparable: Mask
    clipped: Mask
    micro_steps: NDArray[np.int16]

    @classmethod
    def of(cls, samples: Samples, layers: int) -> SampleBatch:
        """Return the steps of samples with ``layers`` layers; a partial sample counts as not measured."""
        state = samples.state.reshape(len(samples.steps), layers)  # without steps, samples do not know their layers
        nothing = np.zeros(state.shape, np.bool_)
        is_plain = not state.any()  # all measured, as nearly always: six planes less to make
        measured = ~nothing if is_plain else (state == MEASURED) | (state == ZERO)
        nonfinite, not_trainable = (nothing if is_plain else state == code for code in (NONFINITE, NOT_TRAINABLE))
        absmax, norm = (_measured_values(samples, stat, measured, is_plain=is_plain) for stat in ("absmax", "norm"))
        with np.errstate(divide="ignore"):
            level = np.log10(absmax)
        zero = absmax == 0 if is_plain else (absmax == 0) | (state == ZERO)
        return cls(
            steps=samples.steps,
            every=samples.every,
            skipped=samples.skipped,
            is_comparable=samples.phase != POST_CLIP,
            absmax=absmax,
            norm=norm,
            level=level,
            is_measured=~np.isnan(absmax),
            zero=zero,
            nonfinite=nonfinite,
            has_gradient=~zero if is_plain else (measured & ~zero) | nonfinite,
            idle=zero if is_plain else (state == NO_GRADIENT) | zero | not_trainable,
            not_trainable=not_trainable,
            clipped=samples.clipped,
            micro_steps=samples.micro_steps,
            values={stat: samples.values[stat].reshape(state.shape) for stat in SPARSE_STATS if stat in samples.values},
            lr=samples.lr,
        )

    def between(self, begin: int, end: int) -> SampleBatch:
        """Return the steps from row ``begin`` to before row ``end``."""
        if end - begin == len(self.steps):
            return self
        return SampleBatch(**self._slice(slice(begin, end), _BATCH_ARRAYS))

    def at(self, row: int) -> Sample:
        return Sample(
            step=int(self.steps[row]),
            skipped=int(self.skipped[row]),
            is_comparable=bool(self.is_comparable[row]),
            clipped=bool(self.clipped[row]),
            micro_steps=int(self.micro_steps[row]),
            **self._slice(row, _PLANES),
        )

    def _slice(self, rows: int | slice, names: tuple[str, ...]) -> dict[str, Any]:
        values = {stat: array[rows] for stat, array in self.values.items()}
        return {"every": self.every, "values": values, **{name: getattr(self, name)[rows] for name in names}}


_PLANES = tuple(field.name for field in fields(LayerPlanes) if field.name not in ("every", "values"))
_BATCH_ARRAYS = tuple(field.name for field in fields(SampleBatch) if field.name not in ("every", "values"))


def _measured_values(samples: Samples, stat: str, measured: Mask, *, is_plain: bool) -> Floats:
    if stat not in samples.values:
        return np.full(measured.shape, np.nan)
    values = samples.values[stat].astype(np.float64).reshape(measured.shape)
    if not is_plain and not measured.all():
        values[~measured] = np.nan
    return values


@dataclass(frozen=True)
class Loss:
    """A loss; ``skipped`` is the reason why its step was skipped, 0 = not skipped, or unknown."""

    step: int
    value: float
    skipped: int


@dataclass(frozen=True)
class Losses:
    """``steps`` int64[m] never fall, ``values`` float64[m], ``skipped`` uint8[m]."""

    steps: Ints
    values: Floats
    skipped: NDArray[np.uint8]

    @classmethod
    def of(cls, samples: Samples, after: int) -> Losses:
        """Return the losses of steps after step ``after``."""
        order = np.argsort(samples.loss_steps, kind="stable")
        order = order[samples.loss_steps[order] > after]
        steps = samples.loss_steps[order]
        skipped = np.zeros(len(steps), np.uint8)
        if samples.skipped.any():
            row = np.minimum(np.searchsorted(samples.steps, steps), len(samples.steps) - 1)
            skipped = np.where(samples.steps[row] == steps, samples.skipped[row], 0).astype(np.uint8)
        return cls(steps, samples.loss[order], skipped)

    def __len__(self) -> int:
        return len(self.steps)

    def count_until(self, step: int) -> int:
        """Return the number of losses up to a step."""
        return int(np.searchsorted(self.steps, step, side="right"))

    def at(self, index: int) -> Loss:
        return Loss(int(self.steps[index]), float(self.values[index]), int(self.skipped[index]))

    def between(self, begin: int, end: int) -> Losses:
        """Return the losses from index ``begin`` to before ``end``."""
        return Losses(self.steps[begin:end], self.values[begin:end], self.skipped[begin:end])


@dataclass
class Context:
    """Shared by the detectors of one evaluation; they change ``state``. ``config`` is ``rules`` by layer."""

    state: RuleState
    launch: Launch
    rules: Rules
    config: LayerRules
    batch: SampleBatch
    losses: Losses
    samples: Samples

    def __post_init__(self) -> None:
        self.own_loss = find_own_loss(self.launch)
        """Layers whose gradients come from a loss that is not on record, bool[L]; None = no layers."""
        self.low: Mask = (self.batch.absmax < self.config.enter) & self.config.enabled
        """Layers under ``enter`` at each step, bool[n, L]."""


def find_own_loss(launch: Launch) -> Mask | None:
    """Return the layers that agents reported to have backward passes of their own, bool[L], None if there are none."""
    names = {name for fact in launch.facts if fact.code == wire.OWN_LOSS for name in fact.layers}
    if not names:
        return None
    own_loss = np.array([layer.name in names for layer in launch.layers], np.bool_)
    return own_loss if own_loss.any() and not own_loss.all() else None


class Falls(NamedTuple):
    """Gradients of L layers below their baselines at a step, [L], or at n steps, [n, L].

    ``baseline`` float64[L] is log10, NaN = none yet; ``decades`` are those under it; ``alive`` layers have had a
    gradient; ``zero_counts`` bool[L] are layers whose exact zeros count as a fall.
    """

    sample: LayerPlanes
    baseline: Floats
    decades: Floats
    alive: Mask
    zero_counts: Mask

    def of(self, layers: Mask) -> Falls:
        """Return the falls in which only these layers are alive, bool[L]: they alone have a fall in common."""
        return self._replace(alive=self.alive & layers)


class Span:
    """Rows ``begin`` to before ``end`` of a batch: of one phase, all in grace or all after it, closing no block.

    The arrays are derived once, for all detectors. After :meth:`shorten` those of n rows have more rows than the span.
    """

    far: tuple[Mask, Mask] | None = None
    """Set by the detector of scale_drop: steps with all layers far under their baselines, and steps at which that is
    known."""

    def __init__(self, context: Context, begin: int, end: int, *, grace_over: bool) -> None:
        state, config = context.state, context.config
        self.begin, self.end = begin, end
        self.grace_over = grace_over
        self.is_comparable = bool(context.batch.is_comparable[begin])
        self.is_watched = self.is_comparable and grace_over
        """True if falls are detected and baselines learnt in these steps."""
        self.samples = samples = context.batch.between(begin, end)
        has_gap = state.activity.idle[config.at].any() or not samples.has_gradient.all()
        self.all_have_gradient = not has_gap
        """True if every layer had a gradient at these steps and at the one before."""
        self.baseline = state.baselines.levels(config.at)
        if self.is_comparable:
            alive, rule = state.alive[config.at], config.vanished
            if not alive.all():
                has_gradient = samples.is_measured & ~samples.zero
                alive = alive | np.logical_or.accumulate(has_gradient, axis=0)
            zero_counts = alive  # layers whose exact zeros may count in these steps, of no matter without one
            if samples.zero.any():
                zero_counts = state.activity.may_be_regular(
                    config.columns, rule.steady_share, rule.observations, end - begin
                )
            self.falls = Falls(samples, self.baseline, self.baseline - samples.level, alive, zero_counts)

    def __len__(self) -> int:
        return self.end - self.begin

    def shorten(self, length: int) -> None:
        """Keep the first ``length`` rows."""
        self.end = min(self.end, self.begin + length)

    def free_arrays(self) -> None:
        """Free arrays that only ``quiet_rows`` reads: ``skip`` uses their memory (3 % of a batch of 4,000 layers)."""
        self.__dict__.pop("falls", None)


UNKNOWN_FALL = np.array(np.nan)


class Step:
    """One step and the results of earlier detectors at it.

    ``exploding`` bool[L] are layers over their limit; ``common_fall`` is the decades that all layers fell, NaN
    while unknown, of the layers whose loss is on record; ``own_fall`` is that of the others, and ``is_own_fall`` that
    it counts; ``siblings`` float64[L] is the level of each layer's siblings, NaN = unknown; ``has_changed`` is
    True if something fires, or has another severity, without a vote.
    """

    def __init__(self, sample: Sample, nothing: tuple[Mask, Floats]) -> None:
        self.sample = sample
        self.exploding, self.siblings = nothing
        self.common_fall: Floats = UNKNOWN_FALL
        self.own_fall: Floats = UNKNOWN_FALL
        self.is_own_fall = False
        self.has_changed = False


class Detector:
    """Base class of a rule in one evaluation.

    ``eventful`` bool[n] are rows that it must observe, whatever the state is; None = no rows.
    """

    sees_skipped: ClassVar[bool] = False
    """True if it observes windows without an optimizer step."""

    eventful: Mask | None = None

    def __init__(self, context: Context) -> None:
        self.context = context
        self.state = context.state
        self.config = context.config

    def is_active(self) -> bool:
        """Return True while any next step may move a count."""
        return False

    def quiet_rows(self, span: Span) -> int:
        """Return the number of first rows of a span that it may skip."""
        return len(span)

    def skip(self, span: Span) -> None:
        """Add the steps of a span without votes to the state."""

    def observe(self, step: Step) -> Iterator[Vote]:
        """Yield votes about one step. The evaluator applies each vote before it takes the next one."""
        raise NotImplementedError

    def vote(
        self,
        signal: int,
        step: Step,
        votes: Votes,
        *,
        fire_after: NDArray[np.float32] | None = None,
        since: int | Ints | None = None,
        every: int | None = None,
        decays: Mask | None = None,
    ) -> Vote:
        """Return votes about the layers at a step, by default with the counts of the rule collapse."""
        return Vote(
            scores=self.state.scores,
            signal=signal,
            step=step.sample.step if since is None else since,
            every=step.sample.every if every is None else every,
            columns=self.config.columns,
            votes=votes,
            fire_after=self.config.fire_after if fire_after is None else fire_after,
            resolve_after=self.config.resolve_after,
            decays=decays,
        )

    def run_vote(self, signal: int, step: int, every: int, vote: int, fire_after: float) -> Vote:
        """Return a vote about the whole run."""
        return Vote(
            scores=self.state.of_run,
            signal=signal,
            step=step,
            every=every,
            columns=np.zeros(1, np.int64),
            votes=np.array([vote], np.int8),
            fire_after=np.array([fire_after], np.float32),
            resolve_after=np.array([self.context.rules.collapse.resolve_after_steps], np.float32),
        )


def any_layer(votes: NDArray[np.generic]) -> Mask:
    """Return the steps, bool[n], with a value above 0 in ``votes`` [n, L]."""
    steps: Mask = np.greater(votes, 0).any(axis=1)
    return steps


AT_ONCE = np.array(1, np.float32)
"""``fire_after`` of a rule that one observation decides."""


def first_true(mask: Mask) -> int:
    """Return the index of the first True, the length if there is none."""
    first = int(mask.argmax()) if len(mask) else 0
    return first if len(mask) and mask[first] else len(mask)


def is_regular(activity: Activity, config: LayerRules) -> Mask:
    """Return the layers that nearly always had a gradient before the present idle span."""
    return activity.regular(config.columns, config.vanished.steady_share, config.vanished.observations)


def find_handed_over(activity: Activity, config: LayerRules, every: int, lost: Mask) -> Mask:
    """Return the layers of those that ``lost`` their gradient in the step in which a layer like them gained its own.

    A change inside a window shows in two steps, so one sample more or less counts as the same. The other layer still
    had a gradient in the last half of that time: an expert that is asked once in a while has taken over nothing.
    """
    handed_over = np.zeros(len(lost), np.bool_)
    gained, since = activity.gained[config.columns], activity.idle_since[config.columns]
    idle = activity.idle[config.columns].astype(np.int64)
    if not lost.any() or not activity.has_gains(config.columns):
        return handed_over
    for position in np.flatnonzero(lost).tolist():
        like = config.like(position)
        is_same_step = (gained[like] != NEVER_GAINED) & (np.abs(gained[like] - since[position]) <= every)
        handed_over[position] = bool((is_same_step & (2 * idle[like] <= idle[position])).any())
    return handed_over


def find_zero_counts(activity: Activity, config: LayerRules, firing: Mask) -> Mask:
    """Return the layers whose exact zeros count as a fall: not those that are zero now and then, nor those missed."""
    zero_counts: Mask = is_regular(activity, config) & ~firing[signals.MISSED].any(axis=0)
    return zero_counts
