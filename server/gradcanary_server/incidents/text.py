"""The texts of incidents: a headline for lists, and a summary for messages and pages.

All words are in the tables ``WORDS``, ``ENDS`` and ``ABSENCE_ENDS``; :func:`_fields` fills the fields in braces.

A summary names hundreds of layers by regular expressions over all names of a run, and SQLite has one writer. So a
transaction that changes an incident only counts its revisions. The dispatcher composes the summary later and stores it
with its revision; an earlier reader composes it, too.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timezone
from itertools import groupby
from operator import attrgetter
from statistics import median
from typing import NamedTuple

from sqlalchemy import Connection, RowMapping, bindparam, select, update

from gradcanary.wire import Crash
from gradcanary.wording import agree, count, format_bytes, number, percent, shared_ends
from gradcanary_server.incidents import repository
from gradcanary_server.incidents.lifecycle import ABSENCE_RULES, Incident, Member
from gradcanary_server.incidents.name_patterns import ANY, Pattern, compressed_patterns
from gradcanary_server.incidents.setting_causes import scale_words
from gradcanary_server.rules.detectors.metric import RISES
from gradcanary_server.rules.signals import RULES
from gradcanary_server.rules.types import SeriesFacts
from gradcanary_server.storage.schema import incident, is_of_incident

SHOWN = 3
"""Groups of layers that a sentence names; the others are counted."""

MAX_GROUPS = 20
MAX_MESSAGE = 100
"""Characters of the message of an exception in a headline."""

MAX_WORDS = 80
"""Characters of one group in a sentence: names may have 500."""

EVIDENCE = (
    *dict.fromkeys(signal.evidence for signals in RULES.values() for signal in reversed(signals) if signal.evidence),
    *("under_bound", "over_bound", "fell", "rose", "not_finite"),
    None,
)
"""The order of several kinds of evidence in a sentence; a headline has the first one only."""


class Words(NamedTuple):
    """The templates of a headline and of a clause of a sentence."""

    headline: str
    sentence: str


_NONFINITE = "became NaN or infinite {at}"
_TOGETHER = "all gradients fell together {at}"
_FELL = "all gradients became {smaller} {at}"
_NOT_HEARD = "nothing was heard of the run since {moment}, and it did not say that it ended; "
_NO_STEP = "the process is alive but has made no step since step {step} ({moment})"
_IDLE = "{count} {have} had no gradient {since}"
_LOST = "{count} lost {their} {gradient} {at}"
_UNREACHED = Words(
    "{count} never had a gradient, {since}",
    "{layers} {are} trainable and never had a gradient: no backward pass reached {them}, {since}",
)
_ONLY_ZEROS = Words(
    "{count} had only gradients of exactly zero, {since}",
    "{layers} {are} trainable and had only gradients of exactly zero, {since}",
)
_STILL = "{count} {have} weights that stand still {since}"
_IN_VAIN = "{count} {are} trained in vain {since}"
_VAIN = "{layers} {are} trained in vain: {share} of {their} weights stood still {when}, and the loss did not fall"
_UNMOVED = "{count} {have} gradients, and weights that do not move {since}"
_HARDLY = "{count} {have} hardly any updates {since}"
_CHANGED = "{layers} {have} updates that change {their} weights by {ratio} of themselves"
_ZEROS = "{layers} {have} {exact_zeros} in float16 gradients that had fewer before, {since}"

WORDS: dict[tuple[str, str | None], Words] = {
    ("collapse", "fall"): Words("{count} collapsed {at}", "{layers} fell{from_to} {at}"),
    ("collapse", "straight"): Words(
        "{count} {have} gradients that fall exponentially {since}",
        "{layers} fell{from_to} {at}, exponentially: each step took the same part away",
    ),
    ("collapse", "threshold"): Words(
        "{count} went under the threshold given {at}",
        "{layers} went under the threshold given for {them}{absmax} {at}",
    ),
    ("collapse", "siblings"): Words(
        "{count} {have} far smaller gradients than similar parameters {since}",
        "{layers} {have} much smaller gradients than similar parameters{against}, {since} at the latest",
    ),
    ("collapse", "follows"): Words(
        "{count} fell beside collapsed parameters {at}",
        "{layers} beside collapsed ones fell{from_to} {at}",
    ),
    ("collapse", "joined_late"): Words(
        "{count} {were} already low when the run was joined {at}",
        "{layers} {were} already low{absmax} when the run was joined {at}",
    ),
    ("nonfinite", "loss"): Words(f"the loss {_NONFINITE}", f"the loss {_NONFINITE}"),
    ("nonfinite", "both"): Words(f"the loss {_NONFINITE}", f"the loss and the {{gradient}} of {{layers}} {_NONFINITE}"),
    ("nonfinite", None): Words(
        f"the {{gradient}} of {{count}} {_NONFINITE}", f"the {{gradient}} of {{layers}} {_NONFINITE}"
    ),
    ("explosion", None): Words("{count} exploded {at}", "{layers} went up{up_from_to} {at}"),
    ("vanished", "stopped"): Words(_LOST, "{layers} lost {their} {gradient} {at}: {none_or_zeros} followed"),
    ("vanished", "sporadic"): Words(_LOST, "{layers} lost {their} {gradient} {at}: {idle}"),
    ("vanished", "never"): Words(_IDLE, "{layers} that {are} watched had {no_gradient_or_zeros} {since}"),
    ("vanished", "by_script"): Words(
        "{count} {were} frozen by the script {at}",
        "{layers} had a gradient and {are} not trainable any more {since}: the script froze {them}",
    ),
    ("unused", "not_in_graph"): _UNREACHED,
    ("unused", "multiplied_by_zero"): _ONLY_ZEROS,
    ("vanished", "handed_over"): Words(
        "{count} handed {their} gradient over to similar parameters {at}",
        "{layers} lost {their} {gradient} {at}, when similar parameters that had none got theirs: "
        "{none_or_zeros} followed",
    ),
    ("accumulation_loss", None): Words(
        "{count} lost gradient while summing {at}",
        "{layers} lost {part} of {their} gradient while it was summed over micro-steps, measured {at}",
    ),
    ("accumulator", "low_precision_sum"): Words(
        "{count} {are} summed in low precision {since}",
        "{layers} {are} summed over micro-steps in low precision {since}",
    ),
    ("accumulator", "declared"): Words(
        "{count} {are} summed in another dtype than declared, seen {at}",
        "{layers} {are} summed in another dtype than the configuration asks for, seen {at}",
    ),
    ("frozen", "measured"): Words(_STILL, "{layers} {have} weights of which {share} stood still {when}"),
    ("frozen", "stopped"): Words(_STILL, "{layers} moved before, and {share} of {their} weights stood still {when}"),
    ("in_vain", "rounded"): Words(_IN_VAIN, _VAIN),
    ("in_vain", "clipped"): Words(_IN_VAIN, f"{_VAIN}, while the loop clips gradients"),
    ("no_update", "undone"): Words(
        "{count} {have} undone updates, seen {at}",
        "{layers} {are} changed by the optimizer and {have} the old weights again when a later step begins, seen {at}",
    ),
    ("no_update", "too_fine"): Words(
        _UNMOVED,
        "{layers} {have} gradients, and steps finer than the precision of {their} weights, which do not move {since}",
    ),
    ("no_update", "unmoved"): Words(
        _UNMOVED, "{layers} {have} gradients, and none of the compared weights changed in a step {since}"
    ),
    ("no_update", "no_rate"): Words(
        "{count} {have} a learning rate of zero {since}",
        "{layers} {have} gradients, and a learning rate of zero in all steps {since}",
    ),
    ("no_update", "slow"): Words(
        _HARDLY, f"{_CHANGED}, far less than {{their}} optimizer makes of the learning rate and the gradient, {{since}}"
    ),
    ("no_update", "tiny"): Words(_HARDLY, f"{_CHANGED}, {{since}}"),
    ("no_update", "apart"): Words(
        "{count} {have} far smaller updates than others {since}",
        "{layers} {have} updates decades smaller than those of others{against}, {since}",
    ),
    ("second_moments", None): Words(
        "{count} {have} second moments that cannot decay, seen {at}",
        "{layers} {have} second moments in low precision that rise and cannot decay, seen {at}",
    ),
    ("fp16_underflow", "no_scaler"): Words(
        "{count} {have} float16 gradients without a GradScaler, seen {at}",
        "{layers} {have} gradients in float16 without a GradScaler, seen {at}",
    ),
    ("fp16_underflow", "zeros"): Words("{count} {have} float16 gradients that go to zero, {since}", _ZEROS),
    ("fp16_underflow", "all_zeros"): Words("{count} {have} float16 gradients that go to zero, {since}", _ZEROS),
    ("fp16_underflow", "at_limit"): Words(
        "{count} {have} float16 gradients that go to zero, {since}",
        "{layers} {have} {exact_zeros} in float16 gradients cut off at the smallest number of float16, {since}",
    ),
    ("clip_before_unscale", None): Words(
        "{count} {are} clipped before unscaling, seen {at}",
        "{layers} {are} clipped while {their} gradients carry the loss scale, seen {at}",
    ),
    ("not_optimized", None): Words(
        "{count} {are} in no optimizer, seen {at}",
        "{layers} {are} in no optimizer: {they} {receive} gradients and never {change}, seen {at}",
    ),
    ("never_cleared", None): Words(
        "{count} never {have} {their} {gradient} cleared, seen {at}",
        "{layers} never {have} {their} {gradient} cleared after a step: each step uses the sum of all, seen {at}",
    ),
    ("scale_drop", "information"): Words(_TOGETHER, f"{_FELL}, and the loss came down, too"),
    ("scale_drop", "warning"): Words(_TOGETHER, f"{_FELL}; the loss did not fall enough to explain it"),
    ("scale_drop", "no_loss"): Words(_TOGETHER, f"{_FELL}; whether the loss explains it is not known"),
    ("scale_drop", "critical"): Words(_TOGETHER, f"{_FELL}, and the loss did not fall"),
    ("scale_drop", "own_loss"): Words(
        "all gradients of a loss that is not on record fell together {at}",
        "all gradients that come from a loss which is not on record became {smaller} {at}",
    ),
    ("scale_drop", "all_zeros"): Words(_TOGETHER, f"{_FELL}; the loss did not fall enough to explain that"),
    ("loss_scale", None): Words("{scale_fell}", "{scale_fell}{scale_when}"),
    ("metric", "under_bound"): Words(
        "{count} {are} under {bound} {since}", "{layers} {beyond}, under {bound}, {since}{mean}"
    ),
    ("metric", "over_bound"): Words(
        "{count} {are} over {bound} {since}", "{layers} {beyond}, over {bound}, {since}{mean}"
    ),
    ("metric", "fell"): Words("{count} fell{by} {since}", "{layers} fell{from_to}{by_share} {since}{mean}"),
    ("metric", "rose"): Words("{count} rose{by} {since}", "{layers} rose{up_from_to}{by_share} {since}{mean}"),
    ("metric", "not_finite"): Words("{count} {are} NaN or infinite {since}", "{layers} {are} NaN or infinite {since}"),
    ("silent", None): Words("nothing heard since step {step}", f"{_NOT_HEARD}its last step was {{step}}"),
    ("silent", "no_step"): Words("nothing heard since its start", f"{_NOT_HEARD}it had made no step"),
    ("stalled", None): Words("no new step since step {step}", _NO_STEP),
    ("stalled", "no_step"): Words(
        "no new step since its start", "the process is alive but has made no step since its start ({moment})"
    ),
    ("crash", "exception"): Words("{error} {where}{start}", "{error} {where} ended the training{message}"),
    ("crash", "memory"): Words("{memory} {where}{peak}", "{memory} {where}{peak} ended the training: {error}{message}"),
}
"""By rule and evidence; nonfinite by loss and layers, scale_drop by what is known of the loss, crash by the
kind of exception.

