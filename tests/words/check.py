"""Hold the words of a job's incidents against its truth: pure, sentences in and flaws out.

A pattern cannot read. It finds what is surely worth a look; a human judges the raw sentences beside it.
"""

import re
from dataclasses import dataclass

from words.claims import CLAIMS, NOTHING_ELSE, Truth


@dataclass(frozen=True, kw_only=True)
class Incident:
    """What the product says of one incident, in a page or in a message."""

    rule: str
    severity: str
    step: int | None
    headline: str
    cause: str
    fix: str
    parameters: tuple[str, ...] = ()
    told: bool = False
    code: str = ""  # of the cause; a message has none
    do_first: str = ""


@dataclass(frozen=True)
class Flaw:
    """One thing that the truth denies, and where it was found."""

    what: str
    sentence: str = ""

    def __str__(self) -> str:
        return f"{self.what}: {self.sentence!r}" if self.sentence else self.what


def find_flaws(truth: Truth, incidents: list[Incident], messages: int) -> list[Flaw]:
    """Return everything in which incidents and messages differ from the truth."""
    flaws = [flaw for incident in incidents for flaw in incident_flaws(truth, incident)]
    flaws += job_flaws(truth, incidents)
    if messages != truth.messages:
        flaws.append(Flaw(f"{messages} messages, where {truth.messages} are right"))
    return flaws


def job_flaws(truth: Truth, incidents: list[Incident]) -> list[Flaw]:
    """Return what is missing: the right incident, the true cause in it, and one fix that mends the job."""
    if not truth.faulty:
        return [Flaw(f"told of a healthy run: {incident.rule}") for incident in incidents if incident.told]
    roots = [incident for incident in incidents if incident.rule in truth.told]
    if not roots:
        return [Flaw(f"missed: none of {', '.join(sorted(truth.told))} opened")]
    flaws = []
    words = [sentence for incident in roots for sentence in sentences(f"{incident.headline}\n{incident.cause}")]
    if not any(found(pattern, sentence) for pattern in truth.true_causes for sentence in words):
        flaws.append(Flaw("the true cause is not named"))
    remedies = [sentence for incident in roots for sentence in sentences(incident.fix)]
    if not any(found(pattern, sentence) for pattern in truth.true_fixes for sentence in remedies):
        flaws.append(Flaw("no fix that mends the job"))
    return flaws


def incident_flaws(truth: Truth, incident: Incident) -> list[Flaw]:
    """Return the sentences, names and steps of one incident that the truth denies."""
    flaws = []
    if incident.rule not in truth.told | truth.may:
        flaws.append(Flaw(f"{incident.rule} ({incident.severity}) must not open here", incident.headline))
    if incident.rule in truth.told and incident.step is not None and truth.since and incident.step not in truth.since:
        flaws.append(Flaw(f"since step {incident.step}, where {truth.since.start} to {truth.since.stop - 1} is right"))
    strangers = [name for name in incident.parameters if not any(re.fullmatch(p, name) for p in truth.parameters)]
    if truth.parameters and strangers:
        flaws.append(Flaw(f"names parameters that are not affected: {', '.join(strangers[:5])}"))
    diagnosis = sentences(f"{incident.headline}\n{incident.cause}")
    remedy = sentences(incident.fix)
    flaws += [Flaw(f"false cause ({p})", s) for p in truth.false_causes for s in diagnosis if found(p, s)]
    flaws += [Flaw(f"false fix ({p})", s) for p in truth.false_fixes for s in remedy if found(p, s)]
    for pattern, reason in truth.setup.false_anywhere().items():
        flaws += [Flaw(reason, s) for s in diagnosis + remedy if found(pattern, s)]
    flaws += [Flaw("claims to know of everything else", s) for s in diagnosis if found(NOTHING_ELSE, s)]
    if truth.codes and incident.code and incident.code not in truth.codes:
        flaws.append(
            Flaw(f"cause {incident.code}, where {', '.join(sorted(truth.codes))} are right", incident.headline)
        )
    if truth.first and incident.do_first and not found(truth.first, incident.do_first):
        flaws.append(Flaw(f"what to do first has no {truth.first}", incident.do_first))
    for claim, pattern in CLAIMS.items():
        if claim not in truth.loss.claims:
            flaws += [Flaw(f"claims of the loss: {claim}", s) for s in diagnosis if found(pattern, s)]
    return flaws


def sentences(text: str) -> list[str]:
    """Split a text at line ends and after full stops, and leave decimals and names whole."""
    return [part.strip() for part in re.split(r"\n+|(?<=[.!?;])\s+", text) if part.strip()]


def found(pattern: str, sentence: str) -> bool:
    """Return True if the pattern is in the sentence; case counts only inside (?-i:...)."""
    return re.search(pattern, sentence, re.IGNORECASE) is not None
