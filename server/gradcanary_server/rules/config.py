"""Configuration of the rules: every threshold with its reason, and its JSON.

A wrong type, an impossible value or an unknown key is a validation error. ``rules.yaml`` may change the defaults
(:mod:`gradcanary_server.rules.config_file`). The first entry of ``layers`` whose expression matches a layer's name
applies to it, with ``rules`` for omitted keys. A rule without ``notify`` opens incidents on the pages only.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import field, fields, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self, TypeAlias

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, model_validator
from pydantic.dataclasses import dataclass
from pydantic_core import PydanticCustomError

from gradcanary.wire import MAX_METRIC_OBSERVATIONS, MetricBound
from gradcanary_server.rules.activity import BLOCK

EVIDENCE = ("fall", "siblings")
"""Evidence that a small gradient was larger before; "threshold" needs no evidence besides ``enter``."""

THRESHOLD = ("threshold",)

MAX_OBSERVATIONS = 1_000
"""The state holds each observation of an open block, per layer."""

MAX_DECADES = 60
"""More than float32 has."""

Flag = Annotated[bool, Field(strict=True)]
Count = Annotated[int, Field(strict=True, gt=0)]
Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(strict=True, gt=0, le=1)]
Decades = Annotated[float, Field(strict=True, gt=0, le=MAX_DECADES)]
Finite = Annotated[float, Field(strict=True, allow_inf_nan=False)]

STRICT = ConfigDict(extra="forbid")


def _beyond(key: str, allowed: str) -> PydanticCustomError:
    return PydanticCustomError("beyond", "allowed is {allowed}", {"key": key, "allowed": allowed})


def _parse_evidence(value: object) -> object:
    if value in ("threshold", THRESHOLD, [*THRESHOLD]):
        return THRESHOLD
    if isinstance(value, list | tuple) and 0 < len(value) == len({*map(str, value)}) and {*value} <= {*EVIDENCE}:
        return tuple(evidence for evidence in EVIDENCE if evidence in value)
    allowed = f"a list of {', '.join(EVIDENCE)}, or the word threshold"
    raise PydanticCustomError("evidence", "allowed is {allowed}", {"allowed": allowed})


def _check_expression(value: object) -> object:
    try:
        re.compile(value if isinstance(value, str) else "(")
    except re.error as error:
        allowed = f"a regular expression ({error})" if isinstance(value, str) else "a regular expression"
        raise PydanticCustomError("expression", "allowed is {allowed}", {"allowed": allowed}) from error
    return value


Evidence = Annotated[tuple[str, ...], BeforeValidator(_parse_evidence)]
Expression = Annotated[str, BeforeValidator(_check_expression)]


@dataclass(frozen=True, config=STRICT)
class Section:
    """Numbers of one rule, by the name of the rule in :class:`Rules`."""

    run_wide: ClassVar[tuple[str, ...]] = ("notify",)
    """Keys that an entry of ``layers`` may not have: an incident and its messages are about all layers of a rule, and a
    GradScaler, a loss, a learning rate and a clip do not belong to a layer."""
    is_float32: ClassVar[bool] = False
    """True if its numbers are compared in float32, as they are measured: a measured error of 0.05 is not over 0.05."""

    enabled: Flag = True
    notify: Flag = True


@dataclass(frozen=True, config=STRICT)
class Collapse(Section):
    """Layers that stopped learning. The defaults were tried on traces of short real jobs and were not delicate."""

    enter: Positive = 1e-4
    """absmax under which a layer is low."""
    exit: Positive = 3e-4
    """absmax over which a layer counts as recovered; between the two nothing is decided."""
    evidence: Evidence = EVIDENCE
    fall_decades: Decades = 1.5
    """Decades under the layer's own baseline."""
    over_common_decades: Decades = 1.0
    """Decades more than (nearly) all layers fell: a rescaled loss shrinks all alike."""
    baseline_observations: Annotated[Count, Field(le=MAX_OBSERVATIONS)] = 50
    """Consecutive observations whose median can become the baseline; at most 10 where every >= 10."""
    norm_below: Positive | None = None
    """L2 norm under which a layer fires without evidence; None = no such threshold."""
    siblings_min: Count = 4
    siblings_decades: Decades = 2.0
    """Decades under the upper quartile of the siblings, or under the best but one where most of them are sick."""
    fire_after_steps: Count = 20
    resolve_after_steps: Count = 100

    @model_validator(mode="after")
    def _check_hysteresis(self) -> Self:
        if self.exit < self.enter:
            raise _beyond("exit", f"at least enter, {self.enter:g}")
        return self

    def of_run(self, enter: float | None) -> Self:
        """Return the rule with a run's ``enter``, and ``exit`` in its ratio; one without evidence keeps its own."""
        if enter is None or self.evidence == THRESHOLD:
            return self
        return replace(self, enter=enter, exit=min(enter * (self.exit / self.enter), sys.float_info.max))


