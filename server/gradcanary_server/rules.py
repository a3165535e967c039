"""The numbers of the rules: defaults with their reasons, and ``rules.yaml``, which may move them.

Rules are data. In the file, unknown keys, wrong types and impossible values are errors that name the line; of
``layers`` the first entry whose expression is found in a layer's name wins, and what it leaves out falls back to
``rules``, but an ``enter`` without an ``exit`` keeps their ratio. :mod:`gradcanary_server.rules_file` reads it.

A rule with ``notify`` sends messages; what another one finds is an incident on the page, and no more.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields

from gradcanary_server.pace import Pace

EVIDENCE = ("fall", "siblings")
"""What may show that a small gradient was larger before; "threshold" instead takes ``enter`` at its word."""


@dataclass(frozen=True)
class Collapse:
    """Layers that stopped learning. The defaults were tried on traces of short real jobs and were not delicate."""

    enabled: bool = True
    notify: bool = True
    enter: float = 1e-4
    """absmax under which a layer is low."""
    exit: float = 3e-4
    """absmax over which a layer counts as recovered; between the two nothing is decided."""
    evidence: tuple[str, ...] = EVIDENCE
    fall_decades: float = 1.5
    """Decades under the layer's own baseline."""
    over_common_decades: float = 1.0
    """Decades more than (nearly) all layers fell: a rescaled loss shrinks all alike."""
    baseline_observations: int = 50
    """Consecutive observations whose median can become the baseline; at most 10 where every >= 10."""
    norm_below: float | None = None
    """L2 norm under which a layer fires, at its word, beside the evidence; None = of no norm."""
    siblings_min: int = 4
    siblings_decades: float = 2.0
    """Decades under the upper quartile of the siblings."""
    fire_after_steps: int = 20
    resolve_after_steps: int = 100


@dataclass(frozen=True)
class ScaleDrop:
    """All gradients fell together."""

    enabled: bool = True
    notify: bool = True
    common_decades: float = 1.5


@dataclass(frozen=True)
class Nonfinite:
    """NaN or infinity in a gradient or the loss."""

    enabled: bool = True
    notify: bool = True
    skipped_in_row: int = 20
    """Steps that a GradScaler skipped in a row before they count: it skips some while it looks for its scale."""


@dataclass(frozen=True)
class Explosion:
    """Gradients far over what they were."""

    enabled: bool = True
    notify: bool = True
    ratio: float = 100.0
    """Times the larger of the layer's own baseline and the upper quartile of all baselines. Healthy gradients stay
    within a decade of their medians; two decades are half again as far as a single bad batch was seen to go."""
    absmax: float = 1e4
    """Whatever the baseline, unless the layer began so: float16 ends at 65504, and a step of SGD this long is none."""
    observations: int = 3
    """More than one, because an outlier in the data makes one; few, because a run is lost soon."""
    loss_ratio: float = 10.0
    """The loss over its level that makes it critical: then the weights have gone, too."""


@dataclass(frozen=True)
class Vanished:
    """A layer that had a gradient, and has none any more."""

    enabled: bool = True
    notify: bool = True
    steady_share: float = 0.95
    """Of the observations before: a layer that is idle more often, an expert or a rare word, is not missed so soon."""
    observations: int = 50
    """So many must be known, as for a baseline; at most 199 are looked back at."""
    fire_after_steps: int = 20
    """As collapse; 5 observations where few steps are sampled."""
    rare_factor: int = 10
    """Times the longest idle span that a layer had before: if gradients come at random, one so long has a chance of
    about e^-10 where spans of the usual length have one of e^-1."""


@dataclass(frozen=True)
class Unused:
    """A trainable layer that never had a gradient."""

    enabled: bool = True
    notify: bool = False
    """Models have heads that a task does not use, and work."""
    observations: int = 50
    """Of a launch: a LoRA's lora_A and a gate that begins at zero are without one for a step or two."""


@dataclass(frozen=True)
class AccumulationLoss:
    """Sums of gradients that lost a part of them, measured against float32."""

    enabled: bool = True
    notify: bool = True
    error: float = 0.05
    """|lost| / |exact|: ten times what 8 gradients in bfloat16 lose, a quarter of what 512 coherent ones lose."""
    norm_ratio: float = 0.95


@dataclass(frozen=True)
class Accumulator:
    """Sums of gradients in low precision, or in another one than was asked for."""

    enabled: bool = True
    notify: bool = False
    """Most bfloat16 trainings are fine; what is lost is measured by accumulation_loss."""
    warn_above: float = 0.01
    """The share that the sum is predicted to lose: of bfloat16 that is so from 64 micro-steps on."""


