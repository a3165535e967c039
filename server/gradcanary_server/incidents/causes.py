"""The likely cause of an incident, from facts about its run. Pure; the words are in gradcanary.remedies.

Nearby incidents come first, then a property that all collapsed layers share and no healthy one. Without either, the
text lists checks instead of a cause.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from gradcanary.remedies import CAUSES
from gradcanary.wire import Fact
from gradcanary.wording import percent
from gradcanary_server.incidents.lifecycle import Incident, Member
from gradcanary_server.rules.types import Jump

NEAR_STEPS = 200
"""An incident that opened at most this many steps earlier may be the cause."""

MAX_FACTS = 3

_COMPARED = {"collapse": ("fall",), "vanished": ("stopped",)}
"""Evidence by rule for which members are compared with all other layers."""

DEFAULT = ""

_AFTER = {
    "collapse": {rule: f"after_{rule}" for rule in ("nonfinite", "explosion", "scale_drop", "vanished")},
    "explosion": {"nonfinite": "after_nonfinite"},
    "silent": {"stalled": "ended_while_stalled"},
}
"""Causes by rule and by the rule of a nearby incident; the first one counts."""

_CODES = {
    "collapse": {"threshold": "under_threshold", "siblings": "under_siblings", DEFAULT: "low_when_joined"},
    "scale_drop": {"information": "converged", DEFAULT: "common_fall"},
    "explosion": {"critical": "diverging", DEFAULT: "exploding"},
    "accumulation_loss": {DEFAULT: "lossy_sum"},
    "accumulator": {"low_precision_sum": "low_precision_sum", DEFAULT: "other_dtype"},
    "frozen": {"stopped": "stopped_weights", DEFAULT: "coarse_weights"},
    "fp16_underflow": {DEFAULT: "fp16_zeros"},
    "clip_before_unscale": {DEFAULT: "scaled_clip"},
    "silent": {DEFAULT: "gone"},
    "stalled": {"lost_rank": "lost_rank", DEFAULT: "waiting"},
}
"""Causes by rule and by evidence or severity; the first one counts."""

_HALF = re.compile(r"(?:^|\.)lora_(?:embedding_)?([AB])(?=\.|$)")
_BLOCK = re.compile(r"^(?:.*?\.)?\d+(?=\.|$)")
_POSITION = re.compile(r"group\d+\.\d+")
"""The name of a layer that the optimizer holds and no module has."""


class LayerInfo(NamedTuple):
    """The facts of a layer that causes depend on."""

    name: str
    param_dtype: str
    group: int | None


@dataclass(frozen=True)
class NearbyIncident:
    """Another incident of the run, open or opened shortly before."""

    id: int
    rule: str
    severity: str
    opened_step: int


@dataclass(frozen=True)
class CauseContext:
    """An incident with its members, layers of its run (all if :func:`needs_all_layers`), nearby incidents and facts."""

    incident: Incident
    members: Mapping[int | None, Member]
    layers: Mapping[int, LayerInfo]
    near: tuple[NearbyIncident, ...] = ()
    facts: tuple[Fact, ...] = ()

    @cached_property
    def named(self) -> frozenset[int]:
        """The layers that ever fired."""
        return frozenset(layer for layer in self.members if layer is not None)


@dataclass(frozen=True)
class LikelyCause:
    """A cause: its code in the catalogue, its text, its evidence, and the incidents that may explain it."""

    code: str
    text: str
    evidence: tuple[str, ...]
    incidents: tuple[int, ...]


def needs_all_layers(rule: str, members: Iterable[Member]) -> bool:
    """Return True if the members must be compared with all other layers of the run."""
    return not {member.evidence for member in members}.isdisjoint(_COMPARED.get(rule, ()))


def likely_cause(context: CauseContext) -> LikelyCause:
    """Return the likely cause of an incident with its evidence."""
    code, evidence = _cause(context)
    # The way gradients are summed explains a loss in the sum, but no fall of gradients.
    explains_sums = context.incident.rule == "accumulation_loss"
    others = [near for near in context.near if near.rule != "accumulator" or explains_sums]
    nearby = [f"incident {near.id} ({near.rule}) opened at step {near.opened_step:,}" for near in others]
    return LikelyCause(
        code=code,
        text=CAUSES[code].text,
        evidence=(*_jumps(context.incident.lr_jumps), *evidence, *nearby, *_facts(context)),
        incidents=tuple(near.id for near in others),
    )


def _jumps(jumps: Iterable[Jump]) -> list[str]:
    """Return one line for each jump of a learning rate; groups that jump alike share one."""
    groups: dict[tuple[float, float, int], list[int]] = {}
    for jump in jumps:
        groups.setdefault((jump.before, jump.after, jump.step), []).append(jump.group)
    return [
        f"the learning rate of {_group_names(numbers)} went from {before:.6g} to {after:.6g} at step {step:,}"
        for (before, after, step), numbers in groups.items()
    ]


def _group_names(numbers: list[int]) -> str:
    *first, last = map(str, numbers)
    return f"parameter groups {', '.join(first)} and {last}" if first else f"parameter group {last}"


def _cause(context: CauseContext) -> tuple[str, list[str]]:
    """Return the code of the cause, and its evidence in the layers."""
    rule = context.incident.rule
    near = {other.rule for other in context.near if other.severity != "information"}
    after = [code for other, code in _AFTER.get(rule, {}).items() if other in near]
    kinds = {member.evidence for member in context.members.values()}
    if after:
        return after[0], []
    if rule == "collapse" and "fall" in kinds:
        return _fall(context)
    if rule in _SEARCHED:
        return _SEARCHED[rule](context)
    keys = {context.incident.severity, *kinds, DEFAULT}
    evidence = _largest_loss(context) if rule == "accumulation_loss" else []
    return next(code for key, code in _CODES[rule].items() if key in keys), evidence


def _fall(context: CauseContext) -> tuple[str, list[str]]:
    for code, search in (("lora_partner", _partners), ("whole_blocks", _blocks), ("parameter_group", _group)):
        evidence = search(context)
        if evidence:
            return code, evidence
    # Schedules lower a rate by a factor of ten at most.
    is_steep = any(jump.after > jump.before or jump.after < 0.09 * jump.before for jump in context.incident.lr_jumps)
    return ("rate_jump" if is_steep else "unknown_fall"), []


def _partners(context: CauseContext) -> list[str]:
    """Return evidence that one half of LoRA pairs fell while the other half did not."""
    all_names = {layer.name for layer in context.layers.values()}
    names = [layer.name for layer in _named(context)]
    halves = {match[1] if match else None for match in map(_HALF.search, names)}
    if len(halves) != 1 or None in halves:
        return []
    half = halves.pop()
    other = "B" if half == "A" else "A"
    partners = all_names.intersection(_other_half(name, other) for name in names)
    if not partners:
        return []
    return [f"all {len(names):,} are lora_{half}; none of their {len(partners):,} lora_{other} partners collapsed"]


def _other_half(name: str, half: str) -> str:
    match = _HALF.search(name)
    return name if match is None else f"{name[: match.start(1)]}{half}{name[match.end(1) :]}"


def _blocks(context: CauseContext, verb: str = "collapsed") -> list[str]:
    """Return evidence that the incident covers whole blocks of two or more layers, and not all of them."""
    by_block: dict[str, set[int]] = {}
    for number, layer in context.layers.items():
        match = _BLOCK.search(layer.name)
        if match:
            by_block.setdefault(match[0], set()).add(number)
    hit = {block: layers for block, layers in by_block.items() if layers & context.named}
    covered = set[int]().union(*hit.values())
    if not hit or len(hit) == len(by_block) or covered != context.named or min(map(len, hit.values())) < 2:
        return []
    return [f"every layer of {len(hit):,} of {len(by_block):,} blocks {verb}, and no other"]


def _group(context: CauseContext) -> list[str]:
    """Return evidence that exactly one of several parameter groups collapsed."""
    groups: dict[int | None, set[int]] = {}
    for number, layer in context.layers.items():
        groups.setdefault(layer.group, set()).add(number)
    for group, layers in groups.items():
        if group is not None and len(groups) > 1 and layers == context.named:
            return [f"they are parameter group {group}, whole, and no layer of another group"]
    return []


def _nonfinite(context: CauseContext) -> tuple[str, list[str]]:
    float16 = [layer for layer in _named(context) if layer.param_dtype == "float16"]
    if float16:
        return "fp16_overflow", [f"{len(float16):,} of the layers hold float16 parameters"]
    loss = context.members.get(None)
    if loss is not None and loss.evidence == "loss_rose":
        return "loss_diverged", []
    layers = [member.since_step for number, member in context.members.items() if number is not None]
    if loss is None:
        return "nonfinite_gradient", []
    # Of steps that a scaler skips the loss counts from the one at which they are too many.
    if layers and context.incident.opened_step < loss.since_step:
        return "nonfinite_gradient", [f"gradients since step {min(layers):,}, the loss since {loss.since_step:,}"]
    if any(near.rule == "explosion" for near in context.near):
        return "diverged", []
    return ("sudden_nonfinite_loss" if loss.evidence == "loss_steady" else "nonfinite_loss"), []


def _vanished(context: CauseContext) -> tuple[str, list[str]]:
    members = context.members.values()
    kinds = {member.evidence for member in members if member.until_step is None or not context.incident.firing}
    if kinds == {"by_script"}:
        return "frozen_by_script", []
    if "never" in kinds:
        if all(member.value == 0 for member in members):
            is_float16 = any(layer.param_dtype == "float16" for layer in _named(context))
            return ("fp16_zeros" if is_float16 else "only_zeros"), []
        return "never_any_gradient", []
    if "stopped" not in kinds:
        return "idle_for_long", []
    if all(member.value == 0 for member in members):
        return "became_zero", []
    if len(context.named) == len(context.layers):
        return "no_gradient_at_all", []
    evidence = _blocks(context, "lost its gradient")
    return ("cut_off_blocks" if evidence else "cut_off"), evidence


def _unused(context: CauseContext) -> tuple[str, list[str]]:
    if all(member.value == 0 for member in context.members.values()):
        return "cancelled", []
    is_unnamed = any(_POSITION.fullmatch(layer.name) for layer in _named(context))
    return ("never_used_unnamed" if is_unnamed else "never_used"), []


def _largest_loss(context: CauseContext) -> list[str]:
    errors = [member.value for member in context.members.values() if member.value is not None]
    return [f"up to {percent(max(errors))} of the norm, measured against a float32 sum"] if errors else []


def _named(context: CauseContext) -> list[LayerInfo]:
    return [context.layers[number] for number in sorted(context.named) if number in context.layers]


def _facts(context: CauseContext) -> list[str]:
    """Return the static findings about the run or a member."""
    names = {layer.name for layer in _named(context)}
    return [fact.text for fact in context.facts if not fact.layers or names & set(fact.layers)][:MAX_FACTS]


_SEARCHED = {"nonfinite": _nonfinite, "unused": _unused, "vanished": _vanished}
