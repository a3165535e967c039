"""The JSON body of a notification: its types, for the OpenAPI document, and its bytes. Pure.

At most 20 kB for any names: they come from the agent and may be hostile, so each text and each list has a limit.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from typing import Annotated, Literal, get_args

from pydantic import Field
from typing_extensions import TypedDict

from gradcanary_server.clock import Moment, timestamp
from gradcanary_server.incidents import explanation, service
from gradcanary_server.incidents.detail import IncidentDetail
from gradcanary_server.incidents.explanation import Explanation
from gradcanary_server.incidents.lifecycle import State, worst_members
from gradcanary_server.incidents.name_patterns import ANY, compress_names
from gradcanary_server.notify.planner import Kind
from gradcanary_server.rules.config import NAMES
from gradcanary_server.rules.types import Severity
from gradcanary_server.validation import Step

Type = Annotated[str, Field(pattern=rf"^gradient\.({'|'.join(NAMES)})\.({'|'.join(get_args(Kind))})$")]


class Counts(TypedDict):
    """Numbers of layers, of the rule ``metric`` of series: firing now, ever fired in this incident, in the run.

    0 if it is about the whole run.
    """

    firing: int
    ever: int
    layers: int


class Worst(TypedDict):
    """One of the worst layers, or series of a metric; value and baseline are absmax or the rule's own measure."""

    name: str
    since_step: Step
    value: float | None
    baseline: float | None


class Parts(TypedDict):
    """The parts of the explanation, in their order; ``why`` begins with the strongest evidence, ``more`` is general."""

    what: str
    since: str
    do_first: str
    why: str
    evidence: Annotated[list[str], Field(max_length=5)]
    more: str


class Covered(TypedDict):
    """Another incident of the same fault, of which no message of its own is sent while this one is not resolved."""

    incident: int
    rule: str
    severity: Severity
    headline: str


class IncidentData(TypedDict):
    """An incident as of this message; ``version`` counts the messages about it to this endpoint.

    ``title`` is one line with severity, run and count. ``caused_by`` is the incident that explains this one. The PNG at
    ``picture_url`` needs a token with the scope read where the collector asks for tokens.
    """

    version: Annotated[int, Field(ge=1)]
    incident: int
    run: str
    rule: str
    severity: Literal["information", "warning", "critical"]
    state: State
    resolution: str | None
    step: Step
    opened_step: Step
    counts: Counts
    worst: Annotated[list[Worst], Field(max_length=10)]
    prefixes: Annotated[list[str], Field(max_length=20, description="patterns that cover every layer that fired")]
    title: str
    caused_by: int | None
    also: Annotated[list[Covered], Field(max_length=5)]
    explanation: Parts
    summary: str
    likely_cause: str
    fix: str
    url: str
    runbook_url: str
    picture_url: str


class IncidentMessage(TypedDict):
    """A notification about an incident."""

    type: Type
    timestamp: Moment
    data: IncidentData


class TestData(TypedDict):
    """A sentence, and the address of the pages."""

    summary: str
    url: str


class TestMessage(TypedDict):
    """The test message of an endpoint."""

    type: Literal["gradcanary.test"]
    timestamp: Moment
    data: TestData


Notification = IncidentMessage | TestMessage

MAX_BODY = 20_000
MAX_WORST = 10
MAX_PREFIXES = 20
MAX_NAME_BYTES = 200
MAX_TEXT_BYTES = 1_500
MAX_EVIDENCE = 5
MAX_EVIDENCE_BYTES = 300
MAX_COVERED = 5
MAX_PART_BYTES = 1_000
MAX_TITLE_BYTES = 300


