"""The body of a message: frozen bytes, at most 20 kB for any names. Pure.

Names are the sender's and may be hostile: each text has a cap in UTF-8 bytes, each list a cap in entries.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence

from gradcanary_server.dossiers import Dossier
from gradcanary_server.incident_state import RANKS, Member
from gradcanary_server.messages import IncidentMessage, TestData, TestMessage, Worst
from gradcanary_server.pace import Kind
from gradcanary_server.patterns import ANY, compress
from gradcanary_server.timestamps import timestamp

MAX_BODY = 20_000
MAX_WORST = 10
MAX_PREFIXES = 20
MAX_NAME_BYTES = 200
MAX_TEXT_BYTES = 1_500


def seal(dossier: Dossier, kind: Kind, version: int, url: str, now: float) -> bytes:
    """Return the message as it is sent on every attempt; ``version`` counts an endpoint's messages from 1."""
    what = dossier.incident
    body: IncidentMessage = {
        "type": f"gradient.{what.rule}.{kind}",
        "timestamp": timestamp(now),
        "data": {
            "version": version,
            "incident": dossier.id,
            "run": dossier.run,
            "rule": what.rule,
            "severity": what.severity,
            "state": what.state,
            "resolution": what.resolution,
            "step": dossier.step,
            "opened_step": what.opened_step,
            "counts": {"firing": what.firing, "ever": what.ever, "layers": what.layers},
            "worst": _worst(dossier),
            "prefixes": prefixes(_names(dossier, members=True), _names(dossier, members=False)),
            "summary": clip(dossier.summary, MAX_TEXT_BYTES),
            "likely_cause": clip(" ".join((dossier.cause.text, *_sentences(dossier.cause.evidence))), MAX_TEXT_BYTES),
            "fix": clip(f"{dossier.fix.text}\n{dossier.fix.code}", MAX_TEXT_BYTES),
            "url": url,
        },
    }
    return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def test(url: str, now: float) -> bytes:
    """Return the message with which somebody tries an endpoint."""
    summary = "This is a test of an endpoint of gradcanary: messages arrive."
    data: TestData = {"summary": summary, "url": url}
    body: TestMessage = {"type": "gradcanary.test", "timestamp": timestamp(now), "data": data}
    return json.dumps(body, separators=(",", ":")).encode()


def prefixes(names: Sequence[str], others: Sequence[str]) -> list[str]:
    """Return at most 20 short patterns that cover every name, and no other layer where that is possible."""
    return [_short(pattern) for pattern in compress(names, others, MAX_PREFIXES)]


def clip(text: str, size: int) -> str:
    """Return a text of at most ``size`` bytes as JSON holds them, cut at a character."""
    if _size(text) <= size:
        return text
    # Escapes make a character up to six bytes: the longest beginning that fits is looked for.
    fits = bisect_right(range(len(text)), size - len("…".encode()), key=lambda length: _size(text[:length]))
    return text[: max(fits - 1, 0)] + "…"


def _worst(dossier: Dossier) -> list[Worst]:
    named = [(number, member) for number, member in dossier.members.items() if number is not None]
    return [
        {
            "name": clip(_name(dossier, number), MAX_NAME_BYTES),
            "since_step": member.since_step,
            "value": member.value,
            "baseline": member.baseline,
        }
        for number, member in sorted(named, key=lambda entry: _badness(entry[1]))[:MAX_WORST]
    ]


def _badness(member: Member) -> tuple[bool, int, float]:
    """Order members: firing first, then severity, then the smallest value."""
    return member.until_step is not None, -RANKS[member.severity], 0.0 if member.value is None else member.value


def _names(dossier: Dossier, members: bool) -> list[str]:
    return [facts.name for number, facts in dossier.layers.items() if (number in dossier.members) is members]


def _name(dossier: Dossier, number: int) -> str:
    return dossier.layers[number].name if number in dossier.layers else f"layer {number}"


def _sentences(evidence: Sequence[str]) -> list[str]:
    return [f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}" for text in evidence]


def _short(pattern: str) -> str:
    # What is cut away must stay covered: the pattern goes on with anything.
    return pattern if _size(pattern) <= MAX_NAME_BYTES else clip(pattern, MAX_NAME_BYTES)[:-1] + ANY


def _size(text: str) -> int:
    return len(json.dumps(text, ensure_ascii=False).encode()) - 2
