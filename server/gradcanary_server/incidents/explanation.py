"""The parts of an incident's explanation, in the order in which pages, messages and the terminal show them. Pure.

What is known of this run comes before what is true of any run: the strongest evidence first, general text last.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from gradcanary.remedies import Fix
from gradcanary_server.incidents.causes import LikelyCause
from gradcanary_server.incidents.lifecycle import RANKS, Incident
from gradcanary_server.rules.types import Severity

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`])")
_STEP = re.compile(r",?(?: seen)? (?:at|since) steps? [\d,]+(?: to [\d,]+)?")
_COUNT = re.compile(r"\b([\d,]+) of [\d,]+ parameters\b")


@dataclass(frozen=True)
class Explanation:
    """``what`` happened, ``since`` which step and time, what to ``do_first``, ``why``, its ``evidence``, and ``more``.

    ``do_first`` is one line; of an incident that follows another one it is that of the other, and names it. ``why``
    begins with the strongest evidence; ``more`` is general text and code.
    """

    what: str
    since: str
    do_first: str
    why: str
    evidence: tuple[str, ...]
    more: str


def explain(summary: str, incident: Incident, cause: LikelyCause, fix: Fix) -> Explanation:
    """Return the explanation of an incident."""
    evidence = tuple(map(_sentence, cause.evidence))
    first, *others = _SENTENCE_END.split(cause.text)
    do_first, *steps = _SENTENCE_END.split(fix.text)
    pointer = "" if cause.follows is None else f"As for incident {cause.follows}: "
    opened = datetime.fromtimestamp(incident.opened, tz=timezone.utc)
    return Explanation(
        what=summary,
        since=f"step {incident.since_step:,} (opened {opened:%Y-%m-%d %H:%M} UTC)",
        do_first=pointer + " ".join(do_first.split()),
        why=" ".join((evidence[0], cause.text) if evidence else (first,)),
        evidence=evidence,
        more="\n".join(filter(None, (" ".join([*([] if evidence else others), *steps]), fix.code))),
    )


def title(incident: Incident, run: str, headline: str, event: str, severities: Sequence[Severity] = ()) -> str:
    """Return the title of a message: ``[critical] sdxl-0412: 18 layers collapsed (#31)``.

    ``event`` is the kind of the message; ``severities`` are those of the incidents that it covers.
    """
    worst = max((incident.severity, *severities), key=RANKS.__getitem__)
    mark = event if event in ("resolved", "ended") else worst
    short = _COUNT.sub(_count, _STEP.sub("", headline, count=1))
    return f"[{mark}] {run}: {short} (#{incident.id})"


def _count(match: re.Match[str]) -> str:
    return f"{match[1]} parameter{'' if match[1] == '1' else 's'}"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"
