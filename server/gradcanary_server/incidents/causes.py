"""The likely cause of an incident, from facts about its run. Pure; the words are in gradcanary.remedies.

Nearby incidents come first, then a property that all collapsed layers share and no healthy one. Without either, the
text lists checks instead of a cause.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import itemgetter
from typing import NamedTuple

from gradcanary.remedies import CAUSES
from gradcanary.wire import FROZEN_PARAMETERS, Crash, Fact
from gradcanary.wording import number, percent
from gradcanary_server.incidents.lifecycle import Incident, Member
from gradcanary_server.incidents.setting_causes import (
    LEAST_JUMP,
    NEAR_STEPS,
    RISE,
    Configuration,
    SettingCause,
    change_lines,
    exact,
    find_decay,
    find_momentum,
    find_standing,
    find_tiny_clip,
    find_update_cause,
    jump_lines,
    scale_words,
)
from gradcanary_server.rules.layer_config import LORA_HALF

CAUSES_OF: Mapping[str, tuple[str, ...]] = {
    "collapse": ("explosion", "nonfinite", "scale_drop"),
    "crash": ("explosion", "nonfinite"),
    "explosion": ("never_cleared", "nonfinite", "collapse"),
    "loss_scale": ("nonfinite",),
    "no_update": ("explosion",),
    "nonfinite": ("explosion",),
    "scale_drop": ("explosion", "loss_scale", "nonfinite"),
    "vanished": ("explosion", "loss_scale", "nonfinite", "scale_drop"),
}
"""The rules whose incidents explain those of a rule. A step that is too large or not finite moves the weights of every
layer, and a fall of all gradients is one of each layer. Under a scale that fell float16 makes gradients zero. Gradients
that are never cleared grow. A collapse explains the explosion of its neighbours. After an explosion Adam's second
moments keep the steps of its parameters small, for thousands of steps. Other rules are about the setup or the process.
"""

CAUSE_RULES = ("collapse", "explosion", "loss_scale", "never_cleared", "nonfinite", "scale_drop")
"""All rules that explain others."""

OF_GRADIENTS = CAUSES_OF.keys() - {"no_update"}

MAX_FACTS = 3

LEAST_ROW = 6
"""Layers in a row whose gradients shrink from one to the next: by chance one row of 360 does."""

_COMPARED = {"collapse": ("fall",), "vanished": ("stopped",)}
"""Evidence by rule for which members are compared with all other layers."""

DEFAULT = ""

_AFTER = {
    "collapse": {rule: f"after_{rule}" for rule in ("nonfinite", "explosion", "scale_drop", "vanished")},
    "explosion": {"never_cleared": "after_never_cleared", "nonfinite": "after_nonfinite"},
    "unused": {"not_optimized": "after_not_optimized"},
    "silent": {"stalled": "ended_while_stalled"},
    "metric": dict.fromkeys(
        ("nonfinite", "explosion", "scale_drop", "collapse", "vanished", "never_cleared"), "metric_after"
    ),
}
"""Causes by rule and by the rule of a nearby incident; the first one counts."""

_LASTING = ("never_cleared", "not_optimized", "stalled")
"""Rules of what goes on until they resolve: they explain what opens however long after them."""

_AFTER_STEPS = ("nonfinite", "explosion")
"""Rules of steps that move weights to where gradients are next to nothing."""

_MAY_FOLLOW_STEPS = ("common_fall", "own_loss_fall", "became_zero")
"""Causes of gradients that such a step explains better."""

_LEADERS = {"diverged": "explosion", "ended_while_stalled": "stalled"}
"""Rules of the incidents that come first, by cause; of the others the name of the cause ends with its rule."""

_CODES = {
    "collapse": {
        "threshold": "under_threshold",
        "straight": "exponential_fall",
        "siblings": "under_siblings",
        "follows": "unknown_fall",
        DEFAULT: "low_when_joined",
    },
    "scale_drop": {"own_loss": "own_loss_fall", "information": "converged", DEFAULT: "common_fall"},
    "loss_scale": {DEFAULT: "scale_fell"},
    "explosion": {"critical": "diverging", DEFAULT: "exploding"},
    "accumulation_loss": {DEFAULT: "lossy_sum"},
    "accumulator": {"low_precision_sum": "low_precision_sum", DEFAULT: "other_dtype"},
    "frozen": {"stopped": "stopped_weights", DEFAULT: "coarse_weights"},
    "in_vain": {DEFAULT: "in_vain"},
    "no_update": {
        "undone": "lost_update",
        "no_rate": "rate_zero",
        "too_fine": "cannot_move",
        "unmoved": "unmoved",
        "slow": "hardly_moves",
        "tiny": "hardly_moves",
        DEFAULT: "moves_less",
    },
    "second_moments": {DEFAULT: "coarse_moments"},
    "fp16_underflow": {DEFAULT: "fp16_zeros"},
    "clip_before_unscale": {DEFAULT: "scaled_clip"},
    "not_optimized": {DEFAULT: "in_no_optimizer"},
    "never_cleared": {DEFAULT: "kept_gradients"},
    "metric": {"not_finite": "metric_not_finite", DEFAULT: "metric_of_tags"},
    "silent": {DEFAULT: "gone"},
    "stalled": {"lost_rank": "lost_rank", DEFAULT: "waiting"},
}
"""Causes by rule and by evidence or severity; of several the one of most members, and the first of equals."""

_BY_SETTINGS = {
    *("lora_partner", "whole_blocks", "parameter_group", "rate_jump", "unknown_fall", "common_fall"),
    *("exploding", "diverging", "diverged", "nonfinite_loss", "nonfinite_gradient"),
    *("loss_diverged", "sudden_nonfinite_loss", "exponential_fall", "own_loss_fall"),
    *("after_explosion", "after_nonfinite", "after_scale_drop", "after_vanished", "became_zero", "idle_for_long"),
}
"""Causes that a setting explains better, if there is one: they name where it shows."""

_BY_EARLIER = {
    *("lora_partner", "whole_blocks", "parameter_group", "unknown_fall", "common_fall", "exploding", "diverging"),
    *("nonfinite_loss", "nonfinite_gradient", "loss_diverged", "diverged", "became_zero", "idle_for_long"),
}
"""Causes that a setting explains better which rose long before and is still in force."""

_UNSURE = {"unknown_fall", "common_fall", "exploding", "diverging", "became_zero", "idle_for_long"}
"""Causes that name nothing of this run: an incident that opened long before, and did not recover, may explain more."""

_BY_SCALE = {
    **dict.fromkeys(("nonfinite_gradient", "fp16_overflow"), "scale_fell"),
    **dict.fromkeys(("only_zeros", "became_zero", "fp16_zeros"), "scale_too_low"),
}
"""Causes that the fall of a GradScaler's scale explains better, and what it is then."""