@dataclass(frozen=True, config=STRICT)
class ScaleDrop(Section):
    """All gradients fell together."""

    common_decades: Decades = 1.5


@dataclass(frozen=True, config=STRICT)
class Nonfinite(Section):
    """NaN or infinity in a gradient or the loss."""

    run_wide = ("notify", "skipped_in_row")

    skipped_in_row: Count = 20
    """Steps that a GradScaler skips in a row before they count: it skips some while it searches its scale."""


@dataclass(frozen=True, config=STRICT)
class Explosion(Section):
    """Gradients far over what they were."""

    run_wide = ("notify", "loss_ratio")

    ratio: Positive = 100.0
    """Times the larger of the layer's own baseline and the upper quartile of all baselines. Healthy gradients stay
    within a decade of their medians; two decades are half again as far as a single bad batch was seen to go."""
    absmax: Positive = 1e4
    """Whatever the baseline, unless the layer began so: float16 ends at 65504, and a step of SGD this long is none."""
    observations: Count = 3
    """More than one, because an outlier in the data makes one; few, because a run is lost soon."""
    loss_ratio: Positive = 10.0
    """The loss over its level that makes it critical: then the weights have gone, too."""


@dataclass(frozen=True, config=STRICT)
class Vanished(Section):
    """A layer that had a gradient and lost it."""

    steady_share: Share = 0.95
    """Of the observations before: a layer that is idle more often, an expert or a rare word, fires later."""
    observations: Annotated[Count, Field(le=BLOCK)] = 50
    """Observations needed, as for a baseline; the history has at most 199."""
    fire_after_steps: Count = 20
    """As collapse; 5 observations where few steps are sampled."""
    rare_factor: Count = 10
    """Times the longest idle span that a layer had before: if gradients come at random, one so long has a chance of
    about e^-10 where spans of the usual length have one of e^-1."""


@dataclass(frozen=True, config=STRICT)
class Unused(Section):
    """A trainable layer that never had a gradient: information, because models have heads that a task does not use, and
    work; a warning if most layers, or all adapters, are such."""

    observations: Count = 50
    """Of a launch: a LoRA's lora_A and a gate that starts at zero have no gradient for a step or two."""


@dataclass(frozen=True, config=STRICT)
class AccumulationLoss(Section):
    """Sums of gradients that lost a part, measured against float32."""

    is_float32 = True

    error: Positive = 0.05
    """|lost| / |exact|: ten times what 8 gradients in bfloat16 lose, a quarter of what 512 coherent ones lose."""
    norm_ratio: Share = 0.95


@dataclass(frozen=True, config=STRICT)
class Accumulator(Section):
    """Sums of gradients in low precision, or in another one than was declared."""

    notify: Flag = False
    """Most bfloat16 trainings are fine; accumulation_loss measures the real loss."""
    warn_above: Positive = 0.01
    """The predicted share that the sum loses; bfloat16 reaches it at 64 micro-steps."""


@dataclass(frozen=True, config=STRICT)
class Frozen(Section):
    """Weights of low precision that do not move."""

    run_wide = ("notify", "least_lr_share")
    is_float32 = True

    notify: Flag = False
    """Every fine-tune in pure bfloat16 at 2e-5 is frozen, often on purpose."""
    share: Share = 0.5
    """Of elements that fifty steps did not change: most of the layer."""
    moved_share: Share = 0.5
    stopped_share: Share = 0.9
    """A layer has stopped if less than ``moved_share`` of it stood still once, and more than ``stopped_share`` now."""
    least_lr_share: Share = 0.1
    """Of the highest learning rate: under it weights may stand still."""


@dataclass(frozen=True, config=STRICT)
class InVain(Section):
    """Low-precision weights that hardly move, in most measured layers, while the loss is flat."""

    run_wide = ("notify", "steps", "least_lr_share")
    is_float32 = True

    share: Share = 0.95
    """Of the elements of a layer that fifty steps did not change. What a healthy fine-tune at 1e-5 leaves is less."""
    steps: Count = 100
    """Steps for which they stand still: at least two measurements."""
    least_lr_share: Share = 0.1
    """As of frozen."""


@dataclass(frozen=True, config=STRICT)
class NoUpdate(Section):
    """Weights that do not move, or hardly, though they have a gradient."""

    run_wide = ("notify", "least_lr_share")
    is_float32 = True

    ratio: Positive = 1e-7
    """Of a step's change to the weights, under which all of them hardly move: in a million steps that all go the same
    way they would change by a tenth, and the precision of float32 is about as much."""
    rate_share: Share = 0.05
    """Of the learning rate, by which Adam would move a weight: its first step is the whole of it, and gradients of pure
    noise give 0.23 of it later, with the usual betas."""
    apart_decades: Decades = 2.0
    """Under the upper quartile of all layers. Norms, whose weights are 1, are 1.7 decades under matrices."""
    least_lr_share: Share = 0.1
    """As of frozen."""


