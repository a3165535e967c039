"""The texts of incidents: a headline for lists, and a summary for messages and pages.

All words are in the tables ``WORDS``, ``ENDS`` and ``ABSENCE_ENDS``; :func:`_fields` fills the fields in braces.

A summary names hundreds of layers by regular expressions over all names of a run, and SQLite has one writer. So a
transaction that changes an incident only counts its revisions. The dispatcher composes the summary later and stores it
with its revision; an earlier reader composes it, too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timezone
from statistics import median
from typing import NamedTuple

from sqlalchemy import Connection, RowMapping, bindparam, select, update

from gradcanary_server.incidents import repository
from gradcanary_server.incidents.lifecycle import ABSENCE_RULES, Incident, Member
from gradcanary_server.incidents.name_patterns import ANY, Pattern, compressed_patterns
from gradcanary_server.rules.signals import RULES
from gradcanary_server.storage.schema import incident, is_of_incident

SHOWN = 3
"""Groups of layers that a sentence names; the others are counted."""

MAX_GROUPS = 20
MAX_WORDS = 80
"""Characters of one group in a sentence: names may have 500."""

EVIDENCE = (
    *dict.fromkeys(signal.evidence for signals in RULES.values() for signal in reversed(signals) if signal.evidence),
    None,
)
"""The order of several kinds of evidence in a sentence; a headline has the first one only."""


class Words(NamedTuple):
    """The templates of a headline and of a clause of a sentence."""

    headline: str
    sentence: str


_NONFINITE = "became NaN or infinite at step {began}"
_TOGETHER = "all gradients fell together at step {began}"
_FELL = "the gradients of all layers fell together {fall} at step {began}, "
_NOT_HEARD = "nothing was heard of the run since {moment}, and it did not say that it ended; "
_NO_STEP = "the process is alive but has made no step since step {step} ({moment})"
_IDLE = "{count} without a gradient at step {began}"
_NEVER = "{layers} {are} trainable and never had a gradient since step {since}"
_SUMMED = "{count} summed in low precision at step {began}"
_STILL = "{count} with weights that stand still at step {began}"
_IN_VAIN = "{count} trained in vain since step {began}"
_VAIN = "{layers} {are} trained in vain: {share} of {their} weights did not change {when}, and the loss did not fall"
_TO_ZERO = "{count} with float16 gradients that go to zero at step {began}"
_ZEROS = "{layers} {have} {share} exact zeros in float16 gradients that had fewer before, since step {since}"

WORDS: dict[tuple[str, str | None], Words] = {
    ("collapse", "fall"): Words(
        "{count} collapsed at step {began}", "{layers} fell from {baseline} to {value} at step {since}"
    ),
    ("collapse", "threshold"): Words(
        "{count} under the threshold given at step {began}",
        "{layers} went under the threshold given for {them}, to {value}, at step {since}",
    ),
    ("collapse", "siblings"): Words(
        "{count} far under {their} siblings at step {began}",
        "{layers} {have} much smaller gradients than similar layers: {value} instead of {siblings}, since step {since} "
        "at the latest",
    ),
    ("collapse", "joined_late"): Words(
        "{count} already low when joined at step {began}",
        "{layers} {were} already at {value} when the run was joined at step {since}",
    ),
    ("nonfinite", "loss"): Words(f"the loss {_NONFINITE}", f"the loss {_NONFINITE}"),
    ("nonfinite", "both"): Words(f"the loss {_NONFINITE}", f"the loss and the gradient of {{layers}} {_NONFINITE}"),
    ("nonfinite", None): Words(f"the gradient of {{count}} {_NONFINITE}", f"the gradient of {{layers}} {_NONFINITE}"),
    ("explosion", None): Words(
        "{count} exploded at step {began}", "{layers} went up from {baseline} to {value} at step {since}"
    ),
    ("vanished", "stopped"): Words(
        _IDLE, "{layers} had a gradient in nearly every step, and {zeros} since step {since}"
    ),
    ("vanished", "sporadic"): Words(
        _IDLE,
        "{layers} had a gradient now and then, and none for longer than ever before, since step {since}",
    ),
    ("vanished", "never"): Words(_IDLE, "{layers} that {are} watched had {none_or_zeros} since step {since}"),
    ("vanished", "by_script"): Words(
        "{count} frozen by the script at step {began}",
        "{layers} had a gradient and {are} not trainable any more since step {since}: the script froze {them}",
    ),
    ("unused", None): Words("{count} never had a gradient at step {began}", _NEVER),
    ("accumulation_loss", None): Words(
        "{count} lost gradient while summing at step {began}",
        "{layers} lost {part} of {their} gradient while it was summed over micro-steps, measured at step {since}",
    ),
    ("accumulator", "low_precision_sum"): Words(
        _SUMMED, "{layers} {are} summed over micro-steps in low precision since step {since}"
    ),
    ("accumulator", "declared"): Words(
        _SUMMED, "{layers} {are} summed in another dtype than the configuration asks for, seen at step {since}"
    ),
    ("frozen", "measured"): Words(_STILL, "{layers} {have} weights of which {share} did not change {when}"),
    ("frozen", "stopped"): Words(_STILL, "{layers} moved before, and {share} of {their} weights did not change {when}"),
    ("in_vain", "rounded"): Words(_IN_VAIN, _VAIN),
    ("in_vain", "clipped"): Words(_IN_VAIN, f"{_VAIN}, while the loop clips gradients"),
    ("second_moments", None): Words(
        "{count} with second moments that cannot decay at step {began}",
        "{layers} {have} second moments in low precision that rise and cannot decay, seen at step {since}",
    ),
    ("fp16_underflow", "no_scaler"): Words(
        _TO_ZERO, "{layers} {have} gradients in float16 without a GradScaler, seen at step {since}"
    ),
    ("fp16_underflow", "zeros"): Words(_TO_ZERO, _ZEROS),
    ("fp16_underflow", "all_zeros"): Words(_TO_ZERO, _ZEROS),
    ("clip_before_unscale", None): Words(
        "{count} clipped before unscaling at step {began}",
        "{layers} {are} clipped while {their} gradients carry the loss scale, seen at step {since}",
    ),
    ("not_optimized", None): Words(
        "{count} in no optimizer at step {began}",
        "{layers} {are} in no optimizer: {they} {receive} gradients and never {change}, seen at step {since}",
    ),
    ("scale_drop", "information"): Words(_TOGETHER, f"{_FELL}and the loss came down with them"),
    ("scale_drop", "warning"): Words(_TOGETHER, f"{_FELL}further than the loss explains, or the loss is not known"),
    ("scale_drop", "critical"): Words(_TOGETHER, f"{_FELL}while the loss did not fall"),
    ("silent", None): Words("nothing heard since step {step}", f"{_NOT_HEARD}its last step was {{step}}"),
    ("silent", "no_step"): Words("nothing heard since its start", f"{_NOT_HEARD}it had made no step"),
    ("stalled", None): Words("no new step since step {step}", _NO_STEP),
    ("stalled", "no_step"): Words("no new step since its start", _NO_STEP),
}
"""By rule and evidence; nonfinite by loss and layers, scale_drop by severity.