_SCALED = ("loss_scale", "nonfinite", "vanished", "scale_drop", "fp16_underflow")
"""Rules of gradients that a scale makes infinite or zero."""

_IN_VAIN = ("frozen", "in_vain")
"""Rules of weights that do not move."""

_DIGITS = re.compile(r"\d+")
_NOT_MEASURED = "were not measured around it"
_BLOCK = re.compile(r"^(?:.*?\.)?\d+(?=\.|$)")
_POSITION = re.compile(r"group\d+\.\d+")
"""The name of a layer that the optimizer holds and no module has."""


def is_caused_by(effect: Incident, cause: Incident) -> bool:
    """Return True if another incident of the same run explains one: it opened at most 200 steps before.

    Of two that opened at the same step the non-finite one is the cause.
    """
    if (
        cause.rule not in CAUSES_OF.get(effect.rule, ())
        or cause.launch_no != effect.launch_no
        or cause.severity == "information"
    ):
        return False
    if cause.rule == "collapse" and (
        effect.beside is None or effect.beside != cause.id or effect.severity == "critical"
    ):
        return False  # a loss that explodes as well has a message of its own
    if effect.rule == "no_update":
        return effect.beside is not None and effect.beside == cause.id
    distance = effect.opened_step - cause.opened_step
    is_first = distance > 0 or effect.rule != "nonfinite"
    return 0 <= distance <= NEAR_STEPS and is_first