@dataclass(frozen=True, config=STRICT)
class SecondMoments(Section):
    """Second moments of an optimizer in a precision in which they cannot decay."""

    notify: Flag = False
    """Many trainings in pure bfloat16 have them, and learn."""


@dataclass(frozen=True, config=STRICT)
class Fp16Underflow(Section):
    """Gradients computed in float16, where values under 6e-8 are zero."""

    is_float32 = True

    notify: Flag = False
    growth: Share = 0.25
    """Of the share of exact zeros over its least value in the layer: sparse gradients have many from the start. Over 0
    where most other elements are among the smallest numbers of float16: sparse gradients have no such ones."""
    share: Share = 0.9
    """The critical share of exact zeros."""
    observations: Count = 5


@dataclass(frozen=True, config=STRICT)
class ClipBeforeUnscale(Section):
    """Gradients that are clipped before the loss scale is removed: they become thousands of times too small."""


@dataclass(frozen=True, config=STRICT)
class LossScale(Section):
    """A GradScaler whose scale fell by 2^10 while it goes on to skip steps, or under 1."""


@dataclass(frozen=True, config=STRICT)
class NotOptimized(Section):
    """Trainable parameters that receive gradients and that no optimizer holds: they never change."""


@dataclass(frozen=True, config=STRICT)
class NeverCleared(Section):
    """Gradients that no part of the loop clears after a step: each step uses the sum of all so far."""


@dataclass(frozen=True, config=STRICT)
class Silent(Section):
    """A run without requests and without an end: it was killed, or cannot reach the collector."""

    after_s: Positive = 300.0
    """Since the last request, and since the collector listens again; an agent retries within 75 s."""
    intervals: Count = 10
    """Of its heartbeats, and never less than ``after_s``."""


@dataclass(frozen=True, config=STRICT)
class Stalled(Section):
    """A run with a live process and without steps."""

    after_s: Positive = 1_800.0
    """Longer than most evaluations, and than the ten minutes after which NCCL ends a collective that ranks miss."""
    steps: Count = 20
    """Mean step times (liveness.StepTimes); never less than ``after_s``: slow steps vary by a part of themselves."""
    pause_factor: Positive = 2.0
    """Times the longest pause between two steps that ended by itself: an evaluation."""


@dataclass(frozen=True, config=STRICT)
class Crash(Section):
    """An exception that ended the training, as the agent reports it with the end of a process."""


@dataclass(frozen=True, config=STRICT)
class Metric(Section):
    """Series of metrics that are logged; their bounds are in ``metrics``, or declared by the agent."""


@dataclass(frozen=True, config=STRICT)
class Grace:
    """Steps of a launch in which falls are not looked for: ``steps``, and while lr rises at most ``max_steps``."""

    steps: Count = 50
    max_steps: Count = 1_000

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.max_steps < self.steps:
            raise _beyond("max_steps", f"at least steps, {self.steps}")
        return self


@dataclass(frozen=True, config=STRICT)
class Pace:
    """Intervals of messages; ``pace:`` of rules.yaml."""

    wait_s: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)] = 10.0
    """Gathers the layers of one event into the first message."""
    interval_s: Positive = 900.0
    """The least distance between two messages of one incident; doubles with each reopening."""
    growth: Annotated[float, Field(strict=True, gt=1, allow_inf_nan=False)] = 2.0
    """This many times the layers in the last message make a new message."""
    remind_s: Positive = 86_400.0
    reopen_s: Positive = 21_600.0
    """A refire this soon after a resolution continues the incident; later it is a new one."""


@dataclass(frozen=True, config=STRICT)
class LayerRule:
    """Rules for layers whose names match; None = as for all others."""

    match: Expression
    collapse: Collapse | None = None
    nonfinite: Nonfinite | None = None
    explosion: Explosion | None = None
    vanished: Vanished | None = None
    unused: Unused | None = None
    accumulation_loss: AccumulationLoss | None = None
    accumulator: Accumulator | None = None
    frozen: Frozen | None = None
    in_vain: InVain | None = None
    no_update: NoUpdate | None = None
    second_moments: SecondMoments | None = None
    fp16_underflow: Fp16Underflow | None = None
    not_optimized: NotOptimized | None = None
    never_cleared: NeverCleared | None = None