``began`` is the first step of the incident, ``since`` that of this kind of evidence: the smallest ``since_step``
(when it began), not ``opened_step`` (when it was certain).
"""

UNKNOWN = Words("{count} fired at step {began}", "{layers} fired at step {since}")

_SINGULAR = ("is", "was", "has", "its", "it", "it", "receives", "changes")
_PLURAL = ("are", "were", "have", "their", "them", "they", "receive", "change")

ENDS = {
    "recovered": "Recovered{at}.",
    "run_finished": "The run ended{at} without a recovery.",
    "rebaselined": "Accepted{at}: a new baseline is learnt.",
    "rule_changed": "Over{at}: the rule is another one now.",
    "run_deleted": "Over{at}: the run was deleted.",
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
    """Return the words for a list: "18 of 300 layers collapsed at step 12,340"."""
    kind = next(iter(_by_kind(incident, members)), None)
    return _template(incident.rule, kind).headline.format_map(_fields(incident, members.values()))


def sentence(incident: Incident, members: Mapping[int | None, Member], names: Mapping[int, str]) -> str:
    """Return the summary: the change, its layers, the values, the step; then the end of a resolved incident.

    ``names`` are all layers of the run: a named group covers no healthy layer where that is possible.
    """
    clauses: list[str] = []
    others = [name for layer, name in names.items() if layer not in members]
    for kind, layers in _by_kind(incident, members).items():
        fields = _fields(incident, [members[layer] for layer in layers] or members.values())
        if layers:
            fields |= _agreement(len(layers))
            fields["layers"] = f"{len(layers):,} more" if clauses else _count(len(layers), incident.layers)
            if len(layers) != incident.layers:
                named = [names.get(layer, f"layer {layer}") for layer in layers]
                fields["layers"] += f" ({describe_layers(named, others)})"
        clauses.append(_template(incident.rule, kind).sentence.format_map(fields))
    text = "; ".join(clauses) or f"{incident.rule} fired"
    return f"{text[0].upper()}{text[1:]}.{_ending(incident)}"


def describe_layers(names: Sequence[str], others: Sequence[str]) -> str:
    """Return layers in words: "lora_A in blocks.7-9, head.weight"."""
    patterns = compressed_patterns(names, others, MAX_GROUPS)
    words = [truncate_middle(_words(pattern), MAX_WORDS) for pattern in patterns[:SHOWN]]
    more = len(patterns) - len(words)
    return ", ".join(words) + (f" and {more} more group{'s' if more > 1 else ''}" if more else "")


def format_step(number: int) -> str:
    """Return a step with thousands separators: 12,340."""
    return f"{number:,}"


def format_number(value: float | None) -> str:
    """Return a magnitude with one or two digits: 3e-3, 1.5e-3, 0.05, 120, exactly 0.

    Small and large numbers have one digit where that is within 5 % of the value.
    """
    if value is None or math.isnan(value):
        return "an unknown value"
    if value == 0:
        return "exactly 0"
    if 0.01 <= abs(value) < 10_000:
        return f"{float(f'{value:.2g}'):g}"
    rounded = f"{value:.0e}"
    if abs(float(rounded) - value) > 0.05 * abs(value):
        rounded = f"{value:.1e}"
    mantissa, _, exponent = rounded.partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa


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
    if incident.rule == "scale_drop":
        return {incident.severity: []}
    if incident.rule in ABSENCE_RULES:
        return {member.evidence: [] for member in members.values()}
    by_kind = {kind: [layer for layer in layers if members[layer].evidence == kind] for kind in EVIDENCE}
    return {kind: layers for kind, layers in by_kind.items() if layers}


def _fields(incident: Incident, members: Collection[Member]) -> dict[str, str]:
    """Return the fields of the templates, except the names of layers."""
    count = incident.firing if incident.state == "open" else incident.ever_firing
    value = _typical(members, "value")
    since = format_step(min(member.since_step for member in members))
    fields = {
        **_agreement(count),
        "count": _count(count, incident.layers),
        "began": format_step(incident.since_step),
        "since": since,
        "step": since,
        "value": format_number(value),
        "baseline": format_number(_typical(members, "baseline")),
        "siblings": format_number(_typical(members, "siblings")),
        "part": "a part" if value is None else f"{value:.0%}",
        "share": "most" if value is None else f"{value:.0%}",
        "none_or_zeros": "only gradients of exactly zero" if value == 0 else "no gradient",
        "zeros": "exact zeros" if value == 0 else "none",
        "when": _when(incident, members),
        "fall": "to exactly zero" if value is None else f"by {value:.1f} decades",
    }
    if incident.rule in ABSENCE_RULES:
        # The value is the time without a request or a step, in seconds.
        noticed = incident.opened if incident.reopened_at is None else incident.reopened_at
        moment = datetime.fromtimestamp(noticed - (value or 0.0), tz=timezone.utc)
        fields["moment"] = f"{moment:%Y-%m-%d %H:%M} UTC"
    return fields


def _when(incident: Incident, members: Collection[Member]) -> str:
    """Return the steps between which weights stood still; layers are measured in turns, over equal spans."""
    first, last = (pick(member.since_step for member in members) for pick in (min, max))
    span = 0 if incident.reopened else incident.opened_step - incident.since_step
    if not span:
        return f"since step {format_step(first)}"
    if first == last:
        return f"between step {format_step(first)} and {format_step(first + span)}"
    steps = f"{format_step(first)} to {format_step(last + span)}"
    return f"over {format_step(span)} steps, measured in turns from step {steps}"


def _typical(members: Collection[Member], attribute: str) -> float | None:
    """Return the median of an attribute of members, None if none has it."""
    values = [value for member in members if (value := getattr(member, attribute)) is not None]
    return median(values) if values else None


def _ending(incident: Incident) -> str:
    if incident.state == "open":
        is_partial = incident.ever_firing > incident.firing > 0
        have = _agreement(incident.firing)["have"]
        return f" {incident.firing:,} of them {have} not recovered." if is_partial else ""
    ends = ABSENCE_ENDS if incident.rule in ABSENCE_RULES else ENDS
    words = ends.get(incident.resolution or "") or ends.get(incident.rule, f"Over{{at}}: {incident.resolution}.")
    at = "" if incident.resolved_step is None else f" at step {format_step(incident.resolved_step)}"
    return f" {words.format(at=at)}"


def _count(layers: int, total: int) -> str:
    if layers == total:
        return f"all {total:,} layers" if total > 1 else "the only layer"
    return f"{layers:,} of {total:,} layers"


def _agreement(layers: int) -> dict[str, str]:
    """Return the fields of words that agree with a number of layers."""
    return dict(zip(_PLURAL, _SINGULAR if layers == 1 else _PLURAL, strict=True))


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
    ids = [summary.incident_id for summary in summaries]
    query = select(incident.c.incident_id).where(incident.c.incident_id.in_(ids))
    locked = set(connection.scalars(query.with_for_update(skip_locked=True)))
    rows = [
        {"at_run_id": run_id, "at_incident_id": incident_id, "at_revision": revision, "text": text}
        for run_id, incident_id, revision, text in summaries
        if incident_id in locked
    ]
    if rows:
        connection.execute(_STORE, rows)