def first_cause(effect: Incident, others: Iterable[Incident]) -> Incident | None:
    """Return the earliest incident of the run that explains one, None if there is none."""
    found = [other for other in others if is_caused_by(effect, other)]
    return min(found, key=lambda cause: (cause.opened_step, cause.id or 0), default=None)


def is_inhibited_by(incident: Incident, other: Incident) -> bool:
    """Return True if messages about another incident of the run cover one that it explains.

    A critical non-finite incident is never inhibited. It covers also what opened at most 200 steps before it: a
    training that diverges is one fault.
    """
    if _is_critical_nonfinite(incident):
        return False
    return is_caused_by(incident, other) or (_is_critical_nonfinite(other) and _leads_to(incident, other))


def covered_incidents(incident: Incident, others: Iterable[Incident]) -> list[Incident]:
    """Return the unrecovered incidents of the run that messages about one cover, in the order of their opening.

    Those that a covered one covers are among them.
    """
    left = [other for other in others if other.state != "resolved" and other.severity != "information"]
    found: list[Incident] = []
    frontier = [incident]
    while frontier:
        leader = frontier.pop()
        covered = [other for other in left if is_inhibited_by(other, leader)]
        left = [other for other in left if other not in covered]
        found += covered
        frontier += covered
    return sorted(found, key=lambda other: (other.opened_step, other.id or 0))


def _leads_to(incident: Incident, nonfinite: Incident) -> bool:
    is_near = 0 <= nonfinite.opened_step - incident.opened_step <= NEAR_STEPS
    return incident.rule in OF_GRADIENTS and incident.launch_no == nonfinite.launch_no and is_near


def _is_critical_nonfinite(incident: Incident) -> bool:
    return incident.rule == "nonfinite" and incident.severity == "critical"


class Norms(NamedTuple):
    """The highest norm of a layer's weights shortly before the first sign of an incident, and the last one after it."""

    before: float
    before_step: int
    after: float
    after_step: int


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
    """An incident with its members, layers of its run (all if :func:`needs_all_layers`), nearby incidents, facts,
    the configuration of its launch, and what was measured of the weights of :func:`lora_partners`."""

    incident: Incident
    members: Mapping[int | None, Member]
    layers: Mapping[int, LayerInfo]
    near: tuple[NearbyIncident, ...] = ()
    facts: tuple[Fact, ...] = ()
    configuration: Configuration = field(default_factory=Configuration)
    weights: Mapping[int, Norms] = field(default_factory=dict)

    @cached_property
    def named(self) -> frozenset[int]:
        """The layers that ever fired."""
        return frozenset(layer for layer in self.members if layer is not None)


@dataclass(frozen=True)
class LikelyCause:
    """A cause: its code in the catalogue, its text, its evidence, and the incidents that may explain it.

    ``follows`` is the incident that comes first, if there is one: what to do about it is what to do first. ``step`` is
    the first one of a setting that is the cause, -1 if the launch began with it, None of other causes.
    """

    code: str
    text: str
    evidence: tuple[str, ...]
    incidents: tuple[int, ...]
    follows: int | None = None
    step: int | None = None


def needs_all_layers(rule: str, members: Iterable[Member]) -> bool:
    """Return True if the members must be compared with all other layers of the run."""
    return not {member.evidence for member in members}.isdisjoint(_COMPARED.get(rule, ()))