@dataclass(frozen=True, config=STRICT)
class MetricRule:
    """Bounds of metrics whose names match, for each set of tags by itself; a tag that is given must be there and match.

    A series that no entry matches has no bounds: no number is right for a metric that is not known.
    """

    match: Expression
    tags: dict[str, Expression] = field(default_factory=dict, hash=False)
    below: Finite | None = None
    above: Finite | None = None
    falls_by: Share | None = None
    """Share of the level of the series, the largest median of five values in a row; ``rises_by`` of the smallest."""
    rises_by: Positive | None = None
    observations: Annotated[Count, Field(le=MAX_METRIC_OBSERVATIONS)] = 3
    """Of the series, not steps: evaluations are rare, and one that is noisy is no fault. A good one takes half of a bad
    one back; as many good ones end it."""
    severity: Literal["warning", "critical"] = "warning"
    enabled: Flag = True

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if self.enabled and all(bound is None for bound in (self.below, self.above, self.falls_by, self.rises_by)):
            raise _beyond("match", "an expression beside one of below, above, falls_by, rises_by")
        if self.below is not None and self.above is not None and self.above <= self.below:
            raise _beyond("above", f"over below, {self.below:g}")
        return self

    @classmethod
    def of_bound(cls, bound: MetricBound) -> Self:
        """Return the entry of what an agent declares: all series of one metric."""
        chosen = {name: value for name, value in vars(bound).items() if name != "name" and value is not None}
        return cls(match=rf"\A{re.escape(bound.name)}\Z", **chosen)

    def is_about(self, name: str, tags: Mapping[str, str]) -> bool:
        """Return True if this entry matches a series."""
        return re.search(self.match, name) is not None and all(
            tag in tags and re.search(expression, tags[tag]) for tag, expression in self.tags.items()
        )


@dataclass(frozen=True, config=STRICT)
class Rules:
    """All numbers that decide; immutable, so that equal rules give equal results."""

    version: int = 1
    collapse: Collapse = field(default_factory=Collapse)
    scale_drop: ScaleDrop = field(default_factory=ScaleDrop)
    nonfinite: Nonfinite = field(default_factory=Nonfinite)
    explosion: Explosion = field(default_factory=Explosion)
    vanished: Vanished = field(default_factory=Vanished)
    unused: Unused = field(default_factory=Unused)
    accumulation_loss: AccumulationLoss = field(default_factory=AccumulationLoss)
    accumulator: Accumulator = field(default_factory=Accumulator)
    frozen: Frozen = field(default_factory=Frozen)
    in_vain: InVain = field(default_factory=InVain)
    no_update: NoUpdate = field(default_factory=NoUpdate)
    second_moments: SecondMoments = field(default_factory=SecondMoments)
    fp16_underflow: Fp16Underflow = field(default_factory=Fp16Underflow)
    clip_before_unscale: ClipBeforeUnscale = field(default_factory=ClipBeforeUnscale)
    loss_scale: LossScale = field(default_factory=LossScale)
    not_optimized: NotOptimized = field(default_factory=NotOptimized)
    never_cleared: NeverCleared = field(default_factory=NeverCleared)
    silent: Silent = field(default_factory=Silent)
    stalled: Stalled = field(default_factory=Stalled)
    crash: Crash = field(default_factory=Crash)
    metric: Metric = field(default_factory=Metric)
    grace: Grace = field(default_factory=Grace)
    layers: tuple[LayerRule, ...] = ()
    metrics: tuple[MetricRule, ...] = ()
    pace: Pace = field(default_factory=Pace)

    @property
    def muted(self) -> frozenset[str]:
        """The rules that send no messages."""
        names = (field.name for field in fields(self))
        return frozenset(name for name in names if not getattr(getattr(self, name), "notify", True))

    def entry_of(self, name: str) -> LayerRule | None:
        """Return the entry of ``layers`` that applies to a layer by its name."""
        return next((entry for entry in self.layers if re.search(entry.match, name)), None)

    def section(self, rule: str, entry: LayerRule | None) -> Section:
        """Return a rule by name for the layers of an entry, None = for all others."""
        section: Section = getattr(entry, rule, None) or getattr(self, rule)
        return section


LAYER_RULES = tuple(each.name for each in fields(LayerRule) if each.name != "match")
"""Rules that entries of ``layers`` may have."""

NAMES = tuple(section.name for section in fields(Rules) if isinstance(getattr(Rules(), section.name), Section))

if TYPE_CHECKING:
    Rule: TypeAlias = str
else:
    Rule = Literal[NAMES]

_RULES = TypeAdapter(Rules)


def rules_to_json(rules: Rules) -> str:
    """Return rules as JSON that :func:`rules_from_json` reads back."""
    return _RULES.dump_json(rules).decode()


def rules_from_json(text: str | bytes) -> Rules:
    """Return rules from JSON. Unknown keys are ignored; missing ones keep their default."""
    return _RULES.validate_json(text, extra="ignore")
