"""The likely cause of an incident, from what is known about its run. Pure; the words are in gradcanary.remedies.

Neighbouring incidents come first, then what the collapsed layers have in common that no healthy layer shares. Where
nothing of that holds, the text says what to check, not what it was.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from gradcanary.remedies import CAUSES
from gradcanary.wire import Fact
from gradcanary_server.incident_state import Incident, Member
from gradcanary_server.observations import Jump

NEAR_STEPS = 200
"""An incident that opened so many steps before may be the cause."""

MAX_FACTS = 3

_COMPARED = {"collapse": ("fall",), "vanished": ("steady",)}
"""Evidence that leads to such a search, by rule."""

_HALF = re.compile(r"(?:^|\.)lora_(?:embedding_)?([AB])(?=\.|$)")
_BLOCK = re.compile(r"^(?:.*?\.)?\d+(?=\.|$)")


class Known(NamedTuple):
    """What causes ask of a layer."""

    name: str
    param_dtype: str
    group: int | None


@dataclass(frozen=True)
class Near:
    """Another incident of the run, open or begun shortly before."""

    id: int
    rule: str
    severity: str
    opened_step: int


@dataclass(frozen=True)
class Scene:
    """What is known about an incident: its members, layers of its run (all where :func:`compares`, else at least the
    members), what else happened, static findings."""

    incident: Incident
    members: Mapping[int | None, Member]
    layers: Mapping[int, Known]
    near: tuple[Near, ...] = ()
    facts: tuple[Fact, ...] = ()

    @cached_property
    def named(self) -> frozenset[int]:
        """The layers that ever fired."""
        return frozenset(layer for layer in self.members if layer is not None)


@dataclass(frozen=True)
class LikelyCause:
    """A cause by its code in the catalogue, its text, the observations behind it, and incidents that may explain it."""

    code: str
    text: str
    evidence: tuple[str, ...]
    incidents: tuple[int, ...]


def compares(rule: str, members: Iterable[Member]) -> bool:
    """Tell whether the cause is looked for in what the members have in common that no other layer of the run has."""
    return not {member.evidence for member in members}.isdisjoint(_COMPARED.get(rule, ()))


def likely(scene: Scene) -> LikelyCause:
    """Return the likely cause of an incident."""
    code, evidence = _RULES[scene.incident.rule](scene) if scene.incident.rule in _RULES else _collapse(scene)
    jumps = [_told(jump) for jump in scene.incident.jumps]
    # How gradients are summed explains what sums lose, and no fall of gradients.
    explains_sums = scene.incident.rule == "accumulation_loss"
    others = [near for near in scene.near if near.rule != "accumulator" or explains_sums]
    neighbours = [f"incident {near.id} ({near.rule}) opened at step {near.opened_step:,}" for near in others]
    return LikelyCause(
        code=code,
        text=CAUSES[code].text,
        evidence=(*jumps, *evidence, *neighbours, *_known(scene)),
        incidents=tuple(near.id for near in others),
    )


def _collapse(scene: Scene) -> tuple[str, list[str]]:
    rules = {near.rule for near in scene.near if near.severity != "information"}
    kinds = {member.evidence for member in scene.members.values()}
    if "nonfinite" in rules:
        return "after_nonfinite", []
    if "explosion" in rules:
        return "after_explosion", []
    if "scale_drop" in rules:
        return "after_scale_drop", []
    if "vanished" in rules:
        return "after_vanished", []
    if "fall" in kinds:
        return _fall(scene)
    if "threshold" in kinds:
        return "under_threshold", []
    return ("under_siblings" if "siblings" in kinds else "low_when_joined"), []


def _fall(scene: Scene) -> tuple[str, list[str]]:
    for code, look in (("lora_partner", _partners), ("whole_blocks", _blocks), ("parameter_group", _group)):
        evidence = look(scene)
        if evidence:
            return code, evidence
    return ("rate_jump" if any(map(_is_steep, scene.incident.jumps)) else "unknown_fall"), []


def _is_steep(jump: Jump) -> bool:
    """Tell whether a rate jumped as no schedule lets it: up, or down by more than the usual ten."""
    return jump.after > jump.before or jump.after < 0.09 * jump.before


def _told(jump: Jump) -> str:
    rates = f"went from {jump.before:.6g} to {jump.after:.6g}"
    return f"the learning rate of parameter group {jump.group} {rates} at step {jump.step:,}"


def _partners(scene: Scene) -> list[str]:
    """Return evidence that one half of LoRA pairs fell while the other half did not."""
    known = {facts.name for facts in scene.layers.values()}
    names = [facts.name for facts in _named(scene.layers, scene.named)]
    halves = {match[1] if match else None for match in map(_HALF.search, names)}
    if len(halves) != 1 or None in halves:
        return []
    half = halves.pop()
    other = "B" if half == "A" else "A"
    partners = known.intersection(_other_half(name, other) for name in names)
    if not partners:
        return []
    return [f"all {len(names):,} are lora_{half}; none of their {len(partners):,} lora_{other} partners collapsed"]


def _other_half(name: str, half: str) -> str:
    match = _HALF.search(name)
    return name if match is None else f"{name[: match.start(1)]}{half}{name[match.end(1) :]}"


def _blocks(scene: Scene, what: str = "collapsed") -> list[str]:
    """Return evidence that blocks were hit as a whole: every one of their layers, of two or more each."""
    by_block: dict[str, set[int]] = {}
    for number, facts in scene.layers.items():
        match = _BLOCK.search(facts.name)
        if match:
            by_block.setdefault(match[0], set()).add(number)
    hit = {block: layers for block, layers in by_block.items() if layers & scene.named}
    covered = set[int]().union(*hit.values())
    if not hit or len(hit) == len(by_block) or covered != scene.named or min(map(len, hit.values())) < 2:
        return []
    return [f"every layer of {len(hit):,} of {len(by_block):,} blocks {what}, and no other"]


def _group(scene: Scene) -> list[str]:
    """Return evidence that exactly one of several parameter groups fell."""
    groups: dict[int | None, set[int]] = {}
    for number, facts in scene.layers.items():
        groups.setdefault(facts.group, set()).add(number)
    for group, layers in groups.items():
        if group is not None and len(groups) > 1 and layers == scene.named:
            return [f"they are parameter group {group}, whole, and no layer of another group"]
    return []


def _scale_drop(scene: Scene) -> tuple[str, list[str]]:
    return ("converged" if scene.incident.severity == "information" else "loss_rescaled"), []


def _nonfinite(scene: Scene) -> tuple[str, list[str]]:
    half = [n for n in _named(scene.layers, scene.named) if n.param_dtype == "float16"]
    if half:
        return "fp16_overflow", [f"{len(half):,} of the layers hold float16 parameters"]
    loss = scene.members.get(None)
    layers = [member.since_step for number, member in scene.members.items() if number is not None]
    if loss is None:
        return "nonfinite_gradient", []
    if layers and min(layers) < loss.since_step:
        return "nonfinite_gradient", [f"gradients since step {min(layers):,}, the loss since {loss.since_step:,}"]
    return "nonfinite_loss", []


def _explosion(scene: Scene) -> tuple[str, list[str]]:
    if any(near.rule == "nonfinite" for near in scene.near):
        return "after_nonfinite", []
    return ("diverging" if scene.incident.severity == "critical" else "exploding"), []


def _vanished(scene: Scene) -> tuple[str, list[str]]:
    members = scene.members.values()
    kinds = {member.evidence for member in members if member.until_step is None or not scene.incident.firing}
    if kinds == {"by_script"}:
        return "frozen_by_script", []
    if "never" in kinds:
        return "never_any_gradient", []
    if "steady" not in kinds:
        return "idle_for_long", []
    if len(scene.named) == len(scene.layers):
        return "no_gradient_at_all", []
    evidence = _blocks(scene, "lost its gradient")
    return ("cut_off_blocks" if evidence else "cut_off"), evidence


def _unused(_scene: Scene) -> tuple[str, list[str]]:
    return "never_used", []


def _accumulation_loss(scene: Scene) -> tuple[str, list[str]]:
    errors = [member.value for member in scene.members.values() if member.value is not None]
    return "lossy_sum", [f"up to {max(errors):.1%} of the norm, measured against a float32 sum"] if errors else []


def _accumulator(scene: Scene) -> tuple[str, list[str]]:
    kinds = {member.evidence for member in scene.members.values()}
    return ("low_sum" if "low_sum" in kinds else "other_dtype"), []


def _frozen(scene: Scene) -> tuple[str, list[str]]:
    kinds = {member.evidence for member in scene.members.values()}
    return ("stopped_weights" if "stopped" in kinds else "coarse_weights"), []


def _fp16_underflow(_scene: Scene) -> tuple[str, list[str]]:
    return "fp16_zeros", []


def _clip_before_unscale(_scene: Scene) -> tuple[str, list[str]]:
    return "scaled_clip", []


def _silent(scene: Scene) -> tuple[str, list[str]]:
    return ("ended_while_stalled" if any(near.rule == "stalled" for near in scene.near) else "gone"), []


def _stalled(scene: Scene) -> tuple[str, list[str]]:
    kinds = {member.evidence for member in scene.members.values()}
    return ("lost_rank" if "lost_rank" in kinds else "waiting"), []


def _named(layers: Mapping[int, Known], numbers: Collection[int]) -> list[Known]:
    return [layers[number] for number in sorted(numbers) if number in layers]


def _known(scene: Scene) -> list[str]:
    """Return the run's static findings that concern the run or a member."""
    names = {facts.name for facts in _named(scene.layers, scene.named)}
    found = [fact.text for fact in scene.facts if not fact.layers or names & set(fact.layers)]
    return found[:MAX_FACTS]


_RULES = {
    "scale_drop": _scale_drop,
    "nonfinite": _nonfinite,
    "explosion": _explosion,
    "vanished": _vanished,
    "unused": _unused,
    "accumulation_loss": _accumulation_loss,
    "accumulator": _accumulator,
    "frozen": _frozen,
    "fp16_underflow": _fp16_underflow,
    "clip_before_unscale": _clip_before_unscale,
    "silent": _silent,
    "stalled": _stalled,
}