def likely_cause(context: CauseContext) -> LikelyCause:
    """Return the likely cause of an incident with its evidence, the strongest first."""
    if context.incident.crash is not None:
        return _crash_cause(context, context.incident.crash)
    code, evidence = _cause(context)
    standing = find_standing(context.configuration, context.incident.lr_jumps, context.incident.since_step)
    root = _setting_cause(context, code)
    if root is None and standing and code in _BY_EARLIER:
        root = standing[0]
    scale = _scale_lines(context)
    earlier = _earlier(context) if root is None and not scale and code in _UNSURE else None
    if root is not None:
        code, evidence = root.code, [line for line in evidence if not line.endswith(_NOT_MEASURED)]
    elif scale:
        code = _BY_SCALE.get(code, code)
    elif earlier is not None:
        code = "after_earlier"
    # The way gradients are summed explains a loss in the sum, but no fall of gradients.
    explains_sums = context.incident.rule == "accumulation_loss"
    others = [near for near in context.near if near.rule != "accumulator" or explains_sums]
    if context.incident.rule == "in_vain":  # weights that stand still are what it is about
        others = [near for near in others if near.rule != "frozen"]
    leader = earlier or _leader(context, code)
    others.sort(key=lambda near: near is not leader)
    return LikelyCause(
        code=code,
        text=CAUSES[code].text,
        evidence=(
            *scale,
            *_setting_lines(context, root, standing),
            *evidence,
            *(_nearby_line(context, near) for near in others),
            *_facts(context),
        ),
        incidents=tuple(near.id for near in others),
        follows=None if leader is None else leader.id,
        step=None if root is None else root.step,
    )


def follow(cause: LikelyCause, first: LikelyCause) -> LikelyCause:
    """Return the cause of an incident after another one, with what is known of the cause of that."""
    known = [line for line in first.evidence[:1] if line not in cause.evidence]
    marker = f"incident {cause.follows} "
    lines = [f"{line}: {known[0]}" if known and line.startswith(marker) else line for line in cause.evidence]
    return replace(cause, evidence=tuple(lines), step=first.step)


def _nearby_line(context: CauseContext, near: NearbyIncident) -> str:
    line = f"incident {near.id} ({near.rule}) opened at step {near.opened_step:,}"
    steps = context.incident.opened_step - near.opened_step
    if near.id == context.incident.beside and context.incident.rule == "no_update":
        return f"{line}, {steps:,} steps before, in all of these parameters"
    return line if _is_near(context, near) else f"{line}, {steps:,} steps before, and had not recovered"


def _is_near(context: CauseContext, near: NearbyIncident) -> bool:
    return context.incident.opened_step - near.opened_step <= NEAR_STEPS


def _earlier(context: CauseContext) -> NearbyIncident | None:
    """Return the first incident that opened long before, did not recover, and is of a rule that explains this one."""
    rules = CAUSES_OF.get(context.incident.rule, ())
    found = [near for near in context.near if near.rule in rules and not _is_near(context, near)]
    return min(found, key=_order, default=None)


def _leader(context: CauseContext, code: str) -> NearbyIncident | None:
    """Return the incident that comes first by a cause."""
    if code == "beside_collapse":
        found = [near for near in context.near if near.id == context.incident.beside]
    else:
        first = {_LEADERS.get(code, code.removeprefix("after_"))} - {code}
        first |= set(_AFTER["metric"]) if code == "metric_after" else set()
        found = [near for near in context.near if near.rule in first and _explains(context, near)]
    return min(found, key=_order, default=None)


def _order(near: NearbyIncident) -> tuple[int, int]:
    return near.opened_step, near.id


def _explains(context: CauseContext, near: NearbyIncident) -> bool:
    return near.severity != "information" and (near.rule in _LASTING or _is_near(context, near))


