"""Incidents in words: one sentence for a message or a page, a few words for a list. Pure.

Texts name the smallest ``since_step`` (when it began), not ``opened_step`` (when it was certain).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from gradcanary_server import run_words
from gradcanary_server.incident_state import OF_THE_CLOCK, Incident, Member
from gradcanary_server.patterns import ANY, Pattern, patterns
from gradcanary_server.tracks import RULES

SHOWN = 3
"""Groups of layers that a sentence names before it says how many more there are."""

MAX_GROUPS = 20
MAX_WORDS = 80
"""Characters of one group in a sentence: names may have 500."""

EVIDENCE = (
    *dict.fromkeys(each.evidence for meanings in RULES.values() for each in reversed(meanings) if each.evidence),
    None,
)
"""The order in which a sentence tells several kinds of evidence."""


@dataclass(frozen=True)
class Group:
    """Members of one incident that share a kind of evidence, with their names and the names of all other layers."""

    members: tuple[Member, ...]
    names: tuple[str, ...]
    others: tuple[str, ...]

    @property
    def since(self) -> str:
        return step(min(member.since_step for member in self.members))

    def typical(self, attribute: str) -> float | None:
        """Return the median of a number of the members, None when none has it."""
        numbers = [getattr(member, attribute) for member in self.members]
        known = [number for number in numbers if number is not None]
        return median(known) if known else None


def headline(incident: Incident, members: Mapping[int | None, Member]) -> str:
    """Return a few words for a list: "18 of 300 layers collapsed at step 12,340"."""
    since = f"at step {step(incident.since_step)}"
    count = incident.firing if incident.state == "open" else incident.ever
    some = _count(count, incident.layers)
    if incident.rule in run_words.RULES:
        return run_words.headline(incident, *members.values())
    if incident.rule == "nonfinite":
        return f"{'the loss' if None in members else f'the gradient of {some}'} became NaN or infinite {since}"
    kinds = {member.evidence for member in members.values()}
    if incident.rule in _FEW_WORDS:
        return f"{some} {'frozen by the script' if kinds == {'by_script'} else _FEW_WORDS[incident.rule]} {since}"
    if "fall" in kinds:
        return f"{some} collapsed {since}"
    if "threshold" in kinds:
        return f"{some} under the threshold given {since}"
    return f"{some} {'far under their siblings' if 'siblings' in kinds else 'already low when joined'} {since}"


def sentence(incident: Incident, members: Mapping[int | None, Member], names: Mapping[int, str]) -> str:
    """Return what happened, to which layers, from what to what and when; then how it ended, if it did.

    ``names`` are all layers of the run: groups are named so that they cover no healthy layer where that is possible.
    """
    if incident.rule in run_words.RULES:
        said = run_words.sentence(incident, *members.values())
    else:
        said = _RULES.get(incident.rule, _by_evidence)(incident, members, names)
    return f"{said[0].upper()}{said[1:]}.{_ending(incident)}"


def groups(names: Sequence[str], others: Sequence[str]) -> str:
    """Return layers in words: "lora_A in blocks.7-9, head.weight"."""
    found = patterns(names, others, MAX_GROUPS)
    words = [clipped(_words(pattern), MAX_WORDS) for pattern in found[:SHOWN]]
    more = len(found) - len(words)
    return ", ".join(words) + (f" and {more} more group{'s' if more > 1 else ''}" if more else "")


def step(number: int) -> str:
    """Return a step as people write it: 12,340."""
    return f"{number:,}"


def number(value: float | None) -> str:
    """Return a magnitude as people write it: 3e-3, 0.05, 120, exactly 0."""
    if value is None or math.isnan(value):
        return "an unknown value"
    if value == 0:
        return "exactly 0"
    if 0.01 <= abs(value) < 10_000:
        return f"{float(f'{value:.2g}'):g}"
    mantissa, _, exponent = f"{value:.0e}".partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa


def clipped(text: str, length: int) -> str:
    """Return at most ``length`` characters, the middle left out."""
    half = (length - 1) // 2
    return text if len(text) <= length else f"{text[:half]}…{text[-half:]}"


def split(members: Mapping[int | None, Member], names: Mapping[int, str], wanted: Iterable[int]) -> Group:
    """Return these layers as a group, against all other layers of the run that are no members."""
    layers = list(wanted)
    outside = tuple(name for layer, name in names.items() if layer not in members)
    return Group(
        members=tuple(members[layer] for layer in layers),
        names=tuple(names.get(layer, f"layer {layer}") for layer in layers),
        others=outside,
    )


def _by_evidence(incident: Incident, members: Mapping[int | None, Member], names: Mapping[int, str]) -> str:
    clauses: list[str] = []
    for evidence in EVIDENCE:
        layers = [layer for layer, member in members.items() if layer is not None and member.evidence == evidence]
        if not layers:
            continue
        group = split(members, names, layers)
        count = f"{len(layers):,} more" if clauses else _count(len(layers), incident.layers)
        where = "" if len(layers) == incident.layers else f" ({groups(group.names, group.others)})"
        clauses.append(f"{count}{where} {_SAID.get((incident.rule, evidence), _fired)(group)}")
    return "; ".join(clauses) or f"{incident.rule} fired"


def _nonfinite(incident: Incident, members: Mapping[int | None, Member], names: Mapping[int, str]) -> str:
    what = ["the loss"] if None in members else []
    layers = [layer for layer in members if layer is not None]
    if layers:
        group = split(members, names, layers)
        where = "" if len(layers) == incident.layers else f" ({groups(group.names, group.others)})"
        what.append(f"the gradient of {_count(len(layers), incident.layers)}{where}")
    return f"{' and '.join(what)} became NaN or infinite at step {step(incident.since_step)}"


def _fall(group: Group) -> str:
    return f"fell from {number(group.typical('baseline'))} to {number(group.typical('value'))} at step {group.since}"


def _threshold(group: Group) -> str:
    return f"went under the threshold given for them, to {number(group.typical('value'))}, at step {group.since}"


def _siblings(group: Group) -> str:
    siblings = number(group.typical("siblings"))
    value = number(group.typical("value"))
    return f"lay at {value}, their siblings at {siblings}, when that was first seen at step {group.since}"


def _late(group: Group) -> str:
    return f"were already at {number(group.typical('value'))} when the run was joined at step {group.since}"


def _fired(group: Group) -> str:
    return f"fired at step {group.since}"


def _explosion(group: Group) -> str:
    return f"went up from {number(group.typical('baseline'))} to {number(group.typical('value'))} at step {group.since}"


def _steady(group: Group) -> str:
    now = "exact zeros" if group.typical("value") == 0 else "none"
    return f"had a gradient in nearly every step, and {now} since step {group.since}"


def _rare(group: Group) -> str:
    return f"had a gradient now and then, and none for ten times as long as ever before, since step {group.since}"


def _by_script(group: Group) -> str:
    return f"had a gradient and are not trainable any more since step {group.since}: the script froze them"


def _unused(group: Group) -> str:
    return f"are trainable and never had a gradient since step {group.since}"


def _lost(group: Group) -> str:
    lost = group.typical("value")
    share = "a part" if lost is None else f"{lost:.0%}"
    return f"lost {share} of their gradient while it was summed over micro-steps, measured at step {group.since}"


def _low_sum(group: Group) -> str:
    return f"are summed over micro-steps in low precision since step {group.since}"


def _declared(group: Group) -> str:
    return f"are summed in another dtype than the configuration asks for, seen at step {group.since}"


def _forecast(group: Group) -> str:
    return f"have weights or optimizer states too coarse for their learning rate, seen at step {group.since}"


def _measured(group: Group) -> str:
    return f"have weights of which {_share(group)} did not move in fifty steps, at step {group.since}"


def _stopped(group: Group) -> str:
    return f"moved, and now {_share(group)} of their weights did not in fifty steps, at step {group.since}"


def _no_scaler(group: Group) -> str:
    return f"have gradients in float16 without a GradScaler, seen at step {group.since}"


def _scaled_clip(group: Group) -> str:
    return f"are clipped while their gradients carry the loss scale, seen at step {group.since}"


def _zeros(group: Group) -> str:
    return f"have {_share(group)} exact zeros in float16 gradients that had fewer before, since step {group.since}"


def _share(group: Group) -> str:
    share = group.typical("value")
    return "most" if share is None else f"{share:.0%}"


_SAID: dict[tuple[str, str | None], Callable[[Group], str]] = {
    ("collapse", "fall"): _fall,
    ("collapse", "threshold"): _threshold,
    ("collapse", "siblings"): _siblings,
    ("collapse", "late"): _late,
    ("explosion", None): _explosion,
    ("vanished", "steady"): _steady,
    ("vanished", "rare"): _rare,
    ("vanished", "never"): _unused,
    ("vanished", "by_script"): _by_script,
    ("unused", None): _unused,
    ("accumulation_loss", None): _lost,
    ("accumulator", "low_sum"): _low_sum,
    ("accumulator", "declared"): _declared,
    ("frozen", "forecast"): _forecast,
    ("frozen", "measured"): _measured,
    ("frozen", "stopped"): _stopped,
    ("fp16_underflow", "no_scaler"): _no_scaler,
    ("fp16_underflow", "zeros"): _zeros,
    ("fp16_underflow", "all_zeros"): _zeros,
    ("clip_before_unscale", None): _scaled_clip,
}
_FEW_WORDS = {
    "explosion": "exploded",
    "vanished": "without a gradient",
    "unused": "never had a gradient",
    "accumulation_loss": "lost gradient while summing",
    "accumulator": "summed in low precision",
    "frozen": "with weights that stand still",
    "fp16_underflow": "with float16 gradients that go to zero",
    "clip_before_unscale": "clipped before unscaling",
}
_RULES: dict[str, Callable[[Incident, Mapping[int | None, Member], Mapping[int, str]], str]] = {
    "nonfinite": _nonfinite,
}


def _ending(incident: Incident) -> str:
    at = "" if incident.resolved_step is None else f" at step {step(incident.resolved_step)}"
    if incident.state == "open":
        some = incident.ever > incident.firing > 0
        return f" {incident.firing:,} of them have not recovered." if some else ""
    if incident.rule in OF_THE_CLOCK:
        return f" {run_words.ending(incident)}{at}."
    ends = {"recovered": f"Recovered{at}.", "run_finished": f"The run ended{at} without a recovery."}
    ends["rebaselined"] = f"Accepted{at}: a new baseline is learnt."
    ends["rule_changed"] = f"Over{at}: the rule is another one now."
    ends["run_deleted"] = f"Over{at}: the run was deleted."
    return f" {ends.get(incident.resolution or '', f'Over{at}: {incident.resolution}.')}"


def _count(layers: int, total: int) -> str:
    if layers == total:
        return f"all {total:,} layers" if total > 1 else "the only layer"
    return f"{layers:,} of {total:,} layers"


def _words(pattern: Pattern) -> str:
    """Return "lora_A in blocks.7-9" for a block, a ``*`` and an ending; else the pattern itself."""
    if ANY not in pattern.segments or pattern.segments == (ANY,):
        return str(pattern)
    at = pattern.segments.index(ANY)
    block, kind = Pattern(pattern.segments[:at]), Pattern(pattern.segments[at + 1 :])
    if not block.segments or not kind.segments:
        return str(pattern)
    # PEFT ends every name in .default.weight, which says nothing.
    lora = [segment for segment in kind.segments if isinstance(segment, str) and segment.startswith("lora_")]
    return f"{lora[0] if lora else kind} in {block}"