@dataclass(frozen=True)
class Frozen:
    """Weights of low precision that do not move."""

    enabled: bool = True
    notify: bool = False
    """Every fine-tune in pure bfloat16 is so at 2e-5, and is often wanted so."""
    share: float = 0.5
    """Of elements that fifty steps left as they were: most of the layer."""
    moved_share: float = 0.5
    stopped_share: float = 0.9
    """A layer of which less than ``moved_share`` stood still, and now more than ``stopped_share`` does, has stopped."""
    least_lr_share: float = 0.1
    """Of the highest learning rate: under it weights may stand still."""


@dataclass(frozen=True)
class Fp16Underflow:
    """Gradients born in float16, where what is under 6e-8 is zero."""

    enabled: bool = True
    notify: bool = False
    growth: float = 0.25
    """Of the share of exact zeros over the least that the layer had: sparse gradients have many from the beginning."""
    share: float = 0.9
    """Of exact zeros that is critical."""
    observations: int = 5


@dataclass(frozen=True)
class ClipBeforeUnscale:
    """Gradients that are clipped while they carry the loss scale: what is left is thousands of times too small."""

    enabled: bool = True
    notify: bool = True


@dataclass(frozen=True)
class Silent:
    """A run of which nothing is heard, and which did not say that it ended: it was killed, or cannot reach us."""

    enabled: bool = True
    notify: bool = True
    after_s: float = 300.0
    """Since the last request, and since we listen again ourselves; an agent tries again after 75 s at the latest."""
    intervals: int = 10
    """Of its heartbeats, and never less than ``after_s``."""


@dataclass(frozen=True)
class Stalled:
    """A run whose process lives and makes no step."""

    enabled: bool = True
    notify: bool = True
    after_s: float = 1_800.0
    """Longer than most evaluations, and than the ten minutes after which NCCL ends a collective that nobody joins."""
    steps: int = 20
    """Median step times, and never less than ``after_s``: slow steps vary by a part of themselves, not by so much."""
    pause_factor: float = 2.0
    """Times the longest pause between two steps that the run came out of by itself: it evaluates so long."""


@dataclass(frozen=True)
class Grace:
    """Steps of a launch in which falls are not looked for: ``steps``, and while lr rises at most ``max_steps``."""

    steps: int = 50
    max_steps: int = 1_000


Section = (
    Collapse
    | ScaleDrop
    | Nonfinite
    | Explosion
    | Vanished
    | Unused
    | AccumulationLoss
    | Accumulator
    | Frozen
    | Fp16Underflow
    | ClipBeforeUnscale
    | Silent
    | Stalled
)

OF_RUN: dict[str, tuple[str, ...]] = {
    "collapse": ("notify",),
    "nonfinite": ("notify", "skipped_in_row"),
    "explosion": ("notify", "loss_ratio"),
    "vanished": ("notify",),
    "unused": ("notify",),
    "accumulation_loss": ("notify",),
    "accumulator": ("notify",),
    "frozen": ("notify", "least_lr_share"),
    "fp16_underflow": ("notify",),
}
"""The rules that layers may have of their own, each with the numbers that they may not: an incident is of all layers
that a rule found, and so is what is told of it; a GradScaler, a loss, a learning rate and a clip are no layer's."""


@dataclass(frozen=True)
class LayerRule:
    """What holds for the layers in whose names ``match`` is found; None is what holds for all others."""

    match: str
    collapse: Collapse | None = None
    nonfinite: Nonfinite | None = None
    explosion: Explosion | None = None
    vanished: Vanished | None = None
    unused: Unused | None = None
    accumulation_loss: AccumulationLoss | None = None
    accumulator: Accumulator | None = None
    frozen: Frozen | None = None
    fp16_underflow: Fp16Underflow | None = None


@dataclass(frozen=True)
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
    fp16_underflow: Fp16Underflow = field(default_factory=Fp16Underflow)
    clip_before_unscale: ClipBeforeUnscale = field(default_factory=ClipBeforeUnscale)
    silent: Silent = field(default_factory=Silent)
    stalled: Stalled = field(default_factory=Stalled)
    grace: Grace = field(default_factory=Grace)
    layers: tuple[LayerRule, ...] = ()
    pace: Pace = field(default_factory=Pace)

    @property
    def muted(self) -> frozenset[str]:
        """The rules whose incidents are sent to nobody."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return frozenset(name for name, rule in found.items() if not getattr(rule, "notify", True))

    def entry_of(self, name: str) -> LayerRule | None:
        """Return the entry of ``layers`` that holds for a layer by its name."""
        return next((entry for entry in self.layers if re.search(entry.match, name)), None)

    def section(self, rule: str, entry: LayerRule | None) -> Section:
        """Return a rule by name as it holds for the layers of an entry, None = for all others."""
        found: Section = getattr(entry, rule, None) or getattr(self, rule)
        return found

    def collapse_of(self, name: str) -> Collapse:
        """Return the collapse rule of a layer by its name."""
        entry = self.entry_of(name)
        return self.collapse if entry is None or entry.collapse is None else entry.collapse


NAMES = tuple(each.name for each in fields(Rules) if hasattr(getattr(Rules(), each.name), "enabled"))
"""Of all rules."""