def _setting_cause(context: CauseContext, code: str) -> SettingCause | None:
    """Return the setting that explains an incident better than the code that was found without settings."""
    configuration, since = context.configuration, context.incident.since_step
    if context.incident.rule in _IN_VAIN:
        return find_tiny_clip(configuration, context.incident.opened_step)
    if context.incident.rule == "no_update":
        explained = [layer for layer in context.named if _code_of("no_update", context.members[layer]) == code]
        layers = [context.layers[layer] for layer in explained if layer in context.layers]
        groups = {layer.group for layer in layers if layer.group is not None}
        is_slow = any(context.members[layer].evidence == "slow" for layer in explained)
        return find_update_cause(configuration, groups, context.incident.opened_step, code, is_slow=is_slow)
    if code not in _BY_SETTINGS:
        return None
    has_grown = code == "loss_diverged" or "explosion" in {context.incident.rule, *(near.rule for near in context.near)}
    found = find_decay(configuration, since) or find_momentum(configuration, since, from_start=has_grown)
    if found is not None:
        return found
    rises = [jump for jump in context.incident.lr_jumps if jump.now is None and jump.after >= RISE * jump.before]
    lines = jump_lines(rises, configuration.groups, since)
    return SettingCause("rate_rose", "lr", lines[0], rises[0].step) if rises else None


def _scale_lines(context: CauseContext) -> list[str]:
    """Return the sentence of a GradScaler's scale that had fallen when the incident opened."""
    fall = context.incident.scale_fall
    return [] if fall is None or context.incident.rule not in _SCALED else ["".join(scale_words(fall))]


def _setting_lines(context: CauseContext, root: SettingCause | None, standing: Iterable[SettingCause]) -> list[str]:
    """Return the sentence of the cause, and a line for each other setting that changed shortly before.

    Of gradients there is also one for each setting that rose long before and is still in force.
    """
    configuration, since = context.configuration, context.incident.since_step
    changes = change_lines(configuration, since, without=None if root is None else root.setting)
    is_of_gradients = context.incident.rule in OF_GRADIENTS
    jumps = [jump for jump in context.incident.lr_jumps if is_of_gradients or jump.now is None]
    lines = [*([] if root is None else [root.sentence]), *jump_lines(jumps, configuration.groups, since)]
    lines += [each.sentence for each in standing if is_of_gradients and each.setting != "lr"]
    return list(dict.fromkeys([*lines, *changes[-MAX_FACTS:]]))


def _cause(context: CauseContext) -> tuple[str, list[str]]:
    """Return the code of the cause, and its evidence in the layers."""
    rule = context.incident.rule
    near = {other.rule for other in context.near if _explains(context, other)}
    if rule == "explosion" and context.incident.beside in {other.id for other in context.near}:
        return "beside_collapse", []
    after = [code for other, code in _AFTER.get(rule, {}).items() if other in near]
    kinds = {member.evidence for member in context.members.values()}
    if after:
        return after[0], []
    if rule == "collapse" and "fall" in kinds:
        return _fall(context)
    code, evidence = _SEARCHED[rule](context) if rule in _SEARCHED else (_code_of_most(context), [])
    first = [other for other in _AFTER_STEPS if other in near]
    if code in _MAY_FOLLOW_STEPS and first:
        return f"after_{first[0]}", []
    if code == "metric_of_tags" and not _other_series(context):
        return "metric_of_all", []
    search = {"lossy_sum": _largest_loss, "under_siblings": _depth, "metric_of_tags": _other_series}.get(code)
    return code, evidence if search is None else search(context)


def _code_of_most(context: CauseContext) -> str:
    """Return the code of the severity, or of the evidence that most members have."""
    codes = _CODES[context.incident.rule]
    if context.incident.severity in codes:
        return codes[context.incident.severity]
    counts = Counter(_code_of(context.incident.rule, member) for member in context.members.values())
    return max(codes.values(), key=lambda code: counts[code]) if counts else codes[DEFAULT]


def _code_of(rule: str, member: Member) -> str:
    codes = _CODES[rule]
    return codes.get(member.evidence or DEFAULT, codes[DEFAULT])