``at`` and ``since`` name the first and the last ``since_step`` of the members (when it began), not ``opened_step``
(when it was certain). A gradient that was lost may come back for a step, so no text says that it is absent since.
Values of several layers are medians, and say so.
"""

UNKNOWN = Words("{count} fired {at}", "{layers} fired {at}")

_PLURAL = {word: word for word in ("are", "were", "have", "their", "them", "they", "receive", "change")} | {
    "gradient": "gradients"
}
_SINGULAR = {
    "are": "is",
    "were": "was",
    "have": "has",
    "their": "its",
    "them": "it",
    "they": "it",
    "receive": "receives",
    "change": "changes",
    "gradient": "gradient",
}

ENDS = {
    "recovered": "Recovered{at}.",
    "run_finished": "The run ended{at} without a recovery.",
    "rebaselined": "Accepted{at}: a new baseline is learnt.",
    "rule_changed": "Over{at}: the rule is another one now.",
    "run_deleted": "Over{at}: the run was deleted.",
    "layer_gone": "Over{at}: a later launch does not train all of these parameters.",
}
ABSENCE_ENDS = {
    "run_finished": "The run ended{at}.",
    "run_deleted": "The run was deleted{at}.",
    "rule_changed": "The rule became another one{at}.",
    "silent": "It was heard of again{at}.",
    "stalled": "It went on{at}.",
}
"""By resolution, else by rule."""


def headline(incident: Incident, members: Mapping[int | None, Member]) -> str:
    """Return the words for a list: "18 of 300 layers collapsed at step 12,340".

    They are about the layers that fire now, or that ever fired once it is resolved, with the first kind of evidence.
    """
    if incident.state == "open":
        members = {layer: member for layer, member in members.items() if member.until_step is None} or members
    by_kind = _by_kind(incident, members)
    kind, layers = next(iter(by_kind.items()), (None, []))
    known = [members[None]] if kind == "both" else [members[layer] for layer in layers]
    fields = _fields(incident, known or members.values())
    if layers and incident.series:
        fields |= _series_fields(incident, members, layers)
    elif layers:
        fields |= {**_agreement(len(layers)), "count": _count(len(layers), incident.layers)}
    others = sum(map(len, by_kind.values())) - len(layers)
    more = f"; {others:,} more by other evidence" if others else ""
    return _template(incident.rule, kind).headline.format_map(fields) + more


def sentence(incident: Incident, members: Mapping[int | None, Member], names: Mapping[int, str]) -> str:
    """Return the summary: the change, its layers, the values, the step; then the end of a resolved incident.

    ``names`` are all layers of the run: a named group covers no healthy layer where that is possible. The beginning
    that all of them share is left out.
    """
    clauses: list[str] = []
    prefix, _ = shared_ends(names.values())
    short = {layer: name.removeprefix(prefix) for layer, name in names.items()}
    others = [name for layer, name in short.items() if layer not in members]
    for kind, layers in _by_kind(incident, members).items():
        known = [members[layer] for layer in layers]
        if kind == "both":
            known.append(members[None])
        fields = _fields(incident, known or members.values())
        if incident.series:
            fields |= _series_fields(incident, members, layers)
        elif layers:
            fields |= _agreement(len(layers))
            fields["layers"] = f"{len(layers):,} more" if clauses else _count(len(layers), incident.layers)
            if len(layers) != incident.layers:
                named = [short.get(layer, f"parameter {layer}") for layer in layers]
                fields["layers"] += f" ({describe_layers(named, others)})"
        clauses.append(_template(incident.rule, kind).sentence.format_map(fields))
    text = "; ".join(clauses) or f"{incident.rule} fired"
    begin = text[0] if incident.series else text[0].upper()  # the name of a metric is as it is
    return f"{begin}{text[1:]}.{_ending(incident)}"


def series_name(facts: SeriesFacts) -> str:
    """Return the name of a series: ``clip_score{category=bottles, provider=sdxl}``."""
    tags = ", ".join(f"{tag}={value}" for tag, value in json.loads(facts.tags).items())
    return f"{facts.name}{{{tags}}}" if tags else facts.name


def _series_fields(incident: Incident, members: Mapping[int | None, Member], numbers: Sequence[int]) -> dict[str, str]:
    """Return the fields of some series of metrics that went beyond their bounds in the same way."""
    facts, known = [incident.series[key] for key in numbers], [members[key] for key in numbers]
    bounds, values = {number(each.bound) for each in facts}, [each.value for each in known if each.value is not None]
    moved = _values(known)["up_from_to" if known[0].evidence in RISES else "from_to"]
    verb, now = "rose" if known[0].evidence in RISES else "fell", _median(values) if values else "not finite"
    pairs = [(each.value, each.baseline) for each in known if each.value is not None and each.baseline]
    shares = [abs(value - level) / abs(level) for value, level in pairs]
    share = percent(median(shares)) + ("" if len(set(shares)) == 1 else ", median") if shares else ""
    return {
        **_agreement(len(facts)),
        "count": _of_tags(facts[0]) if len(facts) == 1 else f"{len(facts):,} of {incident.layers:,} series",
        "layers": _named_series(facts, incident.layers),
        "bound": f"the bound of {bounds.pop()}" if len(bounds) == 1 else "their bounds",
        "by": f" by {share}" if share else "",
        "by_share": f" ({share})" if share else "",
        "beyond": f"{verb}{moved}" if moved.startswith(" from") else f"{agree(len(facts), ('is', 'are'))} {now}",
        "mean": _mean_words(facts, incident.series[max(numbers, key=lambda key: members[key].since_step)]),
    }


def _named_series(facts: Sequence[SeriesFacts], total: int) -> str:
    """Return series with their tags, at most three of several: ``2 of 12 series (clip_score of a=b; ...)``."""
    if len(facts) == 1:
        return _of_tags(facts[0])
    named = [*map(_of_tags, facts[:SHOWN]), *([f"{len(facts) - SHOWN:,} more"] if len(facts) > SHOWN else [])]
    return f"{len(facts):,} of {total:,} series ({'; '.join(named)})"


def _of_tags(facts: SeriesFacts) -> str:
    """Return a series in words: ``clip_score of category=bottles, provider=sdxl``."""
    tags = ", ".join(f"{tag}={value}" for tag, value in json.loads(facts.tags).items())
    words = f"{facts.name} of {tags}" if tags else facts.name
    return truncate_middle(words, 2 * MAX_WORDS)


def _mean_words(facts: Sequence[SeriesFacts], last: SeriesFacts) -> str:
    """Return the mean of the values of all series that are alike, when the last of these fired, beside that of their
    levels: each level is the best of its series, so the mean need never have been that."""
    if len({each.name for each in facts}) > 1 or last.alike < 2 or last.mean is None or not last.mean_level:
        return ""
    share = percent(abs(last.mean - last.mean_level) / abs(last.mean_level))
    name = truncate_middle(last.name, MAX_WORDS)
    means = f"{number(last.mean)}, of their levels {number(last.mean_level)} ({share} apart)"
    return f"; over all {last.alike:,} series of {name} the mean of the values is {means}"


def describe_layers(names: Sequence[str], others: Sequence[str]) -> str:
    """Return layers in words: "lora_A in blocks.7-9, head.weight"."""
    patterns = compressed_patterns(names, others, MAX_GROUPS)
    words = [truncate_middle(_words(pattern), MAX_WORDS) for pattern in patterns[:SHOWN]]
    more = len(patterns) - len(words)
    return ", ".join(words) + (f" and {count(more, 'more group')}" if more else "")


def truncate(text: str, length: int) -> str:
    """Return at most ``length`` characters, without the end."""
    return text if len(text) <= length else f"{text[: length - 1].rstrip()}…"


def truncate_middle(text: str, length: int) -> str:
    """Return at most ``length`` characters, without the middle."""
    half = (length - 1) // 2
    return text if len(text) <= length else f"{text[:half]}…{text[-half:]}"


def _template(rule: str, kind: str | None) -> Words:
    return WORDS.get((rule, kind)) or WORDS.get((rule, None), UNKNOWN)


def _by_kind(incident: Incident, members: Mapping[int | None, Member]) -> dict[str | None, list[int]]:
    """Return the layers by the second part of their key in ``WORDS``, in the order of a sentence."""
    layers = [layer for layer in members if layer is not None]
    if incident.rule == "nonfinite":
        return {None if None not in members else "both" if layers else "loss": layers}
    if incident.rule == "loss_scale":
        return {None: []}
    if incident.rule == "scale_drop":
        known = {each.evidence for each in members.values()}
        kinds = {"warning": ("no_loss", "own_loss"), "critical": ("all_zeros",)}.get(incident.severity, ())
        return {next((kind for kind in kinds if kind in known), incident.severity): []}
    if incident.crash is not None:
        return {"exception" if incident.crash.memory is None else "memory": []}
    if incident.rule in ABSENCE_RULES:
        return {member.evidence: [] for member in members.values()}
    by_kind = {kind: [layer for layer in layers if members[layer].evidence == kind] for kind in EVIDENCE}
    return {kind: layers for kind, layers in by_kind.items() if layers}


def _fields(incident: Incident, members: Collection[Member]) -> dict[str, str]:
    """Return the fields of the templates, except the names of layers."""
    layers = incident.firing if incident.state == "open" else incident.ever_firing
    first, last = (limit(member.since_step for member in members) for limit in (min, max))
    steps = f"step {first:,}" if first == last else f"steps {first:,} to {last:,}"
    fields = {
        **_agreement(layers),
        **_values(members),
        "count": _count(layers, incident.layers),
        "at": f"at {steps}",
        "since": f"since {steps}",
        "step": f"{first:,}",
        "when": _when(incident, first, last),
    }
    if incident.crash is not None:
        fields |= _crash_fields(incident.crash, next(iter(members)))
    if incident.rule == "loss_scale":
        fields["scale_fell"], fields["scale_when"] = scale_words(incident.scale_fall)
    if incident.rule == "scale_drop":
        decades = next((member.value for member in members if member.value is not None), None)
        fields["smaller"] = "exactly zero" if decades is None else f"{number(10**decades)} times smaller"
    if incident.rule in ABSENCE_RULES:
        # The value is the time without a request or a step, in seconds.
        noticed = incident.opened if incident.reopened_at is None else incident.reopened_at
        seconds = next((member.value for member in members if member.value is not None), 0.0)
        moment = datetime.fromtimestamp(noticed - seconds, tz=timezone.utc)
        fields["moment"] = f"{moment:%Y-%m-%d %H:%M} UTC"
    return fields


def _crash_fields(crash: Crash, member: Member) -> dict[str, str]:
    at = "before the first step" if member.evidence == "no_step" else f"at step {member.since_step:,}"
    message = crash.message.rstrip(".")
    return {
        "error": crash.type,
        "where": at if member.rank is None else f"in rank {member.rank} {at}",
        "message": f": {message}" if message else "",
        "start": f": {truncate(message, MAX_MESSAGE)}" if message else "",
        "memory": "out of memory" if crash.memory in (None, "cpu") else f"{crash.memory.upper()} out of memory",
        "peak": "" if crash.peak_bytes is None else f" (peak {format_bytes(crash.peak_bytes)})",
    }


def _when(incident: Incident, first: int, last: int) -> str:
    """Return the steps between which weights stood still; layers are measured in turns, over equal spans."""
    span = 0 if incident.reopened else incident.opened_step - incident.since_step
    if not span:
        return f"since step {first:,}"
    if first == last:
        return f"between step {first:,} and {first + span:,}"
    return f"over {span:,} steps, measured in turns from step {first:,} to {last + span:,}"


def _values(members: Collection[Member]) -> dict[str, str]:
    """Return the fields with values of members; a value that no member has is left out with its words."""
    values = [member.value for member in members if member.value is not None]
    pairs = [(member.baseline, member.value, member.siblings) for member in members]
    falls = [(before, now) for before, now, _ in pairs if before is not None and now is not None and now < before]
    rises = [(before, now) for before, now, _ in pairs if before is not None and now is not None and now > before]
    apart = [(now, others) for _, now, others in pairs if now is not None and others is not None and now < others]
    is_zero, is_none = (any(value == other for _, value, _ in pairs) for other in (0, None))
    return {
        "from_to": _from_to(falls, values),
        "up_from_to": _from_to(rises, [value for value in values if value > 0]),
        "absmax": _largest(values),
        "against": ": {} instead of {}{}".format(*_medians(apart)) if apart else "",
        "ratio": _median(values) if values else "next to nothing",
        "part": _share(values, "a part"),
        "share": _share(values, "most"),
        "exact_zeros": f"{_share(values, 'mostly')} exact zeros",
        "none_or_zeros": ("none or exact zeros" if is_none else "exact zeros") if is_zero else "no gradient",
        "no_gradient_or_zeros": ("no gradient or only exact zeros" if is_none else "only gradients of exactly zero")
        if is_zero
        else "no gradient",
        "idle": _idle(members),
    }


def _from_to(pairs: Sequence[tuple[float, float]], values: Sequence[float]) -> str:
    if pairs:
        return " from {} to {}{}".format(*_medians(pairs))
    return f" to {_median(values)}" if values else ""


def _medians(pairs: Sequence[tuple[float, float]]) -> tuple[str, str, str]:
    """Return the medians of both sides, and a remark if they are of several pairs."""
    first, second = (number(median(side)) for side in zip(*pairs, strict=True))
    return first, second, "" if len(set(pairs)) == 1 else " (medians)"


def _largest(values: Sequence[float]) -> str:
    if not values:
        return ""
    return f" ({'' if len(set(values)) == 1 else 'median '}largest gradient {number(median(values))})"


def _median(values: Sequence[float]) -> str:
    return number(median(values)) + ("" if len(set(values)) == 1 else " (median)")


def _share(values: Sequence[float], unknown: str) -> str:
    if not values:
        return unknown
    share = median(values)
    return ("all" if share >= 1 else percent(share)) + ("" if len(set(values)) == 1 else " (median)")


def _idle(members: Collection[Member]) -> str:
    """Return the gaps of layers that seldom have a gradient; their value and baseline are numbers of samples."""
    spans = [(each.baseline, each.value) for each in members if each.baseline is not None and each.value]
    if not spans:
        return "one came now and then, and none for longer than ever before"
    usual, idle = max(usual for usual, _ in spans), min(idle for _, idle in spans)
    return f"one came at least every {usual:,.0f} sampled steps, and then none in {idle:,.0f}"


def _ending(incident: Incident) -> str:
    if incident.rule == "crash":
        return " Another launch went on." if incident.resolution == "resumed" else ""
    if incident.state == "open":
        if not incident.ever_firing > incident.firing > 0:
            return ""
        return f" {incident.firing:,} of them {agree(incident.firing, ('has', 'have'))} not recovered."
    ends = ABSENCE_ENDS if incident.rule in ABSENCE_RULES else ENDS
    words = ends.get(incident.resolution or "") or ends.get(incident.rule, f"Over{{at}}: {incident.resolution}.")
    at = "" if incident.resolved_step is None else f" at step {incident.resolved_step:,}"
    return f" {words.format(at=at)}"


def _count(layers: int, total: int) -> str:
    if layers == total:
        return f"all {count(total, 'parameter')}" if total > 1 else "the only parameter"
    return f"{layers:,} of {count(total, 'parameter')}"


def _agreement(layers: int) -> dict[str, str]:
    """Return the fields of words that agree with a number of layers."""
    return _SINGULAR if layers == 1 else _PLURAL


def _words(pattern: Pattern) -> str:
    """Return "lora_A in blocks.7-9" for a block, a ``*`` and an ending; else the pattern itself."""
    if ANY not in pattern.segments or pattern.segments == (ANY,):
        return str(pattern)
    at = pattern.segments.index(ANY)
    block, kind = Pattern(pattern.segments[:at]), Pattern(pattern.segments[at + 1 :])
    if not block.segments or not kind.segments:
        return str(pattern)
    # PEFT ends every name in .default.weight, which adds nothing.
    lora = [segment for segment in kind.segments if isinstance(segment, str) and segment.startswith("lora_")]
    return f"{lora[0] if lora else kind} in {block}"


COMPOSE_S = 0.2
"""Seconds after which a reading transaction composes no further text: SQLite's WAL grows while it is open."""