def build_payload(detail: IncidentDetail, kind: Kind, version: int, public_url: str, now: float) -> bytes:
    """Return the body of all attempts at a message; ``version`` counts the endpoint's messages from 1."""
    incident = detail.incident
    body: IncidentMessage = {
        "type": f"gradient.{incident.rule}.{kind}",
        "timestamp": timestamp(now),
        "data": {
            "version": version,
            "incident": detail.id,
            "run": detail.run,
            "rule": incident.rule,
            "severity": incident.severity,
            "state": incident.state,
            "resolution": incident.resolution,
            "step": detail.step,
            "opened_step": incident.opened_step,
            "counts": {"firing": incident.firing, "ever": incident.ever_firing, "layers": incident.layers},
            "worst": _worst(detail),
            "prefixes": layer_prefixes(_names(detail, members=True), _names(detail, members=False)),
            "title": truncate_bytes(_title(detail, kind), MAX_TITLE_BYTES),
            "caused_by": detail.caused_by,
            "also": [
                {
                    "incident": other.incident,
                    "rule": other.rule,
                    "severity": other.severity,
                    "headline": truncate_bytes(other.headline, MAX_NAME_BYTES),
                }
                for other in detail.covers[:MAX_COVERED]
            ],
            "explanation": _parts(detail.explanation),
            "summary": truncate_bytes(detail.summary, MAX_TEXT_BYTES),
            "likely_cause": truncate_bytes(
                " ".join((detail.cause.text, *_sentences(detail.cause.evidence))), MAX_TEXT_BYTES
            ),
            "fix": truncate_bytes(f"{detail.fix.text}\n{detail.fix.code}", MAX_TEXT_BYTES),
            "url": service.incident_url(public_url, detail.run, detail.id),
            "runbook_url": service.runbook_url(public_url, incident.rule),
            "picture_url": f"{public_url}/api/v1/incidents/{detail.id}/picture.png",
        },
    }
    return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def build_test_payload(url: str, now: float) -> bytes:
    """Return the body of a test message."""
    summary = "This is a test of an endpoint of gradcanary: messages arrive."
    data: TestData = {"summary": summary, "url": url}
    body: TestMessage = {"type": "gradcanary.test", "timestamp": timestamp(now), "data": data}
    return json.dumps(body, separators=(",", ":")).encode()


def layer_prefixes(names: Sequence[str], others: Sequence[str]) -> list[str]:
    """Return at most 20 short patterns that cover every name, and no other layer if possible."""
    return [_short(pattern) for pattern in compress_names(names, others, MAX_PREFIXES)]


def truncate_bytes(text: str, size: int) -> str:
    """Return a text of at most ``size`` bytes in JSON, truncated between characters."""
    if _size(text) <= size:
        return text
    # An escaped character takes up to six bytes: search the longest beginning that fits.
    fits = bisect_right(range(len(text)), size - len("…".encode()), key=lambda length: _size(text[:length]))
    return text[: max(fits - 1, 0)] + "…"


def _title(detail: IncidentDetail, kind: Kind) -> str:
    severities = [other.severity for other in detail.covers]
    return explanation.title(detail.incident, detail.run, detail.headline, kind, severities)


def _parts(parts: Explanation) -> Parts:
    return {
        "what": truncate_bytes(parts.what, MAX_PART_BYTES),
        "since": parts.since,
        "do_first": truncate_bytes(parts.do_first, MAX_EVIDENCE_BYTES),
        "why": truncate_bytes(parts.why, MAX_PART_BYTES),
        "evidence": [truncate_bytes(text, MAX_EVIDENCE_BYTES) for text in parts.evidence[:MAX_EVIDENCE]],
        "more": truncate_bytes(parts.more, MAX_TEXT_BYTES),
    }


def _worst(detail: IncidentDetail) -> list[Worst]:
    return [
        {
            "name": truncate_bytes(_name(detail, number), MAX_NAME_BYTES),
            "since_step": member.since_step,
            "value": member.value,
            "baseline": member.baseline,
        }
        for number, member in worst_members(detail.members, detail.incident.rule)[:MAX_WORST]
    ]


def _names(detail: IncidentDetail, members: bool) -> list[str]:
    return [facts.name for number, facts in detail.layers.items() if (number in detail.members) is members]


def _name(detail: IncidentDetail, number: int) -> str:
    return detail.layers[number].name if number in detail.layers else f"parameter {number}"


def _sentences(evidence: Sequence[str]) -> list[str]:
    return [f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}" for text in evidence]


def _short(pattern: str) -> str:
    # A truncated pattern ends in *, so that it covers the same names.
    return pattern if _size(pattern) <= MAX_NAME_BYTES else truncate_bytes(pattern, MAX_NAME_BYTES)[:-1] + ANY


def _size(text: str) -> int:
    return len(json.dumps(text, ensure_ascii=False).encode()) - 2