def _fall(context: CauseContext) -> tuple[str, list[str]]:
    partners = lora_partners(context)
    if partners:
        return _of_partners(context, partners)
    for code, search in (("whole_blocks", _blocks), ("parameter_group", _group)):
        evidence = search(context)
        if evidence:
            return code, evidence
    # Schedules lower a rate by a factor of ten at most.
    jumps = [jump for jump in context.incident.lr_jumps if jump.now is None]
    is_steep = any(jump.after > jump.before or jump.after < 0.09 * jump.before for jump in jumps)
    return ("rate_jump" if is_steep else "unknown_fall"), []


def lora_partners(context: CauseContext) -> dict[int, int]:
    """Return the weights of the other halves of LoRA pairs by the halves, if only one kind of half collapsed.

    The gradient of a bias is multiplied by the other half's weight, too.
    """
    if context.incident.rule != "collapse":
        return {}
    numbers = {layer.name: number for number, layer in context.layers.items()}
    names = {number: context.layers[number].name for number in context.named if number in context.layers}
    halves = {match[1] if match else None for match in map(LORA_HALF.search, names.values())}
    if len(halves) != 1 or None in halves:
        return {}
    other = "B" if halves == {"A"} else "A"
    others = {number: _other_half(name, other) for number, name in names.items()}
    return {number: numbers[name] for number, name in others.items() if name in numbers}


def _of_partners(context: CauseContext, partners: Mapping[int, int]) -> tuple[str, list[str]]:
    """Return the cause of pairs of which one half fell, by what was measured of the weights of the other half."""
    names = sorted(context.layers[number].name for number in partners)
    match = LORA_HALF.search(names[0])
    half = "A" if match is None else match[1]
    other, total = "B" if half == "A" else "A", len(_named(context))
    others = len({*partners.values()})
    fell = f"all {total:,} are lora_{half}; none of their {others:,} lora_{other} partners collapsed"
    if others == 1:
        fell = f"{'its' if total == 1 else 'their'} lora_{other} partner did not collapse"
    known = {layer: context.weights[partner] for layer, partner in partners.items() if partner in context.weights}
    if not known:
        return "lora_partner", [fell, f"the weights of lora_{other} {_NOT_MEASURED}"]
    shrunk = {layer for layer, norms in known.items() if LEAST_JUMP * norms.after < norms.before}
    shown = min(shrunk or known, key=lambda layer: known[layer].after / (known[layer].before or 1.0))
    norms, name = known[shown], context.layers[partners[shown]].name
    course = f"{number(norms.before)} at step {norms.before_step:,}, {number(norms.after)} at step {norms.after_step:,}"
    told = (
        f"the weights of {len(shrunk):,} of {len(known):,} measured partners shrank"
        if shrunk
        else (
            "its partner's weights did not shrink"
            if len(known) == 1
            else f"none of {len(known):,} partners' weights shrank"
        )
    )
    lines = [fell, f"{told}: the norm of {name} was {course}"]
    if not shrunk:
        lines += _unchanged_settings(context)
    return ("lora_partner" if shrunk else "lora_own"), lines


def _unchanged_settings(context: CauseContext) -> list[str]:
    """Return that no setting changed until the incident opened, and what the launch began with, if that is known."""
    settings, until = context.configuration.settings, context.incident.opened_step
    known = [each for each in settings if each.step <= until]
    if not known or context.incident.lr_jumps or any(each.checked is not None for each in known):
        return []
    first = [f"{each.name} {exact(each.value)}" for each in known if each.name in ("lr", "weight_decay")]
    began = f": {', '.join(first)}" if first and context.configuration.groups == 1 else ""
    return [f"no setting of a parameter group had changed{began}"]


def _other_half(name: str, half: str) -> str:
    match = LORA_HALF.search(name)
    other = name if match is None else f"{name[: match.start(1)]}{half}{name[match.end(1) :]}"
    return f"{other.removesuffix('.bias')}.weight" if other.endswith(".bias") else other