IS_DESCRIBED = incident.c.described_revision == incident.c.revision
"""The stored summary is of the newest revision."""

_IS_MISSING = ~IS_DESCRIBED & incident.c.notifications_done.is_(False)
_STORE = (
    update(incident)
    .where(is_of_incident(incident, bindparam("at_run_id"), bindparam("at_incident_id")))
    .where(incident.c.revision == bindparam("at_revision"))
    .values(summary=bindparam("text"), described_revision=bindparam("at_revision"))
)


class Summary(NamedTuple):
    """The summary of one revision of an incident."""

    run_id: int
    incident_id: int
    revision: int
    text: str


def stored_summary(row: RowMapping) -> str | None:
    """Return the stored summary of an incident, None if it is of an older revision."""
    return str(row["summary"]) if row["described_revision"] == row["revision"] else None


def current_summary(connection: Connection, row: RowMapping) -> str:
    """Return the stored summary of an incident, else compose it; no writing transaction may call this."""
    stored = stored_summary(row)
    return compose_summary(connection, row) if stored is None else stored


def compose_summary(connection: Connection, row: RowMapping) -> str:
    """Compose the summary of an incident; ``row`` has all its columns."""
    members = repository.load_members(connection, row["run_id"], row["incident_id"])
    return sentence(repository.incident_from_row(row), members, repository.layer_names(connection, row["run_id"]))