def _blocks(context: CauseContext, verb: str = "collapsed") -> list[str]:
    """Return evidence that the incident covers whole blocks of two or more layers, and not all of them."""
    by_block: dict[str, set[int]] = {}
    for layer_no, layer in context.layers.items():
        match = _BLOCK.search(layer.name)
        if match:
            by_block.setdefault(match[0], set()).add(layer_no)
    hit = {block: layers for block, layers in by_block.items() if layers & context.named}
    covered = set[int]().union(*hit.values())
    if not hit or len(hit) == len(by_block) or covered != context.named or min(map(len, hit.values())) < 2:
        return []
    return [f"every parameter of {len(hit):,} of {len(by_block):,} blocks {verb}, and no other"]


def _group(context: CauseContext) -> list[str]:
    """Return evidence that exactly one of several parameter groups collapsed."""
    groups: dict[int | None, set[int]] = {}
    for layer_no, layer in context.layers.items():
        groups.setdefault(layer.group, set()).add(layer_no)
    for group, layers in groups.items():
        if group is not None and len(groups) > 1 and layers == context.named:
            return [f"they are parameter group {group}, whole, and no parameter of another group"]
    return []


def _depth(context: CauseContext) -> list[str]:
    """Return evidence that gradients shrink from one to the next of the layers that differ in their numbers only."""
    rows: dict[str, list[tuple[list[int], str, float]]] = {}
    for layer, member in context.members.items():
        name = "" if layer is None or layer not in context.layers else context.layers[layer].name
        if name and member.evidence == "siblings" and member.value is not None:
            place = [int(digits) for digits in _DIGITS.findall(name)]
            rows.setdefault(_DIGITS.sub("#", name), []).append((place, name, member.value))
    for row in filter(lambda row: len(row) >= LEAST_ROW, rows.values()):
        values = [value for *_, value in sorted(row)]
        if values in (sorted(values), sorted(values, reverse=True)):
            largest, smallest = (each(row, key=itemgetter(2)) for each in (max, min))
            spans = " to ".join(f"{number(value)} in {name}" for _, name, value in (largest, smallest))
            return [f"gradients shrink from layer to layer, from {spans}"]
    return []


def _nonfinite(context: CauseContext) -> tuple[str, list[str]]:
    float16 = [layer for layer in _named(context) if layer.param_dtype == "float16"]
    if float16:
        return "fp16_overflow", [f"{len(float16):,} of the parameters are float16"]
    loss = context.members.get(None)
    if loss is not None and loss.evidence == "loss_rose":
        return "loss_diverged", []
    layers = [member.since_step for layer, member in context.members.items() if layer is not None]
    if loss is None:
        return "nonfinite_gradient", []
    # Of steps that a scaler skips the loss counts from the one at which they are too many.
    if layers and context.incident.opened_step < loss.since_step:
        return "nonfinite_gradient", [f"gradients since step {min(layers):,}, the loss since {loss.since_step:,}"]
    exploded = [near for near in context.near if near.rule == "explosion" and _is_near(context, near)]
    if any(near.opened_step < context.incident.opened_step for near in exploded):
        return "diverged", []
    return ("sudden_nonfinite_loss" if loss.evidence == "loss_steady" else "nonfinite_loss"), []


def _crash_cause(context: CauseContext, crash: Crash) -> LikelyCause:
    """Return the cause of a crash: settings and facts of the run are none."""
    raised = [f"raised in {crash.frames[0]}"] if crash.frames else []
    others = _before_crash(context, crash)
    code = "out_of_memory" if crash.memory is not None else "exception_after_fault" if others else "exception"
    nearby = [f"incident {near.id} ({near.rule}) opened at step {near.opened_step:,}" for near in others]
    return LikelyCause(code, CAUSES[code].text, (*raised, *nearby), tuple(near.id for near in others))


def _before_crash(context: CauseContext, crash: Crash) -> list[NearbyIncident]:
    """Return the incidents that may have led to the exception: non-finite or exploding values shortly before it."""
    if crash.memory is not None:
        return []
    first = context.incident.since_step - NEAR_STEPS
    return [near for near in context.near if near.rule in ("nonfinite", "explosion") and near.opened_step >= first]


def _vanished(context: CauseContext) -> tuple[str, list[str]]:
    members = context.members.values()
    kinds = {member.evidence for member in members if member.until_step is None or not context.incident.firing}
    if kinds == {"by_script"}:
        return "frozen_by_script", []
    if "handed_over" in kinds and kinds <= {"by_script", "handed_over"}:
        return "handed_over", []
    if "never" in kinds:
        if all(member.value == 0 for member in members):
            is_float16 = any(layer.param_dtype == "float16" for layer in _named(context))
            return ("fp16_zeros" if is_float16 else "only_zeros"), []
        return "never_any_gradient", _none_and_zero(context)
    if "stopped" not in kinds:
        return "idle_for_long", []
    if all(member.value == 0 for member in members):
        return "became_zero", []
    if len(context.named) == len(context.layers):
        return "no_gradient_at_all", _none_and_zero(context)
    evidence = _blocks(context, "lost its gradient")
    return ("cut_off_blocks" if evidence else "cut_off"), [*evidence, *_none_and_zero(context)]


def _unused(context: CauseContext) -> tuple[str, list[str]]:
    are_few, evidence = context.incident.severity == "information", _none_and_zero(context)
    if not _is_mostly_none(context):
        return ("cancelled" if are_few else "multiplied_by_zero"), evidence
    if any(_POSITION.fullmatch(layer.name) for layer in _named(context)):
        return "never_used_unnamed", evidence
    return ("never_used" if are_few else "not_in_graph"), evidence


def _is_mostly_none(context: CauseContext) -> bool:
    """Return True if at least half of the members have no gradient; the others have one that is exactly zero."""
    zeros = sum(member.value == 0 for member in context.members.values())
    return 2 * zeros <= len(context.members)


def _none_and_zero(context: CauseContext) -> list[str]:
    """Return the numbers of both kinds of members, if there are both: they have different causes."""
    zeros = sum(member.value == 0 for member in context.members.values())
    nones = len(context.members) - zeros
    return [f"of them {nones:,} have no gradient at all, and {zeros:,} only exact zeros"] if zeros and nones else []


def _other_series(context: CauseContext) -> list[str]:
    """Return the numbers of series of the same metrics that did not fire; none if all did, or there is no other."""
    members = Counter((facts.name, *json.loads(facts.tags)) for facts in context.incident.series.values())
    alike = {(facts.name, *json.loads(facts.tags)): facts.alike for facts in context.incident.series.values()}
    others = [(kind[0], alike[kind] - count, alike[kind]) for kind, count in members.items()]
    return [
        f"{few:,} of {all_of_them:,} series of {name} are not in this incident"
        for name, few, all_of_them in others
        if few > 0
    ]


def _largest_loss(context: CauseContext) -> list[str]:
    errors = [member.value for member in context.members.values() if member.value is not None]
    return [f"up to {percent(max(errors))} of the norm, measured against a float32 sum"] if errors else []


def _named(context: CauseContext) -> list[LayerInfo]:
    return [context.layers[layer] for layer in sorted(context.named) if layer in context.layers]


def _facts(context: CauseContext) -> list[str]:
    """Return the static findings about the run or a member. That parameters are frozen explains nothing."""
    names = {layer.name for layer in _named(context)}
    findings = [fact for fact in context.facts if fact.code != FROZEN_PARAMETERS]
    return [fact.text for fact in findings if not fact.layers or names & set(fact.layers)][:MAX_FACTS]


_SEARCHED = {"nonfinite": _nonfinite, "unused": _unused, "vanished": _vanished}