def compose_missing(connection: Connection) -> list[Summary]:
    """Compose summaries that are not stored, of incidents with notifications to come, for at most 0.2 s."""
    until = time.monotonic() + COMPOSE_S
    summaries: list[Summary] = []
    query = select(incident).where(_IS_MISSING).order_by(incident.c.incident_id)
    for row in connection.execute(query).mappings().all():
        if summaries and time.monotonic() > until:
            break
        key = row["run_id"], row["incident_id"], row["revision"]
        summaries.append(Summary(*key, compose_summary(connection, row)))
    return summaries


def store_summaries(connection: Connection, summaries: Sequence[Summary]) -> None:
    """Store summaries, except those of incidents with a newer revision, or that another transaction locks."""
    locked: set[int] = set()
    for run_id, of_run in groupby(sorted(summaries), key=attrgetter("run_id")):  # Citus locks rows of one run only
        ids = [summary.incident_id for summary in of_run]
        query = select(incident.c.incident_id).where(incident.c.run_id == run_id, incident.c.incident_id.in_(ids))
        locked.update(connection.scalars(query.with_for_update(skip_locked=True)))
    rows = [
        {"at_run_id": run_id, "at_incident_id": incident_id, "at_revision": revision, "text": text}
        for run_id, incident_id, revision, text in summaries
        if incident_id in locked
    ]
    if rows:
        connection.execute(_STORE, rows)
